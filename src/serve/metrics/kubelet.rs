//! The responses of the kubelet and their age.

use std::sync::LazyLock;

use super::family::{Group, counter, gauge, histogram};
use super::labels::Labels;

const METHODS: [&str; 3] = ["Get", "GetAllocatableResources", "List"];
const TRIGGER_NAMES: [&str; 5] = ["allocate", "checkpoint", "pods_api", "reconnect", "timer"];

pub(super) static GROUP: LazyLock<Group> = LazyLock::new(|| Group {
    section: "Kubelet",
    labels: "",
    source: "podmeter",
    metrics: vec![
        histogram("podmeter_podresources_request_duration_seconds")
            .help("Duration of PodResources calls, including failed ones.")
            .labels("method")
            .samples(|snapshot, family| {
                let durations = &snapshot.kubelet.counters.durations;
                for method in METHODS {
                    family.push(Labels::new("method", method), durations.get(method).cloned().unwrap_or_default());
                }
            }),
        counter("podmeter_podresources_errors_total")
            .help("PodResources calls that failed, by gRPC code.")
            .labels("method code")
            .samples(|snapshot, family| {
                for (method, codes) in &snapshot.kubelet.counters.errors {
                    for (code, count) in codes {
                        family.push(Labels::new("method", *method).and("code", *code), *count);
                    }
                }
            }),
        gauge("podmeter_claim_files_unreadable")
            .help("Files of DRA drivers about listed claims that cannot be read or parsed.")
            .labels("source")
            .samples(|snapshot, family| {
                for (source, count) in snapshot.kubelet.unreadable_claim_files.iter().flat_map(|files| &**files) {
                    family.push(Labels::new("source", *source), *count as f64);
                }
            }),
        gauge("podmeter_podresources_age_seconds")
            .help("Age of the allocations in use: grows while the kubelet does not answer.")
            .samples(|snapshot, family| {
                let answered = snapshot.kubelet.allocations_at;
                let age = answered.map(|answered| snapshot.at.monotonic.since(answered.monotonic).as_secs_f64());
                family.push_known(Labels::default(), age);
            }),
        gauge("podmeter_podresources_pods_truncated")
            .help("Whether the last answer exceeded the size limit and pods may be missing.")
            .samples(|snapshot, family| {
                let has_answered = snapshot.kubelet.allocations.is_some() || snapshot.kubelet.truncated;
                family.push_known(Labels::default(), has_answered.then_some(snapshot.kubelet.truncated));
            }),
        counter("podmeter_refresh_triggers_total")
            .help("Triggers of refreshes of the allocations.")
            .labels("trigger")
            .samples(|snapshot, family| {
                for trigger in TRIGGER_NAMES {
                    let count = snapshot.kubelet.counters.triggers.get(trigger).copied().unwrap_or(0);
                    family.push(Labels::new("trigger", trigger), count);
                }
            }),
    ],
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::{Monotonic, Snapshot};
    use crate::serve::metrics::tests::{fixture, value};

    #[test]
    fn the_age_grows_while_the_kubelet_is_away() {
        let mut snapshot = fixture::snapshot();
        assert_eq!(value(&GROUP.families(&snapshot), "podmeter_podresources_age_seconds", &[]), Some(3.0));
        snapshot.at.monotonic = Monotonic::from_secs(700);
        assert_eq!(value(&GROUP.families(&snapshot), "podmeter_podresources_age_seconds", &[]), Some(103.0));
    }

    #[test]
    fn counters_of_fixed_labels_start_at_zero() {
        let page = GROUP.families(&Snapshot::default());
        for trigger in TRIGGER_NAMES {
            assert_eq!(value(&page, "podmeter_refresh_triggers_total", &[("trigger", trigger)]), Some(0.0));
        }
        for method in METHODS {
            let name = "podmeter_podresources_request_duration_seconds";
            assert_eq!(value(&page, name, &[("method", method)]), Some(0.0));
        }
        assert_eq!(value(&page, "podmeter_podresources_age_seconds", &[]), None);
        assert_eq!(value(&page, "podmeter_podresources_pods_truncated", &[]), None);
    }
}
