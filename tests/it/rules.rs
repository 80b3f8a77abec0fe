//! Holds the rules, their unit tests, their runbook and the metric catalogue together. Whether an expression does what
//! it should is checked by promtool (`scripts/check`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::support::dashboards::catalogue;

const RULES: &str = "deploy/rules/podmeter.rules.yaml";
/// With prices to edit.
const COST: &str = "deploy/rules/cost.rules.yaml";
/// For machines: no runbook.
const REPAIR: &str = "deploy/rules/repair.rules.yaml";

/// What the scrape adds to every series, and what it does to them when it is set up badly.
const SCRAPE_LABELS: [&str; 7] =
    ["cluster", "node", "job", "instance", "exported_namespace", "exported_pod", "exported_container"];

/// Alerts on a device that no pod holds, or on how podmeter is set up.
const NO_POD: [&str; 5] = [
    "PodmeterAbsent",
    "PodmeterConfigReloadFailed",
    "PodmeterDeviceUnhealthy",
    "PodmeterNodeLabelMissing",
    "PodmeterScrapedTwice",
];

#[test]
fn every_metric_and_label_that_a_rule_or_its_test_names_is_in_the_catalogue() {
    let (rules, catalogue) = (all_rules(), catalogue());
    let records: BTreeSet<&str> = rules.iter().filter_map(|rule| rule.record.as_deref()).collect();
    let mut problems = vec![];
    let mut check = |text: &str, place: &str| {
        for (name, selected) in metrics(text) {
            if name.contains(':') {
                if !records.contains(name) {
                    problems.push(format!("{place}: no rule records {name}"));
                }
                continue;
            }
            let Some(row) = catalogue.get(name) else {
                problems.push(format!("{place}: {name} is not in the catalogue"));
                continue;
            };
            for label in selected {
                let exporters = place.contains("Clobbered") && ["namespace", "pod", "container"].contains(&label);
                let added = SCRAPE_LABELS.contains(&label) || exporters;
                if !row.labels.contains(&label) && !added {
                    problems.push(format!("{place}: {name} has no label {label}"));
                }
            }
        }
    };
    for rule in &rules {
        let name = rule.alert.as_deref().or(rule.record.as_deref()).unwrap();
        check(&rule.expr, name);
        rule.annotations.values().for_each(|annotation| check(annotation, name));
    }
    for test in tests() {
        let place = test.alert_rule_test.first().map_or("records", |one| one.alertname.as_str());
        test.input_series.iter().for_each(|one| check(&one.series, place));
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn every_alert_has_a_description_and_a_runbook_section() {
    let runbook = fs::read_to_string(path("docs/alerts.md")).unwrap();
    let sections: Vec<&str> = runbook.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let rules = rules();
    let alerts: Vec<&Rule> = rules.iter().filter(|rule| rule.alert.is_some()).collect();
    for rule in &alerts {
        let name = rule.alert.as_deref().unwrap();
        let annotation = |key: &str| rule.annotations.get(key).filter(|text| !text.is_empty()).cloned();
        assert!(annotation("summary").is_some(), "{name}: no summary");
        let description = annotation("description").unwrap_or_else(|| panic!("{name}: no description"));
        let severity = rule.labels.get("severity").map(String::as_str);
        assert!(matches!(severity, Some("critical" | "warning" | "info")), "{name}: severity {severity:?}");
        assert_eq!(annotation("runbook_url"), None, "{name}: the chart adds it, where it has an address");
        assert!(sections.contains(&name), "{name}: docs/alerts.md has no section");
        let names_pods = description.contains("$labels.pod")
            || description.contains("Labels.pod")
            || description.contains("Labels.exported_pod");
        assert_ne!(names_pods, NO_POD.contains(&name), "{name}: pods are named, or there is a reason why not");
    }
    let names: BTreeSet<&str> = alerts.iter().filter_map(|rule| rule.alert.as_deref()).collect();
    assert_eq!(names.len(), alerts.len(), "two alerts have one name");
    assert_eq!(sections.len(), alerts.len(), "a section without an alert: {sections:?}");
}

#[test]
fn every_alert_is_tested_to_fire_and_not_to_fire_and_every_record_has_a_value() {
    let tests = tests();
    let alert_tests = || tests.iter().flat_map(|test| &test.alert_rule_test);
    for rule in all_rules() {
        if let Some(name) = &rule.alert {
            let counts: Vec<usize> =
                alert_tests().filter(|test| test.alertname == *name).map(|test| test.exp_alerts.len()).collect();
            assert!(counts.iter().any(|count| *count > 0), "{name}: no test in which it fires");
            // A separate case, not the minute before it fires.
            let quiet = tests.iter().any(|test| {
                let mut of_it = test.alert_rule_test.iter().filter(|one| one.alertname == *name).peekable();
                of_it.peek().is_some() && of_it.all(|one| one.exp_alerts.is_empty())
            });
            assert!(quiet, "{name}: no case in which it never fires");
        }
        if let Some(name) = &rule.record {
            let mut values = tests.iter().flat_map(|test| &test.promql_expr_test);
            assert!(
                values.any(|one| one.expr == *name && !one.exp_samples.is_empty()),
                "{name}: no test gives it a value"
            );
            let parts: Vec<&str> = name.split(':').collect();
            assert!(parts.len() == 3 && parts[1].starts_with("podmeter_"), "{name}: not level:metric:operations");
            assert!(!parts[1].ends_with("_total"), "{name}: what is summed or rated is no counter");
        }
    }
}

/// Every evaluation reads each sample of a day again: docs/engineering/scale.md has what that costs. Prometheus drops a
/// series five minutes after its last sample.
#[test]
fn what_reads_a_whole_day_of_many_series_is_evaluated_seldom() {
    for group in groups() {
        let of_a_day = |rule: &&Rule| rule.expr.replace("podmeter_build_info[1d]", "").contains("[1d]");
        let found: Vec<&str> = group
            .rules
            .iter()
            .filter(of_a_day)
            .filter_map(|rule| rule.alert.as_deref().or(rule.record.as_deref()))
            .collect();
        assert_eq!(
            group.interval.as_deref() == Some("3m"),
            !found.is_empty(),
            "group {}: every {:?}, {found:?}",
            group.name,
            group.interval
        );
    }
}

#[test]
fn an_xid_class_is_critical_or_a_warning_or_neither() {
    let classes = |severity: &str| -> BTreeSet<String> {
        let rules = rules();
        let of_severity = rules.iter().filter(|rule| rule.labels.get("severity").is_some_and(|one| one == severity));
        let quoted = |expression: &str| -> Vec<String> {
            let parts = expression.split("class=~\"").skip(1).map(|rest| rest.split('"').next().unwrap());
            parts.flat_map(|classes| classes.split('|')).map(str::to_owned).collect()
        };
        of_severity.flat_map(|rule| quoted(&rule.expr)).collect()
    };
    let (critical, warning) = (classes("critical"), classes("warning"));
    assert_eq!(critical.iter().map(String::as_str).collect::<Vec<_>>(), ["gpu_reset", "hardware", "node_reboot"]);
    assert!(critical.is_disjoint(&warning), "{critical:?} and {warning:?}");
    for quiet in ["application", "informational", "corroborating", "unknown"] {
        assert!(!critical.contains(quiet) && !warning.contains(quiet), "{quiet} pages no one");
    }
}

/// Containers' series come and go: VictoriaMetrics' rate() divides by the age of a young one. vmalert prints a label that is
/// absent as a text that no query takes.
#[test]
fn rules_work_in_victoria_metrics() {
    for rule in all_rules() {
        let name = rule.alert.or(rule.record).unwrap();
        assert!(!rule.expr.replace(' ', "").contains("rate(podmeter_container_"), "{name}");
        for annotation in rule.annotations.values() {
            let calls =
                annotation.split("(printf \"").skip(1).filter_map(|rest| rest.split_once('"')?.1.split_once('|'));
            for (arguments, _) in calls {
                let bare = arguments.replace("(or $labels.cluster \"\")", "").replace("(or $labels.node \"\")", "");
                assert!(!bare.contains("cluster") && !bare.contains("node"), "{name}: {arguments}");
            }
        }
    }
}

/// Its form is checked with amtool, which is not needed to run the tests.
#[test]
fn the_example_of_a_route_has_the_alerts_for_machines() {
    let text = fs::read_to_string(path("deploy/alertmanager/repair.yaml")).unwrap();
    let named = |line: &str| Some(line.split_once("alertname=\"")?.1.split_once('"')?.0.to_owned());
    let routed: BTreeSet<String> = text.lines().filter_map(named).collect();
    let rules = groups_of(REPAIR).into_iter().flat_map(|group| group.rules);
    assert_eq!(routed, rules.filter_map(|rule| rule.alert).collect());
    assert_eq!(text.matches("send_resolved: false").count(), text.matches("webhook_configs:").count());
}

#[derive(Deserialize)]
struct RuleFile {
    groups: Vec<RuleGroup>,
}

#[derive(Deserialize)]
struct RuleGroup {
    name: String,
    interval: Option<String>,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    record: Option<String>,
    alert: Option<String>,
    expr: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct RuleTests {
    tests: Vec<RuleTest>,
}

#[derive(Deserialize)]
struct RuleTest {
    input_series: Vec<InputSeries>,
    #[serde(default)]
    alert_rule_test: Vec<AlertTest>,
    #[serde(default)]
    promql_expr_test: Vec<ExpressionTest>,
}

#[derive(Deserialize)]
struct InputSeries {
    series: String,
}

#[derive(Deserialize)]
struct AlertTest {
    alertname: String,
    exp_alerts: Vec<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct ExpressionTest {
    expr: String,
    exp_samples: Vec<serde::de::IgnoredAny>,
}

fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn groups() -> Vec<RuleGroup> {
    groups_of(RULES)
}

fn groups_of(file: &str) -> Vec<RuleGroup> {
    let text = fs::read_to_string(path(file)).unwrap();
    let file: RuleFile = serde_saphyr::from_str(&text).unwrap();
    file.groups
}

fn all_rules() -> Vec<Rule> {
    [RULES, COST, REPAIR].into_iter().flat_map(groups_of).flat_map(|group| group.rules).collect()
}

fn rules() -> Vec<Rule> {
    groups().into_iter().flat_map(|group| group.rules).collect()
}

fn tests() -> Vec<RuleTest> {
    let files = fs::read_dir(path("deploy/rules/tests")).unwrap().map(|entry| entry.unwrap().path());
    let read = |file: PathBuf| {
        let text = fs::read_to_string(&file).unwrap();
        let tests: RuleTests =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        tests.tests
    };
    files.flat_map(read).collect()
}

/// Each metric of podmeter that a text of PromQL or of templates names, with the labels that it is selected by.
fn metrics(text: &str) -> Vec<(&str, Vec<&str>)> {
    let of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let mut found = vec![];
    let mut rest = text;
    while let Some(at) = rest.find("podmeter_") {
        let start = rest[..at].rfind(|letter| !of_name(letter)).map_or(0, |before| before + 1);
        let end = rest[at..].find(|letter| !of_name(letter)).map_or(rest.len(), |length| at + length);
        let name = &rest[start..end];
        rest = &rest[end..];
        let selector =
            rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(selector, _)| selector);
        // A value of ours never holds a comma.
        let label = |matcher: &'_ str| matcher.find(['=', '!']).map(|end| matcher[..end].trim().len());
        let labels = selector.split(',').filter_map(|matcher| Some(&matcher.trim_start()[..label(matcher)?]));
        found.push((name, labels.collect()));
    }
    found
}
