//! The device and the pod of each series.

use super::*;
use crate::domain::model::{Monotonic, XidCount};

/// The labels of each series of a metric on a device, without those of the device.
fn rest_of(page: &[Family], name: &str, uuid: &str) -> BTreeSet<Vec<(String, String)>> {
    let family = page.iter().find(|family| family.descriptor.name == name).unwrap();
    let its = family.samples.iter().filter(|sample| sample.labels.iter().any(|(_, value)| value == uuid));
    let is_rest = |name: &str| ["container", "pod", "pod_uid", "vgpu", "GPU_I_ID"].contains(&name);
    let rest = |labels: &Labels| labels.iter().filter(|(name, _)| is_rest(name)).map(own).collect();
    its.map(|sample| rest(&sample.labels)).collect()
}

fn own((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

#[test]
fn a_partitioned_gpu_is_on_the_page_as_its_instances_with_their_pods() {
    let snapshot = fixture::snapshot();
    for generation in [Generation::Old, Generation::New] {
        let page = families(&snapshot, generation);
        let samples = page.iter().flat_map(|family| &family.samples);
        let of_gpu = samples.filter(|sample| sample.labels.iter().any(|(_, value)| value == fixture::PARTITIONED));
        let instances = |labels: &Labels| labels.iter().filter(|(name, _)| *name == "GPU_I_ID").count();
        assert!(of_gpu.clone().count() > 20 && of_gpu.clone().all(|sample| instances(&sample.labels) == 1));
    }
    let page = old(&snapshot);
    let on = |name, instance, pod| value(&page, name, &[("GPU_I_ID", instance), ("pod", pod)]);
    for (name, values) in [
        ("DCGM_FI_DEV_POWER_USAGE", [150.0, 150.0]),
        ("DCGM_FI_DEV_GPU_TEMP", [40.0, 40.0]),
        ("DCGM_FI_DEV_GPU_UTIL", [75.0, 0.0]),
        ("DCGM_FI_DEV_XID_ERRORS", [0.0, 0.0]),
    ] {
        let shown = [on(name, "7", fixture::HOSTILE), on(name, "8", "claiming")];
        assert_eq!(shown, values.map(Some), "{name}");
    }
    let health = |instance, watch| {
        value(&page, "DCGM_EXP_GPU_HEALTH_STATUS", &[("GPU_I_ID", instance), ("health_watch", watch)])
    };
    assert_eq!([health("7", "ALL"), health("8", "ALL")], [Some(0.0), Some(FAILED)]);
}

const FAILED: f64 = 20.0;

#[test]
fn a_gpu_in_mig_mode_without_instances_has_no_pod() {
    let mut snapshot = fixture::snapshot();
    let hardware = std::sync::Arc::make_mut(&mut snapshot.hardware);
    let inventory = std::sync::Arc::make_mut(&mut hardware.inventory);
    inventory.gpus.get_mut(&fixture::PARTITIONED.into()).unwrap().mig_devices.clear();
    let whole = rest_of(&old(&snapshot), "DCGM_FI_DEV_POWER_USAGE", fixture::PARTITIONED);
    assert_eq!(whole, [vec![]].into());
}

#[test]
fn an_xid_of_one_instance_is_not_on_the_others() {
    let mut snapshot = fixture::snapshot();
    let health = std::sync::Arc::make_mut(&mut snapshot.health);
    let fault = health.gpus[&fixture::WHOLE.into()].xids.by_code[&31].clone();
    let by_code = &mut health.gpus.get_mut(&fixture::PARTITIONED.into()).unwrap().xids.by_code;
    let of =
        |seconds, instance| XidCount { last_of: [(instance, Monotonic::from_secs(seconds))].into(), ..fault.clone() };
    by_code.extend([(31, of(400, Some(7))), (79, of(300, None))]);
    let page = old(&snapshot);
    let last = |instance| value(&page, "DCGM_FI_DEV_XID_ERRORS", &[("GPU_I_ID", instance)]);
    assert_eq!([last("7"), last("8")], [Some(31.0), Some(79.0)]);
    let count = |instance, xid| value(&page, "DCGM_EXP_XID_ERRORS_TOTAL", &[("GPU_I_ID", instance), ("xid", xid)]);
    assert_eq!([count("7", "31"), count("8", "31")], [Some(3.0), None]);
    assert_eq!([count("7", "79"), count("8", "79")], [Some(3.0), Some(3.0)]);
}

#[test]
fn every_series_of_a_pod_has_the_uid_that_is_known_now() {
    let uids = |snapshot: &Snapshot| {
        let page = old(snapshot);
        let samples = page.iter().flat_map(|family| &family.samples);
        let label = |labels: &Labels, wanted| {
            labels.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.to_owned())
        };
        let of_pod = samples.filter(|sample| label(&sample.labels, "pod").as_deref() == Some("training-0"));
        of_pod.map(|sample| label(&sample.labels, "pod_uid")).collect::<BTreeSet<_>>()
    };
    let mut snapshot = fixture::snapshot();
    assert_eq!(snapshot.accounts[0].container.pod_uid, None, "it was listed before its UID was known");
    assert_eq!(uids(&snapshot), [Some(fixture::POD_UID.to_owned())].into());
    snapshot.processes = None;
    assert_eq!(uids(&snapshot), [Some(fixture::POD_UID.to_owned())].into(), "the kubelet's checkpoint has it");
    snapshot.accounts[0].container.pod_uid = Some("of-the-successor".into());
    assert_eq!(uids(&snapshot), [Some("of-the-successor".to_owned())].into());
}

#[test]
fn each_memory_in_use_of_a_shared_device_has_the_devices_free_and_total_memory_beside_it() {
    let page = old(&shared());
    let used = rest_of(&page, "DCGM_FI_DEV_FB_USED", fixture::WHOLE);
    assert_eq!(used.len(), 3);
    for (name, mebibytes) in [("DCGM_FI_DEV_FB_FREE", 40_448.0), ("DCGM_FI_DEV_FB_TOTAL", 81_920.0)] {
        assert_eq!(rest_of(&page, name, fixture::WHOLE), used, "{name}");
        for pod in ["one", "two"] {
            assert_eq!(value(&page, name, &[("UUID", fixture::WHOLE), ("pod", pod)]), Some(mebibytes), "{name}");
        }
    }
}

#[test]
fn the_last_xid_of_any_code_is_shown_and_0_without_one() {
    let mut snapshot = fixture::snapshot();
    let last = |snapshot: &Snapshot, uuid| value(&old(snapshot), "DCGM_FI_DEV_XID_ERRORS", &[("UUID", uuid)]);
    assert_eq!([fixture::WHOLE, fixture::LOST].map(|uuid| last(&snapshot, uuid)), [Some(31.0), Some(0.0)]);
    let health = std::sync::Arc::make_mut(&mut snapshot.health);
    let xids = &mut health.gpus.get_mut(&fixture::WHOLE.into()).unwrap().xids;
    let mut earlier = xids.by_code[&31].clone();
    earlier.at.monotonic = crate::domain::model::Monotonic::from_secs(399);
    xids.by_code.insert(94, earlier.clone());
    assert_eq!(last(&snapshot, fixture::WHOLE), Some(31.0));
    earlier.at.monotonic = crate::domain::model::Monotonic::from_secs(401);
    let health = std::sync::Arc::make_mut(&mut snapshot.health);
    health.gpus.get_mut(&fixture::WHOLE.into()).unwrap().xids.by_code.insert(94, earlier);
    assert_eq!(last(&snapshot, fixture::WHOLE), Some(94.0));
}

#[test]
fn the_last_xid_has_its_code_and_a_text_in_both_generations() {
    let mut snapshot = fixture::snapshot();
    let last = |snapshot: &Snapshot, generation, name, [uuid, code, text]: [&str; 3]| {
        let labels = [("UUID", uuid), ("err_code", code), ("err_msg", text)];
        value(&families(snapshot, generation), name, &labels)
    };
    for (generation, name) in [(Generation::Old, "DCGM_FI_DEV_XID_ERRORS"), (Generation::New, "DCGM_FI_DEV_XID_ERROR")]
    {
        let fault = [fixture::WHOLE, "31", "memory page fault of an application"];
        assert_eq!(last(&snapshot, generation, name, fault), Some(31.0));
        assert_eq!(last(&snapshot, generation, name, [fixture::LOST, "0", "No Error"]), Some(0.0));
    }
    let health = std::sync::Arc::make_mut(&mut snapshot.health);
    let by_code = &mut health.gpus.get_mut(&fixture::WHOLE.into()).unwrap().xids.by_code;
    let xid = by_code.remove(&31).unwrap();
    by_code.insert(999, xid);
    let unknown = [fixture::WHOLE, "999", "Unknown Error"];
    assert_eq!(last(&snapshot, Generation::Old, "DCGM_FI_DEV_XID_ERRORS", unknown), Some(999.0));
}

#[test]
fn a_pod_from_a_manifest_has_its_pod_labels_and_its_uid_in_the_api_server() {
    let mut snapshot = fixture::snapshot();
    let pods = &mut std::sync::Arc::make_mut(snapshot.processes.as_mut().unwrap()).pods;
    let pod = snapshot.accounts[0].container.pod_ref();
    let identity = std::sync::Arc::make_mut(std::sync::Arc::make_mut(pods).get_mut(&pod).unwrap());
    identity.runtime_uid = Some(std::mem::replace(&mut identity.uid, "of-the-mirror-pod".into()));
    let labels = [("UUID", fixture::WHOLE), ("app_kubernetes_io_name", "trainer"), ("pod_uid", "of-the-mirror-pod")];
    assert!(value(&old(&snapshot), "DCGM_FI_DEV_POWER_USAGE", &labels).is_some());
}
