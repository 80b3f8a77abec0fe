use crate::domain::model::ClaimHardware;
use crate::kubelet::claim_files::formats::{RecordedDevice, capability_nodes, cdi, checkpoint, metadata};
use crate::plugin::host::cdi::format;

const KIND: &str = "k8s.gpu.nvidia.com/claim";
const INSTANCE: &str = "kind: k8s.gpu.nvidia.com/claim
devices:
- name: dab5ab50-d59a-42a6-af16-cfd4628c0f7a-gpu-0
  containerEdits:
    deviceNodes: [{path: /dev/nvidia0}, {path: /dev/nvidia-caps/nvidia-cap13}]
";
const UID: &str = "dab5ab50-d59a-42a6-af16-cfd4628c0f7a";

/// A byte for the kind, then a file of a DRA driver: metadata, checkpoint, CDI specification or `mig-minors`.
pub fn claim_file(bytes: &[u8]) {
    let Some((kind, file)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(file);
    // By the plugin it is read as a vendor's.
    if let Err(problem) = format::parse(&text) {
        assert!(!problem.trim().is_empty(), "refused without a reason: {text:?}");
    }
    let read = || match kind % 4 {
        0 => metadata(file),
        1 => checkpoint(file, &|_| true),
        2 => cdi(&text, KIND, UID, || capability_nodes("gpu0/gi1/ci0/access 13\n")),
        _ => cdi(INSTANCE, KIND, UID, || capability_nodes(&text)),
    };
    let recorded = match read() {
        Ok(recorded) => recorded,
        Err(problem) => return assert!(!problem.trim().is_empty(), "refused without a reason: {text:?}"),
    };
    for RecordedDevice { hardware, .. } in &recorded {
        match hardware {
            Some(ClaimHardware::Gpu(uuid)) => assert!(uuid.as_str().starts_with("GPU-"), "{text:?}"),
            Some(ClaimHardware::Mig(uuid)) => assert!(uuid.as_str().starts_with("MIG-"), "{text:?}"),
            _ => {}
        }
    }
    assert_eq!(read(), Ok(recorded), "{text:?}");
}
