//! The bodies of the fuzz targets: bytes in, a panic where a promise is broken.
//!
//! Inputs: any bytes. Outputs: none. Does not use: fuzzers, files. They are part of the library, so that
//! they reach what is public to nobody else, in builds for tests and with `--cfg fuzzing` only. `corpora` runs them over the corpora.

mod claims;
mod configuration;
#[cfg(test)]
mod corpora;
mod journal;
mod kubelet;
mod pages;

pub use claims::claim_file;
pub use configuration::{configuration, nvidia_config, web_config};
pub use journal::{journal_answer, journal_query};
pub use kubelet::kubelet_answer;
pub use pages::node_answer;

use crate::domain::model::{DeviceForm, DeviceId, PodUid, is_dns_label};
use crate::processes::cgroup::{self, CgroupOwner};
use crate::processes::mountinfo;

pub type Target = fn(&[u8]);

/// By name: of the program in `fuzz/fuzz_targets` and of the folder in `fuzz/corpus`.
pub const TARGETS: [(&str, Target); 11] = [
    ("cgroup", cgroup),
    ("claim_file", claim_file),
    ("configuration", configuration),
    ("device_id", device_id),
    ("journal_answer", journal_answer),
    ("journal_query", journal_query),
    ("kubelet_answer", kubelet_answer),
    ("mountinfo", mountinfo),
    ("node_answer", node_answer),
    ("nvidia_config", nvidia_config),
    ("web_config", web_config),
];

/// A device id, or a driver and a device with a line feed between them.
pub fn device_id(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let id = DeviceId::from(&*text);
    let uuid = id.gpu().or(id.mig());
    // What was parsed from the ID is in the ID.
    match id.form() {
        DeviceForm::Gpu | DeviceForm::Mig => assert_eq!(uuid, Some(&*text)),
        DeviceForm::GpuSlot | DeviceForm::GpuVirtual | DeviceForm::MigSlot => {
            assert!(uuid.is_some_and(|uuid| uuid.len() < text.len() && text.starts_with(uuid)), "{text:?}");
        }
        form => assert!(uuid.is_none() && !(id.is_slot() && form == DeviceForm::Other), "{text:?}"),
    }
    assert_eq!(id.pci_address().is_some(), id.form() == DeviceForm::PciAddress, "{text:?}");
    let (driver, device) = text.split_once('\n').unwrap_or(("gpu.nvidia.com", &text));
    let claim = DeviceId::of_claim(driver, device).form();
    assert!(claim.into_str().starts_with("dra_"), "{text:?} is {}", claim.into_str());
}

/// The text of `/proc/<pid>/cgroup`.
pub fn cgroup(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let container = match cgroup::parse(&text) {
        CgroupOwner::Pod { uid, container } => {
            assert!(PodUid::parse(uid.as_str()).is_some(), "{uid} in {text:?}");
            // systemd's form of a UID has underscores.
            assert!(text.replace('_', "-").contains(&format!("pod{uid}")), "{uid} in {text:?}");
            container
        }
        CgroupOwner::Container(id) => Some(id),
        CgroupOwner::Host => None,
    };
    if let Some(id) = container {
        assert!(id.as_str().len() == 64 && text.contains(id.as_str()), "{id} in {text:?}");
    }
}

/// The text of `/proc/<pid>/mountinfo`.
pub fn mountinfo(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let found = mountinfo::parse(&text, None);
    let other = PodUid::from("00000000-0000-0000-0000-000000000000");
    let asked = found.as_ref().map_or(other, |found| found.uid.clone());
    let again = mountinfo::parse(&text, Some(&asked));
    if let Some(found) = found {
        assert!(PodUid::parse(found.uid.as_str()).is_some(), "{found:?} in {text:?}");
        assert!(found.container.as_deref().is_none_or(is_dns_label), "{found:?} in {text:?}");
        assert_eq!(again, Some(found), "{text:?}");
    }
}
