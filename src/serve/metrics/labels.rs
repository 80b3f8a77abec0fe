//! The labels of samples, and the subjects that have them. In: a snapshot. Out: labels, each with its subject.

use std::fmt::Display;

use crate::domain::model::{Account, ContainerRef, DeviceReadings, Gpu, GpuHealth, Medium, PodRef, Slow, Snapshot};

/// The labels of a series that belongs to one GPU.
pub(super) const DEVICE: &str = "gpu_uuid gpu";

/// The labels of one sample, in the order of the page.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels(pub(super) Vec<(&'static str, String)>);

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

    /// Adds the label, or none if its value is unknown or does not apply.
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

    /// These labels with others inserted before the one at `index`.
    pub fn insert_at(&self, index: usize, others: &Self) -> Self {
        let (before, after) = self.0.split_at(index);
        Self([before, &others.0, after].concat())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, value)| (*name, value.as_str()))
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

/// The node, whose series have no labels that name it.
pub(super) fn node(snapshot: &Snapshot) -> Vec<(Labels, &Snapshot)> {
    vec![(Labels::default(), snapshot)]
}

pub(super) fn with_readings(snapshot: &Snapshot) -> impl Iterator<Item = (&Gpu, &DeviceReadings)> {
    let hardware = &snapshot.hardware;
    hardware.inventory.gpus.values().filter_map(|gpu| Some((gpu, hardware.readings.get(&gpu.uuid)?.as_ref())))
}

/// Each GPU with readings.
pub(super) fn devices(snapshot: &Snapshot) -> Vec<(Labels, &DeviceReadings)> {
    with_readings(snapshot).map(|(gpu, readings)| (of_device(gpu), readings)).collect()
}

pub(super) fn with_health(snapshot: &Snapshot) -> Vec<(Labels, &GpuHealth)> {
    let gpus = snapshot.hardware.inventory.gpus.values();
    gpus.filter_map(|gpu| Some((of_device(gpu), snapshot.health.gpus.get(&gpu.uuid)?))).collect()
}

pub(super) fn medium(readings: &DeviceReadings) -> Option<&Medium> {
    Some(&readings.medium.as_ref()?.value)
}

pub(super) fn slow(readings: &DeviceReadings) -> Option<&Slow> {
    Some(&readings.slow.as_ref()?.value)
}
