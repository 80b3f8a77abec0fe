use proptest::prelude::*;

use super::*;
use crate::domain::model::HoldingCounters;
use crate::journal::allocation_record::{JournalDevice, Xid};
use crate::journal::report::usage_table;

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
            energy_joules: busy.map(|_| 100.0 * seconds),
            ..HoldingCounters::default()
        },
        ..AllocationRecord::default()
    }
}

#[test]
fn a_holding_across_a_bound_counts_in_proportion() {
    let records = [record(1, "a-1", "GPU-1", (100.0, 200.0), Some(0.25)), record(2, "b-1", "GPU-1", (0.0, 50.0), None)];
    let usage = Usage::sum(&records, By::Namespace, 150.0, 1000.0);
    let [row] = &usage.rows[..] else { panic!("one row: {usage:?}") };
    assert_eq!(
        (row.names.get("namespace").map(|name| &**name), row.totals.counters.allocated_seconds),
        (Some("a"), Some(50.0))
    );
    assert_eq!((row.totals.utilization_ratio, row.totals.counters.energy_joules), (Some(0.25), Some(5000.0)));
}

#[test]
fn unknown_is_absent_and_not_zero() {
    let usage = Usage::sum(&[record(2, "b-1", "GPU-1", (0.0, 50.0), None)], By::Pod, 0.0, 100.0);
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
        let usage = Usage::sum(&records, by, 0.0, 100.0);
        (usage.rows.iter().map(|row| row.totals.xids).collect::<Vec<_>>(), usage.total.xids)
    };
    assert_eq!(xids(By::Namespace), (vec![Some(2), Some(0)], Some(2)));
    assert_eq!(xids(By::Device), (vec![None, None], None));
    let device = Usage::sum(&records, By::Device, 0.0, 100.0);
    assert!(!usage_table(&device, By::Device).contains(" 0 "), "{}", usage_table(&device, By::Device));
    assert_eq!(Usage::sum([], By::Pod, 0.0, 100.0).total.xids, Some(0));
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
                record(id, pod, &format!("GPU-{gpu}"), (*began, began + length), Some(*busy))
            })
            .collect();
        let near = |one: f64, two: f64| (one - two).abs() < 1e-6;
        let sum = |usage: &Usage, read: fn(&UsageTotals) -> Option<f64>| {
            (usage.rows.iter().filter_map(|row| read(&row.totals)).sum::<f64>(), read(&usage.total).unwrap_or(0.0))
        };
        for read in [
            (|totals: &UsageTotals| totals.counters.allocated_seconds) as fn(&UsageTotals) -> Option<f64>,
            |totals: &UsageTotals| totals.counters.busy_seconds,
            |totals: &UsageTotals| totals.counters.energy_joules,
        ] {
            let views = [By::Namespace, By::Pod, By::Device].map(|by| Usage::sum(&records, by, 0.0, 2000.0));
            let whole = sum(&views[0], read).1;
            for view in &views {
                let (rows, total) = sum(view, read);
                prop_assert!(near(rows, total) && near(total, whole), "{rows} {total} {whole}");
            }
            let (before, after) =
                (Usage::sum(&records, By::Pod, 0.0, cut), Usage::sum(&records, By::Pod, cut, 2000.0));
            prop_assert!(near(sum(&before, read).1 + sum(&after, read).1, whole));
        }
    }
}
