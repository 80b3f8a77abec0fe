//! The kubelet's answers, and how old they are.

use super::{Descriptor, Family, Group};
use crate::model::{DurationHistogram, Snapshot};

static REQUEST_DURATION: Descriptor = Descriptor::histogram(
    "podmeter_podresources_request_duration_seconds",
    &["method"],
    "seconds",
    "podmeter",
    "Time that PodResources calls took, failed ones too.",
);
static ERRORS: Descriptor = Descriptor::counter(
    "podmeter_podresources_errors_total",
    &["method", "code"],
    "",
    "podmeter",
    "PodResources calls that failed, by gRPC code.",
);
static AGE: Descriptor = Descriptor::gauge(
    "podmeter_podresources_age_seconds",
    &[],
    "seconds",
    "podmeter",
    "Age of the allocation relation in use: grows while the kubelet does not answer.",
);
static TRUNCATED: Descriptor = Descriptor::gauge(
    "podmeter_podresources_pods_truncated",
    &[],
    "",
    "podmeter",
    "Whether the last answer was over the size limit and the relation may lack pods, 0 or 1.",
);
static TRIGGERS: Descriptor = Descriptor::counter(
    "podmeter_refresh_triggers_total",
    &["trigger"],
    "",
    "podmeter",
    "Refreshes of the allocation relation, by what asked for them.",
);

const METHODS: [&str; 3] = ["Get", "GetAllocatableResources", "List"];
const TRIGGER_NAMES: [&str; 5] = ["allocate", "checkpoint", "pods_api", "reconnect", "timer"];

pub(super) const GROUP: Group =
    Group { section: "Kubelet", descriptors: &[&REQUEST_DURATION, &ERRORS, &AGE, &TRUNCATED, &TRIGGERS], families };

fn families(snapshot: &Snapshot) -> Vec<Family> {
    let kubelet = &snapshot.kubelet;
    let counters = &kubelet.counters;

    let mut durations = Family::new(&REQUEST_DURATION);
    for (method, histogram) in &counters.durations {
        durations.push(vec![("method", (*method).into())], histogram);
    }
    for method in METHODS.iter().filter(|method| !counters.durations.contains_key(*method)) {
        durations.push(vec![("method", (*method).into())], &DurationHistogram::default());
    }

    let mut errors = Family::new(&ERRORS);
    for (method, codes) in &counters.errors {
        for (code, count) in codes {
            let labels = vec![("method", (*method).into()), ("code", (*code).into())];
            errors.push_created(labels, Some(*count), snapshot.started);
        }
    }

    let mut age = Family::new(&AGE);
    let allocations_at = kubelet.allocations_at;
    age.push_known(vec![], allocations_at.map(|then| snapshot.at.monotonic.since(then.monotonic).as_secs_f64()));

    let mut truncated = Family::new(&TRUNCATED);
    let has_answered = kubelet.allocations.is_some() || kubelet.truncated;
    truncated.push_known(vec![], has_answered.then_some(kubelet.truncated));

    let mut triggers = Family::new(&TRIGGERS);
    for trigger in TRIGGER_NAMES {
        let count = counters.triggers.get(trigger).copied().unwrap_or(0);
        triggers.push_created(vec![("trigger", trigger.into())], Some(count), snapshot.started);
    }
    vec![durations, errors, age, truncated, triggers]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::{fixture, value};
    use crate::model::Monotonic;

    #[test]
    fn the_age_grows_while_the_kubelet_is_away() {
        let mut snapshot = fixture::snapshot();
        assert_eq!(value(&families(&snapshot), "podmeter_podresources_age_seconds", &[]), Some(3.0));
        snapshot.at.monotonic = Monotonic::from_secs(700);
        assert_eq!(value(&families(&snapshot), "podmeter_podresources_age_seconds", &[]), Some(103.0));
    }

    #[test]
    fn counters_of_fixed_labels_start_at_zero() {
        let page = families(&Snapshot::default());
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
