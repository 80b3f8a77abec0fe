use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::domain::model::GpuUuid;
use crate::test_data;

const UID: &str = "dab5ab50-d59a-42a6-af16-cfd4628c0f7a";

#[tokio::test]
async fn a_claim_has_what_each_file_records_of_it() {
    let mut node = ClaimNode::new();
    node.check(Some(UID), "").await;
    assert_eq!(node.unreadable(), "cdi 0, checkpoint 0, metadata 0", "files that are not there are none");
    node.checkpoint(UID, "GPU-0", true);
    node.metadata("GPU-0");
    let specification = format!(
        "kind: k8s.gpu.nvidia.com/claim\ndevices: [{{name: {UID}-gpu-0, containerEdits: {{deviceNodes: [{{path: /dev/nvidia0}}]}}}}]\n"
    );
    node.write(&format!("cdi/k8s.gpu.nvidia.com-claim_{UID}.yaml"), &specification);
    node.check(Some(UID), "metadata GPU-0, checkpoint GPU-0, cdi Minor(0), admin").await;
    node.check(None, "metadata GPU-0, checkpoint GPU-0, admin").await;
    node.check(Some("11111111-d59a-42a6-af16-cfd4628c0f7a"), "").await;
}

#[tokio::test]
async fn a_record_outlives_its_file_while_the_claim_is_listed_or_in_use() {
    let mut node = ClaimNode::new();
    node.checkpoint(UID, "GPU-0", true);
    node.check(Some(UID), "checkpoint GPU-0, admin").await;
    node.write("plugins/gpu.nvidia.com/checkpoint.json", "{");
    node.check(Some(UID), "checkpoint GPU-0, admin").await;
    node.check(Some(UID), "checkpoint GPU-0, admin").await;
    assert_eq!(node.unreadable(), "cdi 0, checkpoint 1, metadata 0");
    node.files.complete(&mut Allocations::default(), Some(&node.accepted)).await;
    assert_eq!(node.files.unreadable, None, "the kubelet has just started and lists no claim yet");
    node.check(Some(UID), "checkpoint GPU-0, admin").await;
    fs::remove_dir_all(node.root.path().join("plugins")).unwrap();
    node.check(Some(UID), "checkpoint GPU-0, admin").await;
    let another = "22222222-d59a-42a6-af16-cfd4628c0f7a";
    node.check(Some(another), "").await;
    node.checkpoint(another, "GPU-1", false);
    node.check(Some(another), "checkpoint GPU-1").await;
    assert_eq!(node.unreadable(), "cdi 0, checkpoint 0, metadata 0");
    fs::remove_dir_all(node.root.path().join("plugins")).unwrap();
    node.check(Some(UID), "").await;
}

#[tokio::test]
async fn files_that_cannot_be_parsed_are_counted_and_record_nothing() {
    let mut node = ClaimNode::new();
    node.write("plugins/gpu.nvidia.com/dra-device-metadata/team_claim/gpu/metadata.json", "\u{0}\u{1}");
    node.write(&format!("cdi/k8s.gpu.nvidia.com-claim_{UID}.yaml"), "kind: [");
    fs::create_dir_all(node.root.path().join("plugins/gpu.nvidia.com/checkpoint.json")).unwrap();
    node.check(Some(UID), "").await;
    node.check(Some(UID), "").await;
    assert_eq!(node.unreadable(), "cdi 1, checkpoint 1, metadata 1");
}

#[tokio::test]
async fn the_files_of_all_claims_are_read_up_to_a_sum() {
    let mut node = ClaimNode::new();
    node.checkpoint(UID, "GPU-1", false);
    let requests = node.root.path().join("plugins/gpu.nvidia.com/dra-device-metadata/team_claim");
    for request in 0..4 {
        node.metadata("GPU-0");
        let directory = requests.join("gpu");
        let mut text = fs::read_to_string(directory.join("metadata.json")).unwrap();
        text.extend(std::iter::repeat_n(' ', 3 << 20));
        fs::write(directory.join("metadata.json"), text).unwrap();
        fs::rename(directory, requests.join(format!("gpu-{request}"))).unwrap();
    }
    node.check(Some(UID), "metadata GPU-0, checkpoint GPU-1").await;
    assert_eq!(node.unreadable(), "cdi 0, checkpoint 0, metadata 2");
    let problem = node.files.problems.values().next().unwrap();
    assert!(problem.contains("8388608"), "{problem}");
}

#[test]
fn a_file_that_cannot_be_opened_is_not_too_large() {
    let node = ClaimNode::new();
    let mut files = FileReader { bytes_left: 1, problems: Problems::new() };
    let path = node.root.path().join("cycle");
    std::os::unix::fs::symlink(&path, &path).unwrap();
    files.read(ClaimSource::Cdi, path.clone(), &|_| Ok(vec![]));
    let problem = &files.problems[&(ClaimSource::Cdi, path)];
    assert!(!problem.contains("8388608"), "{problem}");
}

#[tokio::test]
async fn no_name_of_a_claim_leads_out_of_the_directories() {
    let mut node = ClaimNode::new();
    node.metadata("GPU-0");
    for name in ["", ".", "..", "../team_claim", "a/b", "a\u{0}b"] {
        assert!(!is_file_name(name), "{name:?}");
    }
    assert!(is_file_name("my-claim.v1"));
    node.check(Some("../../secret"), "").await;
}

#[tokio::test]
async fn a_named_pipe_is_unreadable_until_it_is_a_file_again() {
    let mut node = ClaimNode::new();
    let path = node.root.path().join("plugins/gpu.nvidia.com/checkpoint.json");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    node.check(Some(UID), "").await;
    assert_eq!(node.unreadable(), "cdi 0, checkpoint 1, metadata 0");
    node.checkpoint(UID, "GPU-0", false);
    node.check(Some(UID), "checkpoint GPU-0").await;
    assert_eq!(node.unreadable(), "cdi 0, checkpoint 0, metadata 0");
}

#[tokio::test]
async fn while_a_file_system_hangs_the_records_stay() {
    let mut node = ClaimNode::new();
    node.checkpoint(UID, "GPU-0", false);
    node.check(Some(UID), "checkpoint GPU-0").await;
    let (answer, hangs) = std::sync::mpsc::channel();
    assert!(node.files.reading.answer(Duration::ZERO, move || hangs.recv().unwrap()).await.is_none());
    node.check(Some(UID), "checkpoint GPU-0").await;
    assert_eq!(node.unreadable(), "cdi 1, checkpoint 1, metadata 1");
    answer.send((Records::new(), Problems::new())).unwrap();
    while !node.files.reading.is_idle() {
        node.check(Some(UID), "checkpoint GPU-0").await;
    }
    assert_eq!(node.unreadable(), "cdi 0, checkpoint 0, metadata 0");
}

#[test]
fn a_record_of_several_claims_has_what_they_agree_on() {
    let gpu = |uuid: &str| RecordedDevice {
        claim_uid: uuid.into(),
        driver: None,
        pool: None,
        device: "gpu-0".into(),
        hardware: Some(ClaimHardware::Gpu(GpuUuid::from(uuid))),
        allocation: None,
    };
    let (one, other) = (gpu("GPU-0"), gpu("GPU-1"));
    assert_eq!(agreed(&[&one, &one]), one.hardware);
    assert_eq!(agreed(&[&one, &other]), None);
    assert_eq!(agreed(&[]), None);
}

/// While it hung, so did the kubelet's checkpoint.
#[test]
fn a_file_that_hangs_hangs_no_other_parsing() {
    let node = ClaimNode::new();
    let (directories, caps) = (node.files.directories.clone(), node.root.path().join("proc/driver/nvidia-caps"));
    node.write(
        &format!("cdi/k8s.gpu.nvidia.com-claim_{UID}.yaml"),
        &format!(
            "kind: k8s.gpu.nvidia.com/claim\ndevices:\n- name: {UID}-gpu-0\n  containerEdits:\n    deviceNodes:\n    \
             - path: /dev/nvidia0\n    - path: /dev/nvidia-caps/nvidia-cap13\n"
        ),
    );
    fs::create_dir_all(&caps).unwrap();
    let pipe = caps.join("mig-minors");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let claim = ClaimDevice { claim_uid: Some(UID.into()), ..test_data::claim("gpu.nvidia.com", "gpu-0") };
    let reading = std::thread::spawn(move || read(&directories, &[claim].into()));
    // Opens once it is read.
    let mut writer = fs::File::options().write(true).open(pipe).unwrap();
    assert!(PARSING.try_lock_for(Duration::from_secs(60)).is_some());
    std::io::Write::write_all(&mut writer, b"gpu0/gi1/ci0/access 13\n").unwrap();
    drop(writer);
    let (records, problems) = reading.join().unwrap();
    assert_eq!((records.len(), problems), (1, Problems::new()));
    let hardware = records.into_values().next().unwrap().hardware;
    assert!(matches!(hardware[&ClaimSource::Cdi], ClaimHardware::Instance { .. }), "{hardware:?}");
}

struct ClaimNode {
    root: TempDir,
    files: ClaimFiles,
    accepted: Allocations,
}

impl ClaimNode {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let directory = |name| root.path().join(name);
        let (plugins, cdi, proc) = (directory("plugins"), directory("cdi"), directory("proc"));
        Self { files: ClaimFiles::new(ClaimDirectories { plugins, cdi, proc }), root, accepted: Allocations::default() }
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // As NVIDIA's driver writes its checkpoint: another file under the same name.
        let new = path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, path).unwrap();
    }

    fn checkpoint(&self, uid: &str, uuid: &str, admin: bool) {
        self.write(
            "plugins/gpu.nvidia.com/checkpoint.json",
            &format!(
                r#"{{"v1":{{"preparedClaims":{{"{uid}":{{"status":{{"allocation":{{"devices":{{"results":[
                {{"request":"r","driver":"gpu.nvidia.com","pool":"node","device":"gpu-0","adminAccess":{admin}}}]}}}}}},
                "preparedDevices":[{{"devices":[{{"gpu":{{"info":{{"uuid":"{uuid}"}},
                "device":{{"PoolName":"node","DeviceName":"gpu-0"}}}}}}]}}]}}}}}}}}"#
            ),
        );
    }

    fn metadata(&self, uuid: &str) {
        self.write(
            "plugins/gpu.nvidia.com/dra-device-metadata/team_claim/gpu/metadata.json",
            &format!(
                r#"{{"apiVersion":"metadata.resource.k8s.io/v1alpha1","metadata":{{"uid":"{UID}"}},"requests":[{{"devices":[
                {{"driver":"gpu.nvidia.com","pool":"node","name":"gpu-0","attributes":{{"uuid":{{"string":"{uuid}"}}}}}}]}}]}}"#
            ),
        );
    }

    /// What is known of the claim, as "source hardware …, admin".
    async fn check(&mut self, uid: Option<&str>, expected: &str) {
        let claim = ClaimDevice { claim_uid: uid.map(Into::into), ..test_data::claim("gpu.nvidia.com", "gpu-0") };
        let mut allocations = test_data::allocations([test_data::holder("pod", &[])]);
        allocations.pods[0].containers[0].claims.push(claim);
        self.files.complete(&mut allocations, Some(&self.accepted)).await;
        self.accepted = allocations;
        let claim = &self.accepted.pods[0].containers[0].claims[0];
        let hardware = |(source, hardware): (&ClaimSource, &ClaimHardware)| match hardware {
            ClaimHardware::Gpu(uuid) => format!("{} {uuid}", source.into_str()),
            other => format!("{} {other:?}", source.into_str()),
        };
        let mut found: Vec<String> = claim.record.hardware.iter().map(hardware).collect();
        found.extend(claim.is_observer().then(|| "admin".to_owned()));
        assert_eq!(found.join(", "), expected);
    }

    fn unreadable(&self) -> String {
        let unreadable = self.files.unreadable.clone().unwrap();
        unreadable.iter().map(|(source, count)| format!("{source} {count}")).collect::<Vec<_>>().join(", ")
    }
}
