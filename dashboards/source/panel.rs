//! One panel: what it asks, what it is called, how it is drawn.

use serde_json::{Value, json};

/// In a query, after a metric's name: of the targets that the dashboard selects.
const SCRAPE: &str = "{job=~\"$job\",cluster=~\"$cluster\",node=~\"$node\"";
const PODS: &str = "{job=~\"$job\",cluster=~\"$cluster\",node=~\"$node\",namespace=~\"$namespace\",pod=~\"$pod\"";
const DEVICE: &str = "{job=~\"$job\",cluster=~\"$cluster\",node=~\"$node\",gpu_uuid=~\"$gpu\"";

/// `metric{scrape,state="used"}` → with the matchers that `{scrape`, `{pods` and `{device` stand for.
pub fn expand(query: &str) -> String {
    query.replace("{scrape", SCRAPE).replace("{pods", PODS).replace("{device", DEVICE)
}

pub fn datasource() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

enum Kind {
    Stat,
    Series {
        stacked: bool,
    },
    /// Rows of states over time: one per series, or with a column, one per value of that label, showing another label.
    Timeline {
        matrix: Option<(&'static str, &'static str)>,
    },
    Bars,
    /// One line per combination of these labels.
    Table {
        keys: &'static [&'static str],
    },
}

pub struct Panel {
    kind: Kind,
    title: &'static str,
    description: &'static str,
    unit: &'static str,
    pub width: u32,
    /// Name of the series or column, its unit where it is not the panel's, and the query.
    targets: Vec<(&'static str, Option<&'static str>, String)>,
    maximum: Option<f64>,
    /// From which value on, which colour; below the first, green.
    steps: &'static [(f64, &'static str)],
    /// Value, text, colour.
    states: &'static [(&'static str, &'static str, &'static str)],
}

fn panel(kind: Kind, width: u32, title: &'static str, unit: &'static str, description: &'static str) -> Panel {
    let (targets, maximum) = (vec![], (unit == "percentunit").then_some(1.0));
    Panel { kind, title, description, unit, width, targets, maximum, steps: &[], states: &[] }
}

/// One number.
pub fn stat(title: &'static str, unit: &'static str, query: &str, description: &'static str) -> Panel {
    panel(Kind::Stat, 4, title, unit, description).and(title, query)
}

/// Curves, each with a legend.
pub fn series(title: &'static str, unit: &'static str, description: &'static str) -> Panel {
    panel(Kind::Series { stacked: false }, 12, title, unit, description)
}

/// States over time, one row per series.
pub fn timeline(title: &'static str, legend: &'static str, query: &str, description: &'static str) -> Panel {
    panel(Kind::Timeline { matrix: None }, 24, title, "none", description).and(legend, query)
}

/// States over time, one row per value of the label `row`, showing the label `state`.
pub fn matrix(title: &'static str, row: &'static str, state: &'static str, query: &str, text: &'static str) -> Panel {
    panel(Kind::Timeline { matrix: Some((row, state)) }, 24, title, "none", text).and(state, query)
}

/// Horizontal bars, the longest first.
pub fn bars(title: &'static str, unit: &'static str, legend: &'static str, query: &str, text: &'static str) -> Panel {
    panel(Kind::Bars, 8, title, unit, text).and(legend, query)
}

/// Lines by labels. `{by}` in its queries stands for those labels. A column named `-` only says which lines there are.
pub fn table(title: &'static str, keys: &'static [&'static str], description: &'static str) -> Panel {
    panel(Kind::Table { keys }, 24, title, "short", description)
}

impl Panel {
    /// Another curve.
    pub fn and(mut self, legend: &'static str, query: &str) -> Self {
        self.targets.push((legend, None, query.to_owned()));
        self
    }

    /// Another column.
    pub fn column(mut self, name: &'static str, unit: &'static str, query: &str) -> Self {
        self.targets.push((name, Some(unit), query.to_owned()));
        self
    }

    pub fn width(mut self, width: u32) -> Self {
        self.width = width;
        self
    }

    pub fn stacked(mut self) -> Self {
        self.kind = Kind::Series { stacked: true };
        self.maximum = None;
        self
    }

    pub fn steps(mut self, steps: &'static [(f64, &'static str)]) -> Self {
        self.steps = steps;
        self
    }

    pub fn states(mut self, states: &'static [(&'static str, &'static str, &'static str)]) -> Self {
        self.states = states;
        self
    }

    pub fn height(&self) -> u32 {
        if matches!(self.kind, Kind::Stat) { 4 } else { 8 }
    }

    pub fn json(&self, id: usize, x: u32, y: u32) -> Value {
        let kind = match self.kind {
            Kind::Stat => "stat",
            Kind::Series { .. } => "timeseries",
            Kind::Timeline { .. } => "state-timeline",
            Kind::Bars => "bargauge",
            Kind::Table { .. } => "table",
        };
        json!({
            "id": id, "type": kind, "title": self.title, "description": self.description, "datasource": datasource(),
            "gridPos": { "x": x, "y": y, "w": self.width, "h": self.height() },
            "targets": self.targets(), "fieldConfig": { "defaults": self.defaults(), "overrides": self.overrides() },
            "options": self.options(), "transformations": self.transformations(),
        })
    }

    fn targets(&self) -> Vec<Value> {
        let instant = matches!(self.kind, Kind::Stat | Kind::Bars | Kind::Table { .. });
        let as_table = matches!(self.kind, Kind::Table { .. } | Kind::Timeline { matrix: Some(_) });
        let by = match self.kind {
            Kind::Table { keys } => format!("by ({})", keys.join(", ")),
            _ => String::new(),
        };
        let target = |(number, (legend, _, query)): (usize, &(&str, Option<&str>, String))| {
            json!({
                "refId": reference(number), "datasource": datasource(), "editorMode": "code", "legendFormat": legend,
                "expr": expand(&query.replace("{by}", &by)), "instant": instant, "range": !instant,
                "format": if as_table { "table" } else { "time_series" },
            })
        };
        self.targets.iter().enumerate().map(target).collect()
    }

    fn defaults(&self) -> Value {
        let mut steps = vec![json!({ "value": null, "color": if self.steps.is_empty() { "text" } else { "green" } })];
        steps.extend(self.steps.iter().map(|(value, color)| json!({ "value": value, "color": color })));
        let state = |(index, (value, text, color)): (usize, &(&str, &str, &str))| {
            // A value that is a number is matched as such; everything else is a pattern of a label. No text: as it is.
            let mut result = json!({ "color": color, "index": index });
            if !text.is_empty() {
                result["text"] = (*text).into();
            }
            match value.parse::<f64>() {
                Ok(_) => json!({ "type": "value", "options": { *value: result } }),
                Err(_) => json!({ "type": "regex", "options": { "pattern": value, "result": result } }),
            }
        };
        let mappings: Vec<Value> = self.states.iter().enumerate().map(state).collect();
        let color = match self.kind {
            Kind::Stat | Kind::Bars => "thresholds",
            _ => "palette-classic",
        };
        let mut defaults = json!({
            "unit": self.unit, "color": { "mode": color }, "mappings": mappings,
            "thresholds": { "mode": "absolute", "steps": steps },
        });
        if !matches!(self.kind, Kind::Timeline { .. }) && self.unit != "celsius" {
            defaults["min"] = 0.into();
        }
        if let (Some(maximum), Kind::Series { .. } | Kind::Bars) = (self.maximum, &self.kind) {
            defaults["max"] = maximum.into();
        }
        match self.kind {
            Kind::Series { stacked } => {
                let fill = if stacked { 40 } else { 5 };
                let mode = if stacked { "normal" } else { "none" };
                defaults["custom"] = json!({
                    "drawStyle": "line", "lineWidth": 1, "fillOpacity": fill, "showPoints": "never", "spanNulls": false,
                    "stacking": { "mode": mode, "group": "A" },
                });
            }
            Kind::Timeline { .. } => defaults["custom"] = json!({ "fillOpacity": 80, "lineWidth": 1 }),
            _ => {}
        }
        defaults
    }

    /// Names that lead to another dashboard do so wherever they stand in a table; columns have units of their own.
    fn overrides(&self) -> Vec<Value> {
        let Kind::Table { keys } = self.kind else { return vec![] };
        let by_name = |name: &str, property: Value| json!({ "matcher": { "id": "byName", "options": name }, "properties": [property] });
        let links = keys.iter().filter_map(|key| {
            let (to, and) = match *key {
                "gpu_uuid" => ("device", "var-gpu=${__value.raw}"),
                "node" => ("node", "var-node=${__value.raw}"),
                "namespace" => ("namespace", "var-namespace=${__value.raw}"),
                "pod" => ("namespace", "var-namespace=${__data.fields.namespace}&var-pod=${__value.raw}"),
                _ => return None,
            };
            let carried = "${datasource:queryparam}&${job:queryparam}&${cluster:queryparam}";
            let url = format!("/d/podmeter-{to}?{carried}&{and}&${{__url_time_range}}");
            Some(by_name(key, json!({ "id": "links", "value": [{ "title": format!("Open {to}"), "url": url }] })))
        });
        let units = self
            .targets
            .iter()
            .filter_map(|(name, unit, _)| Some(by_name(name, json!({ "id": "unit", "value": (*unit)? }))));
        links.chain(units).collect()
    }

    fn options(&self) -> Value {
        let last = json!({ "calcs": ["lastNotNull"], "fields": "", "values": false });
        match self.kind {
            Kind::Stat => {
                json!({ "reduceOptions": last, "colorMode": "value", "graphMode": "none", "textMode": "auto" })
            }
            Kind::Series { .. } => json!({
                "legend": { "displayMode": "table", "placement": "bottom", "showLegend": true, "calcs": ["mean", "max"] },
                "tooltip": { "mode": "multi", "sort": "desc" },
            }),
            Kind::Timeline { .. } => json!({
                "mergeValues": true, "showValue": "auto", "rowHeight": 0.9, "alignValue": "left",
                "legend": { "displayMode": "list", "placement": "bottom", "showLegend": false },
                "tooltip": { "mode": "single", "sort": "none" },
            }),
            Kind::Bars => json!({
                "reduceOptions": last, "orientation": "horizontal", "displayMode": "basic", "showUnfilled": true,
            }),
            Kind::Table { .. } => {
                let first = self.targets.iter().find(|(name, ..)| *name != "-").map(|(name, ..)| *name);
                let sort: Vec<Value> = first.iter().map(|name| json!({ "displayName": name, "desc": true })).collect();
                json!({ "showHeader": true, "cellHeight": "sm", "footer": { "show": false }, "sortBy": sort })
            }
        }
    }

    fn transformations(&self) -> Vec<Value> {
        match self.kind {
            Kind::Timeline { matrix: Some((row, state)) } => vec![
                json!({ "id": "groupingToMatrix", "options": {
                    "columnField": row, "rowField": "Time", "valueField": state, "emptyValue": "null",
                } }),
                json!({ "id": "convertFieldType", "options": { "fields": {}, "conversions": [
                    { "targetField": format!("Time\\{row}"), "destinationType": "time" },
                ] } }),
            ],
            Kind::Table { keys } => {
                // One query's value is called "Value", one of several by its letter.
                let value = |number: usize| match self.targets.len() {
                    1 => "Value".to_owned(),
                    _ => format!("Value #{}", reference(number)),
                };
                let mut excluded = json!({ "Time": true });
                let (mut renamed, mut order) = (json!({}), json!({}));
                // Where only the first of several queries has an answer, Grafana leaves out the letter.
                match self.targets[0].0 {
                    "-" => excluded["Value"] = true.into(),
                    name => renamed["Value"] = name.into(),
                }
                for (position, key) in keys.iter().enumerate() {
                    order[*key] = position.into();
                }
                for (number, (name, ..)) in self.targets.iter().enumerate() {
                    match *name {
                        "-" => excluded[value(number)] = true.into(),
                        name => renamed[value(number)] = name.into(),
                    }
                    order[value(number)] = (keys.len() + number).into();
                }
                let organize = json!({ "excludeByName": excluded, "renameByName": renamed, "indexByName": order });
                vec![json!({ "id": "merge", "options": {} }), json!({ "id": "organize", "options": organize })]
            }
            _ => vec![],
        }
    }
}

fn reference(number: usize) -> String {
    char::from(b'A' + u8::try_from(number).expect("a panel has few queries")).to_string()
}
