mod properties;

use std::fmt::Write as _;

use super::parsing::{MAX_DEPTH, MAX_OPERATORS};
use super::*;

/// Rewrites `input`, and writes what a person would see: the text, or what is left.
fn show(input: &str, context: &Context) -> String {
    let rewritten = rewrite(input, context).unwrap_or_else(|error| panic!("{input}: {error}"));
    if rewritten.left.is_empty() {
        let again = rewrite(&rewritten.text, context).expect("the result parses");
        assert_eq!(again.text, rewritten.text, "rewriting again changes nothing");
        assert!(again.left.is_empty(), "nothing is left in the result: {:?}", again.left);
        assert_eq!(rewritten.changes.is_empty(), rewritten.text == input);
        for change in &rewritten.changes {
            assert_eq!(change.before, input[change.range.clone()]);
        }
        if context.target == Target::Podmeter {
            assert!(!rewritten.text.contains("DCGM_"), "{}", rewritten.text);
        }
        return rewritten.text;
    }
    assert_eq!(rewritten.text, input);
    assert!(rewritten.changes.is_empty());
    let mut text = String::new();
    for left in &rewritten.left {
        let _ = write!(text, "{}: {}", left.name, left.reason);
        if let Some(suggestion) = &left.suggestion {
            let _ = write!(text, " [{suggestion}]");
        }
        text.push('\n');
    }
    format!("left {}", text.trim_end())
}

fn check(input: &str, target: Target, expect: &str) {
    assert_eq!(show(input, &Context::new(target)), expect, "{input}");
}

/// To podmeter, with labels that a legend reads.
fn check_reading(input: &str, labels: &[&str], expect: &str) {
    let labels_read = labels.iter().map(|label| (*label).to_owned()).collect();
    assert_eq!(show(input, &Context { labels_read, ..Context::new(Target::Podmeter) }), expect, "{input}");
}

const NEW: Target = Target::New;
const OLD: Target = Target::Old;
const POD: Target = Target::Podmeter;

#[test]
fn the_unit_is_converted_inside_the_expression() {
    for (input, expect) in [
        ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO * 100"),
        ("DCGM_FI_DEV_GPU_UTIL > 80", "DCGM_FI_DEV_GPU_UTIL_RATIO * 100 > 80"),
        ("80 < DCGM_FI_DEV_GPU_UTIL", "80 < DCGM_FI_DEV_GPU_UTIL_RATIO * 100"),
        ("100 - DCGM_FI_DEV_GPU_UTIL", "100 - DCGM_FI_DEV_GPU_UTIL_RATIO * 100"),
        ("DCGM_FI_DEV_GPU_UTIL ^ 2", "(DCGM_FI_DEV_GPU_UTIL_RATIO * 100) ^ 2"),
        ("5 % DCGM_FI_DEV_GPU_UTIL", "5 % (DCGM_FI_DEV_GPU_UTIL_RATIO * 100)"),
        ("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_SM_CLOCK_HERTZ / 1e6"),
        ("DCGM_FI_DEV_FB_USED > 0", "DCGM_FI_DEV_FB_USED_BYTES / 1048576 > 0"),
        ("sum(DCGM_FI_DEV_FB_USED) or vector(0)", "sum(DCGM_FI_DEV_FB_USED_BYTES) / 1048576 or vector(0)"),
        (
            "(DCGM_FI_DEV_GPU_UTIL == 0) unless on (gpu) DCGM_FI_DEV_GPU_TEMP",
            "(DCGM_FI_DEV_GPU_UTIL_RATIO * 100 == 0) unless on (gpu) DCGM_FI_DEV_GPU_TEMP_CELSIUS",
        ),
        ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"),
        ("DCGM_FI_DEV_GPU_UTIL > bool $limit", "DCGM_FI_DEV_GPU_UTIL_RATIO * 100 > bool $limit"),
        ("DCGM_FI_DEV_GPU_UTIL * $factor", "DCGM_FI_DEV_GPU_UTIL_RATIO * $factor * 100"),
    ] {
        check(input, NEW, expect);
    }
    check("DCGM_FI_DEV_FB_USED_BYTES", OLD, "DCGM_FI_DEV_FB_USED * 1048576");
    check("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", OLD, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION / 1000");
}

#[test]
fn literal_factors_are_folded() {
    for (input, expect) in [
        ("rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m]) / 1000", "rate(DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL[5m])"),
        ("DCGM_FI_DEV_FB_USED * 1024 * 1024", "DCGM_FI_DEV_FB_USED_BYTES"),
        ("DCGM_FI_DEV_FB_USED * (1024 ^ 2)", "DCGM_FI_DEV_FB_USED_BYTES"),
        ("DCGM_FI_DEV_FB_USED * 1048576 / 1e9", "DCGM_FI_DEV_FB_USED_BYTES / 1e9"),
        ("DCGM_FI_DEV_FB_USED / 1024", "DCGM_FI_DEV_FB_USED_BYTES / 1073741824"),
        ("100 * DCGM_FI_DEV_GPU_UTIL / 100", "100 * DCGM_FI_DEV_GPU_UTIL_RATIO"),
        ("0.01 * DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO"),
        ("0.01 * # per cent\n DCGM_FI_DEV_GPU_UTIL", " # per cent\n DCGM_FI_DEV_GPU_UTIL_RATIO"),
        (
            "increase(DCGM_FI_DEV_POWER_VIOLATION[10m]) / 6e11",
            "increase(DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL[10m]) / 600",
        ),
        // No step between units: it stays, and the factor goes around.
        ("DCGM_FI_DEV_SM_CLOCK * 0.9", "DCGM_FI_DEV_SM_CLOCK_HERTZ * 0.9 / 1e6"),
        (
            "DCGM_FI_DEV_SM_CLOCK < on (Hostname) group_left () quantile by (Hostname) (0.5, DCGM_FI_DEV_SM_CLOCK) * 0.9",
            "(DCGM_FI_DEV_SM_CLOCK_HERTZ < on (hostname) group_left () quantile by (hostname) (0.5, DCGM_FI_DEV_SM_CLOCK_HERTZ) * 0.9) / 1e6",
        ),
        ("(DCGM_FI_DEV_GPU_UTIL) / 100", "(DCGM_FI_DEV_GPU_UTIL_RATIO)"),
    ] {
        check(input, NEW, expect);
    }
}

#[test]
fn a_factor_that_both_sides_have_cancels() {
    for (input, expect) in [
        (
            "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) * 100",
            "DCGM_FI_DEV_FB_USED_BYTES / (DCGM_FI_DEV_FB_USED_BYTES + DCGM_FI_DEV_FB_FREE_BYTES) * 100",
        ),
        (
            "sum(DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) by (Hostname)",
            "sum(DCGM_FI_DEV_FB_USED_BYTES + DCGM_FI_DEV_FB_FREE_BYTES) by (hostname) / 1048576",
        ),
        (
            "sum(rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m])) / sum(DCGM_FI_DEV_GPU_UTIL)",
            "sum(rate(DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL[5m])) / sum(DCGM_FI_DEV_GPU_UTIL_RATIO) * 10",
        ),
        (
            "DCGM_FI_DEV_GPU_UTIL > DCGM_FI_DEV_GPU_TEMP",
            "DCGM_FI_DEV_GPU_UTIL_RATIO * 100 > DCGM_FI_DEV_GPU_TEMP_CELSIUS",
        ),
    ] {
        check(input, NEW, expect);
    }
}

#[test]
fn the_factor_moves_out_of_functions() {
    for (input, expect) in [
        (
            "avg_over_time(DCGM_FI_DEV_GPU_UTIL[10m] offset 1h) < 5",
            "avg_over_time(DCGM_FI_DEV_GPU_UTIL_RATIO[10m] offset 1h) * 100 < 5",
        ),
        (
            "quantile_over_time(0.9, DCGM_FI_DEV_GPU_UTIL[1h])",
            "quantile_over_time(0.9, DCGM_FI_DEV_GPU_UTIL_RATIO[1h]) * 100",
        ),
        (
            "holt_winters(DCGM_FI_DEV_GPU_UTIL[1h], 0.5, 0.5)",
            "holt_winters(DCGM_FI_DEV_GPU_UTIL_RATIO[1h], 0.5, 0.5) * 100",
        ),
        (
            "predict_linear(DCGM_FI_DEV_FB_USED[10m], 3600) > 80000",
            "predict_linear(DCGM_FI_DEV_FB_USED_BYTES[10m], 3600) / 1048576 > 80000",
        ),
        ("stdvar_over_time(DCGM_FI_DEV_GPU_UTIL[5m])", "stdvar_over_time(DCGM_FI_DEV_GPU_UTIL_RATIO[5m]) * 10000"),
        ("count_over_time(DCGM_FI_DEV_GPU_UTIL[5m])", "count_over_time(DCGM_FI_DEV_GPU_UTIL_RATIO[5m])"),
        ("absent(DCGM_FI_DEV_GPU_UTIL{Hostname=\"a\"})", "absent(DCGM_FI_DEV_GPU_UTIL_RATIO{hostname=\"a\"})"),
        ("time() - max(timestamp(DCGM_FI_DEV_GPU_UTIL))", "time() - max(timestamp(DCGM_FI_DEV_GPU_UTIL_RATIO))"),
        ("clamp_max(DCGM_FI_DEV_GPU_UTIL, 100)", "clamp_max(DCGM_FI_DEV_GPU_UTIL_RATIO * 100, 100)"),
        ("floor(DCGM_FI_DEV_GPU_UTIL / 10)", "floor(DCGM_FI_DEV_GPU_UTIL_RATIO * 10)"),
        ("topk(5, DCGM_FI_DEV_GPU_UTIL)", "topk(5, DCGM_FI_DEV_GPU_UTIL_RATIO) * 100"),
        ("count(DCGM_FI_DEV_GPU_UTIL > 5) by (Hostname)", "count(DCGM_FI_DEV_GPU_UTIL_RATIO * 100 > 5) by (hostname)"),
        (
            "max_over_time((DCGM_FI_DEV_GPU_UTIL > 5)[1h:5m])",
            "max_over_time((DCGM_FI_DEV_GPU_UTIL_RATIO * 100 > 5)[1h:5m])",
        ),
        ("DCGM_FI_DEV_GPU_UTIL @ end() offset -5m", "DCGM_FI_DEV_GPU_UTIL_RATIO @ end() offset -5m * 100"),
        ("-DCGM_FI_DEV_GPU_UTIL", "-DCGM_FI_DEV_GPU_UTIL_RATIO * 100"),
        ("+DCGM_FI_DEV_GPU_UTIL + 1", "+DCGM_FI_DEV_GPU_UTIL_RATIO * 100 + 1"),
        ("DCGM_FI_DEV_GPU_UTIL[5m]", "left range: a range cannot be multiplied [DCGM_FI_DEV_GPU_UTIL_RATIO[5m]]"),
        (
            "count_values(\"v\", DCGM_FI_DEV_GPU_UTIL)",
            "left count_values: it makes labels of the values, which have another unit [count_values(\"v\", DCGM_FI_DEV_GPU_UTIL_RATIO) * 100]",
        ),
    ] {
        check(input, NEW, expect);
    }
}

#[test]
fn the_text_around_names_stays() {
    check(
        "sum( # all\n  rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu=~\"$gpu\",Hostname='${node:regex}'}[$__rate_interval])\n) by (gpu, Hostname) # joules\n / 1000",
        NEW,
        "sum( # all\n  rate(DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL{gpu=~\"$gpu\",hostname='${node:regex}'}[$__rate_interval])\n) by (gpu, hostname) # joules\n ",
    );
    check(
        "{__name__=\"DCGM_FI_DEV_GPU_UTIL\", gpu=\"0\"}",
        NEW,
        "{__name__=\"DCGM_FI_DEV_GPU_UTIL_RATIO\", gpu=\"0\"} * 100",
    );
    check("{\"DCGM_FI_DEV_FB_USED\"}", POD, "{state=\"used\", \"podmeter_device_memory_bytes\"} / 1048576");
    check("gpu:dcgm_fi_dev_gpu_util:avg > 5", NEW, "gpu:dcgm_fi_dev_gpu_util:avg > 5");
    check("{app=\"x\"} |= \"error\"", POD, "{app=\"x\"} |= \"error\"");
}

#[test]
fn names_of_the_target_stay() {
    for target in [NEW, OLD] {
        check("DCGM_FI_PROF_PCIE_TX_BYTES", target, "DCGM_FI_PROF_PCIE_TX_BYTES");
    }
    check("DCGM_FI_DEV_GPU_UTIL_RATIO", NEW, "DCGM_FI_DEV_GPU_UTIL_RATIO");
    check("DCGM_FI_DEV_GPU_UTIL{Hostname=\"a\"}", OLD, "DCGM_FI_DEV_GPU_UTIL{Hostname=\"a\"}");
    check("DCGM_FI_DEV_GPU_UTIL{hostname=\"a\"}", OLD, "DCGM_FI_DEV_GPU_UTIL{Hostname=\"a\"}");
    check(
        "DCGM_FI_PROF_PCIE_TX_BYTES{DCGM_FI_DRIVER_VERSION=\"580\"}",
        NEW,
        "DCGM_FI_PROF_PCIE_TX_BYTES{DCGM_FI_SYSTEM_DRIVER_VERSION=\"580\"}",
    );
}

#[test]
fn the_name_with_two_meanings_needs_a_statement() {
    let reason = "left DCGM_FI_DEV_GPU_UTIL_RATIO: it is percent in DCGM 4.6 and 0 to 1 in DCGM 4.7; state which with --gpu-util-ratio";
    check("DCGM_FI_DEV_GPU_UTIL_RATIO > 0.8", POD, reason);
    check("DCGM_FI_DEV_GPU_UTIL_RATIO > 0.8", OLD, reason);
    let kept =
        "left DCGM_FI_DEV_GPU_UTIL_RATIO: it is 0 to 1 with dcgm-exporter 4.9 [DCGM_FI_DEV_GPU_UTIL_RATIO * 100]";
    let with = |ratio, target| Context { utilization_ratio: Some(ratio), ..Context::new(target) };
    for (ratio, target, expect) in [
        (UtilizationRatio::Percent, OLD, "DCGM_FI_DEV_GPU_UTIL > 80"),
        (UtilizationRatio::Ratio, OLD, "DCGM_FI_DEV_GPU_UTIL / 100 > 80"),
        (UtilizationRatio::Percent, NEW, kept),
        (UtilizationRatio::Ratio, NEW, "DCGM_FI_DEV_GPU_UTIL_RATIO > 80"),
        (UtilizationRatio::Percent, POD, "podmeter_device_utilization_ratio * 100 > 80"),
        (UtilizationRatio::Ratio, POD, "podmeter_device_utilization_ratio > 80"),
    ] {
        assert_eq!(show("DCGM_FI_DEV_GPU_UTIL_RATIO > 80", &with(ratio, target)), expect);
    }
}

#[test]
fn podmeter_names_two_quantities_by_a_label_that_must_not_match() {
    let used = "podmeter_device_memory_bytes{state=\"used\"}";
    let free = "podmeter_device_memory_bytes{state=\"free\"}";
    for (input, expect) in [
        (
            "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) * 100",
            format!("{used} / ignoring (state) ({used} + ignoring (state) {free}) * 100"),
        ),
        ("DCGM_FI_DEV_FB_USED / ignoring(job) DCGM_FI_DEV_FB_FREE", format!("{used} / ignoring(job, state) {free}")),
        ("DCGM_FI_DEV_FB_USED / on (UUID) DCGM_FI_DEV_FB_FREE", format!("{used} / on (gpu_uuid) {free}")),
        (
            "sum by (UUID) (DCGM_FI_DEV_FB_USED) / sum by (UUID) (DCGM_FI_DEV_FB_FREE)",
            format!("sum by (gpu_uuid) ({used}) / sum by (gpu_uuid) ({free})"),
        ),
        ("DCGM_FI_DEV_FB_USED - DCGM_FI_DEV_FB_USED offset 1h", format!("({used} - {used} offset 1h) / 1048576")),
        (
            "DCGM_FI_DEV_GPU_UTIL > 90 and DCGM_FI_DEV_GPU_TEMP > 80",
            "podmeter_device_utilization_ratio * 100 > 90 and ignoring (sensor) podmeter_device_temperature_celsius{sensor=\"gpu\"} > 80".to_owned(),
        ),
        (
            "DCGM_FI_DEV_GPU_UTIL > 90 and on (UUID) DCGM_FI_DEV_GPU_TEMP > 80",
            "podmeter_device_utilization_ratio * 100 > 90 and on (gpu_uuid) podmeter_device_temperature_celsius{sensor=\"gpu\"} > 80".to_owned(),
        ),
        (
            "increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[1h]) > 0",
            "sum without (location) (increase(podmeter_device_ecc_errors_total{error=\"uncorrected\"}[1h])) > 0".to_owned(),
        ),
        (
            "sum by (gpu) (increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[1h]))",
            "sum by (gpu) (increase(podmeter_device_ecc_errors_total{error=\"uncorrected\"}[1h]))".to_owned(),
        ),
    ] {
        check(input, POD, &expect);
    }
}

#[test]
fn labels_that_device_metrics_lack_are_joined() {
    let info = "* on (gpu_uuid) group_left (model) podmeter_device_info";
    let power = "podmeter_device_power_watts";
    for (input, expect) in [
        ("max(DCGM_FI_DEV_POWER_USAGE) by (modelName)", format!("max({power} {info}) by (model)")),
        (
            "DCGM_FI_DEV_POWER_USAGE{modelName=\"A100\",gpu=\"0\"}",
            format!("{power}{{gpu=\"0\"}} {info}{{model=\"A100\"}}"),
        ),
        (
            "max_over_time(DCGM_FI_DEV_POWER_USAGE{gpu=\"0\", modelName=\"A100\"}[1h])",
            format!("max_over_time({power}{{gpu=\"0\"}}[1h]) {info}{{model=\"A100\"}}"),
        ),
        (
            "DCGM_FI_DEV_POWER_USAGE{pci_bus_id=\"00000000:1B:00.0\"}",
            format!("{power} * on (gpu_uuid) group_left () podmeter_device_info{{pci_bus_id=\"0000:1b:00.0\"}}"),
        ),
        ("DCGM_FI_DEV_POWER_USAGE{device=\"nvidia3\"}", format!("{power}{{gpu=\"3\"}}")),
        (
            "group by (device) (DCGM_FI_DEV_POWER_USAGE)",
            format!("group by (device) (label_replace({power}, \"device\", \"nvidia$1\", \"gpu\", \"(.+)\"))"),
        ),
        (
            "label_replace(DCGM_FI_DEV_POWER_USAGE, \"model\", \"$1\", \"modelName\", \"NVIDIA (.+)\")",
            format!("label_replace({power} {info}, \"model\", \"$1\", \"model\", \"NVIDIA (.+)\")"),
        ),
    ] {
        check(input, POD, &expect);
    }
    check_reading("DCGM_FI_DEV_POWER_USAGE", &["gpu", "Hostname", "UUID"], power);
    check_reading("DCGM_FI_DEV_POWER_USAGE", &["modelName"], &format!("{power} {info}"));
    let absent = "absent(podmeter_device_power_watts{gpu_uuid=\"a\"})";
    check_reading("absent(DCGM_FI_DEV_POWER_USAGE{UUID=\"a\"})", &["UUID", "gpu"], absent);
    check_reading(
        "absent(DCGM_FI_DEV_POWER_USAGE{modelName=\"a\"})",
        &["modelName"],
        &format!(
            "left modelName: the result of absent would not have the label any more [absent({power} {info}{{model=\"a\"}})]"
        ),
    );
    check_reading("avg(DCGM_FI_DEV_POWER_USAGE)", &["modelName"], &format!("avg({power})"));
}

#[test]
fn pods_are_joined_where_they_are_used() {
    let power = "podmeter_device_power_watts";
    let held = "* on (gpu_uuid) group_left (gpu)";
    for (input, expect) in [
        (
            "sum by (exported_pod) (DCGM_FI_DEV_POWER_USAGE)",
            format!(
                "sum by (pod) (podmeter_container_allocation_info{{mig_uuid=\"\"}} {held} {power} or on (gpu_uuid) {power})"
            ),
        ),
        (
            "DCGM_FI_DEV_POWER_USAGE{pod!=\"\"}",
            format!("podmeter_container_allocation_info{{mig_uuid=\"\", pod!=\"\"}} {held} {power}"),
        ),
        (
            "DCGM_FI_DEV_POWER_USAGE{pod!=\"a\"}",
            format!(
                "podmeter_container_allocation_info{{mig_uuid=\"\", pod!=\"a\"}} {held} {power} or on (gpu_uuid) ({power} unless on (gpu_uuid) podmeter_container_allocation_info{{mig_uuid=\"\"}})"
            ),
        ),
        (
            "max by (pod) (max_over_time(DCGM_FI_DEV_POWER_USAGE{namespace=\"a\"}[1h]))",
            format!(
                "max by (pod) (podmeter_container_allocation_info{{mig_uuid=\"\", namespace=\"a\"}} {held} max_over_time({power}[1h]))"
            ),
        ),
        (
            "avg by (pod) (DCGM_FI_DEV_GPU_UTIL{pod!=\"\"})",
            "avg by (pod) (podmeter_container_utilization_ratio{pod!=\"\"}) * 100".to_owned(),
        ),
        (
            "DCGM_FI_DEV_POWER_USAGE * on (namespace, pod) group_left (label_team) kube_pod_labels",
            format!(
                "podmeter_container_allocation_info{{mig_uuid=\"\"}} {held} {power} * on (namespace, pod) group_left (label_team) kube_pod_labels"
            ),
        ),
        (
            "DCGM_FI_DEV_POWER_USAGE * on (exported_pod) group_left label_replace(kube_pod_info, \"exported_pod\", \"$1\", \"pod\", \"(.+)\")",
            format!(
                "podmeter_container_allocation_info{{mig_uuid=\"\"}} {held} {power} * on (pod) group_left label_replace(kube_pod_info, \"pod\", \"$1\", \"pod\", \"(.+)\")"
            ),
        ),
        (
            "DCGM_FI_DEV_FB_USED{pod=\"a\"} / DCGM_FI_DEV_FB_FREE{pod=\"a\"}",
            format!(
                "podmeter_container_allocation_info{{mig_uuid=\"\", pod=\"a\"}} {held} podmeter_device_memory_bytes{{state=\"used\"}} / (podmeter_container_allocation_info{{mig_uuid=\"\", pod=\"a\"}} {held} podmeter_device_memory_bytes{{state=\"free\"}})"
            ),
        ),
    ] {
        check(input, POD, &expect);
    }
    check_reading(
        "DCGM_FI_DEV_FB_USED",
        &["pod"],
        "(podmeter_container_memory_used_bytes or on (gpu_uuid) podmeter_device_memory_bytes{state=\"used\"}) / 1048576",
    );
    let reading_pods = Context { labels_read: ["exported_pod".to_owned()].into(), ..Context::new(POD) };
    let rewritten = rewrite("DCGM_FI_DEV_GPU_UTIL", &reading_pods).expect("parses");
    assert_eq!(rewritten.labels, BTreeMap::from([("exported_pod".to_owned(), "pod".to_owned())]));
    assert!(rewritten.difference.is_some());
    // The result has the labels of the other metric.
    let input = "kube_pod_info and on (gpu) sum by (gpu, Hostname) (DCGM_FI_DEV_POWER_USAGE{exported_pod!=\"\"})";
    assert_eq!(rewrite(input, &Context::new(POD)).expect("parses").labels, BTreeMap::new());
}

#[test]
fn a_label_of_another_metric_keeps_its_name() {
    check(
        "label_replace(DCGM_FI_DEV_POWER_USAGE, \"node\", \"$1\", \"Hostname\", \"(.+)\") * on (node) group_left kube_node_labels",
        NEW,
        "label_replace(DCGM_FI_DEV_BOARD_POWER_WATTS, \"node\", \"$1\", \"hostname\", \"(.+)\") * on (node) group_left kube_node_labels",
    );
    check(
        "label_replace(DCGM_FI_DEV_POWER_USAGE, \"node\", \"$1\", \"Hostname\", \"(.+)\") * on (node) group_left kube_node_labels",
        POD,
        "label_replace(podmeter_device_power_watts, \"node\", \"$1\", \"node\", \"(.+)\") * on (node) group_left kube_node_labels",
    );
    check(
        "DCGM_FI_DEV_POWER_USAGE * on (Hostname) group_left () sum by (Hostname) (rack_info)",
        NEW,
        "left Hostname: dcgm-exporter's label becomes hostname, but series of other metrics have it too [DCGM_FI_DEV_BOARD_POWER_WATTS * on (hostname) group_left () sum by (Hostname) (rack_info)]",
    );
    check(
        "DCGM_FI_DEV_POWER_USAGE - gpu:power:mean1d",
        POD,
        "left -: the series of dcgm-exporter match those of another metric on all labels, and these change; name the labels with on [podmeter_device_power_watts - gpu:power:mean1d]",
    );
}

#[test]
fn labels_of_gpu_instances_are_dropped() {
    for (input, expect) in [
        ("max by (UUID, GPU_I_ID) (DCGM_FI_DEV_POWER_USAGE)", "max by (gpu_uuid) (podmeter_device_power_watts)"),
        (
            "max by (gpu, GPU_I_ID, GPU_I_PROFILE) (DCGM_FI_DEV_POWER_USAGE)",
            "max by (gpu) (podmeter_device_power_watts)",
        ),
        (
            "max by (GPU_I_ID, gpu, GPU_I_PROFILE) (DCGM_FI_DEV_POWER_USAGE)",
            "max by (gpu) (podmeter_device_power_watts)",
        ),
        ("DCGM_FI_DEV_POWER_USAGE{GPU_I_ID=\"\",gpu=\"0\"}", "podmeter_device_power_watts{gpu=\"0\"}"),
    ] {
        check(input, POD, expect);
    }
}

#[test]
fn what_is_not_proven_is_left() {
    for (input, target, expect) in [
        ("dcgm_no_such_name", NEW, "left dcgm_no_such_name: it is not in the table of dcgm-exporter's names"),
        ("DCGM_FI_DEV_$metric", NEW, "left DCGM_FI_DEV_$metric: the metric name contains a variable"),
        (
            "{__name__=~\"DCGM_FI_DEV_FB_(USED|FREE)\"}",
            NEW,
            "left DCGM_FI_DEV_FB_(USED|FREE): the pattern covers DCGM_FI_DEV_FB_FREE, DCGM_FI_DEV_FB_USED",
        ),
        (
            "DCGM_FI_DEV_GPU_UTIL{GPU_I_ID=\"1\"}",
            POD,
            "left GPU_I_ID: it is of whole GPUs; GPU instances of MIG have their own series in podmeter_mig_*",
        ),
        (
            "max by (GPU_I_PROFILE) (DCGM_FI_DEV_POWER_USAGE)",
            POD,
            "left GPU_I_PROFILE: it is of whole GPUs; GPU instances of MIG have their own series in podmeter_mig_*",
        ),
        (
            "sum by (namespace) (increase(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[24h]))",
            POD,
            "left range: the pods of a GPU change in a range, and podmeter's metric by container lacks the time without a pod [sum by (namespace) (increase(podmeter_container_energy_joules_total[24h])) * 1000]",
        ),
        (
            "avg_over_time(DCGM_FI_DEV_GPU_UTIL{pod!=\"a\"}[1h])",
            POD,
            "left range: the pods of a GPU change in a range, and podmeter's metric by container lacks the time without a pod [avg_over_time(podmeter_container_utilization_ratio{pod!=\"a\"}[1h]) * 100]",
        ),
        (
            "DCGM_FI_DEV_GPU_UTIL{team=\"a\", cluster=\"b\"}",
            POD,
            "left team: a label of pods is not on podmeter's metrics; one of the target stays [podmeter_device_utilization_ratio{team=\"a\", cluster=\"b\"} * 100]",
        ),
        (
            "sum by (app) (DCGM_FI_DEV_POWER_USAGE)",
            POD,
            "left app: a label of pods is not on podmeter's metrics; one of the target stays [sum by (app) (podmeter_device_power_watts)]",
        ),
        (
            "DCGM_FI_DEV_GPU_UTIL{namespace=~\"team-a|gpu-operator\"}",
            POD,
            "left namespace: it selects dcgm-exporter's own pods and others [podmeter_container_utilization_ratio{namespace=~\"team-a|gpu-operator\"} * 100]",
        ),
        (
            "sum by (DCGM_FI_DRIVER_VERSION) (DCGM_FI_DEV_GPU_UTIL)",
            POD,
            "left DCGM_FI_DRIVER_VERSION: podmeter has it in podmeter_driver_info",
        ),
        (
            "sum without (gpu) (DCGM_FI_DEV_POWER_USAGE)",
            POD,
            "left without: dcgm-exporter's series have other labels than podmeter's, so the groups would differ; name the labels to keep with by [sum without (gpu) (podmeter_device_power_watts)]",
        ),
        (
            "DCGM_FI_DEV_POWER_USAGE{instance=\"10.0.0.1:9400\"}",
            POD,
            "left instance: podmeter's instance is another than dcgm-exporter's [podmeter_device_power_watts{instance=\"10.0.0.1:9400\"}]",
        ),
        (
            "sum by ($by) (DCGM_FI_DEV_POWER_USAGE)",
            NEW,
            "left $by: the variable may stand for a label that is renamed [sum by ($by) (DCGM_FI_DEV_BOARD_POWER_WATTS)]",
        ),
        (
            "absent_over_time(DCGM_FI_DEV_POWER_USAGE{modelName=\"A100\"}[5m])",
            POD,
            "left absent_over_time: its range cannot be joined with the labels that it is selected by [absent_over_time(podmeter_device_power_watts[5m])]",
        ),
        (
            "sum by (node, Hostname) (DCGM_FI_DEV_POWER_USAGE)",
            POD,
            "left node: Hostname, node would all become node [sum by (node, node) (podmeter_device_power_watts)]",
        ),
    ] {
        check(input, target, expect);
    }
    // What podmeter counts otherwise has a query to compare with.
    let rewritten = rewrite("DCGM_FI_PROF_PCIE_TX_BYTES > 1e9", &Context::new(POD)).expect("parses");
    let suggestion = "rate(podmeter_device_pcie_bytes_total{direction=\"transmit\"}[5m])";
    assert_eq!(rewritten.left[0].suggestion.as_deref(), Some(suggestion));
    // The scrape's own labels.
    check(
        "DCGM_FI_DEV_POWER_USAGE{job=\"dcgm-exporter\", instance=~\"$instance\"}",
        POD,
        "podmeter_device_power_watts{instance=~\"$instance\"}",
    );
    check("DCGM_FI_DEV_POWER_USAGE{job=\"dcgm-exporter\"}", POD, "podmeter_device_power_watts");
    check(
        "DCGM_FI_DEV_POWER_USAGE{job=~\"dcgm.*|nvidia-dcgm\", namespace=\"gpu-operator\"}",
        POD,
        "podmeter_device_power_watts",
    );
    check(
        "DCGM_FI_DEV_GPU_UTIL{pod=~\"my-dcgm-test.*\"}",
        POD,
        "podmeter_container_utilization_ratio{pod=~\"my-dcgm-test.*\"} * 100",
    );
    // The name that the relabelling of this query makes is no label of pods.
    check(
        "sum by (team) (label_replace(DCGM_FI_DEV_POWER_USAGE, \"team\", \"$1\", \"Hostname\", \"(.+)-.+\"))",
        POD,
        "sum by (team) (label_replace(podmeter_device_power_watts, \"team\", \"$1\", \"node\", \"(.+)-.+\"))",
    );
}

#[test]
fn a_difference_is_named() {
    let at_its_end = "a range counts for the pods that hold the GPU at its end";
    let device_value = "a shared GPU has the device's value for each pod, not each container's own beside the device's";
    let one = "a shared GPU has one series, not one for each slot";
    for (input, target, expect) in [
        ("sum by (pod) (avg_over_time(DCGM_FI_DEV_POWER_USAGE[1h]))", POD, at_its_end),
        ("avg_over_time(DCGM_FI_DEV_POWER_USAGE{pod=\"a\"}[1h])", POD, at_its_end),
        (
            "sum by (pod) (max_over_time(DCGM_FI_DEV_POWER_USAGE[1h]) / max_over_time(DCGM_FI_DEV_SM_CLOCK[1h]))",
            POD,
            &format!("{at_its_end}; {one}"),
        ),
        ("avg(DCGM_FI_DEV_GPU_UTIL{pod!=\"a\"})", POD, device_value),
        (
            "DCGM_FI_DEV_GPU_UTIL{pod!=\"\"} / on (UUID) group_left () max by (UUID) (DCGM_FI_DEV_POWER_USAGE)",
            POD,
            device_value,
        ),
        (
            "absent(DCGM_FI_DEV_GPU_TEMP{UUID=\"a\", job=\"dcgm-exporter\"})",
            POD,
            &format!("{one}; the result of absent lacks job"),
        ),
        ("absent(DCGM_FI_DEV_GPU_TEMP{modelName=\"a\"})", POD, &format!("{one}; the result of absent lacks modelName")),
        ("DCGM_FI_DEV_GPU_TEMP{hostname=\"a\"}", OLD, "from 4.8.3 on, dcgm-exporter writes hostname here too"),
    ] {
        let rewritten = rewrite(input, &Context::new(target)).expect("parses");
        assert_eq!(rewritten.difference.as_deref(), Some(expect), "{input}: {:?}", rewritten.left);
    }
    let alert = Context { labels_kept: true, ..Context::new(POD) };
    let lacks = |input: &str| rewrite(input, &alert).expect("parses").difference.unwrap_or_default();
    assert_eq!(
        lacks("DCGM_FI_DEV_GPU_TEMP{modelName=\"A100\"} > 85"),
        format!("{one}; the result lacks namespace, pod, container, device, pci_bus_id")
    );
    assert_eq!(lacks("max by (UUID) (DCGM_FI_DEV_GPU_TEMP)"), "");
}

#[test]
fn a_counter_stands_for_a_rate_where_that_is_accepted() {
    let context = Context { rate_interval: Some("$__rate_interval".to_owned()), ..Context::new(POD) };
    let transmitted = "podmeter_device_pcie_bytes_total{direction=\"transmit\"}";
    for (input, expect) in [
        ("DCGM_FI_PROF_PCIE_TX_BYTES / 1e9", format!("rate({transmitted}[$__rate_interval]) / 1e9")),
        ("avg_over_time(DCGM_FI_PROF_PCIE_TX_BYTES[10m])", format!("rate({transmitted}[10m])")),
        (
            "DCGM_FI_PROF_PCIE_TX_BYTES{Hostname=\"a\"} offset 1h",
            "rate(podmeter_device_pcie_bytes_total{direction=\"transmit\", node=\"a\"}[$__rate_interval] offset 1h)".to_owned(),
        ),
        (
            "DCGM_FI_DEV_MEM_COPY_UTIL{job=\"dcgm\"} > 80",
            "rate(podmeter_device_memory_busy_seconds_total[$__rate_interval]) * 100 > 80".to_owned(),
        ),
        ("max_over_time(DCGM_FI_PROF_PCIE_TX_BYTES[1h:])", format!("max_over_time(rate({transmitted}[$__rate_interval])[1h:])")),
        (
            "max_over_time(DCGM_FI_PROF_PCIE_TX_BYTES[1h])",
            "left DCGM_FI_PROF_PCIE_TX_BYTES: podmeter counts what it has as a rate: only the mean over a range is that of the counter".to_owned(),
        ),
    ] {
        assert_eq!(show(input, &context), expect, "{input}");
    }
}

#[test]
fn a_factor_can_be_left_to_the_reader() {
    for (input, expect, factor) in [
        ("DCGM_FI_DEV_GPU_UTIL", "podmeter_device_utilization_ratio", 100.0),
        ("DCGM_FI_DEV_GPU_UTIL > 80", "podmeter_device_utilization_ratio > 0.8", 100.0),
        ("DCGM_FI_DEV_GPU_UTIL > bool 80", "podmeter_device_utilization_ratio > bool 0.8", 1.0),
        ("count(DCGM_FI_DEV_GPU_UTIL > 80)", "count(podmeter_device_utilization_ratio > 0.8)", 1.0),
        ("DCGM_FI_DEV_GPU_UTIL > $limit", "podmeter_device_utilization_ratio * 100 > $limit", 1.0),
        ("1000 < DCGM_FI_DEV_FB_USED", "1048576000 < podmeter_device_memory_bytes{state=\"used\"}", 1.0 / 1_048_576.0),
        ("DCGM_FI_DEV_GPU_TEMP > 80", "podmeter_device_temperature_celsius{sensor=\"gpu\"} > 80", 1.0),
    ] {
        let rewritten = rewrite(input, &Context { drop_factor: true, ..Context::new(POD) }).expect("parses");
        assert_eq!((rewritten.text.as_str(), rewritten.factor), (expect, factor), "{input}");
    }
}

#[test]
fn errors_name_the_place() {
    let error = rewrite("DCGM_FI_DEV_GPU_UTIL + no_such(x)", &Context::new(NEW)).expect_err("no such function");
    assert_eq!((error.offset, error.message.as_str()), (23, "unknown function with name 'no_such'"));
    for input in
        ["DCGM_X[1e400]", "DCGM_X offset 1e400", "DCGM_X offset -inf", "sum(DCGM_X", "DCGM_X{", "DCGM_X{a=\"\\"]
    {
        assert!(rewrite(input, &Context::new(NEW)).is_err(), "{input}");
    }
}

#[test]
fn hostile_expressions_are_refused_before_they_are_parsed() {
    for input in [
        format!("{}DCGM_X{}", "(".repeat(100_000), ")".repeat(100_000)),
        format!("{}DCGM_X", "-".repeat(10_000)),
        format!("DCGM_X{}", " + DCGM_X".repeat(5_000)),
        format!("DCGM_X{}", "[5m:]".repeat(1_000)),
        "DCGM_X{a=\"".to_owned() + &"x".repeat(1 << 20) + "\"}",
    ] {
        let error = rewrite(&input, &Context::new(NEW)).expect_err("too large");
        assert!(error.message.contains("more than"), "{}", error.message);
    }
    // What is within the limits is walked without overflowing a thread's stack.
    let deep = format!("{}DCGM_FI_DEV_GPU_UTIL{}", "(".repeat(MAX_DEPTH), ")".repeat(MAX_DEPTH));
    let long = format!("DCGM_FI_DEV_GPU_UTIL{}", " + DCGM_FI_DEV_GPU_UTIL".repeat(MAX_OPERATORS));
    let both = format!("{}1{}", "sum(DCGM_FI_DEV_GPU_UTIL + ".repeat(MAX_DEPTH / 2), ")".repeat(MAX_DEPTH / 2));
    for input in [deep, long, both] {
        assert!(rewrite(&input, &Context::new(NEW)).expect("within the limits").left.is_empty());
    }
}
