//! Test data of several parts: GPUs, configured entries, a service.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;

use super::allocate::ServiceInputs;
use super::config::{EntryConfig, PluginConfig};
use super::host::path_devices::HostRoots;
use super::host::{DriverFiles, MigCapabilities};
use super::inputs::PluginInputs;
use super::offer::{Offer, OfferedHardware, offers};
use super::status::ResourceStatus;
use crate::clock::Clock;
use crate::domain::model::{Gpu, Inventory, MigDevice};
pub use crate::test_data::inventory;

pub fn uuid(number: u32) -> String {
    format!("GPU-{number:08x}-0000-0000-0000-000000000000")
}

pub fn mig_uuid(gpu: u32, number: u32) -> String {
    format!("MIG-{gpu:04x}{number:04x}-0000-0000-0000-000000000000")
}

/// A GPU whose minor number is in the opposite order of the indexes, so that confusing the two fails.
pub fn gpu(index: u32, profiles: Option<&[&str]>) -> Gpu {
    let mig_devices = (0..).zip(profiles.unwrap_or_default()).map(|(number, profile)| MigDevice {
        // The indexes have gaps, which a driver leaves where a device was removed.
        index: number * 2,
        ..crate::test_data::mig(&mig_uuid(index, number), number + 1, profile, 1)
    });
    Gpu {
        minor: Some(7 ^ index),
        model: Some("NVIDIA H100 80GB HBM3".into()),
        numa_node: (index < 4).then_some(index / 2),
        mig_enabled: Some(profiles.is_some()),
        mig_devices: mig_devices.collect(),
        mig_slices: Some(7),
        ..Gpu::listed(uuid(index).as_str().into(), index)
    }
}

pub fn four_gpus() -> Inventory {
    inventory((0..4).map(|index| gpu(index, None)))
}

pub fn two_with_mig() -> Inventory {
    inventory((0..2).map(|index| gpu(index, Some(&["3g.40gb", "3g.40gb"]))))
}

/// One entry of `devicePlugin.resources`.
pub fn entry(text: &str) -> EntryConfig {
    let file: PluginConfig = serde_saphyr::from_str(&format!("resources: [{{{text}}}]")).expect(text);
    file.resolve(|_| unreachable!()).expect(text).remove(0)
}

pub fn nvidia(text: &str) -> EntryConfig {
    entry(&format!("kind: nvidia, {text}"))
}

/// The IDs that each resource offers.
pub fn listed(config: &EntryConfig, inventory: &Inventory) -> BTreeMap<String, Vec<String>> {
    let names = |offer: &Offer| offer.devices.iter().map(|device| device.id.to_string()).collect();
    offers(config, inventory, &[]).offers.iter().map(|offer| (offer.resource.to_string(), names(offer))).collect()
}

pub fn resources<const N: usize>(expected: [(&str, Vec<String>); N]) -> BTreeMap<String, Vec<String>> {
    expected.into_iter().map(|(name, ids)| (name.to_owned(), ids)).collect()
}

/// Inputs of other modules that never report anything.
pub fn plugin_inputs() -> PluginInputs {
    PluginInputs {
        holders: watch::channel(Arc::default()).1,
        health: watch::channel(Arc::default()).1,
        allocated: Arc::default(),
        refresh_allocatable: Arc::default(),
    }
}

/// The inputs of a service with simulated devices, and a sender that changes the offer.
pub fn service_inputs(offer: Offer) -> (watch::Sender<Arc<Offer>>, ServiceInputs) {
    let (publish_offer, offer) = watch::channel(Arc::new(offer));
    let config = entry("kind: simulated, name: example.com/toy, devices: 1");
    let clock = Clock::start();
    let inputs = ServiceInputs {
        status: ResourceStatus::begin("example.com/toy".into(), &config, clock, watch::channel(Arc::default()).0),
        config: Arc::new(config),
        offer,
        facts: watch::channel(Arc::default()).1,
        plugin: plugin_inputs(),
        clock,
    };
    (publish_offer, inputs)
}

/// A host whose files are under this directory.
pub fn host_roots(root: &Path) -> HostRoots {
    HostRoots { host: root.to_owned(), dev: root.join("dev"), sys: root.join("sys") }
}

/// The files of a driver with these GPUs by their minor numbers, each with GPU instances 1 and 2.
pub fn driver_files(minors: impl IntoIterator<Item = u32>) -> DriverFiles {
    let capabilities =
        |minor: u32| (1..=2).flat_map(move |gi| [((minor, gi, None), 10 * gi), ((minor, gi, Some(0)), 10 * gi + 1)]);
    let mig_capabilities = MigCapabilities(minors.into_iter().flat_map(capabilities).collect());
    DriverFiles { mig_capabilities, ..DriverFiles::default() }
}

pub fn offered_gpu(uuid: &str, index: u32) -> OfferedHardware {
    OfferedHardware::Gpu { uuid: uuid.into(), index, minor: None }
}

/// The only compute instance of a GPU instance.
pub fn offered_mig(uuid: &str, gpu: &str, gpu_instance: u32) -> OfferedHardware {
    OfferedHardware::Mig {
        uuid: uuid.into(),
        gpu: gpu.into(),
        gpu_index: 0,
        index: 0,
        minor: None,
        gpu_instance,
        compute_instance: 0,
    }
}
