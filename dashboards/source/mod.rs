//! What the dashboards show, and how that becomes Grafana's JSON.
//!
//! In: nothing. Out: the files `dashboards/*.json`, by name. Refuses to know: which data there is (a test asks a real
//! Prometheus) and whether the result is good style (a test applies the rules of Grafana's dashboard linter).
//! One file here per dashboard; `UPDATE_GOLDEN=1 cargo nextest run --test dashboards the_files` writes the JSON.

mod device;
mod fleet;
mod namespace;
mod node;
mod panel;
mod podmeter;

use serde_json::{Value, json};

use panel::{Panel, datasource, expand};

/// One selector of series at the top of a dashboard.
struct Variable {
    name: &'static str,
    label: &'static str,
    /// As in a panel: `label_values(metric{scrape}, label)`.
    query: &'static str,
    /// What "All" stands for. `.*` also matches series without the label: not everybody has clusters.
    all: Option<&'static str>,
}

const JOB: Variable =
    Variable { name: "job", label: "Job", query: "label_values(podmeter_build_info, job)", all: Some(".+") };
const CLUSTER: Variable = Variable {
    name: "cluster",
    label: "Cluster",
    query: "label_values(podmeter_build_info{job=~\"$job\"}, cluster)",
    all: Some(".*"),
};
const NODE: Variable = Variable {
    name: "node",
    label: "Node",
    query: "label_values(podmeter_build_info{job=~\"$job\",cluster=~\"$cluster\"}, node)",
    all: Some(".*"),
};
const NAMESPACE: Variable = Variable {
    name: "namespace",
    label: "Namespace",
    query: "label_values(podmeter_container_device_info{scrape}, namespace)",
    all: Some(".+"),
};
const POD: Variable = Variable {
    name: "pod",
    label: "Pod",
    query: "label_values(podmeter_container_device_info{scrape,namespace=~\"$namespace\"}, pod)",
    all: Some(".+"),
};
const GPU: Variable =
    Variable { name: "gpu", label: "GPU", query: "label_values(podmeter_device_info{scrape}, gpu_uuid)", all: None };

/// Panels under a heading.
struct Row {
    title: &'static str,
    panels: Vec<Panel>,
}

struct Dashboard {
    /// Of the file; the uid in Grafana is `podmeter-` and this.
    name: &'static str,
    title: &'static str,
    description: &'static str,
    variables: Vec<Variable>,
    rows: Vec<Row>,
}

/// File name → its content.
pub fn files() -> Vec<(String, String)> {
    let all =
        [fleet::dashboard(), namespace::dashboard(), node::dashboard(), device::dashboard(), podmeter::dashboard()];
    let file = |dashboard: Dashboard| {
        let text = serde_json::to_string_pretty(&dashboard.json()).expect("a value is JSON");
        (format!("{}.json", dashboard.name), text + "\n")
    };
    all.into_iter().map(file).collect()
}

impl Dashboard {
    fn json(&self) -> Value {
        let mut variables = vec![json!({
            "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0,
        })];
        variables.extend(self.variables.iter().map(Variable::json));
        json!({
            "uid": format!("podmeter-{}", self.name),
            "title": format!("podmeter / {}", self.title),
            "description": self.description,
            "tags": ["podmeter"],
            "schemaVersion": 39,
            "version": 1,
            "editable": false,
            "graphTooltip": 1,
            "refresh": "1m",
            "time": { "from": "now-6h", "to": "now" },
            "timezone": "browser",
            "links": [{
                "type": "dashboards", "title": "podmeter", "tags": ["podmeter"], "asDropdown": false,
                "includeVars": true, "keepTime": true, "targetBlank": false, "icon": "external link", "tooltip": "", "url": "",
            }],
            "annotations": { "list": [xid_annotation(self.variables.iter().any(|variable| variable.name == "gpu"))] },
            "templating": { "list": variables },
            "panels": self.panels(),
        })
    }

    /// From left to right, and down when a line of 24 columns is full.
    fn panels(&self) -> Vec<Value> {
        let (mut panels, mut y) = (vec![], 0);
        for row in &self.rows {
            let id = panels.len() + 1;
            let place = json!({ "x": 0, "y": y, "w": 24, "h": 1 });
            panels.push(json!({
                "id": id, "type": "row", "title": row.title, "collapsed": false, "gridPos": place, "panels": [],
            }));
            y += 1;
            let (mut x, mut height) = (0, 0);
            for panel in &row.panels {
                if x + panel.width > 24 {
                    (x, y, height) = (0, y + height, 0);
                }
                panels.push(panel.json(panels.len() + 1, x, y));
                (x, height) = (x + panel.width, height.max(panel.height()));
            }
            y += height;
        }
        panels
    }
}

impl Variable {
    fn json(&self) -> Value {
        let query = expand(self.query);
        let mut json = json!({
            "name": self.name, "label": self.label, "type": "query", "datasource": datasource(), "query": query,
            "definition": query, "regex": "", "refresh": 2, "sort": 3, "hide": 0,
            "multi": self.all.is_some(), "includeAll": self.all.is_some(),
        });
        if let Some(all) = self.all {
            json["allValue"] = all.into();
            json["current"] = json!({ "text": ["All"], "value": ["$__all"] });
        }
        json
    }
}

/// A line through every graph where an XID was heard.
fn xid_annotation(one_device: bool) -> Value {
    let series = if one_device {
        "podmeter_xid_last_timestamp_seconds{device}"
    } else {
        "podmeter_xid_last_timestamp_seconds{scrape}"
    };
    json!({
        "name": "XIDs", "enable": true, "hide": false, "iconColor": "red", "datasource": datasource(),
        "expr": format!("{} * 1000", expand(series)), "useValueForTime": true, "step": "60s",
        "titleFormat": "XID {{xid}} ({{class}})", "textFormat": "{{node}} GPU {{gpu}}", "tagKeys": "source",
    })
}
