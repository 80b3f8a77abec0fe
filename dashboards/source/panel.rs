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
    /// Bars of counts, on a scale that shows one event beside thousands.
    Events,
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

/// One query of a panel.
struct Target {
    /// Name of the series or column.
    name: &'static str,
    query: String,
    /// Of a column, where it is not the panel's.
    unit: Option<&'static str>,
    cell: Cell,
}

/// How a column of a table is drawn.
enum Cell {
    Text,
    /// A bar from 0 to 1.
    Share,
    /// Red from this value on.
    Alarm(f64),
    /// Not the value, but this label, which is no key.
    Label(&'static str),
}

pub struct Panel {
    kind: Kind,
    title: &'static str,
    description: &'static str,
    unit: &'static str,
    pub width: u32,
    height: u32,
    targets: Vec<Target>,
    by_name: bool,
    /// Colour below the first step, if not the kind's.
    base: Option<&'static str>,
    whole: bool,
    maximum: Option<f64>,
    /// In place of "No data".
    empty: Option<&'static str>,
    /// From which value on, which colour. Of a number: below the first, green. Of curves: a line at each.
    steps: &'static [(f64, &'static str)],
    /// The curve of this name is a limit: red and dashed.
    limit: Option<&'static str>,
    /// Value, text, colour.
    states: &'static [(&'static str, &'static str, &'static str)],
}

fn panel(kind: Kind, width: u32, title: &'static str, unit: &'static str, description: &'static str) -> Panel {
    let (targets, maximum) = (vec![], (unit == "percentunit").then_some(1.0));
    let height = if matches!(kind, Kind::Stat) { 4 } else { 8 };
    let (empty, steps, limit, states): (_, &[_], _, &[_]) = (None, &[], None, &[]);
    Panel {
        kind,
        title,
        description,
        unit,
        width,
        height,
        targets,
        by_name: false,
        base: None,
        whole: false,
        maximum,
        empty,
        steps,
        limit,
        states,
    }
}

/// One number; eight of them are a line.
pub fn stat(title: &'static str, unit: &'static str, query: &str, description: &'static str) -> Panel {
    panel(Kind::Stat, 3, title, unit, description).and(title, query)
}

/// Curves, each with a legend.
pub fn series(title: &'static str, unit: &'static str, description: &'static str) -> Panel {
    panel(Kind::Series { stacked: false }, 12, title, unit, description)
}

/// Counts of events that are rare. Zeros are left out: the query says so, and the panel when it is empty.
pub fn events(title: &'static str, legend: &'static str, query: &str, description: &'static str) -> Panel {
    panel(Kind::Events, 12, title, "short", description).and(legend, query).whole().empty("None reported")
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
    pub fn and(self, name: &'static str, query: &str) -> Self {
        self.target(name, None, Cell::Text, query)
    }

    /// Another column.
    pub fn column(self, name: &'static str, unit: &'static str, query: &str) -> Self {
        self.target(name, Some(unit), Cell::Text, query)
    }

    /// Another column, of fractions that are drawn as bars.
    pub fn share(self, name: &'static str, query: &str) -> Self {
        self.target(name, Some("percentunit"), Cell::Share, query)
    }

    /// Another column, of numbers that are red from `from` on.
    pub fn alarm(self, name: &'static str, from: f64, query: &str) -> Self {
        self.target(name, Some("short"), Cell::Alarm(from), query)
    }

    /// Another column, of a label's values.
    pub fn labelled(self, name: &'static str, label: &'static str, query: &str) -> Self {
        self.target(name, None, Cell::Label(label), query)
    }

    /// Sorts a table by its first label but the cluster, instead of by its first number.
    pub fn by_name(mut self) -> Self {
        self.by_name = true;
        self
    }

    fn target(mut self, name: &'static str, unit: Option<&'static str>, cell: Cell, query: &str) -> Self {
        self.targets.push(Target { name, query: query.to_owned(), unit, cell });
        self
    }

    pub fn width(mut self, width: u32) -> Self {
        self.width = width;
        self
    }

    pub fn height(mut self, height: u32) -> Self {
        self.height = height;
        self
    }

    pub fn rows(&self) -> u32 {
        self.height
    }

    /// What an empty panel says: what was not reported, never that all is well.
    pub fn empty(mut self, text: &'static str) -> Self {
        self.empty = Some(text);
        self
    }

    pub fn limit(mut self, name: &'static str) -> Self {
        self.limit = Some(name);
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

    /// The colour below the first step.
    pub fn base(mut self, color: &'static str) -> Self {
        self.base = Some(color);
        self
    }

    /// Counts: `increase` extrapolates to fractions.
    pub fn whole(mut self) -> Self {
        self.whole = true;
        self
    }

    pub fn states(mut self, states: &'static [(&'static str, &'static str, &'static str)]) -> Self {
        self.states = states;
        self
    }

    pub fn json(&self, id: usize, x: u32, y: u32) -> Value {
        let kind = match self.kind {
            Kind::Stat => "stat",
            Kind::Series { .. } | Kind::Events => "timeseries",
            Kind::Timeline { .. } => "state-timeline",
            Kind::Bars => "bargauge",
            Kind::Table { .. } => "table",
        };
        json!({
            "id": id, "type": kind, "title": self.title, "description": self.description, "datasource": datasource(),
            "gridPos": { "x": x, "y": y, "w": self.width, "h": self.height },
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
        let target = |(number, target): (usize, &Target)| {
            json!({
                "refId": reference(number), "datasource": datasource(), "editorMode": "code", "legendFormat": target.name,
                "expr": expand(&target.query.replace("{by}", &by)), "instant": instant, "range": !instant,
                "format": if as_table { "table" } else { "time_series" },
            })
        };
        self.targets.iter().enumerate().map(target).collect()
    }

    fn defaults(&self) -> Value {
        let base = match self.kind {
            Kind::Bars => "semi-dark-blue",
            Kind::Stat if !self.steps.is_empty() => "green",
            _ => "text",
        };
        let mut steps = vec![json!({ "value": null, "color": self.base.unwrap_or(base) })];
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
            Kind::Stat | Kind::Bars => json!({ "mode": "thresholds" }),
            // Names have no order that colours could follow.
            Kind::Timeline { matrix: Some(_) } => json!({ "mode": "fixed", "fixedColor": "semi-dark-blue" }),
            _ => json!({ "mode": "palette-classic" }),
        };
        let mut defaults = json!({
            "unit": self.unit, "color": color, "mappings": mappings,
            "thresholds": { "mode": "absolute", "steps": steps },
        });
        if self.whole {
            defaults["decimals"] = 0.into();
        }
        if let Some(text) = self.empty {
            defaults["noValue"] = text.into();
        }
        if !matches!(self.kind, Kind::Timeline { .. }) && self.unit != "celsius" {
            defaults["min"] = 0.into();
        }
        if let (Some(maximum), Kind::Series { .. } | Kind::Bars) = (self.maximum, &self.kind) {
            defaults["max"] = maximum.into();
        }
        match self.kind {
            Kind::Series { stacked } => {
                let (fill, mode) = if stacked { (40, "normal") } else { (0, "none") };
                // Points, because a value between two gaps is no line.
                defaults["custom"] = json!({
                    "drawStyle": "line", "lineWidth": 1, "fillOpacity": fill, "showPoints": "auto", "pointSize": 3, "spanNulls": false,
                    "stacking": { "mode": mode, "group": "A" },
                    "thresholdsStyle": { "mode": if self.steps.is_empty() { "off" } else { "dashed" } },
                });
                if !self.steps.is_empty() {
                    // A line outside the axis is not drawn.
                    defaults["custom"]["axisSoftMin"] = 0.into();
                }
                if ["none", "short"].contains(&self.unit) {
                    // No axis to 100 where all is 0.
                    defaults["custom"]["axisSoftMax"] = 1.into();
                }
                if self.unit == "none" {
                    // Counts of now change at once.
                    defaults["custom"]["lineInterpolation"] = "stepAfter".into();
                }
            }
            Kind::Events => {
                defaults["custom"] = json!({
                    "drawStyle": "bars", "lineWidth": 1, "fillOpacity": 80, "axisSoftMax": 1,
                    "scaleDistribution": { "type": "symlog", "log": 10, "linearThreshold": 1 },
                });
            }
            Kind::Timeline { .. } => defaults["custom"] = json!({ "fillOpacity": 80, "lineWidth": 1 }),
            _ => {}
        }
        defaults
    }

    fn overrides(&self) -> Vec<Value> {
        let by_name = |name: &str, properties: Vec<Value>| json!({ "matcher": { "id": "byName", "options": name }, "properties": properties });
        let Kind::Table { keys } = self.kind else {
            let red = json!({ "id": "color", "value": { "mode": "fixed", "fixedColor": "red" } });
            let dashed = json!({ "id": "custom.lineStyle", "value": { "fill": "dash", "dash": [10, 10] } });
            return self.limit.iter().map(|name| by_name(name, vec![red.clone(), dashed.clone()])).collect();
        };
        let pixels = |pixels: u32| json!({ "id": "custom.width", "value": pixels });
        // Half a screen is too narrow for columns of the usual width: numbers get what they need, names the rest.
        let narrow = self.width <= 12 && self.targets.iter().any(|target| target.name != "-");
        let labels = keys.iter().filter_map(|key| {
            let width = width(key).filter(|pixels| !narrow || *pixels > 300);
            let properties: Vec<Value> = [link(key), width.map(pixels)].into_iter().flatten().collect();
            (!properties.is_empty()).then(|| by_name(heading(key), properties))
        });
        let columns = self.targets.iter().filter_map(|target| {
            let mut properties = vec![json!({ "id": "unit", "value": target.unit? })];
            if narrow && self.targets.len() > 1 {
                properties.push(pixels(105));
            }
            match target.cell {
                Cell::Text | Cell::Label(_) => {}
                Cell::Share => properties.extend([
                    json!({ "id": "max", "value": 1 }),
                    json!({ "id": "color", "value": { "mode": "fixed", "fixedColor": "semi-dark-blue" } }),
                    json!({ "id": "custom.cellOptions", "value": { "type": "gauge", "mode": "basic", "valueDisplayMode": "text" } }),
                ]),
                Cell::Alarm(from) => properties.extend([
                    json!({ "id": "color", "value": { "mode": "thresholds" } }),
                    json!({ "id": "custom.cellOptions", "value": { "type": "color-text" } }),
                    json!({ "id": "thresholds", "value": { "mode": "absolute", "steps": [
                        { "value": null, "color": "text" }, { "value": from, "color": "red" },
                    ] } }),
                ]),
            }
            Some(by_name(target.name, properties))
        });
        labels.chain(columns).collect()
    }

    fn options(&self) -> Value {
        let last = json!({ "calcs": ["lastNotNull"], "fields": "", "values": false });
        match self.kind {
            Kind::Stat => {
                json!({ "reduceOptions": last, "colorMode": "value", "graphMode": "none", "textMode": "auto" })
            }
            // Beside the curves, because below them only three lines fit.
            Kind::Series { .. } | Kind::Events => json!({
                "legend": {
                    "displayMode": "table", "placement": "right", "showLegend": true,
                    "calcs": if matches!(self.kind, Kind::Events) { json!(["max"]) } else { json!(["mean", "max"]) },
                    "sortBy": "Max", "sortDesc": true,
                },
                "tooltip": { "mode": "multi", "sort": "desc" },
            }),
            Kind::Timeline { .. } => json!({
                "mergeValues": true, "showValue": "auto", "rowHeight": 0.9, "alignValue": "left",
                "legend": { "displayMode": "list", "placement": "bottom", "showLegend": false },
                "tooltip": { "mode": "single", "sort": "none" },
            }),
            Kind::Bars => json!({
                "reduceOptions": last, "orientation": "horizontal", "displayMode": "basic", "showUnfilled": true,
                "valueMode": "text", "namePlacement": "left", "text": { "titleSize": 12, "valueSize": 13 },
                "sizing": "manual", "minVizWidth": 8, "minVizHeight": 16, "maxVizHeight": 24,
            }),
            Kind::Table { keys } => {
                let sort: Vec<Value> = match self.targets.iter().find(|target| target.name != "-") {
                    Some(_) if self.by_name => {
                        let name = keys.iter().find(|key| **key != "cluster").copied();
                        name.iter().map(|name| json!({ "displayName": heading(name), "desc": false })).collect()
                    }
                    Some(first) => vec![json!({ "displayName": first.name, "desc": true })],
                    None => vec![],
                };
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
                match self.targets[0].name {
                    "-" => excluded["Value"] = true.into(),
                    name => renamed["Value"] = name.into(),
                }
                for (position, key) in keys.iter().enumerate() {
                    order[*key] = position.into();
                    renamed[*key] = heading(key).into();
                }
                for (number, target) in self.targets.iter().enumerate() {
                    let position = (keys.len() + number).into();
                    match (target.name, &target.cell) {
                        (name, Cell::Label(label)) => {
                            excluded[value(number)] = true.into();
                            renamed[*label] = name.into();
                            order[*label] = position;
                        }
                        ("-", _) => excluded[value(number)] = true.into(),
                        (name, _) => {
                            renamed[value(number)] = name.into();
                            order[value(number)] = position;
                        }
                    }
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

/// Label → the column's title.
fn heading(label: &'static str) -> &'static str {
    match label {
        "action" => "Action",
        "architecture" => "Architecture",
        "attribution" => "Attribution",
        "class" => "Class",
        "cluster" => "Cluster",
        "compute_instance" => "Compute instance",
        "container" => "Container",
        "cuda_version" => "CUDA",
        "device" => "Device",
        "device_id" => "Device ID",
        "driver_version" => "Driver",
        "error" => "Error",
        "gpu" => "GPU",
        "gpu_instance" => "GPU instance",
        "gpu_uuid" => "GPU UUID",
        "mig_uuid" => "MIG UUID",
        "minor" => "Minor",
        "model" => "Model",
        "namespace" => "Namespace",
        "node" => "Node",
        "numa_node" => "NUMA node",
        "pci_bus_id" => "PCI bus ID",
        "pod" => "Pod",
        "profile" => "Profile",
        "reason" => "Reason",
        "resource" => "Resource",
        "revision" => "Revision",
        "sharing" => "Sharing",
        "source" => "Source",
        "vbios_version" => "VBIOS",
        "version" => "podmeter",
        "xid" => "XID",
        other => other,
    }
}

/// Names that lead to another dashboard do so wherever they stand in a table.
fn link(label: &str) -> Option<Value> {
    let (to, and) = match label {
        "gpu_uuid" => ("device", "var-gpu=${__value.raw}"),
        "node" => ("node", "var-node=${__value.raw}"),
        "namespace" => ("namespace", "var-namespace=${__value.raw}"),
        "pod" => ("namespace", "var-namespace=${__data.fields.namespace}&var-pod=${__value.raw}"),
        _ => return None,
    };
    let carried = "${datasource:queryparam}&${job:queryparam}&${cluster:queryparam}";
    let url = format!("/d/podmeter-{to}?{carried}&{and}&${{__url_time_range}}");
    Some(json!({ "id": "links", "value": [{ "title": format!("Open {to}"), "url": url }] }))
}

/// Of columns whose values are known to be long or short; the others share the rest.
fn width(label: &str) -> Option<u32> {
    match label {
        "gpu" | "minor" | "xid" => Some(70),
        "container" | "sharing" | "attribution" | "profile" => Some(90),
        "resource" => Some(175),
        "model" => Some(210),
        "gpu_uuid" | "mig_uuid" | "device" | "device_id" => Some(340),
        _ => None,
    }
}
