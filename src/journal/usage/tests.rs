use proptest::prelude::*;

use super::*;
use crate::domain::model::HoldingCounters;
use crate::journal::allocation_record::{JournalDevice, Xid};
use crate::journal::report::{usage_csv, usage_table};

fn record(id: u64, pod: &str, gpu: &str, (began, ended): (f64, f64), busy: Option<f64>) -> AllocationRecord {
    let seconds = ended - began;
    AllocationRecord {
        id,
        namespace: pod.split('-').next().unwrap_or_default().into(),
        pod: pod.into(),
        device: JournalDevice { gpu_uuid: gpu.into(), ..JournalDevice::default() },
        began,
        seen: ended,
        ended: Some(ended),
        counters: HoldingCounters {
            held_seconds: Some(seconds),
            allocated_seconds: Some(seconds),
            busy_seconds: busy.map(|busy| busy * seconds),
            idle_seconds: busy.map(|busy| (1.0 - busy) * seconds),
            uncovered_seconds: Some(if busy.is_some() { 0.0 } else { seconds }),
            energy_joules: busy.map(|_| 100.0 * seconds),
            ..HoldingCounters::default()
        },
        ..AllocationRecord::default()
    }
}

#[test]
fn a_holding_across_a_bound_counts_in_proportion() {
    let records = [record(1, "a-1", "GPU-1", (100.0, 200.0), Some(0.25)), record(2, "b-1", "GPU-1", (0.0, 50.0), None)];
    let usage = Usage::sum(&records, By::Namespace, (150.0, 1000.0), &Prices::default());
    let [row] = &usage.rows[..] else { panic!("one row: {usage:?}") };
    assert_eq!(
        (row.names.get("namespace").map(|name| &**name), row.totals.counters.allocated_seconds),
        (Some("a"), Some(50.0))
    );
    assert_eq!((row.totals.utilization_ratio, row.totals.counters.energy_joules), (Some(0.25), Some(5000.0)));
}

#[test]
fn unknown_is_absent_and_not_zero() {
    let usage = Usage::sum(&[record(2, "b-1", "GPU-1", (0.0, 50.0), None)], By::Pod, (0.0, 100.0), &Prices::default());
    assert_eq!((usage.total.counters.busy_seconds, usage.total.utilization_ratio), (None, None));
    assert_eq!(usage.total.counters.allocated_seconds, Some(50.0));
    let json = serde_json::to_value(&usage).unwrap();
    assert!(json["total"].get("busy_seconds").is_none(), "{json}");
}

#[test]
fn xids_of_a_device_are_unknown_as_those_of_no_container_are_not_recorded() {
    let mut held = record(1, "a-1", "GPU-1", (0.0, 50.0), None);
    held.xids = vec![Xid { code: 31, class: "application".into(), count: 2 }];
    let records = [held, record(2, "b-1", "GPU-2", (0.0, 50.0), None)];
    let xids = |by| {
        let usage = Usage::sum(&records, by, (0.0, 100.0), &Prices::default());
        (usage.rows.iter().map(|row| row.totals.xids).collect::<Vec<_>>(), usage.total.xids)
    };
    assert_eq!(xids(By::Namespace), (vec![Some(2), Some(0)], Some(2)));
    assert_eq!(xids(By::Device), (vec![None, None], None));
    let device = Usage::sum(&records, By::Device, (0.0, 100.0), &Prices::default());
    assert!(!usage_table(&device, By::Device).contains(" 0 "), "{}", usage_table(&device, By::Device));
    assert_eq!(Usage::sum([], By::Pod, (0.0, 100.0), &Prices::default()).total.xids, Some(0));
}

/// At prices with a currency.
fn priced(texts: &[&str]) -> Prices {
    Prices::new(texts.iter().map(|text| text.parse().unwrap()).collect(), Some("EUR".to_owned())).unwrap()
}

fn of_model(mut record: AllocationRecord, model: &str) -> AllocationRecord {
    record.device.model = Some(model.into());
    record
}

#[test]
fn a_quarter_costs_a_quarter_and_borrowed_time_nothing_more() {
    let mut slot = of_model(record(1, "a-1", "GPU-1", (0.0, 7200.0), None), "NVIDIA L4");
    slot.counters = HoldingCounters {
        held_seconds: Some(7200.0),
        allocated_seconds: Some(1800.0),
        busy_seconds: Some(5400.0),
        borrowed_seconds: Some(4500.0),
        idle_seconds: Some(360.0),
        uncovered_seconds: Some(540.0),
        energy_joules: None,
    };
    let usage = Usage::sum([&slot], By::Namespace, (0.0, 7200.0), &priced(&["NVIDIA L4=2"]));
    let cost = |cost, used_cost, idle_cost, uncovered_cost| Cost {
        cost: Some(cost),
        used_cost: Some(used_cost),
        idle_cost: Some(idle_cost),
        uncovered_cost: Some(uncovered_cost),
    };
    assert_eq!(usage.total.cost, cost(1.0, 0.5, 0.2, 0.3));
    let half = Usage::sum([&slot], By::Namespace, (0.0, 3600.0), &priced(&["NVIDIA L4=2"]));
    assert_eq!(half.total.cost, cost(0.5, 0.25, 0.1, 0.15));
    let table = usage_table(&usage, By::Namespace);
    assert!(table.contains("UNHEALTHY  COST EUR  USED COST EUR  IDLE COST EUR  UNKNOWN COST EUR\n"), "{table}");
    let csv = usage_csv(&usage, By::Namespace);
    assert!(csv.contains(",cost,used_cost,idle_cost,uncovered_cost,currency\n"), "{csv}");
    assert!(csv.ends_with(",1.0,0.5,0.2,0.3,EUR\n"), "{csv}");
    let json = serde_json::to_value(&usage).unwrap();
    assert_eq!((&json["currency"], &json["rows"][0]["used_cost"]), (&"EUR".into(), &0.5.into()));
}

#[test]
fn a_sum_with_a_device_without_a_price_has_no_cost_and_names_its_model() {
    let records = [
        of_model(record(1, "a-1", "GPU-1", (0.0, 3600.0), Some(0.5)), "NVIDIA L4"),
        of_model(record(2, "b-1", "GPU-2", (0.0, 3600.0), Some(0.5)), "NVIDIA A100"),
    ];
    let usage = Usage::sum(&records, By::Namespace, (0.0, 3600.0), &priced(&["NVIDIA L4=2"]));
    assert_eq!(usage.rows[0].totals.cost.cost, Some(2.0));
    for totals in [&usage.rows[1].totals, &usage.total] {
        assert_eq!(totals.cost, Cost::default());
        assert!(totals.unpriced.iter().map(|name| &**name).eq(["NVIDIA A100"]), "{totals:?}");
    }
    let json = serde_json::to_value(&usage).unwrap();
    assert_eq!((&json["total"]["unpriced"], json["total"].get("cost")), (&serde_json::json!(["NVIDIA A100"]), None));
    let without = Usage::sum(&records, By::Namespace, (0.0, 3600.0), &Prices::default());
    let table = usage_table(&without, By::Namespace);
    assert!(!table.contains("COST") && without.total.unpriced.is_empty(), "{table}");
}

proptest! {
    /// The totals of all groupings are equal, and adjacent windows add up.
    #[test]
    fn every_view_adds_up_to_the_same(
        holdings in prop::collection::vec((0..3usize, 0..4usize, 0.0..1000.0f64, 0.1..500.0f64, 0.0..1.0f64), 0..40),
        cut in 0.0..1500.0f64,
    ) {
        let records: Vec<AllocationRecord> = (1..)
            .zip(&holdings)
            .map(|(id, (pod, gpu, began, length, busy))| {
                let pod = ["a-1", "a-2", "b-1"][*pod];
                let record = record(id, pod, &format!("GPU-{gpu}"), (*began, began + length), Some(*busy));
                of_model(record, ["NVIDIA L4", "NVIDIA H100"][gpu % 2])
            })
            .collect();
        let prices = priced(&["*L4=0.7", "2.8"]);
        let near = |one: f64, two: f64| (one - two).abs() < 1e-6;
        let sum = |usage: &Usage, read: fn(&UsageTotals) -> Option<f64>| {
            (usage.rows.iter().filter_map(|row| read(&row.totals)).sum::<f64>(), read(&usage.total).unwrap_or(0.0))
        };
        for read in [
            (|totals: &UsageTotals| totals.counters.allocated_seconds) as fn(&UsageTotals) -> Option<f64>,
            |totals: &UsageTotals| totals.counters.busy_seconds,
            |totals: &UsageTotals| totals.counters.energy_joules,
            |totals: &UsageTotals| totals.cost.cost,
            |totals: &UsageTotals| Some(totals.cost.used_cost? + totals.cost.idle_cost?),
        ] {
            let views = [By::Namespace, By::Pod, By::Device].map(|by| Usage::sum(&records, by, (0.0, 2000.0), &prices));
            let whole = sum(&views[0], read).1;
            for view in &views {
                let (rows, total) = sum(view, read);
                prop_assert!(near(rows, total) && near(total, whole), "{rows} {total} {whole}");
            }
            let (before, after) =
                (Usage::sum(&records, By::Pod, (0.0, cut), &prices), Usage::sum(&records, By::Pod, (cut, 2000.0), &prices));
            prop_assert!(near(sum(&before, read).1 + sum(&after, read).1, whole));
        }
    }
}
