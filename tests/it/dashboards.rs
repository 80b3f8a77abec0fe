//! The dashboards name only metrics and labels that there are, lead to one another, and keep the rules of Grafana's
//! dashboard linter. A real Prometheus checks that their queries return data in `tests/peers/dashboards.rs`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::support::dashboards::{PanelQuery, catalogue, family, panels, queries, read, selectors};

/// From the scrape or from Prometheus, on every series.
const SCRAPE_LABELS: [&str; 4] = ["job", "cluster", "node", "exported_pod"];
/// Prometheus makes these of each scrape.
const PROMETHEUS_METRICS: [&str; 2] = ["up", "scrape_samples_scraped"];
/// The panels that show raw counters.
const LEVELS: [&str; 2] = ["device / Memory errors so far / ", "device / Uncorrected ECC / "];
/// The window of what is shown for now, as titles and the recording rules name it.
const FIXED: &str = "5m";
/// Of Grafana's units, those in use here.
const UNITS: &str = "none short percentunit watt kwatth bytes Bps celsius hertz s cps dateTimeAsIso bool_yes_no";

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} is not text in {value}"))
}

/// The rules that a dashboard breaks, each with the place.
#[derive(Default)]
struct Breaches(Vec<String>);

impl Breaches {
    fn check(&mut self, place: &str, holds: bool, rule: &str) {
        if !holds {
            self.0.push(format!("{place}: {rule}"));
        }
    }

    fn assert_none(self) {
        assert!(self.0.is_empty(), "{}", self.0.join("\n"));
    }
}

fn variables(dashboard: &Value) -> &[Value] {
    dashboard["templating"]["list"].as_array().unwrap()
}

/// The linter's rules about a dashboard, and what Grafana needs to import it.
#[test]
fn every_dashboard_is_complete() {
    let (mut breaches, mut uids) = (Breaches::default(), BTreeSet::new());
    for (name, dashboard) in read() {
        let mut check = |holds: bool, rule: &str| breaches.check(&name, holds, rule);
        check(text(&dashboard, "uid") == format!("podmeter-{}", name.trim_end_matches(".json")), "uid after the file");
        check(uids.insert(text(&dashboard, "uid").to_owned()), "its own uid");
        check(dashboard["editable"] == false, "uneditable-dashboard");
        check(dashboard["tags"] == serde_json::json!(["podmeter"]), "the tag that links go by");
        check(dashboard.get("id").is_none(), "no id of some database");
        let [title, description] = ["title", "description"].map(|key| text(&dashboard, key));
        check(!title.is_empty() && !description.is_empty(), "title, description");
        let rows = dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] == "row");
        let ids: Vec<_> = rows.chain(panels(&dashboard)).map(|panel| &panel["id"]).collect();
        check(ids.iter().map(ToString::to_string).collect::<BTreeSet<_>>().len() == ids.len(), "panel ids differ");
    }
    breaches.assert_none();
}

/// The linter's rules about variables.
#[test]
fn every_variable_is_used_and_asks_the_data_source_that_is_selected() {
    let mut breaches = Breaches::default();
    for (name, dashboard) in read() {
        let mut check = |holds: bool, rule: &str| breaches.check(&name, holds, rule);
        let [source, others @ ..] = variables(&dashboard) else { panic!("{name} has no variables") };
        let is_source = source["type"] == "datasource" && source["name"] == "datasource";
        check(is_source && source["label"] == "Data source", "template-datasource-rule");
        let job = others.iter().find(|variable| variable["name"] == "job").unwrap();
        check(job["multi"] == true && job["allValue"] == ".+" && job["label"] == "Job", "template-job-rule");
        let everything = dashboard.to_string().replace("\\\"", "\"");
        for variable in others {
            let name = text(variable, "name");
            if variable["type"] == "textbox" {
                let in_query_or_title = [format!("${name} * "), format!(" ${name}\",\"type\":\"row\"")];
                check(
                    in_query_or_title.iter().any(|text| everything.contains(text)),
                    &format!("variable {name} is used"),
                );
                check(variable["query"] == variable["current"]["value"], "the default is what it begins with");
                continue;
            }
            check(variable["type"] == "query" && variable["refresh"] == 2, "template-on-time-change-reload-rule");
            check(variable["datasource"]["uid"] == "${datasource}", "variables ask the templated data source");
            check(everything.contains(&format!("\"${name}\"")), &format!("variable {name} is used"));
            // Not every scrape configuration sets these labels: "all" takes series without them, too, and so does the
            // empty value, which a variable without "all" then has.
            if ["cluster", "node"].contains(&name) {
                let works = variable["allValue"] == ".*" || variable["includeAll"] == false;
                check(works, &format!("{name} works where there is no such label"));
            }
        }
    }
    breaches.assert_none();
}

/// The linter's rules about panels: title, description, unit, data source, targets; and a legend.
#[test]
fn every_panel_has_a_description() {
    let mut breaches = Breaches::default();
    for (name, dashboard) in read() {
        let mut titles = BTreeSet::new();
        for panel in panels(&dashboard) {
            let title = text(panel, "title");
            let place = format!("{name}, {title}");
            let mut check = |holds: bool, rule: &str| breaches.check(&place, holds, rule);
            check(!title.is_empty() && text(panel, "description").ends_with('.'), "panel-title-description-rule");
            check(titles.insert((title, panel["type"].to_string())), "a title of its own");
            let unit = text(&panel["fieldConfig"]["defaults"], "unit");
            check(UNITS.split(' ').any(|known| known == unit), "panel-units-rule");
            check(panel["datasource"]["uid"] == "${datasource}", "panel-datasource-rule");
            let targets = panel["targets"].as_array().unwrap();
            check(!targets.is_empty(), "panel-no-targets-rule");
            for target in targets {
                check(target["datasource"]["uid"] == "${datasource}", "panel-datasource-rule");
                check(!text(target, "legendFormat").is_empty(), "a legend");
                let instant = ["stat", "bargauge", "table"].contains(&text(panel, "type"));
                check(
                    target["instant"] == instant && target["range"] == !instant,
                    "what is drawn over time is a range",
                );
            }
        }
    }
    breaches.assert_none();
}

/// The linter's rules about the selectors of a query: `target-job-rule`, `target-counter-agg-rule`,
/// `target-rate-interval-rule`.
#[test]
fn every_query_uses_existing_metrics_with_the_function_of_their_kind() {
    let (catalogue, mut breaches) = (catalogue(), Breaches::default());
    for PanelQuery { place, expression, instant, .. } in queries() {
        let at = format!("{place}: {expression}");
        let mut check = |holds: bool, rule: &str| breaches.check(&at, holds, rule);
        let found = selectors(&expression);
        check(!found.is_empty(), "asks for something");
        for selector in &found {
            let metric = catalogue.get(family(&selector.metric));
            let is_prometheus = PROMETHEUS_METRICS.contains(&selector.metric.as_str());
            check(metric.is_some() || is_prometheus, "metric of the catalogue");
            for label in ["job", "cluster", "node"] {
                let selected = format!("{label}=~\"${label}\"");
                check(selector.matchers.contains(&selected), "target-job-rule, and the same of node");
            }
            let is_level = LEVELS.iter().any(|level| place.starts_with(level));
            let is_counter = metric.is_some_and(|metric| metric.kind != "gauge");
            let (function, range) = (selector.function.as_str(), selector.range.as_deref());
            let is_rate = matches!(function, "rate" | "increase");
            check((is_counter && !is_level) == is_rate, "target-counter-agg-rule, and no rate of a gauge");
            let fits = match function {
                // Not of series that come and go, nor of young ones: see the records.
                "rate" => range == Some("$__rate_interval") && !selector.metric.contains("_container_"),
                "increase" => matches!(range, Some("$__rate_interval" | "$__range")) || instant && range == Some(FIXED),
                _ => range.is_none(),
            };
            check(fits, "target-rate-interval-rule");
        }
    }
    breaches.assert_none();
}

#[test]
fn every_query_and_its_legend_name_labels_of_their_metrics() {
    let (catalogue, mut breaches) = (catalogue(), Breaches::default());
    for PanelQuery { place, expression, legend, .. } in queries() {
        let at = format!("{place}: {expression}");
        let mut check = |holds: bool, rule: &str| breaches.check(&at, holds, rule);
        let found = selectors(&expression);
        let metrics = found.iter().filter_map(|selector| catalogue.get(family(&selector.metric)));
        let labels: BTreeSet<&str> = metrics.flat_map(|metric| &metric.labels).copied().chain(SCRAPE_LABELS).collect();
        for matcher in found.iter().flat_map(|selector| &selector.matchers) {
            let label = matcher.split(['=', '!']).next().unwrap();
            check(labels.contains(label), "matches labels of the catalogue");
        }
        for label in legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next()) {
            check(labels.contains(label), "names labels of its metrics in the legend");
            let sums = expression.split("by (").skip(1).filter_map(|rest| rest.split(')').next()).collect::<Vec<_>>();
            let kept = |sum: &&str| sum.split(',').any(|kept| kept.trim() == label);
            check(sums.is_empty() || sums.iter().any(kept), "keeps the labels that its legend names");
        }
    }
    breaches.assert_none();
}

/// A dashboard names the others by their tag and hands over variables and time; a table's names lead to their own page.
#[test]
fn links_lead_to_dashboards_with_the_variables_that_they_set() {
    let dashboards = read();
    let variables_of: BTreeMap<&str, BTreeSet<&str>> = dashboards
        .values()
        .map(|dashboard| {
            let names = variables(dashboard).iter().map(|variable| text(variable, "name"));
            (text(dashboard, "uid"), names.collect())
        })
        .collect();
    let mut reached = BTreeSet::new();
    for (name, dashboard) in &dashboards {
        let link = &dashboard["links"][0];
        assert!(
            link["type"] == "dashboards" && link["includeVars"] == true && link["keepTime"] == true,
            "{name}: {link}"
        );
        assert_eq!(link["tags"], dashboard["tags"]);
        for panel in panels(dashboard) {
            let overrides = panel["fieldConfig"]["overrides"].as_array().unwrap().iter();
            let properties = overrides.flat_map(|one| one["properties"].as_array().unwrap());
            for link in properties.filter(|property| property["id"] == "links") {
                let url = text(&link["value"][0], "url");
                let (uid, set) = url.strip_prefix("/d/").unwrap().split_once('?').unwrap();
                for part in set.split('&').filter(|part| *part != "${__url_time_range}") {
                    // `var-pod=…` or `${job:queryparam}`.
                    let name =
                        part.trim_start_matches("var-").trim_start_matches("${").split(['=', ':']).next().unwrap();
                    assert!(variables_of[uid].contains(name), "{}: {uid} has no variable {name}", panel["title"]);
                }
                reached.insert(uid.to_owned());
            }
        }
    }
    assert_eq!(reached, BTreeSet::from(["podmeter-device", "podmeter-namespace", "podmeter-node"].map(str::to_owned)));
}

#[test]
fn the_catalogue_and_the_queries_are_really_read() {
    let metric = &catalogue()["podmeter_device_busy_seconds_total"];
    assert_eq!((metric.kind, &*metric.labels), ("counter", &["gpu_uuid", "gpu"][..]));
    let found =
        selectors("sum by (up) (rate(a_total{job=~\"$job\",b!=\"x,y\"}[$__range])) / c or label_join(d{}, \"e\")");
    let shown: Vec<String> = found
        .iter()
        .map(|one| format!("{}({} {:?} {:?})", one.function, one.metric, one.matchers, one.range.as_deref()))
        .collect();
    assert_eq!(
        shown,
        [
            "rate(a_total [\"job=~\\\"$job\\\"\", \"b!=\\\"x,y\\\"\"] Some(\"$__range\"))",
            "(c [] None)",
            "label_join(d [] None)",
        ]
    );
    assert!(queries().len() > 100);
}
