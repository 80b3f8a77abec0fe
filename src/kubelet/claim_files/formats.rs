//! The formats of the files that DRA drivers keep on the node: metadata (KEP-5304), the checkpoint of NVIDIA's driver,
//! and CDI specifications. Other fields are ignored: newer versions have more.
//!
//! In: bytes of one file. Out: what it records of each device, or why not. It reads no files.

mod cdi;

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::domain::model::{ClaimHardware, GpuUuid, MigUuid, PciBusId};

pub use cdi::{capability_nodes, cdi};

/// One statement of a file on a device of a claim. NVIDIA's checkpoint has two: one with the allocation, one with the
/// hardware.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedDevice {
    pub claim_uid: Arc<str>,
    /// `None` where the statement leaves it out: the driver is that of the file.
    pub driver: Option<Arc<str>>,
    /// `None` where the file does not have it.
    pub pool: Option<Arc<str>>,
    pub device: Arc<str>,
    pub hardware: Option<ClaimHardware>,
    pub allocation: Option<RecordedAllocation>,
}

/// One result of the claim's allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedAllocation {
    pub share_id: Option<Arc<str>>,
    pub admin_access: bool,
    /// In thousandths, by capacity.
    pub consumed: Vec<(Arc<str>, u64)>,
}

/// Those that the kubelet's plugin library writes.
const METADATA_VERSIONS: [&str; 2] = ["metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1"];
const PCI_BUS_ID: [&str; 2] = ["resource.kubernetes.io/pciBusID", "resource.k8s.io/pciBusID"];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetadataVersion {
    api_version: Option<String>,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    metadata: ObjectMeta,
    requests: Option<Vec<MetadataRequest>>,
}

#[derive(Default, Deserialize)]
struct ObjectMeta {
    #[serde(default)]
    uid: String,
}

#[derive(Deserialize)]
struct MetadataRequest {
    devices: Option<Vec<MetadataDevice>>,
}

#[derive(Deserialize)]
struct MetadataDevice {
    driver: String,
    pool: String,
    name: String,
    /// Those that `attributes_hardware` reads.
    #[serde(default, deserialize_with = "attributes")]
    attributes: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct Attribute {
    string: Option<String>,
}

/// What is needed of each entry of an object, so that no more of it is in memory. Nothing of `null`.
fn entries<'de, D: Deserializer<'de>, V: Deserialize<'de>, T>(
    deserializer: D,
    keep: fn(String, V) -> Option<T>,
) -> Result<Vec<T>, D::Error> {
    struct EntriesVisitor<V, T>(fn(String, V) -> Option<T>);
    impl<'de, V: Deserialize<'de>, T> Visitor<'de> for EntriesVisitor<V, T> {
        type Value = Vec<T>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("an object")
        }

        fn visit_unit<E>(self) -> Result<Vec<T>, E> {
            Ok(vec![])
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<T>, A::Error> {
            let mut kept = vec![];
            while let Some((name, value)) = map.next_entry()? {
                kept.extend((self.0)(name, value));
            }
            Ok(kept)
        }
    }
    deserializer.deserialize_any(EntriesVisitor(keep))
}

/// `metadata.json`: one object for each version of the format, of which the first known one counts. Empty until a
/// driver that fills it later has done so.
pub fn metadata(text: &[u8]) -> Result<Vec<RecordedDevice>, String> {
    if text.trim_ascii().is_empty() {
        return Ok(vec![]);
    }
    let mut versions = serde_json::Deserializer::from_slice(text).into_iter::<MetadataVersion>();
    let mut start = 0;
    while let Some(object) = versions.next() {
        let version = object.map_err(|error| error.to_string())?.api_version;
        let end = versions.byte_offset();
        if version.is_some_and(|version| METADATA_VERSIONS.contains(&version.as_str())) {
            let known: Metadata = serde_json::from_slice(&text[start..end]).map_err(|error| error.to_string())?;
            return Ok(metadata_devices(known));
        }
        start = end;
    }
    Err(format!("not of a known version: {}", METADATA_VERSIONS.join(", ")))
}

fn metadata_devices(known: Metadata) -> Vec<RecordedDevice> {
    let claim_uid: Arc<str> = known.metadata.uid.into();
    let devices = known.requests.into_iter().flatten().flat_map(|request| request.devices.into_iter().flatten());
    let recorded = devices.map(|device| RecordedDevice {
        claim_uid: Arc::clone(&claim_uid),
        hardware: attributes_hardware(&device),
        driver: Some(device.driver.into()),
        pool: Some(device.pool.into()),
        device: device.name.into(),
        allocation: None,
    });
    recorded.collect()
}

fn attributes_hardware(device: &MetadataDevice) -> Option<ClaimHardware> {
    let text = |name: &str| device.attributes.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str());
    let own = |name: &str| text(name).or_else(|| text(&format!("{}/{name}", device.driver)));
    // A partition has the address of its GPU.
    let is_whole = own("type").is_none_or(|kind| kind != "mig") && own("parentUUID").is_none();
    own("uuid").and_then(of_uuid).or_else(|| {
        let address = PCI_BUS_ID.iter().find_map(|name| text(name)).filter(|_| is_whole)?;
        Some(ClaimHardware::Pci(PciBusId::normalized(address)))
    })
}

fn of_uuid(uuid: &str) -> Option<ClaimHardware> {
    match uuid {
        gpu if gpu.starts_with("GPU-") => Some(ClaimHardware::Gpu(GpuUuid::from(gpu))),
        mig if mig.starts_with("MIG-") => Some(ClaimHardware::Mig(MigUuid::from(mig))),
        _ => None,
    }
}

#[derive(Deserialize)]
struct PreparedCheckpoint<'a> {
    #[serde(borrow)]
    v1: Option<&'a RawValue>,
    #[serde(borrow)]
    v2: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PreparedClaims<'a> {
    /// The claims by UID.
    #[serde(borrow, default, deserialize_with = "claims")]
    prepared_claims: Vec<(Arc<str>, &'a RawValue)>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PreparedClaim {
    #[serde(default)]
    status: ClaimStatus,
    prepared_devices: Option<Vec<PreparedGroup>>,
}

#[derive(Default, Deserialize)]
struct ClaimStatus {
    allocation: Option<AllocationResult>,
}

#[derive(Deserialize)]
struct AllocationResult {
    #[serde(default)]
    devices: DeviceResults,
}

#[derive(Default, Deserialize)]
struct DeviceResults {
    results: Option<Vec<DeviceResult>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeviceResult {
    driver: String,
    pool: String,
    device: String,
    admin_access: Option<bool>,
    #[serde(rename = "shareID")]
    share_id: Option<String>,
    /// Those that podmeter can read, in thousandths.
    #[serde(default, deserialize_with = "capacities")]
    consumed_capacity: Vec<(Arc<str>, u64)>,
}

#[derive(Deserialize)]
struct PreparedGroup {
    devices: Option<Vec<PreparedDevice>>,
}

#[derive(Deserialize)]
struct PreparedDevice {
    // Boxed: a file may have millions of `{}`, and each must be small in memory.
    gpu: Option<Box<Prepared>>,
    mig: Option<Box<Prepared>>,
}

#[derive(Deserialize)]
struct Prepared {
    /// The UUID of a GPU, and of a MIG device before 25.12.
    info: Option<PreparedInfo>,
    /// The UUID of a MIG device from 25.12 on.
    concrete: Option<Concrete>,
    device: PreparedName,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PreparedInfo {
    uuid: Option<String>,
}

#[derive(Deserialize)]
struct Concrete {
    #[serde(rename = "migUUID")]
    mig_uuid: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PreparedName {
    pool_name: String,
    device_name: String,
}

/// `checkpoint.json` of NVIDIA's driver: what is wanted of it. The newest version in it counts; each file has the older one too.
pub fn checkpoint(text: &[u8], is_wanted: &dyn Fn(&RecordedDevice) -> bool) -> Result<Vec<RecordedDevice>, String> {
    let of_file = |error: serde_json::Error| error.to_string();
    let checkpoint: PreparedCheckpoint<'_> = serde_json::from_slice(text).map_err(of_file)?;
    let newest = checkpoint.v2.or(checkpoint.v1).ok_or("neither v1 nor v2 is in it")?;
    let claims: PreparedClaims<'_> = serde_json::from_str(newest.get()).map_err(of_file)?;
    let mut recorded = vec![];
    for (uid, claim) in claims.prepared_claims {
        let claim: PreparedClaim =
            serde_json::from_str(claim.get()).map_err(|error| format!("claim {uid}: {error}"))?;
        recorded.extend(claim_devices(&uid, claim).filter(is_wanted));
    }
    Ok(recorded)
}

fn claims<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(Arc<str>, &'de RawValue)>, D::Error> {
    entries(deserializer, |uid, claim| Some((uid.into(), claim)))
}

fn attributes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, String)>, D::Error> {
    entries(deserializer, |name, attribute: Attribute| {
        let own = name.rsplit_once('/').map_or(&*name, |(_, own)| own);
        let is_read = ["uuid", "type", "parentUUID"].contains(&own) || PCI_BUS_ID.contains(&&*name);
        Some((name, attribute.string?)).filter(|_| is_read)
    })
}

fn claim_devices(claim_uid: &Arc<str>, claim: PreparedClaim) -> impl Iterator<Item = RecordedDevice> {
    let results = claim.status.allocation.and_then(|allocation| allocation.devices.results);
    let results = results.into_iter().flatten().map(|result| RecordedDevice {
        claim_uid: Arc::clone(claim_uid),
        driver: Some(result.driver.into()),
        pool: Some(result.pool.into()),
        device: result.device.into(),
        hardware: None,
        allocation: Some(RecordedAllocation {
            share_id: result.share_id.map(Into::into),
            admin_access: result.admin_access.unwrap_or_default(),
            consumed: result.consumed_capacity,
        }),
    });
    let groups = claim.prepared_devices.into_iter().flatten();
    let devices = groups.flat_map(|group| group.devices.into_iter().flatten()).filter_map(prepared);
    let devices = devices.map(|(name, hardware)| RecordedDevice {
        claim_uid: Arc::clone(claim_uid),
        driver: None,
        pool: Some(name.pool_name.into()),
        device: name.device_name.into(),
        hardware,
        allocation: None,
    });
    results.chain(devices)
}

fn prepared(device: PreparedDevice) -> Option<(PreparedName, Option<ClaimHardware>)> {
    let Prepared { info, concrete, device } = *device.gpu.or(device.mig)?;
    let mig_uuid = concrete.map(|concrete| concrete.mig_uuid);
    let uuid = mig_uuid.or_else(|| info?.uuid);
    Some((device, uuid.as_deref().and_then(of_uuid)))
}

fn capacities<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(Arc<str>, u64)>, D::Error> {
    entries(deserializer, |name, amount: String| Some((name.into(), thousandths(&amount)?)))
}

/// A quantity of Kubernetes (`40Gi`, `2`, `500m`, `1.5`, `2e3`) in thousandths. `None`: not one, or negative.
fn thousandths(text: &str) -> Option<u64> {
    const SUFFIXES: [(&str, f64); 15] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
    ];
    let suffix = SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)));
    let (number, factor) = suffix.unwrap_or((text, 1.0));
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    let amount = number.parse::<f64>().ok().filter(|_| is_number)? * factor * 1000.0;
    (amount >= 0.0 && amount < u64::MAX as f64).then_some(amount.round() as u64)
}

#[cfg(test)]
mod tests;
