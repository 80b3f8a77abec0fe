//! The UIDs and labels of pods, and whether processes are attributed.

use std::sync::LazyLock;

use super::family::{Group, gauge};
use super::labels::{node, of_pod};

pub(super) static GROUP: LazyLock<Group> = LazyLock::new(|| Group {
    section: "Pods and processes",
    labels: "",
    source: "podmeter",
    metrics: vec![
        gauge("podmeter_pod_info")
            .help("A pod that the kubelet lists, with its UID and the labels selected by podLabels.")
            .labels("namespace pod uid label_*")
            .source("kubelet device checkpoint, Pods API or pod-log directories")
            .samples(|snapshot, family| {
                let Some(processes) = &snapshot.processes else { return };
                for pod in snapshot.kubelet.allocations.iter().flat_map(|allocations| &allocations.pods) {
                    let Some(uid) = &pod.uid else { continue };
                    // Labels of another pod of the same name are not this one's.
                    let identity = processes.pods.get(&pod.reference);
                    let identity = identity.filter(|identity| identity.has_uid(uid));
                    if identity.is_none() && !processes.pod_labels.is_empty() {
                        continue;
                    }
                    let uid = identity.map_or(uid, |identity| &identity.uid);
                    // A label that the pod does not have is absent, not empty.
                    let value = |key: &str| identity.and_then(|identity| identity.labels.get(key));
                    let chosen = processes.pod_labels.iter();
                    let labels = chosen.fold(of_pod(&pod.reference).and("uid", uid), |labels, label| {
                        labels.and_known(label.name, value(&label.key))
                    });
                    family.push(labels, 1u64);
                }
            }),
        gauge("podmeter_process_attribution_enabled")
            .help("Whether host process IDs are visible and used for attribution.")
            .each(node, |snapshot| snapshot.processes.as_ref().map(|processes| processes.enabled)),
    ],
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::Snapshot;
    use crate::serve::metrics::tests::{fixture, value};

    #[test]
    fn a_pod_that_the_kubelet_does_not_list_is_not_shown() {
        let mut snapshot = fixture::snapshot();
        std::sync::Arc::make_mut(&mut snapshot.kubelet).allocations = None;
        assert_eq!(value(&GROUP.families(&snapshot), "podmeter_pod_info", &[]), None);
        assert!(GROUP.families(&Snapshot::default()).is_empty());
    }
}
