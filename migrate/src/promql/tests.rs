use super::*;
use crate::names::{Target, UtilizationRatio};

const OLD: Target = Target::Old;
const NEW: Target = Target::New;

static RECORDED: BTreeMap<String, Origin> = BTreeMap::new();

fn context(target: Target) -> Context<'static> {
    let naming = Naming { target, ratio: None, labels: &[] };
    Context { naming, recorded: &RECORDED, labels_read: BTreeSet::new(), has_values: true }
}

/// What a person would see of the rewriting: the text, or what is left.
fn show(input: &str, context: &Context<'_>) -> String {
    let rewritten = rewrite(input, context);
    if rewritten.left.is_empty() {
        let text = rewritten.text(input);
        let again = rewrite(&text, context);
        assert!(again.edits.is_empty() && again.left.is_empty(), "rewriting again changes nothing: {again:?}");
        return text;
    }
    assert!(rewritten.edits.is_empty());
    let left = rewritten.left.iter().map(|left| {
        let suggestion = left.suggestion.as_ref().map_or_else(String::new, |text| format!(" [{text}]"));
        format!("{}: {}{suggestion}", left.name, left.reason)
    });
    format!("left {}", left.collect::<Vec<_>>().join("; "))
}

fn check(target: Target, cases: &[(&str, &str)]) {
    for (input, expect) in cases {
        assert_eq!(show(input, &context(target)), *expect, "{input}");
    }
}

#[test]
fn the_unit_is_converted_inside_the_expression() {
    check(
        NEW,
        &[
            ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"),
            ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO * 100"),
            ("DCGM_FI_DEV_GPU_UTIL > 80", "DCGM_FI_DEV_GPU_UTIL_RATIO * 100 > 80"),
            ("80 < DCGM_FI_DEV_GPU_UTIL", "80 < DCGM_FI_DEV_GPU_UTIL_RATIO * 100"),
            ("100 - DCGM_FI_DEV_GPU_UTIL", "100 - DCGM_FI_DEV_GPU_UTIL_RATIO * 100"),
            ("DCGM_FI_DEV_GPU_UTIL ^ 2", "(DCGM_FI_DEV_GPU_UTIL_RATIO * 100) ^ 2"),
            ("5 % DCGM_FI_DEV_GPU_UTIL", "5 % (DCGM_FI_DEV_GPU_UTIL_RATIO * 100)"),
            ("1 / DCGM_FI_DEV_GPU_UTIL", "1 / (DCGM_FI_DEV_GPU_UTIL_RATIO * 100)"),
            ("a / on (gpu) DCGM_FI_DEV_GPU_UTIL", "a / on (gpu) (DCGM_FI_DEV_GPU_UTIL_RATIO * 100)"),
            ("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_SM_CLOCK_HERTZ / 1e6"),
            ("sum(DCGM_FI_DEV_FB_USED) or vector(0)", "sum(DCGM_FI_DEV_FB_USED_BYTES / 1048576) or vector(0)"),
            (
                "(DCGM_FI_DEV_GPU_UTIL == 0) unless on (gpu) DCGM_FI_DEV_GPU_TEMP",
                "(DCGM_FI_DEV_GPU_UTIL_RATIO * 100 == 0) unless on (gpu) DCGM_FI_DEV_GPU_TEMP_CELSIUS",
            ),
            ("DCGM_FI_DEV_GPU_UTIL > bool $limit", "DCGM_FI_DEV_GPU_UTIL_RATIO * 100 > bool $limit"),
            ("DCGM_FI_DEV_GPU_UTIL @ end() offset -5m", "DCGM_FI_DEV_GPU_UTIL_RATIO @ end() offset -5m * 100"),
            ("-DCGM_FI_DEV_GPU_UTIL", "-DCGM_FI_DEV_GPU_UTIL_RATIO * 100"),
            ("+DCGM_FI_DEV_GPU_UTIL + 1", "+DCGM_FI_DEV_GPU_UTIL_RATIO * 100 + 1"),
        ],
    );
    check(
        OLD,
        &[
            ("DCGM_FI_DEV_FB_USED_BYTES", "DCGM_FI_DEV_FB_USED * 1048576"),
            ("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION / 1000"),
        ],
    );
}

#[test]
fn literals_that_are_the_inverse_of_the_factor_disappear() {
    check(
        NEW,
        &[
            ("rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m]) / 1000", "rate(DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL[5m])"),
            ("sum by (gpu) (DCGM_FI_DEV_GPU_UTIL) / 100 > 1", "sum by (gpu) (DCGM_FI_DEV_GPU_UTIL_RATIO) > 1"),
            ("sum(DCGM_FI_DEV_GPU_UTIL) by (gpu) / 100", "sum(DCGM_FI_DEV_GPU_UTIL_RATIO) by (gpu)"),
            ("DCGM_FI_DEV_FB_USED * 1024 * 1024", "DCGM_FI_DEV_FB_USED_BYTES"),
            ("DCGM_FI_DEV_FB_USED * 1048576 / 1e9", "DCGM_FI_DEV_FB_USED_BYTES / 1e9"),
            ("2 * DCGM_FI_DEV_GPU_UTIL / 100", "2 * DCGM_FI_DEV_GPU_UTIL_RATIO"),
            ("0.01 * DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO"),
            ("(DCGM_FI_DEV_GPU_UTIL) / 100", "(DCGM_FI_DEV_GPU_UTIL_RATIO)"),
            // Others stay.
            ("DCGM_FI_DEV_FB_USED / 1024", "DCGM_FI_DEV_FB_USED_BYTES / 1048576 / 1024"),
            ("1 / DCGM_FI_DEV_GPU_UTIL / 100", "1 / (DCGM_FI_DEV_GPU_UTIL_RATIO * 100) / 100"),
            ("DCGM_FI_DEV_GPU_UTIL / 100 ^ 2", "DCGM_FI_DEV_GPU_UTIL_RATIO * 100 / 100 ^ 2"),
            ("2 ^ DCGM_FI_DEV_GPU_UTIL / 100", "2 ^ (DCGM_FI_DEV_GPU_UTIL_RATIO * 100) / 100"),
            ("0.01 * DCGM_FI_DEV_GPU_UTIL ^ 2", "0.01 * (DCGM_FI_DEV_GPU_UTIL_RATIO * 100) ^ 2"),
            ("DCGM_FI_DEV_GPU_UTIL # %\n / 100", "DCGM_FI_DEV_GPU_UTIL_RATIO * 100 # %\n / 100"),
            ("floor(DCGM_FI_DEV_GPU_UTIL) / 100", "floor(DCGM_FI_DEV_GPU_UTIL_RATIO * 100) / 100"),
        ],
    );
}

#[test]
fn a_factor_that_both_sides_have_cancels() {
    let share = |used: &str, free: &str| format!("100 * {used} / ({used} + {free})");
    let (used, free) = ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE");
    let of_bytes = share("DCGM_FI_DEV_FB_USED_BYTES", "DCGM_FI_DEV_FB_FREE_BYTES");
    let share = share(used, free);
    check(
        NEW,
        &[
            (&share, &of_bytes),
            (&format!("max({share}) > 90 and up == 1"), &format!("max({of_bytes}) > 90 and up == 1")),
            (
                &format!("{share} > 90 or {used} > 70000"),
                &format!("{of_bytes} > 90 or DCGM_FI_DEV_FB_USED_BYTES / 1048576 > 70000"),
            ),
            // A comparison with a number needs the unit, also where its result has no value.
            (
                &format!("count({used} > 1024) / count({used})"),
                "count(DCGM_FI_DEV_FB_USED_BYTES / 1048576 > 1024) / count(DCGM_FI_DEV_FB_USED_BYTES)",
            ),
            (&format!("count(up and {used} > 1024)"), "count(up and DCGM_FI_DEV_FB_USED_BYTES / 1048576 > 1024)"),
            // Two factors.
            (
                "sum(rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m])) / sum(DCGM_FI_DEV_GPU_UTIL)",
                "sum(rate(DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL[5m]) * 1000) / sum(DCGM_FI_DEV_GPU_UTIL_RATIO * 100)",
            ),
        ],
    );
}

#[test]
fn the_factor_is_written_behind_functions_of_ranges() {
    check(
        NEW,
        &[
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
                "max_over_time(rate(DCGM_FI_DEV_POWER_VIOLATION[5m])[1h:5m] offset 1d)",
                "max_over_time(rate(DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL[5m])[1h:5m] offset 1d) * 1e9",
            ),
            (
                "max_over_time((DCGM_FI_DEV_GPU_UTIL > 5)[1h:5m])",
                "max_over_time((DCGM_FI_DEV_GPU_UTIL_RATIO * 100 > 5)[1h:5m])",
            ),
            ("count_over_time(DCGM_FI_DEV_GPU_UTIL[5m])", "count_over_time(DCGM_FI_DEV_GPU_UTIL_RATIO[5m])"),
            ("absent(DCGM_FI_DEV_GPU_UTIL{Hostname=\"a\"})", "absent(DCGM_FI_DEV_GPU_UTIL_RATIO{hostname=\"a\"})"),
            ("time() - max(timestamp(DCGM_FI_DEV_GPU_UTIL))", "time() - max(timestamp(DCGM_FI_DEV_GPU_UTIL_RATIO))"),
            ("clamp_max(DCGM_FI_DEV_GPU_UTIL, 100)", "clamp_max(DCGM_FI_DEV_GPU_UTIL_RATIO * 100, 100)"),
            ("topk(5, DCGM_FI_DEV_GPU_UTIL)", "topk(5, DCGM_FI_DEV_GPU_UTIL_RATIO * 100)"),
            (
                "DCGM_FI_DEV_GPU_UTIL[5m]",
                "left DCGM_FI_DEV_GPU_UTIL: a range cannot be multiplied, and its unit changes",
            ),
            (
                "stdvar_over_time(DCGM_FI_DEV_GPU_UTIL[5m])",
                "left stdvar_over_time: its result is not proportional to its argument, whose unit changes",
            ),
            (
                "count_values(\"v\", DCGM_FI_DEV_GPU_UTIL)",
                "left count_values: it makes labels of the values, whose unit changes",
            ),
        ],
    );
}

#[test]
fn the_text_around_names_stays() {
    check(
        NEW,
        &[
            (
                "sum( # all\n  rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu=~\"$gpu\",Hostname='${node:regex}'}[$__rate_interval])\n) by (gpu, Hostname)",
                "sum( # all\n  rate(DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL{gpu=~\"$gpu\",hostname='${node:regex}'}[$__rate_interval]) * 1000\n) by (gpu, hostname)",
            ),
            (
                "{__name__=\"DCGM_FI_DEV_GPU_UTIL\", gpu=\"0\"}",
                "{__name__=\"DCGM_FI_DEV_GPU_UTIL_RATIO\", gpu=\"0\"} * 100",
            ),
            ("gpu:dcgm_fi_dev_gpu_util:avg > 5", "gpu:dcgm_fi_dev_gpu_util:avg > 5"),
            ("{app=\"x\"} |= \"error\"", "{app=\"x\"} |= \"error\""),
            ("DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_TX_BYTES"),
            ("DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_DEV_GPU_UTIL_RATIO"),
        ],
    );
}

#[test]
fn the_name_with_two_meanings_needs_a_statement() {
    let name = "DCGM_FI_DEV_GPU_UTIL_RATIO > 80";
    let with =
        |ratio, target| show(name, &Context { naming: Naming { ratio, ..context(target).naming }, ..context(target) });
    assert!(with(None, OLD).starts_with("left DCGM_FI_DEV_GPU_UTIL_RATIO: it is percent in DCGM 4.6"));
    assert_eq!(with(Some(UtilizationRatio::Percent), OLD), "DCGM_FI_DEV_GPU_UTIL > 80");
    assert_eq!(with(Some(UtilizationRatio::Ratio), OLD), "DCGM_FI_DEV_GPU_UTIL / 100 > 80");
    assert!(with(Some(UtilizationRatio::Percent), NEW).starts_with("left "));
    assert_eq!(with(Some(UtilizationRatio::Ratio), NEW), name);
}

#[test]
fn labels_are_renamed_where_all_series_are_dcgm_exporters() {
    let joined = "DCGM_FI_DEV_GPU_TEMP * on (Hostname) group_left (team) node_team";
    let left = "left Hostname: on dcgm-exporter's series it becomes `hostname`; other series may have it too \
                [DCGM_FI_DEV_GPU_TEMP_CELSIUS * on (hostname) group_left (team) node_team]";
    check(
        NEW,
        &[
            (
                "max by (Hostname) (DCGM_FI_PROF_PCIE_TX_BYTES{DCGM_FI_DRIVER_VERSION=\"580\"})",
                "max by (hostname) (DCGM_FI_PROF_PCIE_TX_BYTES{DCGM_FI_SYSTEM_DRIVER_VERSION=\"580\"})",
            ),
            (
                "label_replace(DCGM_FI_DEV_GPU_TEMP, \"node\", \"Hostname\", \"Hostname\", \"(.*)\")",
                "label_replace(DCGM_FI_DEV_GPU_TEMP_CELSIUS, \"node\", \"Hostname\", \"hostname\", \"(.*)\")",
            ),
            (joined, left),
            (
                "DCGM_FI_DEV_GPU_TEMP{Hostname=\"a\"} * on (pod) group_left (team) pod_team",
                "DCGM_FI_DEV_GPU_TEMP_CELSIUS{hostname=\"a\"} * on (pod) group_left (team) pod_team",
            ),
            (
                "max by (Hostname, hostname) (DCGM_FI_DEV_GPU_TEMP)",
                "left Hostname: it becomes `hostname`, which is named beside it",
            ),
            (
                "max by ($label) (DCGM_FI_DEV_GPU_TEMP)",
                "left $label: the variable may stand for a label that is renamed",
            ),
        ],
    );
    check(OLD, &[("DCGM_FI_DEV_GPU_UTIL{hostname=\"a\"}", "DCGM_FI_DEV_GPU_UTIL{Hostname=\"a\"}")]);
    // A legend reads the label of both.
    let read = Context { labels_read: ["Hostname".to_owned()].into(), ..context(NEW) };
    assert!(show("DCGM_FI_DEV_GPU_TEMP * on (pod) group_left (team) pod_team", &read).starts_with("left Hostname"));
    assert_eq!(show("DCGM_FI_DEV_GPU_TEMP", &read), "DCGM_FI_DEV_GPU_TEMP_CELSIUS");
}

#[test]
fn recorded_series_have_the_labels_of_what_they_are_recorded_from() {
    let recorded = [("a".to_owned(), Origin::Dcgm), ("b".to_owned(), Origin::Mixed)].into();
    let show = |input: &str| show(input, &Context { recorded: &recorded, ..context(NEW) });
    assert_eq!(show("sum by (Hostname) (a{Hostname=\"x\"})"), "sum by (hostname) (a{hostname=\"x\"})");
    assert_eq!(show("sum by (Hostname) (c)"), "sum by (Hostname) (c)");
    assert!(show("b{Hostname=\"x\"}").starts_with("left Hostname"));
    assert_eq!(show("b > 1"), "b > 1");
}

#[test]
fn what_cannot_be_proven_is_left() {
    check(
        NEW,
        &[
            ("DCGM_FI_DEV_MADE_UP", "left DCGM_FI_DEV_MADE_UP: it is not in the table of dcgm-exporter's names"),
            ("DCGM_FI_DEV_$metric", "left DCGM_FI_DEV_$metric: the metric name contains a variable"),
            ("{__name__=~\"DCGM_FI_.+\"}", "left DCGM_FI_.+: a pattern of names, or one in quotes"),
            ("{\"DCGM_FI_DEV_FB_USED\"}", "left \"DCGM_FI_DEV_FB_USED\": a pattern of names, or one in quotes"),
        ],
    );
    assert!(show("sum(DCGM_FI_DEV_GPU_TEMP", &context(NEW)).starts_with("left DCGM_FI_DEV_GPU_TEMP: not PromQL: "));
    for deep in ["(".repeat(2000), "-".repeat(5000), "1+".repeat(5000), "a[99999999999999999999]".to_owned()] {
        assert!(show(&format!("{deep}DCGM_FI_DEV_GPU_TEMP"), &context(NEW)).contains("not PromQL"));
    }
}
