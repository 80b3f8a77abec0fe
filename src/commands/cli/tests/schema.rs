//! The JSON schema of the configuration file, for the chart and for editors.
//!
//! In: the rows of the options, the types of the sections. Out: `deploy/helm/podmeter/config.schema.json`, without
//! references, so that the chart can embed it. It refuses most of what the agent refuses, and a key without a value too.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::agent::{HealthConfig, PluginConfig, ProfileConfig};
use crate::commands::cli::options::{OptionRow, ROWS, schemas};
use crate::input::SwitchOr;

pub fn config_file() -> Value {
    let mut properties = Map::new();
    for row in ROWS.iter().filter(|row| !row.key.is_empty() && !row.key.contains('.')) {
        properties.insert(row.key.clone(), option(row));
    }
    let mut generator = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true).into_generator();
    properties.insert("health".to_owned(), section::<HealthConfig>(&mut generator));
    let mut plugin = section::<SwitchOr<PluginConfig>>(&mut generator);
    plugin["description"] = json!("The bundled device plugin: on, off, or what it offers.");
    properties.insert("devicePlugin".to_owned(), plugin);
    let profiles = json!({
        "description": "Settings for some of the nodes, chosen by their GPUs and names. The first profile that matches applies. Takes effect on SIGHUP.",
        "type": "array",
        "items": section::<ProfileConfig>(&mut generator),
    });
    properties.insert("profiles".to_owned(), profiles);
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Configuration file of podmeter agent",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}

fn option(row: &OptionRow) -> Value {
    let (mut schema, default) = schemas().remove(row.name).expect("every row has a type");
    let number = |text: &str| text.parse::<u64>().ok();
    if let Some((low, high)) = row.range.split_once(" to ")
        && schema["type"] == "integer"
    {
        (schema["minimum"], schema["maximum"]) = (json!(number(low)), json!(number(high)));
    }
    let mut description = row.help.to_owned() + ".";
    match default {
        Some(default) => {
            schema["default"] = match schema["type"].as_str() {
                Some("array") => default.split(", ").collect(),
                Some("integer" | "boolean") => serde_json::from_str(default).expect("a number or a boolean"),
                _ => json!(default),
            };
        }
        None => description += &format!(" Default: {}.", row.default),
    }
    if !row.range.is_empty() {
        description += &format!(" Range: {}.", row.range);
    }
    description += if row.is_reloadable { " Takes effect on SIGHUP." } else { " A change needs a restart." };
    schema["description"] = json!(description);
    schema
}

fn section<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    let mut schema = generator.subschema_for::<T>().to_value();
    plain(&mut schema);
    schema
}

/// Without what Rust's types alone mean, and with alternatives that give one error where a value fits none.
fn plain(schema: &mut Value) {
    match schema {
        Value::Object(keywords) => {
            keywords.retain(|keyword, value| {
                !matches!((keyword.as_str(), &value), ("default", Value::Null) | ("format", Value::String(_)))
            });
            keywords.values_mut().for_each(plain);
            if let Some(Value::String(description)) = keywords.get_mut("description") {
                *description = description.replace('\n', " ");
            }
            if let Some(Value::Array(alternatives)) = keywords.remove("oneOf") {
                keywords.extend(one_of(&alternatives, keywords.get("description")));
            }
        }
        Value::Array(schemas) => schemas.iter_mut().for_each(plain),
        _ => {}
    }
}

fn one_of(alternatives: &[Value], description: Option<&Value>) -> Map<String, Value> {
    let object = |value: Value| value.as_object().cloned().expect("an object");
    let all = |keyword: &str| alternatives.iter().map(|one| one.pointer(keyword).cloned()).collect::<Option<Vec<_>>>();
    if let Some(names) = all("/const") {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let described =
            alternatives.iter().map(|one| format!("`{}`: {}", word(&one["const"]), word(&one["description"])));
        let sentences = description.map(word).into_iter().chain(described).collect::<Vec<_>>();
        return object(json!({ "enum": names, "description": sentences.join(" ") }));
    }
    if let Some(kinds) = all("/properties/kind/const") {
        let kind = |kind: &Value| json!({ "required": ["kind"], "properties": { "kind": { "const": kind } } });
        let cases = kinds.iter().zip(alternatives).map(|(name, one)| json!({ "if": kind(name), "then": one }));
        return object(json!({
            "type": "object",
            "required": ["kind"],
            "properties": { "kind": { "enum": kinds } },
            "allOf": cases.collect::<Vec<_>>(),
        }));
    }
    object(json!({ "oneOf": alternatives }))
}

/// `UPDATE_GOLDEN=1 cargo test published_schema` accepts a change.
#[test]
fn the_published_schema_is_that_of_the_types() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/helm/podmeter/config.schema.json");
    let schema = serde_json::to_string_pretty(&config_file()).expect("JSON") + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, &schema).expect("written");
    }
    let published = std::fs::read_to_string(&file).expect("config.schema.json");
    assert!(published == schema, "{} differs from the types of the configuration file", file.display());
}
