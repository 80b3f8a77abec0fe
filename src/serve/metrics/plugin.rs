//! The bundled device plugin. Absent while it is off.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::family::{Group, counter, gauge, histogram};
use super::labels::{DEVICE, Labels, node, of_device};
use crate::domain::model::{GpuUuid, PluginResource, PluginState, Snapshot};

pub(super) static GROUP: LazyLock<Group> =
    LazyLock::new(|| Group {
        section: "Device plugin",
        labels: "resource",
        source: "podmeter",
        metrics: vec![
            gauge("podmeter_plugin_registered")
                .help("Whether the resource is registered with the kubelet by this podmeter.")
                .each(resources, |state| Some(state.registered)),
            counter("podmeter_plugin_registrations_total")
                .help("Registrations with the kubelet, which restarts of the kubelet and lost streams repeat.")
                .each(resources, |state| Some(state.registrations)),
            counter("podmeter_plugin_kubelet_restarts_total")
                .help("Restarts of the kubelet.")
                .labels("")
                .each(node, |snapshot| Some(snapshot.plugin.as_ref()?.kubelet_restarts)),
            gauge("podmeter_plugin_devices").help("Devices offered to the kubelet, by health.").by(
                "health",
                resources,
                |state| {
                    let (healthy, unhealthy) = state.count();
                    Some([("healthy", Some(healthy)), ("unhealthy", Some(unhealthy))])
                },
            ),
            counter("podmeter_plugin_allocations_total")
                .help("Allocations that the kubelet requested, by result.")
                .by_key("result", resources, |state| Some(&state.allocations)),
            histogram("podmeter_plugin_allocate_duration_seconds")
                .help("Time that podmeter took to answer allocations, refused ones too.")
                .each(resources, |state| Some(state.allocate_durations.clone())),
            histogram("podmeter_preferred_allocation_duration_seconds")
                .help("Time that podmeter took to answer preferred allocations.")
                .each(resources, |state| state.prefers.then(|| state.preferred_durations.clone())),
            counter("podmeter_plugin_preferred_allocation_fallbacks_total")
                .help("Preferred allocations made with missing information, by what was missing.")
                .by_key("reason", resources, |state| Some(&state.preferred_fallbacks)),
            counter("podmeter_plugin_health_transitions_total")
                .help("Offered devices that became healthy or unhealthy, by reason; each slot of a GPU counts.")
                .labels("resource to reason")
                .samples(|snapshot, family| {
                    for (resource, state) in resources(snapshot) {
                        for (to, reasons) in &state.health_transitions {
                            for (reason, count) in reasons {
                                let labels = resource.clone().and("to", *to).and("reason", <&str>::from(reason));
                                family.push(labels, *count);
                            }
                        }
                    }
                }),
            counter("podmeter_plugin_pre_starts_total")
                .help("Checks of devices before a container starts, by result.")
                .by_key("result", resources, |state| Some(&state.pre_starts)),
            counter("podmeter_plugin_unregistered_seconds_total")
                .help("Time during which the resource was not registered by this podmeter.")
                .samples(|snapshot, family| {
                    for (labels, state) in resources(snapshot) {
                        family.push(labels, state.unregistered_until(snapshot.at.monotonic).as_secs_f64());
                    }
                }),
            gauge("podmeter_plugin_conflict")
                .help("Whether another plugin serves the resource, or offers its hardware as another resource.")
                .each(resources, |state| Some(state.conflict.is_some())),
            gauge("podmeter_plugin_unused_cdi_file_devices")
                .help(
                    "Devices for which a vendor's CDI specification is not used, by file and reason. Their containers \
                     get podmeter's CDI devices, without files of the driver.",
                )
                .labels("file reason")
                .samples(|snapshot, family| {
                    let unused = snapshot.plugin.iter().flat_map(|plugin| &plugin.unused_cdi_files);
                    for ((file, reason), devices) in unused {
                        family.push(Labels::new("file", file).and("reason", *reason), *devices);
                    }
                }),
            gauge("podmeter_plugin_unserved")
                .help(
                    "Whether podmeter waits for a plugin that listens although the kubelet lists no healthy device of \
                     the resource.",
                )
                .each(resources, |state| Some(state.unserved)),
            gauge("podmeter_plugin_profile_info")
                .help(
                    "Which profile of the configuration applies: `profile`, `common` where none matches, `undecided` \
                     until the driver is read; absent without profiles.",
                )
                .labels("decision profile")
                .samples(|snapshot, family| {
                    if let Some(applied) = snapshot.plugin.as_deref().and_then(|plugin| plugin.profile.as_ref()) {
                        let labels = Labels::new("decision", applied.decision);
                        family.push(labels.and_known("profile", applied.name.as_ref()), 1u64);
                    }
                }),
            gauge("podmeter_device_schedulable")
                .help(
                    "Whether the bundled plugin offers a healthy device on the GPU to a kubelet that has its \
                     registration.",
                )
                .labels(DEVICE)
                .samples(|snapshot, family| {
                    let gpus = snapshot.plugin.as_deref().map(schedulable_gpus).unwrap_or_default();
                    for gpu in snapshot.hardware.inventory.gpus.values() {
                        family.push_known(of_device(gpu), gpus.get(&gpu.uuid).copied());
                    }
                }),
        ],
    });

/// Every GPU that the plugin serves, and whether a device on it can be allocated now.
pub(super) fn schedulable_gpus(plugin: &PluginState) -> BTreeMap<&GpuUuid, bool> {
    let mut gpus: BTreeMap<&GpuUuid, bool> = BTreeMap::new();
    for state in plugin.resources.values() {
        for (device, gpu) in state.gpus.iter() {
            let is_healthy = state.devices.get(device).is_some_and(Option::is_none);
            *gpus.entry(gpu).or_default() |= state.registered && is_healthy;
        }
    }
    gpus
}

fn resources(snapshot: &Snapshot) -> Vec<(Labels, &PluginResource)> {
    let resources = snapshot.plugin.iter().flat_map(|plugin| &plugin.resources);
    resources.map(|(resource, state)| (Labels::new("resource", resource), state)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::model::Monotonic;
    use crate::serve::metrics::tests::{fixture, value};

    #[test]
    fn time_without_a_registration_runs_on_while_there_is_none() {
        let mut snapshot = fixture::snapshot();
        let name = "podmeter_plugin_unregistered_seconds_total";
        let gpu = [("resource", "nvidia.com/gpu")];
        assert_eq!(value(&GROUP.families(&snapshot), name, &gpu), Some(1.5));
        let since = snapshot.at.monotonic;
        let plugin = Arc::make_mut(snapshot.plugin.as_mut().unwrap());
        plugin.resources.get_mut(&"nvidia.com/gpu".into()).unwrap().unregistered_since = Some(since);
        snapshot.at.monotonic = since + Monotonic::from_secs(4).as_duration();
        assert_eq!(value(&GROUP.families(&snapshot), name, &gpu), Some(5.5));
    }

    #[test]
    fn a_gpu_is_schedulable_while_a_registered_resource_has_a_healthy_device_on_it() {
        let mut snapshot = fixture::snapshot();
        let of = |snapshot: &Snapshot, gpu| {
            value(&GROUP.families(snapshot), "podmeter_device_schedulable", &[("gpu_uuid", gpu)])
        };
        assert_eq!(of(&snapshot, fixture::WHOLE), Some(1.0));
        assert_eq!(of(&snapshot, fixture::LOST), Some(0.0), "unhealthy");
        assert_eq!(of(&snapshot, fixture::PARTITIONED), Some(0.0), "its slice waits for another plugin");
        let plugin = Arc::make_mut(snapshot.plugin.as_mut().unwrap());
        plugin.resources.get_mut(&"nvidia.com/mig-1g.10gb".into()).unwrap().registered = true;
        plugin.resources.get_mut(&"nvidia.com/gpu".into()).unwrap().registered = false;
        assert_eq!(of(&snapshot, fixture::WHOLE), Some(0.0), "not registered");
        assert_eq!(of(&snapshot, fixture::PARTITIONED), Some(1.0));
        Arc::make_mut(snapshot.plugin.as_mut().unwrap()).resources.clear();
        assert_eq!(of(&snapshot, fixture::WHOLE), None, "not served");
    }

    #[test]
    fn no_metrics_while_the_plugin_is_off_or_preferences_are_not_offered() {
        let mut snapshot = fixture::snapshot();
        let page = GROUP.families(&snapshot);
        let durations =
            page.iter().find(|family| family.descriptor.name == "podmeter_preferred_allocation_duration_seconds");
        assert_eq!(durations.map(|family| family.samples.len()), Some(1), "one of two resources prefers");
        snapshot.plugin = None;
        assert!(GROUP.families(&snapshot).is_empty());
    }
}
