use std::collections::BTreeMap;

use super::*;

const UID: &str = "dab5ab50-d59a-42a6-af16-cfd4628c0f7a";

/// "driver pool device hardware admin consumed" of each.
fn lines(recorded: Result<Vec<RecordedDevice>, String>) -> Vec<String> {
    let line = |recorded: &RecordedDevice| {
        let hardware = recorded.hardware.as_ref().map(|hardware| format!(" {hardware:?}")).unwrap_or_default();
        let allocation = recorded.allocation.as_ref().map(|allocation| {
            let RecordedAllocation { share_id, admin_access, consumed } = allocation;
            let consumed: BTreeMap<_, _> = consumed.iter().cloned().collect();
            format!(" share={share_id:?} admin={admin_access} {consumed:?}")
        });
        let (driver, pool) = (recorded.driver.as_deref().unwrap_or("-"), recorded.pool.as_deref().unwrap_or("-"));
        format!("{driver} {pool} {}{hardware}{}", recorded.device, allocation.unwrap_or_default())
    };
    recorded.unwrap().iter().map(line).collect()
}

/// As `encodeMetadataStream` of the kubelet's plugin library writes it: each version once, the newest first.
#[test]
fn metadata_is_read_in_the_first_known_version() {
    let object = |version: &str, attributes: &str| {
        format!(
            r#"{{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/{version}",
            "metadata":{{"name":"c","namespace":"team","uid":"{UID}","generation":1}},"podClaimName":"gpu",
            "requests":[{{"name":"gpu","devices":[{{"driver":"gpu.nvidia.com","pool":"node-a","name":"gpu-vfio-1",
            "attributes":{{{attributes}}}}}]}}]}}"#
        )
    };
    let check = |text: &str, expected: &str| {
        let read = metadata(text.as_bytes());
        assert!(read.iter().flatten().all(|recorded| *recorded.claim_uid == *UID));
        assert_eq!(lines(read), [format!("gpu.nvidia.com node-a gpu-vfio-1{expected}")], "{text}");
    };
    let address = r#""type":{"string":"vfio"},"uuid":{"string":"11111111-2222-3333-4444-555555555555"},
        "iommuFDEnabled":{"bool":false},"resource.kubernetes.io/pciBusID":{"string":"0000:3D:00.0"}"#;
    check(&object("v1alpha1", address), r#" Pci("0000:3d:00.0")"#);
    let both =
        object("v2", r#""uuid":{"string":"GPU-other"}"#) + "\n" + &object("v1beta1", r#""uuid":{"string":"GPU-1"}"#);
    check(&both, r#" Gpu("GPU-1")"#);
    check(
        &object("v1beta1", r#""gpu.nvidia.com/uuid":{"string":"MIG-1"},"type":{"string":"mig"}"#),
        r#" Mig("MIG-1")"#,
    );
    // The address of a partition is its GPU's.
    let partition = r#""type":{"string":"mig"},"resource.kubernetes.io/pciBusID":{"string":"0000:3d:00.0"}"#;
    check(&object("v1beta1", partition), "");
    check(&object("v1beta1", r#""uuid":{"int":1}"#), "");
    assert_eq!(metadata(b"\n"), Ok(vec![]), "the driver fills it later");
    assert!(metadata(object("v2", "").as_bytes()).unwrap_err().contains("known version"));
    assert!(metadata(&object("v1beta1", "").as_bytes()[..99]).is_err());
}

/// Of release 25.12 and newer; before, a MIG device has `info` in place of `concrete`.
#[test]
fn a_checkpoint_names_hardware_by_uuid() {
    let device = |name: &str| {
        format!(
            r#"{{"Requests":["r"],"PoolName":"node-a","DeviceName":"{name}","CDIDeviceIDs":["k8s.gpu.nvidia.com/claim={UID}-{name}"]}}"#
        )
    };
    let mig = r#""concrete":{"parentMinor":0,"giId":7,"ciId":0,"migUUID":"MIG-1","parentUUID":"GPU-1"}"#;
    let claims = format!(
        r#"{{"preparedClaims":{{"{UID}":{{"checkpointState":"PrepareCompleted",
        "status":{{"allocation":{{"devices":{{"results":[
            {{"request":"r","driver":"gpu.nvidia.com","pool":"node-a","device":"gpu-2","adminAccess":true}},
            {{"request":"s","driver":"gpu.nvidia.com","pool":"node-a","device":"gpu-3","shareID":"s-1",
              "consumedCapacity":{{"memory":"40Gi","shares":"2"}}}}]}}}},"reservedFor":[]}},
        "preparedDevices":[{{"configState":{{}},"devices":[
            {{"gpu":{{"info":{{"uuid":"GPU-2"}},"device":{}}},"mig":null}},
            {{"gpu":null,"mig":{{{mig},"device":{}}}}},
            {{"gpu":null,"mig":{{"info":{{"uuid":"MIG-2"}},"device":{}}}}},
            {{"gpu":null,"mig":null,"vfio":{{"info":{{"uuid":"1-2"}},"device":{}}}}}]}}]}}}}}}"#,
        device("gpu-2"),
        device("gpu-0-mig-1g10gb-19-4"),
        device("gpu-0-mig-19-5-1"),
        device("gpu-vfio-3"),
    );
    let older = r#"{"preparedClaims":{"other":{"preparedDevices":null}}}"#;
    let expected = [
        r#"gpu.nvidia.com node-a gpu-2 share=None admin=true {}"#,
        r#"gpu.nvidia.com node-a gpu-3 share=Some("s-1") admin=false {"memory": 42949672960000, "shares": 2000}"#,
        r#"- node-a gpu-2 Gpu("GPU-2")"#,
        r#"- node-a gpu-0-mig-1g10gb-19-4 Mig("MIG-1")"#,
        r#"- node-a gpu-0-mig-19-5-1 Mig("MIG-2")"#,
    ];
    for text in
        [format!(r#"{{"checksum":1,"v1":{older},"v2":{claims}}}"#), format!(r#"{{"checksum":1,"v1":{claims}}}"#)]
    {
        assert_eq!(lines(checkpoint(text.as_bytes(), &|_| true)), expected);
    }
    let damaged = format!(r#"{{"checksum":1,"v1":{{"preparedClaims":7}},"v2":{claims}}}"#);
    let of_device = |recorded: &RecordedDevice| &*recorded.device == "gpu-3";
    assert_eq!(lines(checkpoint(damaged.as_bytes(), &of_device)), expected[1..2], "what is not used is not parsed");
    let damaged = checkpoint(br#"{"v2":{"preparedClaims":{"c-1":{"preparedDevices":7}}}}"#, &|_| true);
    assert!(damaged.unwrap_err().starts_with("claim c-1: invalid type"));
    assert_eq!(checkpoint(br#"{"checksum":1,"v2":{"checksum":2,"nodeBootID":"b"}}"#, &|_| true), Ok(vec![]));
    assert!(checkpoint(br#"{"checksum":1,"v3":{}}"#, &|_| true).unwrap_err().contains("neither"));
}

#[test]
fn a_cdi_specification_names_hardware_by_its_device_nodes() {
    let known = || capability_nodes("gpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu1/gi1/ci0/access 148\nconfig 1\n");
    let check = |nodes: &[&str], expected: &str| {
        let nodes: Vec<String> = nodes.iter().map(|path| format!("{{path: {path}}}")).collect();
        let text = format!(
            "---\ncdiVersion: 0.5.0\nkind: k8s.gpu.nvidia.com/claim\ncontainerEdits:\n  deviceNodes:\n  - path: /dev/nvidiactl\n\
             devices:\n- name: {UID}-gpu-2\n  containerEdits:\n    deviceNodes: [{}]\n- name: another\n",
            nodes.join(", ")
        );
        let read = cdi(&text, "k8s.gpu.nvidia.com/claim", UID, known);
        assert_eq!(lines(read), [format!("- - gpu-2{expected}")], "{text}");
    };
    check(&["/dev/nvidia2", "/dev/dri/card3", "/dev/dri/renderD130"], " Minor(2)");
    let caps = ["/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"];
    check(&["/dev/nvidia0", caps[0], caps[1]], " Instance { minor: 0, gpu_instance: 1, compute_instance: 0 }");
    check(&["/dev/nvidia1", caps[0], caps[1]], "");
    check(&["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap99"], "");
    check(&["/dev/nvidia0", "/dev/nvidia1"], "");
    check(&["/dev/vfio/12"], "");
    check(&[], "");
    assert!(cdi("kind: other/claim\n", "k8s.gpu.nvidia.com/claim", UID, known).unwrap_err().contains("other/claim"));
    assert!(cdi("", "k8s.gpu.nvidia.com/claim", UID, known).is_err());
}

#[test]
fn quantities_are_read_in_thousandths() {
    for (text, expected) in [
        ("2", Some(2000)),
        ("500m", Some(500)),
        ("1500000u", Some(1500)),
        ("2000000n", Some(2)),
        ("1.5", Some(1500)),
        ("2e3", Some(2_000_000)),
        ("1Ki", Some(1_024_000)),
        ("1k", Some(1_000_000)),
        ("0", Some(0)),
        ("-1", None),
        ("inf", None),
        ("", None),
        ("80GB", None),
        ("99999999Ei", None),
    ] {
        assert_eq!(thousandths(text), expected, "{text}");
    }
}
