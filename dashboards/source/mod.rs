//! What the dashboards show, and how that becomes Grafana's JSON.
//!
//! In: nothing. Out: the files `dashboards/*.json`, by name. Does not know which data there is (a test asks a real
//! Prometheus), nor whether the result is good style (a test applies the rules of Grafana's dashboard linter).
//! One file here per dashboard; `UPDATE_GOLDEN=1 cargo nextest run --test it dashboards::the_files` writes the JSON.

mod device;
mod fleet;
mod namespace;
mod node;
mod panel;
mod podmeter;

use serde_json::{Value, json};

use panel::{Panel, datasource, expand, stat, table};

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
/// Where the panels show one curve per GPU: more than a few nodes are unreadable.
const ONE_NODE: Variable = Variable { all: None, ..NODE };
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

/// Per GPU: what of it is healthy and held by no container.
const FREE_GPUS: &str = "(1 - podmeter_device_allocated_ratio{scrape}) * podmeter_device_healthy{scrape}";

/// Busy fraction of the time held, of which the use is known. Borrowed time is no part of the time held: a container's
/// GPU time and borrowed time are its busy, idle and unknown time.
const BUSY_SHARE: &str = "\
clamp_min(
  1 - sum {by} (rate(podmeter_container_idle_seconds_total{scrape}[{window}]))
  / (
    sum {by} (rate(podmeter_container_allocated_seconds_total{scrape}[{window}]))
    - sum {by} (rate(podmeter_container_uncovered_seconds_total{scrape}[{window}])) > 0
  ),
  0
)";

/// How many GPUs there are, in what state, and how much of them is used.
fn gpus_now() -> [Panel; 7] {
    [
        stat("GPUs", "none", "sum(podmeter_node_devices{scrape,state=\"visible\"})", "GPUs that a driver lists."),
        stat(
            "Allocated",
            "percentunit",
            "avg(podmeter_device_allocated_ratio{scrape})",
            "Fraction of the GPUs that containers hold; of a shared or partitioned GPU, the held fraction.",
        ),
        stat(
            "Free",
            "short",
            &format!("sum({FREE_GPUS})"),
            "GPUs that are healthy and that no container holds; of a shared or partitioned GPU, the free fraction.",
        ),
        stat(
            "Busy",
            "percentunit",
            "avg(rate(podmeter_device_busy_seconds_total{scrape}[5m]))",
            "Fraction of GPU time in which at least one kernel ran, held or not.",
        ),
        stat(
            "Held and idle",
            "short",
            "sum(rate(podmeter_container_idle_seconds_total{scrape}[5m]))",
            "GPUs' worth that containers hold and do not use.",
        ),
        stat(
            "Unhealthy",
            "none",
            "sum(1 - podmeter_device_healthy{scrape})",
            "GPUs that are unhealthy as a whole or in part.",
        )
        .steps(&[(1.0, "red")]),
        stat(
            "Missing",
            "none",
            "sum(podmeter_node_devices{scrape,state=\"expected\"}) \
             - sum(podmeter_node_devices{scrape,state=\"visible\"})",
            "GPUs on the PCI bus that the driver does not list.",
        )
        .steps(&[(1.0, "red")]),
    ]
}

/// What the kubelet counts, one line per combination of these labels.
fn resources(keys: &'static [&'static str]) -> Panel {
    table(
        "Resources as the kubelet counts them",
        keys,
        "GPUs, MIG devices or slots, and devices of other vendors. Free devices are allocatable and no container holds them.",
    )
    .column("Allocatable", "none", "sum {by} (podmeter_resource_devices{scrape,state=\"allocatable\"})")
    .column("Allocated", "none", "sum {by} (podmeter_resource_devices{scrape,state=\"allocated\"})")
    .column("Free", "none", "sum {by} (podmeter_resource_devices{scrape,state=\"unallocated\"})")
    .alarm("Unhealthy", 1.0, "sum {by} (podmeter_resource_devices{scrape,state=\"unhealthy\"})")
}

/// Panels under a heading.
struct Row {
    title: &'static str,
    /// Grafana queries what it hides only when somebody opens it.
    collapsed: bool,
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
        let (mut panels, mut y, mut id) = (vec![], 0, 0);
        for row in &self.rows {
            id += 1;
            let mut heading = json!({
                "id": id, "type": "row", "title": row.title, "collapsed": row.collapsed,
                "gridPos": { "x": 0, "y": y, "w": 24, "h": 1 }, "panels": [],
            });
            y += 1;
            let (mut inside, mut x, mut top, mut height) = (vec![], 0, y, 0);
            for panel in &row.panels {
                if x + panel.width > 24 {
                    (x, top, height) = (0, top + height, 0);
                }
                id += 1;
                inside.push(panel.json(id, x, top));
                (x, height) = (x + panel.width, height.max(panel.rows()));
            }
            if row.collapsed {
                heading["panels"] = inside.into();
                panels.push(heading);
            } else {
                y = top + height;
                panels.push(heading);
                panels.append(&mut inside);
            }
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

/// A line through every graph at the last XID of each code.
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
