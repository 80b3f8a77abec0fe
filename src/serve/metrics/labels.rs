//! The labels of samples, and the loops over what has them. In: a snapshot and what to read. Out: samples in a family.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};

use super::family::{Family, SampleValue};
use crate::domain::model::{Account, ContainerRef, DeviceReadings, Gpu, GpuHealth, Medium, PodRef, Slow, Snapshot};

/// The labels of a series that belongs to one GPU.
pub(super) const DEVICE: &str = "gpu_uuid gpu";

/// The labels of one sample, in the order of the page.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels(Vec<(&'static str, String)>);

impl Labels {
    pub fn new(name: &'static str, value: impl Display) -> Self {
        // With capacity for the labels that most samples add.
        Self(Vec::with_capacity(5)).and(name, value)
    }

    #[must_use]
    pub fn and(mut self, name: &'static str, value: impl Display) -> Self {
        self.0.push((name, value.to_string()));
        self
    }

    /// A label that does not apply is absent.
    #[must_use]
    pub fn and_known(self, name: &'static str, value: Option<impl Display>) -> Self {
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

    /// With others before the label at this index.
    pub fn insert_at(&self, index: usize, others: &Self) -> Self {
        let (before, after) = self.0.split_at(index);
        Self([before, &others.0, after].concat())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, value)| (*name, value.as_str()))
    }
}

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        self.0.encode(encoder)
    }
}

pub(super) fn of_device(gpu: &Gpu) -> Labels {
    Labels::new("gpu_uuid", &gpu.uuid).and_known("gpu", gpu.index)
}

pub(super) fn of_pod(pod: &PodRef) -> Labels {
    Labels::new("namespace", &pod.namespace).and("pod", &pod.pod)
}

pub(super) fn of_container(container: &ContainerRef) -> Labels {
    let ContainerRef { namespace, pod, container, .. } = container;
    Labels::new("namespace", namespace).and("pod", pod).and("container", container)
}

pub(super) fn of_account(account: &Account) -> Labels {
    of_container(&account.container).and("gpu_uuid", &account.gpu).and_known("mig_uuid", account.mig.as_ref())
}

/// One series per GPU that has the value.
pub(super) fn per_device<V: Into<SampleValue>>(
    snapshot: &Snapshot,
    family: &mut Family,
    read: impl Fn(&DeviceReadings) -> Option<V>,
) {
    for (gpu, readings) in with_readings(snapshot) {
        family.push_known(of_device(gpu), read(readings));
    }
}

/// One series per GPU and value of the metric's last label.
pub(super) fn per_device_and<'snapshot, L: Display, V: Into<SampleValue>, I: IntoIterator<Item = (L, Option<V>)>>(
    snapshot: &'snapshot Snapshot,
    family: &mut Family,
    read: impl Fn(&'snapshot DeviceReadings) -> Option<I>,
) {
    let label = family.last_label();
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
