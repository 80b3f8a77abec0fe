//! NVIDIA's DRA driver, as far as it is visible on a node: claims that the simulated kubelet lists, with the names of
//! the driver's devices, and the checkpoint that the driver keeps.

use std::{fs, io};

use serde_json::{Value, json};

use super::kubelet::{Claim, FakeKubelet};
use crate::domain::model::{Gpu, GpuUuid, Inventory, MigDevice};
use crate::files;

const DRIVER: &str = "gpu.nvidia.com";
const POOL: &str = "node";

/// A claim with its allocation.
#[derive(Clone, Debug)]
pub struct AllocatedClaim {
    pub namespace: &'static str,
    pub name: &'static str,
    pub uid: String,
    pub devices: Vec<AllocatedDevice>,
    /// Whether the claim has admin access, with which it only observes its devices.
    pub admin_access: bool,
    /// The part of its devices' memory, as a Kubernetes quantity; `None`: all.
    pub memory: Option<&'static str>,
}

#[derive(Clone, Debug)]
pub struct AllocatedDevice {
    pub name: String,
    pub gpu: GpuUuid,
    pub minor: u32,
    pub mig: Option<MigDevice>,
}

impl AllocatedDevice {
    /// A whole GPU, named such as `gpu-2`.
    pub fn whole(gpu: &Gpu) -> Self {
        let minor = gpu.minor.unwrap_or_default();
        Self { name: format!("gpu-{minor}"), gpu: gpu.uuid.clone(), minor, mig: None }
    }

    /// A MIG device, named such as `gpu-7-mig-1g10gb-19-4`, as from release 25.12 on.
    pub fn partition(gpu: &Gpu, mig: &MigDevice) -> Self {
        let minor = gpu.minor.unwrap_or_default();
        let (id, start) = (mig.profile_id.unwrap_or_default(), mig.placement_start.unwrap_or_default());
        let profile = mig.profile.replace('.', "").replace('+', "-");
        let name = format!("gpu-{minor}-mig-{profile}-{id}-{start}");
        Self { name, gpu: gpu.uuid.clone(), minor, mig: Some(mig.clone()) }
    }

    fn prepared(&self, cdi: &str) -> Value {
        let device = json!({"Requests": ["gpu"], "PoolName": POOL, "DeviceName": self.name, "CDIDeviceIDs": [cdi]});
        match &self.mig {
            None => json!({"gpu": {"info": {"uuid": self.gpu}, "device": device}, "mig": null}),
            Some(mig) => {
                let concrete = json!({
                    "parentMinor": self.minor, "giId": mig.gpu_instance, "ciId": mig.compute_instance,
                    "migUUID": mig.uuid, "parentUUID": self.gpu,
                });
                json!({"gpu": null, "mig": {"concrete": concrete, "device": device}})
            }
        }
    }
}

impl AllocatedClaim {
    fn cdi_name(&self, device: &AllocatedDevice) -> String {
        format!("k8s.{DRIVER}/claim={}-{}", self.uid, device.name)
    }

    /// The claim's entry in the driver's checkpoint.
    fn prepared(&self) -> Value {
        let result = |device: &AllocatedDevice| {
            let mut result = json!({"request": "gpu", "driver": DRIVER, "pool": POOL, "device": device.name});
            if self.admin_access {
                result["adminAccess"] = json!(true);
            }
            if let Some(memory) = self.memory {
                result["shareID"] = json!(self.uid);
                result["consumedCapacity"] = json!({"memory": memory});
            }
            result
        };
        let results: Vec<Value> = self.devices.iter().map(result).collect();
        let devices = self.devices.iter().map(|device| device.prepared(&self.cdi_name(device)));
        json!({
            "checkpointState": "PrepareCompleted",
            "status": {"allocation": {"devices": {"results": results}}},
            "preparedDevices": [{"devices": devices.collect::<Vec<_>>(), "configState": {}}],
        })
    }
}

/// Prepares the claims, which the kubelet requests before their pods start. The checkpoint stays until the node's
/// directory is removed.
pub fn prepare(kubelet: &FakeKubelet, claims: &[AllocatedClaim]) -> io::Result<()> {
    let prepared = claims.iter().map(|claim| (claim.uid.clone(), claim.prepared()));
    let prepared = json!({"preparedClaims": prepared.collect::<serde_json::Map<_, _>>()});
    let checkpoint = json!({"checksum": 0, "v1": prepared, "v2": prepared});
    let directory = kubelet.dra_plugin_directory().join(DRIVER);
    fs::create_dir_all(&directory)?;
    files::replace(&directory.join("checkpoint.json"), checkpoint.to_string().as_bytes(), files::OWNER_ONLY)?;
    for claim in claims {
        let listed = Claim::new(claim.namespace, claim.name);
        kubelet.set_claim(
            claim
                .devices
                .iter()
                .fold(listed, |listed, device| listed.device(DRIVER, POOL, &device.name, &[&claim.cdi_name(device)])),
        );
    }
    Ok(())
}

/// The demo's claims on a board of eight GPUs of which the last is partitioned: one of two GPUs, one shared by two
/// pods, two of parts of one GPU's memory, an idle one, two of MIG devices, and one that observes all GPUs.
pub fn claims_of_the_demo(inventory: &Inventory) -> Vec<AllocatedClaim> {
    let by_minor = |minor| inventory.by_minor(minor).map(AllocatedDevice::whole);
    let migs = inventory
        .gpus
        .values()
        .flat_map(|gpu| gpu.mig_devices.iter().map(move |mig| AllocatedDevice::partition(gpu, mig)));
    let migs: Vec<AllocatedDevice> = migs.collect();
    let claim = |number: u32, namespace, name, devices: Vec<Option<AllocatedDevice>>| AllocatedClaim {
        namespace,
        name,
        uid: format!("c1a100{number:02}-5b7e-4c11-9d3a-0000000000{number:02}"),
        devices: devices.into_iter().flatten().collect(),
        admin_access: false,
        memory: None,
    };
    let share = |number, namespace, name, memory| AllocatedClaim {
        memory: Some(memory),
        ..claim(number, namespace, name, vec![by_minor(3)])
    };
    let observing = claim(8, "gpu-operations", "all-gpus", (0..8).map(by_minor).collect());
    vec![
        claim(1, "team-vision", "pair", vec![by_minor(0), by_minor(1)]),
        claim(2, "team-language", "replicas", vec![by_minor(2)]),
        share(3, "team-language", "most-memory", "60Gi"),
        share(4, "research", "some-memory", "20Gi"),
        claim(5, "research", "notebook", vec![by_minor(4)]),
        claim(6, "team-vision", "slice", vec![migs.first().cloned()]),
        claim(7, "research", "slice", vec![migs.get(1).cloned()]),
        AllocatedClaim { admin_access: true, ..observing },
    ]
}
