//! The labels of samples, and the loops over what has them. In: a snapshot and what to read. Out: samples in a family.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::family::{Family, Value};
use crate::model::{
    Account, ContainerRef, DeviceId, DeviceReadings, Gpu, GpuHealth, GpuUuid, Medium, MigUuid, PciBusId, PodRef,
    PodUid, ResourceName, Slow, Snapshot,
};

/// The labels of a series that belongs to one GPU.
pub(super) const DEVICE: &[&str] = &["gpu_uuid", "gpu"];

/// The labels of one sample, in the order of the page.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels(Vec<(&'static str, Label)>);

/// A label's value: shared or static text, copied only where it had to be composed.
#[derive(Clone, Debug)]
pub enum Label {
    Static(&'static str),
    Shared(Arc<str>),
}

impl Labels {
    #[must_use]
    pub fn of(name: &'static str, value: impl Into<Label>) -> Self {
        // With capacity for the labels that most samples add.
        let mut labels = Vec::with_capacity(5);
        labels.push((name, value.into()));
        Self(labels)
    }

    #[must_use]
    pub fn and(mut self, name: &'static str, value: impl Into<Label>) -> Self {
        self.0.push((name, value.into()));
        self
    }

    /// A label that does not apply is absent.
    #[must_use]
    pub fn and_known(self, name: &'static str, value: Option<impl Into<Label>>) -> Self {
        match value {
            Some(value) => self.and(name, value),
            None => self,
        }
    }

    #[must_use]
    pub fn and_all(mut self, others: &Self) -> Self {
        self.0.extend_from_slice(&others.0);
        self
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, label)| (*name, label.as_str()))
    }
}

pub(super) fn of_device(gpu: &Gpu) -> Labels {
    Labels::of("gpu_uuid", &gpu.uuid).and_known("gpu", gpu.index)
}

pub(super) fn of_pod(pod: &PodRef) -> Labels {
    Labels::of("namespace", &pod.namespace).and("pod", &pod.pod)
}

pub(super) fn of_container(container: &ContainerRef) -> Labels {
    let ContainerRef { namespace, pod, container, .. } = container;
    Labels::of("namespace", namespace).and("pod", pod).and("container", container)
}

pub(super) fn of_account(account: &Account) -> Labels {
    of_container(&account.container).and("gpu_uuid", &account.gpu).and_known("mig_uuid", account.mig.as_ref())
}

/// One series per GPU that has the value.
pub(super) fn per_device<V: Into<Value>>(
    snapshot: &Snapshot,
    family: &mut Family,
    read: impl Fn(&DeviceReadings) -> Option<V>,
) {
    for (gpu, readings) in with_readings(snapshot) {
        family.push_known(of_device(gpu), read(readings));
    }
}

/// One series per GPU and value of one more label.
pub(super) fn per_device_and<'snapshot, L: Into<Label>, V: Into<Value>, I: IntoIterator<Item = (L, Option<V>)>>(
    snapshot: &'snapshot Snapshot,
    family: &mut Family,
    label: &'static str,
    read: impl Fn(&'snapshot DeviceReadings) -> Option<I>,
) {
    for (gpu, readings) in with_readings(snapshot) {
        for (name, value) in read(readings).into_iter().flatten() {
            family.push_known(of_device(gpu).and(label, name), value);
        }
    }
}

/// Readings by name, as `per_device_and` takes them.
pub(super) fn named<V: Copy>(map: &BTreeMap<&'static str, V>) -> impl Iterator<Item = (&'static str, Option<V>)> {
    map.iter().map(|(name, value)| (*name, Some(*value)))
}

pub(super) fn with_readings(snapshot: &Snapshot) -> impl Iterator<Item = (&Gpu, &DeviceReadings)> {
    let hardware = &snapshot.hardware;
    hardware.inventory.gpus.values().filter_map(|gpu| Some((gpu, hardware.readings.get(&gpu.uuid)?.as_ref())))
}

pub(super) fn with_health(snapshot: &Snapshot) -> impl Iterator<Item = (&Gpu, &GpuHealth)> {
    let gpus = snapshot.hardware.inventory.gpus.values();
    gpus.filter_map(|gpu| Some((gpu, snapshot.health.gpus.get(&gpu.uuid)?)))
}

pub(super) fn medium(readings: &DeviceReadings) -> Option<&Medium> {
    Some(&readings.medium.as_ref()?.value)
}

pub(super) fn slow(readings: &DeviceReadings) -> Option<&Slow> {
    Some(&readings.slow.as_ref()?.value)
}

impl Label {
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Static(text) => text,
            Self::Shared(text) => text,
        }
    }
}

impl PartialEq for Label {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Label {}

impl PartialOrd for Label {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Label {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl From<&'static str> for Label {
    fn from(text: &'static str) -> Self {
        Self::Static(text)
    }
}

impl From<Arc<str>> for Label {
    fn from(text: Arc<str>) -> Self {
        Self::Shared(text)
    }
}

impl From<&Arc<str>> for Label {
    fn from(text: &Arc<str>) -> Self {
        Self::Shared(Arc::clone(text))
    }
}

impl From<String> for Label {
    fn from(text: String) -> Self {
        Self::Shared(text.into())
    }
}

impl From<u32> for Label {
    fn from(number: u32) -> Self {
        // Nearly every sample has the index of a GPU.
        const SMALL: [&str; 16] =
            ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"];
        match SMALL.get(number as usize) {
            Some(text) => Self::Static(text),
            None => Self::Shared(number.to_string().into()),
        }
    }
}

macro_rules! label_of_identity {
    ($($name:ident),*) => {
        $(impl From<&$name> for Label {
            fn from(id: &$name) -> Self {
                Self::Shared(id.to_shared())
            }
        })*
    };
}

label_of_identity!(DeviceId, GpuUuid, MigUuid, PciBusId, PodUid, ResourceName);
