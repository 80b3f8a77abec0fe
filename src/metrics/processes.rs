//! Who pods are beyond their names, and whether processes are told apart.

use super::{Descriptor, Family, Group, Label};
use crate::model::Snapshot;

static POD_INFO: Descriptor = Descriptor::gauge(
    "podmeter_pod_info",
    &["namespace", "pod", "uid", "label_*"],
    "",
    "kubelet device checkpoint, Pods API or pod-log directories",
    "A pod that the kubelet lists, its UID and the labels asked for with podLabels; always 1.",
);
static ATTRIBUTION_ENABLED: Descriptor = Descriptor::gauge(
    "podmeter_process_attribution_enabled",
    &[],
    "",
    "podmeter",
    "Whether host process ids are visible and used to attribute use to containers, 0 or 1.",
);

pub(super) const GROUP: Group =
    Group { section: "Pods and processes", descriptors: &[&POD_INFO, &ATTRIBUTION_ENABLED], families };

fn families(snapshot: &Snapshot) -> Vec<Family> {
    let (mut info, mut enabled) = (Family::new(&POD_INFO), Family::new(&ATTRIBUTION_ENABLED));
    let Some(processes) = &snapshot.processes else { return vec![] };
    enabled.push(vec![], processes.enabled);
    let listed = snapshot.kubelet.allocations.iter().flat_map(|allocations| &allocations.pods);
    for pod in listed {
        let Some(uid) = &pod.uid else { continue };
        // Labels of another pod of the name are not this one's.
        let identity = processes.pods.get(&pod.reference);
        let identity = identity.filter(|identity| identity.uid_in_cgroups() == uid || identity.uid == *uid);
        if identity.is_none() && !processes.pod_labels.is_empty() {
            continue;
        }
        let mut labels: Vec<(&'static str, Label)> = vec![
            ("namespace", (&pod.reference.namespace).into()),
            ("pod", (&pod.reference.pod).into()),
            ("uid", identity.map_or(uid, |identity| &identity.uid).to_shared().into()),
        ];
        // A label that the pod does not have is absent, not empty.
        for label in processes.pod_labels.iter() {
            if let Some(value) = identity.and_then(|identity| identity.labels.get(label.key.as_str())) {
                labels.push((label.name, value.into()));
            }
        }
        info.push(labels, 1_u64);
    }
    vec![info, enabled]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::{fixture, value};

    #[test]
    fn a_pod_has_its_uid_and_the_labels_it_has_of_those_asked_for() {
        let page = families(&fixture::snapshot());
        let labels =
            [("namespace", "research"), ("uid", fixture::POD_UID), ("label_app_kubernetes_io_name", "trainer")];
        assert_eq!(value(&page, "podmeter_pod_info", &labels), Some(1.0));
        assert_eq!(value(&page, "podmeter_pod_info", &[("label_team", "")]), None);
        assert_eq!(value(&page, "podmeter_process_attribution_enabled", &[]), Some(1.0));
    }

    #[test]
    fn a_pod_that_the_kubelet_does_not_list_is_not_shown() {
        let mut snapshot = fixture::snapshot();
        std::sync::Arc::make_mut(&mut snapshot.kubelet).allocations = None;
        assert_eq!(value(&families(&snapshot), "podmeter_pod_info", &[]), None);
        assert!(families(&Snapshot::default()).is_empty());
    }
}
