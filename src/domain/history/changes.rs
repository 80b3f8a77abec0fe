//! Events, as differences of snapshots. In: each snapshot. Out: what changed since the last one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{HistoryEvent, HistoryEventKind, Severity};
use crate::domain::model::{ContainerRef, DeviceRef, GpuUuid, HealthTransition, ResourceName, Snapshot, XidClass};

/// The count and class of XIDs, by GPU and code.
type XidTotals = BTreeMap<(GpuUuid, u32), (u64, XidClass)>;

type DevicesByHolder = BTreeMap<ContainerRef, BTreeSet<DeviceRef>>;

/// The values of the last snapshot whose changes are events.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    seen: Option<SnapshotValues>,
}

#[derive(Clone, Debug, Default)]
struct SnapshotValues {
    /// The holdings; `None` until kubelet and driver have both answered: the first holdings are no events.
    holdings: Option<Arc<DevicesByHolder>>,
    transitions: u64,
    xids: XidTotals,
    kubelet_problem: Option<Arc<str>>,
    kubelet_restarts: u64,
    /// Whether each resource is registered, and how often it has been.
    registrations: BTreeMap<ResourceName, (bool, u64)>,
    driver_problem: Option<Arc<str>>,
    driver_loads: u64,
    released: bool,
}

impl Changes {
    /// The events since the last snapshot, without their `number`. None for the first one.
    pub(super) fn between(&mut self, snapshot: &Snapshot) -> Vec<HistoryEvent> {
        let Some(before) = self.seen.take() else {
            self.seen = Some(SnapshotValues::from_snapshot(snapshot, None));
            return vec![];
        };
        let now = SnapshotValues::from_snapshot(snapshot, before.holdings.as_ref());
        let mut events = vec![];
        driver(&before, &now, snapshot, &mut events);
        kubelet(&before, &now, snapshot, &mut events);
        plugin(&before, &now, snapshot, &mut events);
        xids(&before, &now, snapshot, &mut events);
        let transitions = snapshot.health.transitions.iter();
        let new = transitions.filter(|transition| transition.number > before.transitions);
        events.extend(new.map(|new| transition(new, snapshot)));
        allocations(&before, &now, snapshot, &mut events);
        self.seen = Some(now);
        events
    }
}

impl SnapshotValues {
    /// The values of a snapshot. `before`: the last holdings, which are shared if they have not changed.
    fn from_snapshot(snapshot: &Snapshot, before: Option<&Arc<DevicesByHolder>>) -> Self {
        let plugin = snapshot.plugin.as_deref();
        Self {
            holdings: holdings(snapshot, before),
            transitions: snapshot.health.transitions.last().map_or(0, |transition| transition.number),
            xids: counted(snapshot),
            kubelet_problem: snapshot.kubelet.problem.clone(),
            kubelet_restarts: plugin.map_or(0, |plugin| plugin.kubelet_restarts),
            registrations: plugin
                .into_iter()
                .flat_map(|plugin| &plugin.resources)
                .map(|(name, resource)| (name.clone(), (resource.registered, resource.registrations)))
                .collect(),
            driver_problem: snapshot.hardware.problem.clone(),
            driver_loads: snapshot.hardware.driver_loads,
            released: snapshot.hardware.released.is_some(),
        }
    }
}

fn holdings(snapshot: &Snapshot, before: Option<&Arc<DevicesByHolder>>) -> Option<Arc<DevicesByHolder>> {
    let is_joined = snapshot.kubelet.allocations.is_some() && snapshot.hardware.inventory.generation > 0;
    if before.is_none() && !is_joined {
        return None;
    }
    let held = snapshot.accounts.iter().filter(|account| account.holding.is_some());
    // They are usually the same: nothing is copied then.
    if let Some(before) = before
        && held.clone().count() == before.values().map(BTreeSet::len).sum::<usize>()
        && held.clone().all(|account| {
            let mut had = before.get(&account.container).into_iter().flatten();
            had.any(|device| (&device.gpu, &device.mig) == (&account.gpu, &account.mig))
        })
    {
        return Some(Arc::clone(before));
    }
    let mut holdings = DevicesByHolder::new();
    for account in held {
        let held = DeviceRef { gpu: account.gpu.clone(), mig: account.mig.clone() };
        holdings.entry(account.container.clone()).or_default().insert(held);
    }
    Some(Arc::new(holdings))
}

fn counted(snapshot: &Snapshot) -> XidTotals {
    let mut xids = XidTotals::new();
    for (gpu, health) in &snapshot.health.gpus {
        xids.extend(health.xids.by_code.iter().map(|(code, last)| ((gpu.clone(), *code), (last.count, last.class))));
    }
    xids
}

fn event(snapshot: &Snapshot, kind: HistoryEventKind, severity: Severity, text: impl Into<Arc<str>>) -> HistoryEvent {
    HistoryEvent { number: 0, at: snapshot.at, kind, severity, text: text.into(), devices: vec![], containers: vec![] }
}

fn transition(transition: &HealthTransition, snapshot: &Snapshot) -> HistoryEvent {
    let (severity, text) = match transition.to_healthy {
        true => (Severity::Good, format!("healthy again; it was: {}", transition.detail)),
        false => (Severity::Bad, format!("unhealthy: {}", transition.detail)),
    };
    let devices = vec![DeviceRef { gpu: transition.gpu.clone(), mig: transition.mig.clone() }];
    let containers = transition.holders.clone();
    HistoryEvent { at: transition.at, devices, containers, ..event(snapshot, HistoryEventKind::Health, severity, text) }
}

fn xids(before: &SnapshotValues, now: &SnapshotValues, snapshot: &Snapshot, events: &mut Vec<HistoryEvent>) {
    for ((gpu, code), (count, class)) in &now.xids {
        let more = count.saturating_sub(before.xids.get(&(gpu.clone(), *code)).map_or(0, |(count, _)| *count));
        if more > 0 {
            let times = if more > 1 { format!(", {more} times") } else { String::new() };
            let text = format!("XID {code} ({}){times}", class.into_str().replace('_', " "));
            let severity = if *class == XidClass::Informational { Severity::Plain } else { Severity::Bad };
            let devices = vec![DeviceRef { gpu: gpu.clone(), mig: None }];
            events.push(HistoryEvent { devices, ..event(snapshot, HistoryEventKind::Xid, severity, text) });
        }
    }
}

/// One event per container that got or released devices, with all of those devices.
fn allocations(before: &SnapshotValues, now: &SnapshotValues, snapshot: &Snapshot, events: &mut Vec<HistoryEvent>) {
    let (Some(before), Some(now)) = (&before.holdings, &now.holdings) else { return };
    if Arc::ptr_eq(before, now) {
        return;
    }
    let none = BTreeSet::new();
    let mut add = |container: &ContainerRef, devices: Vec<DeviceRef>, text: &str| {
        if !devices.is_empty() {
            let containers = vec![container.clone()];
            let event = event(snapshot, HistoryEventKind::Allocation, Severity::Plain, text);
            events.push(HistoryEvent { devices, containers, ..event });
        }
    };
    for (container, held) in &**before {
        let kept = now.get(container).unwrap_or(&none);
        add(container, held.difference(kept).cloned().collect(), "released");
    }
    for (container, held) in &**now {
        let had = before.get(container).unwrap_or(&none);
        add(container, held.difference(had).cloned().collect(), "allocated");
    }
}

fn kubelet(before: &SnapshotValues, now: &SnapshotValues, snapshot: &Snapshot, events: &mut Vec<HistoryEvent>) {
    let mut add = |severity, text: String| events.push(event(snapshot, HistoryEventKind::Kubelet, severity, text));
    if now.kubelet_restarts > before.kubelet_restarts {
        add(Severity::Plain, "the kubelet was restarted".to_owned());
    }
    match (&before.kubelet_problem, &now.kubelet_problem) {
        (None, Some(problem)) => add(Severity::Bad, format!("no response from the kubelet: {problem}")),
        (Some(_), None) => add(Severity::Good, "the kubelet responds".to_owned()),
        _ => {}
    }
}

fn plugin(before: &SnapshotValues, now: &SnapshotValues, snapshot: &Snapshot, events: &mut Vec<HistoryEvent>) {
    let mut add = |severity, text: String| events.push(event(snapshot, HistoryEventKind::Plugin, severity, text));
    for (resource, (registered, times)) in &now.registrations {
        let (was, times_before) = before.registrations.get(resource).copied().unwrap_or_default();
        if was && (!registered || *times > times_before) {
            add(Severity::Plain, format!("{resource}: the registration with the kubelet ended"));
        }
        if *registered && *times > times_before {
            add(Severity::Good, format!("{resource}: registered with the kubelet"));
        }
    }
}

fn driver(before: &SnapshotValues, now: &SnapshotValues, snapshot: &Snapshot, events: &mut Vec<HistoryEvent>) {
    let mut add = |severity, text: String| events.push(event(snapshot, HistoryEventKind::Driver, severity, text));
    match (before.released, now.released) {
        (false, true) => add(Severity::Plain, "the driver was released on request".to_owned()),
        (true, false) => add(Severity::Good, "the driver is opened again".to_owned()),
        _ => {}
    }
    if now.driver_loads > before.driver_loads && before.driver_loads > 0 {
        add(Severity::Plain, "the driver was loaded again".to_owned());
    }
    match (&before.driver_problem, &now.driver_problem) {
        (None, Some(problem)) if !now.released => add(Severity::Bad, format!("no response from the driver: {problem}")),
        (Some(_), None) if !before.released => add(Severity::Good, "the driver responds".to_owned()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::{Account, SharingForm, UnixSeconds};
    use crate::test_data;

    #[test]
    fn unchanged_holdings_are_not_copied_and_others_are() {
        let account = |pod: &str| {
            let holding = Some(test_data::holding("GPU-a", SharingForm::TimeSlicing, 0.5));
            Account { holding, ..Account::new(test_data::main_of(pod), "GPU-a".into(), None, UnixSeconds(0.0)) }
        };
        let of = |pods: [&str; 2], before: Option<&Arc<DevicesByHolder>>| {
            let snapshot = Snapshot { accounts: pods.map(account).into(), ..Snapshot::default() };
            holdings(&snapshot, before).unwrap()
        };
        let first = of(["a", "b"], Some(&Arc::default()));
        assert!(Arc::ptr_eq(&of(["a", "b"], Some(&first)), &first));
        assert_eq!(of(["a", "c"], Some(&first)).keys().map(|one| &*one.pod).collect::<Vec<_>>(), ["a", "c"]);
    }
}
