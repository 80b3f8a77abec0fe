//! Validates a value by a JSON schema, with the keywords of `docs/record.schema.json`. Other keywords are an error, so
//! that none is ignored; `scripts/check-record` uses a complete validator.

use serde_json::{Map, Value};

/// All violations of `schema` by `value`, each with its path.
pub fn violations(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = vec![];
    Validator { root: schema }.validate(schema, value, "$", &mut found);
    found
}

struct Validator<'a> {
    root: &'a Value,
}

impl Validator<'_> {
    fn validate(&self, schema: &Value, value: &Value, place: &str, found: &mut Vec<String>) {
        let keywords = schema.as_object().expect("a schema is an object");
        for (keyword, wanted) in keywords {
            let is_good = match keyword.as_str() {
                "$schema" | "$defs" | "title" | "description" | "properties" => true,
                "type" => is_of_type(wanted, value),
                "const" => wanted == value,
                "enum" => wanted.as_array().expect("a list").contains(value),
                "minimum" => value.as_f64().is_none_or(|number| number >= wanted.as_f64().expect("a number")),
                "pattern" => value.as_str().is_none_or(|text| matches(wanted.as_str().expect("a pattern"), text)),
                "required" => value.as_object().is_none_or(|object| {
                    let names = wanted.as_array().expect("a list").iter();
                    names.map(|name| name.as_str().expect("a name")).all(|name| object.contains_key(name))
                }),
                "$ref" => {
                    let pointer = wanted.as_str().and_then(|text| text.strip_prefix('#')).expect("a reference inside");
                    let target = self.root.pointer(pointer).expect("what is referred to is there");
                    self.validate(target, value, place, found);
                    true
                }
                "anyOf" => wanted.as_array().expect("a list").iter().any(|schema| {
                    let mut inner = vec![];
                    self.validate(schema, value, place, &mut inner);
                    inner.is_empty()
                }),
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.validate(wanted, item, &format!("{place}[{index}]"), found);
                    }
                    true
                }
                "additionalProperties" => {
                    self.validate_properties(keywords, wanted, value, place, found);
                    true
                }
                other => panic!("the keyword {other} is not supported here"),
            };
            if !is_good {
                found.push(format!("{place}: {keyword} {wanted}: {value}"));
            }
        }
    }

    fn validate_properties(
        &self,
        keywords: &Map<String, Value>,
        others: &Value,
        value: &Value,
        place: &str,
        found: &mut Vec<String>,
    ) {
        for (name, inner) in value.as_object().into_iter().flatten() {
            let place = format!("{place}.{name}");
            match keywords.get("properties").and_then(|properties| properties.get(name)) {
                Some(schema) => self.validate(schema, inner, &place, found),
                None if others.is_object() => self.validate(others, inner, &place, found),
                None => found.push(format!("{place}: not in the schema")),
            }
        }
    }
}

fn is_of_type(wanted: &Value, value: &Value) -> bool {
    match wanted {
        Value::Array(types) => types.iter().any(|wanted| is_of_type(wanted, value)),
        wanted => match wanted.as_str().expect("a type") {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "null" => value.is_null(),
            "number" => value.is_number(),
            "integer" => value.is_u64() || value.is_i64(),
            other => panic!("the type {other} is not supported here"),
        },
    }
}

/// `^…$` of literal letters and `[…]{N}` groups.
fn matches(pattern: &str, text: &str) -> bool {
    let mut pattern = pattern.strip_prefix('^').and_then(|rest| rest.strip_suffix('$')).expect("anchored");
    let mut letters = text.chars();
    while !pattern.is_empty() {
        if let Some(rest) = pattern.strip_prefix('[') {
            let (class, rest) = rest.split_once("]{").expect("a class with a count");
            let (count, rest) = rest.split_once('}').expect("a count");
            let is_in = |letter: char| match class {
                "0-9" => letter.is_ascii_digit(),
                "0-9a-f" => letter.is_ascii_digit() || ('a'..='f').contains(&letter),
                other => panic!("the class {other} is not supported here"),
            };
            for _ in 0..count.parse::<usize>().expect("a number") {
                if !letters.next().is_some_and(is_in) {
                    return false;
                }
            }
            pattern = rest;
        } else {
            let mut rest = pattern.chars();
            if letters.next() != rest.next() {
                return false;
            }
            pattern = rest.as_str();
        }
    }
    letters.next().is_none()
}
