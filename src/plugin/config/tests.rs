use std::path::Path;

use super::*;
use crate::input::Size;

fn error(text: &str) -> String {
    match serde_saphyr::from_str::<PluginConfig>(text) {
        Ok(config) => config.resolve(|_| Ok(String::new())).expect_err(text).to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_key_is_read() {
    let text = "
resources:
- kind: nvidia
  name: nvidia.com/gpu
  names: {gpus: [{pattern: '*', name: nvidia.com/x}], mig: []}
  migStrategy: single
  sharing:
    mps:
      replicas: 4
      perGpu: {0: 2, '0:1': 3, GPU-00aa: 1}
      perResource:
        nvidia.com/gpu: {replicas: 2, rename: nvidia.com/part}
        nvidia.com/x: {replicas: 2}
      renameByDefault: true
      failRequestsGreaterThanOne: false
  deviceListStrategy: [envvar, device-nodes]
  deviceIDStrategy: index
  passDeviceSpecs: true
  preferred: packed
  onConflict: takeover
  preStartCheck: {minimumFreeMemory: 2Gi, noProcesses: true}
  deviceRoot: /run/nvidia/driver
  driverMounts: [{hostPath: /a, containerPath: /b}]
  mpsRoot: /mps
  cdiAnnotationPrefix: cdi.k8s.io/
  environment: {A: b}
- kind: path
  name: example.com/nic
  paths: [/dev/infiniband/uverbs*]
  groups: [{id: all, paths: [{path: /dev/x, containerPath: /dev/y, permissions: r, optional: true}]}]
  shared: 2
  permissions: rwm
  containerPath: /dev/
  onConflict: wait
- {kind: simulated, name: example.com/thing, devices: 3}
";
    let config: PluginConfig = serde_saphyr::from_str(text).unwrap();
    let entries = config.resolve(|_| unreachable!()).unwrap();
    let EntryConfig::Nvidia(nvidia) = &entries[0] else { panic!("{entries:?}") };
    assert_eq!(
        nvidia.pre_start_check,
        Some(PreStartCheck { minimum_free_memory: Some(Size(2 << 30)), no_processes: true })
    );
    let SharingConfig::Mps(mps) = &nvidia.sharing else { panic!("{nvidia:?}") };
    assert_eq!(mps.per_gpu.len(), 3);
    assert_eq!(mps.per_resource.len(), 2);
    assert_eq!(nvidia.device_list_strategy, [DeviceListStrategy::Envvar, DeviceListStrategy::DeviceNodes]);
}

#[test]
fn what_is_wrong_is_named_with_what_would_be_right() {
    for (text, parts) in [
        ("resources: [{kind: gpu}]", vec!["gpu", "nvidia"]),
        ("resources: [{name: a.b/c}]", vec!["kind"]),
        ("resources: [{kind: nvidia, migstrategy: none}]", vec!["migstrategy", "migStrategy"]),
        ("resources: [{kind: nvidia, migStrategy: double}]", vec!["double", "single"]),
        ("resources: [{kind: nvidia, name: gpu}]", vec!["gpu", "domain/name"]),
        ("resources: [{kind: nvidia, deviceListStrategy: env}]", vec!["env", "envvar", "cdi-cri"]),
        ("resources: [{kind: nvidia, deviceListStrategy: []}]", vec!["deviceListStrategy", "envvar"]),
        ("resources: [{kind: nvidia, sharing: {timeSlicing: {}}}]", vec!["timeSlicing", "replicas"]),
        ("resources: [{kind: nvidia, sharing: {timeSlicing: {replicas: 1}}}]", vec!["replicas", "1", "2 to 60000"]),
        ("resources: [{kind: nvidia, sharing: {mps: {perGpu: {all: 2}}}}]", vec!["all", "GPU index"]),
        ("resources: [{kind: nvidia, migStrategy: mixed, sharing: {mps: {replicas: 2}}}]", vec!["migStrategy", "MPS"]),
        ("resources: [{kind: nvidia, deviceRoot: dev}]", vec!["deviceRoot", "dev", "absolute"]),
        ("resources: [{kind: nvidia}, {kind: nvidia}]", vec!["resources", "twice"]),
        (
            "resources: [{kind: simulated, name: a.b/c, devices: 1}, {kind: path, name: a.b/c, paths: /dev/x}]",
            vec!["a.b/c", "own name"],
        ),
        (
            "resources: [{kind: path, name: a.b/c, paths: /dev/x*, containerPath: /dev/y}]",
            vec!["containerPath", "/dev/y", "end it with /"],
        ),
        ("resources: [{kind: path, name: a.b/c}]", vec!["resources[0]", "paths"]),
        ("resources: [{kind: path, name: a.b/c, paths: /dev/../etc}]", vec!["/dev/../etc", ".."]),
        ("resources: [{kind: path, name: a.b/c, paths: '/dev/gpu-[0'}]", vec!["/dev/gpu-[0", "pattern"]),
        ("resources: [{kind: nvidia, names: {gpus: [{pattern: 'T[4', name: a.b/c}]}}]", vec!["T[4", "pattern"]),
        ("resources: [{kind: path, name: a.b/c, paths: /dev/x, permissions: rr}]", vec!["permissions", "rr"]),
        ("resources: [{kind: simulated, name: a.b/c, devices: 0}]", vec!["devices", "0", "1 to 10000"]),
        ("nvidiaConfig: /x\nresources: [{kind: nvidia}]", vec!["nvidiaConfig", "kind: nvidia"]),
        ("resource: []", vec!["resource", "resources"]),
    ] {
        let error = error(text);
        for part in parts {
            assert!(error.contains(part), "{part:?} in {error}");
        }
    }
}

#[test]
fn a_rule_for_a_resource_that_is_never_offered_is_a_warning() {
    let rules =
        "sharing: {timeSlicing: {perResource: {nvidia.com/gpu: {replicas: 2}, nvidia.com/mig-1g.10gb: {replicas: 2},
        nvidia.com/a100: {replicas: 2}}}}";
    let names = "names: {gpus: [{pattern: '*', name: nvidia.com/a100}]}";
    for (rest, idle) in [
        ("", &["nvidia.com/a100", "nvidia.com/mig-1g.10gb"][..]),
        ("migStrategy: single", &["nvidia.com/a100", "nvidia.com/mig-1g.10gb"]),
        ("migStrategy: mixed", &["nvidia.com/a100"]),
        (names, &["nvidia.com/mig-1g.10gb"]),
    ] {
        let entry: EntryConfig = serde_saphyr::from_str(&format!("{{kind: nvidia, {rules}, {rest}}}")).expect(rest);
        let warnings = entry.warnings();
        assert_eq!(warnings.len(), idle.len(), "{warnings:?} of {rest:?}");
        assert!(warnings.iter().zip(idle).all(|(warning, name)| warning.contains(name)), "{warnings:?}");
    }
}

#[test]
fn nvidias_file_gives_the_entry_of_kind_nvidia() {
    let text = "nvidiaConfig: /nv.yaml\nresources: [{kind: simulated, name: a.b/c, devices: 1}]";
    let config: PluginConfig = serde_saphyr::from_str(text).unwrap();
    let entries = config
        .resolve(|file| {
            assert_eq!(file, Path::new("/nv.yaml"));
            Ok("version: v1\nflags: {migStrategy: mixed}".to_owned())
        })
        .unwrap();
    assert_eq!(entries.len(), 2);
    let error = config.resolve(|_| Ok("version: v1\nflags: {deviceDiscoveryStrategy: tegra}".to_owned())).unwrap_err();
    for part in ["/nv.yaml", "flags.deviceDiscoveryStrategy", "tegra"] {
        assert!(error.to_string().contains(part), "{part:?} in {error}");
    }
    assert!(config.resolve(|_| Err(std::io::ErrorKind::NotFound.into())).is_err());
    let none: PluginConfig = serde_saphyr::from_str("resources: []").unwrap();
    assert_eq!(none.resolve(|_| unreachable!()).unwrap(), []);
}
