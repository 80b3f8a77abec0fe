//! The dashboards as they are shipped, and as much of PromQL as is needed to see what their queries select.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use podmeter::serve::metrics::catalogue::CatalogueRow;
use serde_json::Value;

pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards")
}

/// File name → dashboard.
pub fn read() -> BTreeMap<String, Value> {
    let entries =
        std::fs::read_dir(directory()).expect("dashboards/ is there").map(|entry| entry.expect("readable").path());
    let files = entries.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("readable");
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        (name, serde_json::from_str(&text).expect("JSON"))
    };
    files.map(read).collect()
}

/// One query of a panel or an annotation.
pub struct PanelQuery {
    /// `fleet / Unhealthy GPUs / A`: dashboard, panel, query.
    pub place: String,
    pub expression: String,
    pub legend: String,
    /// Evaluated once, at the end of the time range.
    pub instant: bool,
}

/// The panels of a dashboard, those of collapsed rows too.
pub fn panels(dashboard: &Value) -> Vec<&Value> {
    list(dashboard).flat_map(|panel| if panel["type"] == "row" { list(panel).collect() } else { vec![panel] }).collect()
}

fn list(dashboard_or_row: &Value) -> impl Iterator<Item = &Value> {
    dashboard_or_row["panels"].as_array().into_iter().flatten()
}

pub fn queries() -> Vec<PanelQuery> {
    let mut all = vec![];
    for (name, dashboard) in read() {
        let name = name.trim_end_matches(".json").to_owned();
        let string = |value: &Value| value.as_str().expect("text").to_owned();
        for annotation in dashboard["annotations"]["list"].as_array().expect("a list") {
            let place = format!("{name} / annotation {}", string(&annotation["name"]));
            let [expression, legend] = ["expr", "titleFormat"].map(|key| string(&annotation[key]));
            all.push(PanelQuery { place, expression, legend, instant: false });
        }
        for panel in panels(&dashboard) {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let place = format!("{name} / {} / {}", string(&panel["title"]), string(&target["refId"]));
                let [expression, legend] = ["expr", "legendFormat"].map(|key| string(&target[key]));
                all.push(PanelQuery { place, expression, legend, instant: target["instant"] == true });
            }
        }
    }
    all
}

/// What the variables query: (dashboard and variable, metric with matchers, label).
pub fn variables() -> Vec<(String, String, String)> {
    let mut all = vec![];
    for (name, dashboard) in read() {
        for variable in dashboard["templating"]["list"].as_array().expect("a list") {
            let Some(query) = variable["query"].as_str().and_then(|query| query.strip_prefix("label_values(")) else {
                continue;
            };
            let (metric, label) =
                query.strip_suffix(')').and_then(|inside| inside.rsplit_once(", ")).expect("two arguments");
            all.push((format!("{name} / variable {}", variable["name"]), metric.to_owned(), label.to_owned()));
        }
    }
    all
}

pub fn catalogue() -> BTreeMap<&'static str, CatalogueRow> {
    podmeter::serve::metrics::catalogue::all().map(|row| (row.name, row)).collect()
}

/// The family that a histogram's series belongs to.
pub fn family(metric: &str) -> &str {
    metric.strip_suffix("_bucket").unwrap_or(metric)
}

/// Some series that a query selects: `function(metric{matchers}[range]`.
#[derive(Debug, Default)]
pub struct Selector {
    pub function: String,
    pub metric: String,
    pub matchers: Vec<String>,
    pub range: Option<String>,
}

/// Words that are neither functions nor metrics.
const KEYWORDS: &str = "and or unless by on without ignoring group_left group_right bool offset sum max";

/// Every selector in a query. A word is a function or an operator where a parenthesis follows, a label inside the
/// parentheses of `by`, `on` and their like, and the name of a metric anywhere else.
pub fn selectors(query: &str) -> Vec<Selector> {
    let (mut found, mut rest, mut before) = (vec![], query, String::new());
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    while let Some(first) = rest.chars().next() {
        if first == '"' {
            let end = rest[1..].find('"').expect("the string ends") + 2;
            rest = &rest[end..];
        } else if first.is_alphabetic() {
            let (word, after) = rest.split_at(rest.find(|letter| !is_word(letter)).unwrap_or(rest.len()));
            let next = after.trim_start();
            rest = after;
            if ["by", "on", "without", "ignoring", "group_left", "group_right"].contains(&word) {
                rest = next.split_once(')').expect("labels in parentheses").1;
            } else if !KEYWORDS.split(' ').any(|keyword| keyword == word)
                && !next.starts_with('(')
                && !next.starts_with("by ")
            {
                let (selector, after) = selector(&before, word, after);
                found.push(selector);
                rest = after;
            }
            before = if rest.starts_with('(') { word.to_owned() } else { String::new() };
        } else if first.is_ascii_digit() || first == '$' {
            // A number, which may have letters, as 3.6e6, or be a variable.
            rest = rest[1..].trim_start_matches(|letter: char| is_word(letter) || letter == '.');
        } else {
            if first != '(' {
                before.clear();
            }
            rest = &rest[first.len_utf8()..];
        }
    }
    found
}

fn selector<'a>(function: &str, metric: &str, after: &'a str) -> (Selector, &'a str) {
    let mut found = Selector { function: function.to_owned(), metric: metric.to_owned(), ..Selector::default() };
    let mut rest = after;
    if let Some(inside) = rest.strip_prefix('{') {
        let (mut quoted, mut end) = (false, inside.len());
        for (position, letter) in inside.char_indices() {
            match letter {
                '"' => quoted = !quoted,
                '}' if !quoted => {
                    end = position;
                    break;
                }
                _ => {}
            }
        }
        let mut matcher = String::new();
        for letter in inside[..end].chars() {
            if letter == '"' {
                quoted = !quoted;
            }
            if letter == ',' && !quoted {
                found.matchers.push(std::mem::take(&mut matcher));
            } else {
                matcher.push(letter);
            }
        }
        found.matchers.extend((!matcher.is_empty()).then_some(matcher));
        rest = &inside[end + 1..];
    }
    if let Some((range, after)) = rest.strip_prefix('[').and_then(|inside| inside.split_once(']')) {
        found.range = Some(range.to_owned());
        rest = after;
    }
    (found, rest)
}
