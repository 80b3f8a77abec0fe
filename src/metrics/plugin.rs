//! The bundled device plugin. Absent while it is off.

use std::collections::BTreeMap;

use super::device_identity::{DEVICE, of_device};
use super::{Descriptor, Family, Group, Label, Value};
use crate::model::{GpuUuid, PluginResource, PluginState, Snapshot, UnixSeconds};

const OWN: &str = "podmeter";

static REGISTERED: Descriptor = Descriptor::gauge(
    "podmeter_plugin_registered",
    &["resource"],
    "",
    OWN,
    "Whether the kubelet has this podmeter's registration of the resource, 0 or 1.",
);
static REGISTRATIONS: Descriptor = Descriptor::counter(
    "podmeter_plugin_registrations_total",
    &["resource"],
    "",
    OWN,
    "Registrations with the kubelet; more than one after a restart of the kubelet or a lost stream.",
);
static KUBELET_RESTARTS: Descriptor = Descriptor::counter(
    "podmeter_plugin_kubelet_restarts_total",
    &[],
    "",
    OWN,
    "Kubelets that replaced another one while podmeter ran.",
);
static DEVICES: Descriptor = Descriptor::gauge(
    "podmeter_plugin_devices",
    &["resource", "health"],
    "",
    OWN,
    "Devices that the kubelet is told of, by the health it is told.",
);
static ALLOCATIONS: Descriptor = Descriptor::counter(
    "podmeter_plugin_allocations_total",
    &["resource", "result"],
    "",
    OWN,
    "Allocations that the kubelet asked for, by what became of them.",
);
static ALLOCATE_DURATION: Descriptor = Descriptor::histogram(
    "podmeter_plugin_allocate_duration_seconds",
    &["resource"],
    "seconds",
    OWN,
    "Time that podmeter took to answer allocations, refused ones too.",
);
static PREFERRED_DURATION: Descriptor = Descriptor::histogram(
    "podmeter_preferred_allocation_duration_seconds",
    &["resource"],
    "seconds",
    OWN,
    "Time that podmeter took to say which devices it prefers.",
);
static PREFERRED_FALLBACKS: Descriptor = Descriptor::counter(
    "podmeter_plugin_preferred_allocation_fallbacks_total",
    &["resource", "reason"],
    "",
    OWN,
    "Preferences that had to be made with less knowledge than wanted, by what was missing.",
);
static HEALTH_TRANSITIONS: Descriptor = Descriptor::counter(
    "podmeter_plugin_health_transitions_total",
    &["resource", "to", "reason"],
    "",
    OWN,
    "Devices that turned healthy or unhealthy after they were offered, by reason; slots of one GPU count each.",
);
static PRE_STARTS: Descriptor = Descriptor::counter(
    "podmeter_plugin_pre_starts_total",
    &["resource", "result"],
    "",
    OWN,
    "Checks of devices before a container starts, by result; only where a resource asks for them.",
);
static UNREGISTERED: Descriptor = Descriptor::counter(
    "podmeter_plugin_unregistered_seconds_total",
    &["resource"],
    "seconds",
    OWN,
    "Time during which the kubelet did not have the resource from this podmeter.",
);
static CONFLICT: Descriptor = Descriptor::gauge(
    "podmeter_plugin_conflict",
    &["resource"],
    "",
    OWN,
    "Whether another live plugin serves the resource and podmeter waits for its end, 0 or 1.",
);

static SCHEDULABLE: Descriptor = Descriptor::gauge(
    "podmeter_device_schedulable",
    DEVICE,
    "",
    OWN,
    "Whether the bundled plugin offers a healthy device on the GPU to a kubelet that has its registration, 0 or 1; absent for \
     a GPU that it does not serve.",
);

pub(super) const GROUP: Group = Group {
    section: "Device plugin",
    descriptors: &[
        &REGISTERED,
        &REGISTRATIONS,
        &KUBELET_RESTARTS,
        &DEVICES,
        &ALLOCATIONS,
        &ALLOCATE_DURATION,
        &PREFERRED_DURATION,
        &PREFERRED_FALLBACKS,
        &HEALTH_TRANSITIONS,
        &PRE_STARTS,
        &UNREGISTERED,
        &CONFLICT,
        &SCHEDULABLE,
    ],
    families,
};

fn families(snapshot: &Snapshot) -> Vec<Family> {
    let Some(plugin) = &snapshot.plugin else { return vec![] };
    let now = snapshot.at.monotonic;
    let mut restarts = Family::new(&KUBELET_RESTARTS);
    restarts.push_created(vec![], Some(plugin.kubelet_restarts), snapshot.started);
    vec![
        restarts,
        each(snapshot, &REGISTERED, |state| vec![(None, state.registered.into())]),
        each(snapshot, &REGISTRATIONS, |state| vec![(None, state.registrations.into())]),
        each(snapshot, &DEVICES, |state| {
            let (healthy, unhealthy) = state.count();
            vec![(label("health", "healthy"), healthy.into()), (label("health", "unhealthy"), unhealthy.into())]
        }),
        each(snapshot, &ALLOCATIONS, |state| by("result", &state.allocations)),
        each(snapshot, &ALLOCATE_DURATION, |state| vec![(None, (&state.allocate_durations).into())]),
        each(snapshot, &PREFERRED_DURATION, |state| match state.prefers {
            true => vec![(None, (&state.preferred_durations).into())],
            false => vec![],
        }),
        each(snapshot, &PREFERRED_FALLBACKS, |state| by("reason", &state.preferred_fallbacks)),
        transitions(snapshot),
        each(snapshot, &PRE_STARTS, |state| by("result", &state.pre_starts)),
        each(snapshot, &UNREGISTERED, |state| vec![(None, state.unregistered_until(now).as_secs_f64().into())]),
        each(snapshot, &CONFLICT, |state| vec![(None, state.conflict.is_some().into())]),
        schedulable(snapshot, plugin),
    ]
}

/// Every GPU that the plugin serves, and whether a device on it could be given out now.
pub(super) fn served(plugin: &PluginState) -> BTreeMap<&GpuUuid, bool> {
    let mut gpus: BTreeMap<&GpuUuid, bool> = BTreeMap::new();
    for state in plugin.resources.values() {
        for (device, gpu) in state.gpus.iter() {
            let is_healthy = state.devices.get(device).is_some_and(Option::is_none);
            *gpus.entry(gpu).or_default() |= state.registered && is_healthy;
        }
    }
    gpus
}

fn schedulable(snapshot: &Snapshot, plugin: &PluginState) -> Family {
    let gpus = served(plugin);
    let mut family = Family::new(&SCHEDULABLE);
    for gpu in snapshot.hardware.inventory.gpus.values() {
        family.push_known(of_device(gpu), gpus.get(&gpu.uuid).copied());
    }
    family
}

fn transitions(snapshot: &Snapshot) -> Family {
    let mut family = Family::new(&HEALTH_TRANSITIONS);
    for (resource, state) in snapshot.plugin.iter().flat_map(|plugin| &plugin.resources) {
        for (to, reasons) in &state.health_transitions {
            for (reason, count) in reasons {
                let resource = ("resource", resource.to_shared().into());
                let labels = vec![resource, ("to", (*to).into()), ("reason", reason.as_str().into())];
                family.push_created(labels, Some(*count), state.created);
            }
        }
    }
    family
}

type Labelled = (Option<(&'static str, Label)>, Value);

fn label(name: &'static str, value: &'static str) -> Option<(&'static str, Label)> {
    Some((name, value.into()))
}

fn by(name: &'static str, counts: &BTreeMap<&'static str, u64>) -> Vec<Labelled> {
    counts.iter().map(|(value, count)| (label(name, value), (*count).into())).collect()
}

/// The samples of each resource. A counter began when its resource did.
fn each(snapshot: &Snapshot, descriptor: &'static Descriptor, of: impl Fn(&PluginResource) -> Vec<Labelled>) -> Family {
    let mut family = Family::new(descriptor);
    for (resource, state) in snapshot.plugin.iter().flat_map(|plugin| &plugin.resources) {
        let created: Option<UnixSeconds> = (descriptor.kind == super::Kind::Counter).then_some(state.created);
        for (label, value) in of(state) {
            let mut labels = vec![("resource", resource.to_shared().into())];
            labels.extend(label);
            family.push_created(labels, Some(value), created);
        }
    }
    family
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::metrics::tests::{fixture, value};
    use crate::model::Monotonic;

    #[test]
    fn time_without_a_registration_runs_on_while_there_is_none() {
        let mut snapshot = fixture::snapshot();
        let name = "podmeter_plugin_unregistered_seconds_total";
        let gpu = [("resource", "nvidia.com/gpu")];
        assert_eq!(value(&families(&snapshot), name, &gpu), Some(1.5));
        let since = snapshot.at.monotonic;
        let plugin = Arc::make_mut(snapshot.plugin.as_mut().unwrap());
        plugin.resources.get_mut(&"nvidia.com/gpu".into()).unwrap().unregistered_since = Some(since);
        snapshot.at.monotonic = since + Monotonic::from_secs(4).as_duration();
        assert_eq!(value(&families(&snapshot), name, &gpu), Some(5.5));
    }

    #[test]
    fn a_gpu_is_schedulable_while_a_registered_resource_has_a_healthy_device_on_it() {
        let mut snapshot = fixture::snapshot();
        let of = |snapshot: &Snapshot, gpu| value(&families(snapshot), SCHEDULABLE.name, &[("gpu_uuid", gpu)]);
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
    fn nothing_is_said_while_the_plugin_is_off_and_nothing_of_preferences_that_are_not_offered() {
        let mut snapshot = fixture::snapshot();
        let page = families(&snapshot);
        let durations = page.iter().find(|family| family.descriptor.name == PREFERRED_DURATION.name);
        assert_eq!(durations.map(|family| family.samples.len()), Some(1), "one of two resources prefers");
        snapshot.plugin = None;
        assert!(families(&snapshot).is_empty());
    }
}
