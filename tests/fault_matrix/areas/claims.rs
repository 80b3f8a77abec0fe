//! What a DRA driver keeps on the node about a claim, missing or wrong. The claim is `team/gpu`, of pod `team/claiming`.

use serde_json::json;

use crate::rig::{Rig, wait_for};
use crate::row::{Area, FaultRow, GoesOn, Is, Logged, ROW, Sample};
use crate::support::kubelet::{Claim, ContainerSpec, PodSpec};

const DRIVER: &str = "gpu.nvidia.com";
const UID: &str = "dab5ab50-d59a-42a6-af16-cfd4628c0f7a";
const BY_NAME: Sample = Sample("podmeter_container_claim_info", &["join=\"device_name\""], Is::Series(1));
const UNJOINED: Sample = Sample("podmeter_container_claim_info", &["gpu_uuid="], Is::Absent);
/// The plugin does not give out the GPU of the claim.
const ONE_CLAIMED: &[GoesOn] =
    &[GoesOn::Pages, GoesOn::Holder, GoesOn::Readings(8), GoesOn::Devices(7), GoesOn::Admits];

pub const AREA: Area = Area {
    name: "DRA claims",
    setup: |_| {},
    rows: &[
        FaultRow {
            id: "claim-files-missing",
            happens: "No file of the DRA driver is visible: its directories are not mounted",
            how: |rig| claim(rig, "gpu-3"),
            metrics: &[
                BY_NAME,
                Sample("podmeter_claim_files_unreadable", &[], Is::Value(0.0)),
                Sample("podmeter_unresolved_devices", &[], Is::Absent),
            ],
            log: Logged::Line("held by team/claiming as claim team/gpu"),
            goes_on: ONE_CLAIMED,
            undone: "the claim ends",
            undo: Some(unclaim),
            ..ROW
        },
        FaultRow {
            id: "claim-checkpoint-garbled",
            happens: "The DRA driver's checkpoint is cut short",
            how: |rig| {
                write(rig, "checkpoint.json", "{\"checksum\":1,\"v2\":{\"prepar");
                claim(rig, "gpu-3");
            },
            metrics: &[BY_NAME, Sample("podmeter_claim_files_unreadable", &["source=\"checkpoint\""], Is::Value(1.0))],
            log: Logged::Line("new claims are joined without it"),
            goes_on: ONE_CLAIMED,
            undone: "the claim ends",
            undo: Some(unclaim),
            ..ROW
        },
        FaultRow {
            id: "claim-sources-contradict",
            happens: "The DRA driver's metadata and its checkpoint name different GPUs for a claim",
            how: |rig| {
                let uuid = |gpu: usize| format!("GPU-00000000-0000-0000-0000-{gpu:012}");
                let device = json!({"driver": DRIVER, "pool": "node", "name": "gpu-3", "attributes": {"uuid": {"string": uuid(3)}}});
                let metadata = json!({
                    "apiVersion": "metadata.resource.k8s.io/v1beta1",
                    "metadata": {"uid": UID},
                    "requests": [{"name": "gpu", "devices": [device]}],
                });
                write(rig, "dra-device-metadata/team_gpu/gpu/metadata.json", &metadata.to_string());
                let prepared =
                    json!({"gpu": {"info": {"uuid": uuid(4)}, "device": {"PoolName": "node", "DeviceName": "gpu-3"}}});
                let claims = json!({UID: {"preparedDevices": [{"devices": [prepared]}]}});
                write(rig, "checkpoint.json", &json!({"v2": {"preparedClaims": claims}}).to_string());
                claim(rig, "gpu-3");
            },
            metrics: &[
                Sample("podmeter_unresolved_devices", &["form=\"dra_contradiction\""], Is::Value(1.0)),
                UNJOINED,
            ],
            undone: "the claim ends",
            undo: Some(unclaim),
            ..ROW
        },
        FaultRow {
            id: "claim-device-unknown",
            happens: "A claim has a device that no source resolves",
            how: |rig| claim(rig, "gpu-99"),
            metrics: &[Sample("podmeter_unresolved_devices", &["form=\"dra_gpu\""], Is::Value(1.0)), UNJOINED],
            undone: "the claim ends",
            undo: Some(unclaim),
            ..ROW
        },
    ],
};

fn claim(rig: &mut Rig, device: &str) {
    let name = format!("k8s.{DRIVER}/claim={UID}-{device}");
    rig.kubelet.set_claim(Claim::new("team", "gpu").device(DRIVER, "node", device, &[&name]));
    let pod = PodSpec::new("team", "claiming").container(ContainerSpec::new("main").claim("gpu"));
    wait_for(rig.kubelet.runs(pod));
}

fn unclaim(rig: &mut Rig) {
    rig.kubelet.remove_pod("team", "claiming");
    rig.kubelet.remove_claim("team", "gpu");
    let _ = std::fs::remove_dir_all(rig.path("plugins"));
}

fn write(rig: &Rig, path: &str, text: &str) {
    let path = rig.path("plugins").join(DRIVER).join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}
