//! What a GPU is part of and how it is allocated, where there is more than a GPU and its holder: superchip, rack, NVLink
//! domain, vGPUs, DRA claims. Empty where the driver and the kubelet report nothing of the kind.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::text::{gibibytes, gpu_name, percent, watts};
use crate::model::{
    Account, C2c, ClaimDevice, ClaimGpu, Container, FabricState, Gpu, GpuUuid, MigUuid, Platform, Slow, Snapshot, Vgpu,
};

/// The facts of a whole GPU or MIG device, for its own page.
pub(super) fn facts(snapshot: &Snapshot, gpu: &Gpu, mig: Option<&MigUuid>) -> Markup {
    let mut facts: Vec<(&'static str, String)> = vec![];
    if mig.is_none() {
        let slow = slow(snapshot, &gpu.uuid);
        let domain = slow.and_then(|slow| slow.fabric.as_ref()?.domain.as_ref());
        facts.extend(domain.map(|domain| {
            ("NVLink domain", format!("clique {} of cluster {}", domain.clique_id, domain.cluster_uuid))
        }));
        facts.extend(gpu.platform.as_ref().map(|platform| ("Place", place(platform))));
        facts.extend(module_watts(snapshot, &gpu.uuid).map(|power| ("Module", module(snapshot, gpu, power))));
        facts.extend(slow.and_then(|slow| c2c(&slow.c2c)).map(|links| ("NVLink-C2C", links)));
    }
    if mig.is_none() {
        facts.extend(vgpus(snapshot, &gpu.uuid).map(|vgpus| ("vGPUs", vgpus)));
    }
    let (holding, observing): (Vec<_>, Vec<_>) =
        claims(snapshot, &gpu.uuid, mig).into_iter().partition(|claim| !claim.device.is_observer());
    let list = |claims: Vec<Claim<'_>>| {
        let words: Vec<String> =
            claims.iter().map(|claim| format!("{} ({})", claim.container(), claim.name())).collect();
        (!words.is_empty()).then(|| words.join(", "))
    };
    facts.extend(list(holding).map(|claims| ("Claims", claims)));
    facts.extend(list(observing).map(|claims| ("Observers by admin access", claims)));
    html! {
        @if !facts.is_empty() {
            dl.metrics.facts { @for (name, text) in facts { div { dt { (name) } dd { (text) } } } }
        }
    }
}

fn slow<'a>(snapshot: &'a Snapshot, gpu: &GpuUuid) -> Option<&'a Slow> {
    Some(&snapshot.hardware.readings.get(gpu)?.slow.as_ref()?.value)
}

/// The power of the superchip that the GPU is on.
pub(super) fn module_watts(snapshot: &Snapshot, gpu: &GpuUuid) -> Option<f64> {
    snapshot.hardware.readings.get(gpu)?.fast.as_ref()?.value.module_power_watts
}

/// `slot 14, tray 4, host 1, module ID 2`
fn place(platform: &Platform) -> String {
    let number = |name: &str, number: Option<u8>| number.map(|number| format!("{name} {number}"));
    let parts = [
        number("slot", platform.slot),
        number("tray", platform.tray),
        number("host", platform.host),
        number("module ID", platform.module_id),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// `467 W: module 0008:06:00.0, with CPU, GPU 0, GPU 1`; the name is that of the metrics.
fn module(snapshot: &Snapshot, gpu: &Gpu, power: f64) -> String {
    let Some((name, gpus)) = snapshot.hardware.inventory.module_of(&gpu.uuid) else { return watts(power) };
    let names: Vec<String> = gpus.into_iter().map(gpu_name).collect();
    format!("{}: module {name}, with CPU, {}", watts(power), names.join(", "))
}

/// The power of all superchips of the node, each once; `None` without one, and where that of one is unknown.
pub(super) fn all_modules_watts(snapshot: &Snapshot) -> Option<f64> {
    let modules = snapshot.hardware.inventory.modules();
    let of = |gpus: &Vec<&Gpu>| gpus.iter().filter_map(|gpu| module_watts(snapshot, &gpu.uuid)).reduce(f64::max);
    modules.values().map(of).reduce(|one, other| Some(one? + other?))?
}

/// `NVIDIA H100-20C of VM 4f1c…: 35 % SM, 18.0 GiB of 20.0 GiB, licensed`, each that runs.
fn vgpus(snapshot: &Snapshot, gpu: &GpuUuid) -> Option<String> {
    let medium = &snapshot.hardware.readings.get(gpu)?.medium.as_ref()?.value;
    let words = |vgpu: &Vgpu| {
        let name = vgpu.vgpu_type.as_deref().unwrap_or(&vgpu.uuid);
        let machine = vgpu.vm_id.as_ref().map(|id| format!(" of VM {id}")).unwrap_or_default();
        let memory = vgpu.memory_used_bytes.map(|used| match vgpu.memory_total_bytes {
            Some(total) => format!("{} of {}", gibibytes(used), gibibytes(total)),
            None => gibibytes(used),
        });
        let sm = vgpu.sm_utilization_ratio.map(|ratio| format!("{} SM", percent(ratio)));
        let license = vgpu.license_state.map(|state| state.replace('_', " "));
        let known: Vec<String> = [sm, memory, license].into_iter().flatten().collect();
        if known.is_empty() { format!("{name}{machine}") } else { format!("{name}{machine}: {}", known.join(", ")) }
    };
    let all: Vec<String> = medium.vgpus.iter().map(words).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn c2c(c2c: &C2c) -> Option<String> {
    let links =
        c2c.active_links.map(|active| format!("{active} of {} links", active + c2c.inactive_links.unwrap_or(0)));
    links.or_else(|| c2c.enabled.filter(|enabled| *enabled).map(|_| "enabled".to_owned()))
}

/// Conditions of the NVLink fabric that are faults or limits. Those of the registration are causes of health.
pub(super) fn fabric_faults(snapshot: &Snapshot, gpu: &GpuUuid) -> Option<String> {
    let fabric: &FabricState = slow(snapshot, gpu)?.fabric.as_ref()?;
    let conditions = fabric.conditions.iter().filter(|(_, active)| **active).map(|(condition, _)| *condition);
    let words: Vec<String> = conditions
        .map(|condition| condition.replace('_', " "))
        .chain(fabric.incorrect_configuration.map(|why| format!("incorrect configuration: {}", why.replace('_', " "))))
        .collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// A claim's device as one container has it.
struct Claim<'a> {
    container: &'a Container,
    device: &'a ClaimDevice,
    /// Containers that refer to the claim.
    containers: usize,
}

impl Claim<'_> {
    fn container(&self) -> String {
        let reference = &self.container.reference;
        format!("{}/{}/{}", reference.namespace, reference.pod, reference.container)
    }

    /// `claim train-gpus, shared by 2 containers`
    fn name(&self) -> String {
        let shared = match self.containers {
            ..=1 => String::new(),
            count => format!(", shared by {count} containers"),
        };
        format!("claim {}{shared}", self.device.claim)
    }
}

/// The claims of this device, by container.
fn claims<'a>(snapshot: &'a Snapshot, gpu: &GpuUuid, mig: Option<&MigUuid>) -> Vec<Claim<'a>> {
    let here = |one: &&ClaimGpu| one.gpu == *gpu && one.mig.as_ref() == mig;
    let joined: BTreeSet<&ClaimDevice> = snapshot.claim_gpus.iter().filter(here).map(|one| &one.claim).collect();
    if joined.is_empty() {
        return vec![];
    }
    let all = || snapshot.kubelet.allocations.iter().flat_map(|allocations| allocations.containers());
    let of = |container: &'a Container| {
        let devices = container.claims.iter().filter(|device| joined.iter().any(|claim| claim.is_same_share(device)));
        devices.map(move |device| (container, device))
    };
    let with_count = |(container, device): (&'a Container, &'a ClaimDevice)| {
        let containers = all().filter(|other| other.claims.iter().any(|claim| claim.is_same_share(device))).count();
        Claim { container, device, containers }
    };
    all().flat_map(of).map(with_count).collect()
}

/// The claim by which a container holds the device, in words; `None` where it holds it by a device plugin.
pub(super) fn claim(snapshot: &Snapshot, account: &Account) -> Option<String> {
    account.holding.as_ref()?;
    let mut claims = claims(snapshot, &account.gpu, account.mig.as_ref()).into_iter();
    let claim = claims.find(|claim| claim.container.reference == account.container && !claim.device.is_observer())?;
    Some(claim.name())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::metrics::tests::fixture;
    use crate::model::{ClaimAllocation, FabricDomain, Fast, Stamped};

    fn with(change: impl FnOnce(&mut Slow, &mut Fast)) -> Snapshot {
        let mut snapshot = fixture::snapshot();
        let hardware = Arc::make_mut(&mut snapshot.hardware);
        let readings = Arc::make_mut(hardware.readings.get_mut(&GpuUuid::from(fixture::WHOLE)).unwrap());
        let (Some(Stamped { value: slow, .. }), Some(Stamped { value: fast, .. })) =
            (&mut readings.slow, &mut readings.fast)
        else {
            panic!("the whole GPU has readings");
        };
        change(slow, fast);
        snapshot
    }

    fn of(snapshot: &Snapshot) -> String {
        facts(snapshot, &snapshot.hardware.inventory.gpus[&GpuUuid::from(fixture::WHOLE)], None).into_string()
    }

    #[test]
    fn a_gpu_of_a_rack_shows_its_domain_and_place_and_the_power_of_its_module() {
        let domain = FabricDomain { cluster_uuid: "9c6f5af3-53bf".into(), clique_id: 7 };
        let mut snapshot = with(|slow, fast| {
            slow.fabric.as_mut().unwrap().domain = Some(domain);
            fast.module_power_watts = Some(467.2);
            slow.c2c = C2c { active_links: Some(9), inactive_links: Some(1), ..C2c::default() };
        });
        let inventory = Arc::make_mut(&mut Arc::make_mut(&mut snapshot.hardware).inventory);
        let gpu = inventory.gpus.get_mut(&GpuUuid::from(fixture::WHOLE)).unwrap();
        gpu.serial = Some("165".into());
        gpu.platform = Some(Platform { slot: Some(14), module_id: Some(2), ..Platform::default() });
        let text = of(&snapshot);
        for part in [
            "clique 7 of cluster 9c6f5af3-53bf",
            "slot 14, module ID 2",
            "467 W: module 0000:17:00.0, with CPU, GPU 0<",
            "9 of 10 links",
            "NVIDIA H100-20C of VM 88888888-aaaa-4bbb-8ccc-000000000008: 25 % SM, 5.0 GiB of 20.0 GiB, licensed",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_condition_that_is_not_active_is_no_fault() {
        let faults = |snapshot: &Snapshot| fabric_faults(snapshot, &GpuUuid::from(fixture::WHOLE));
        assert_eq!(faults(&fixture::snapshot()), None);
        let bad = with(|slow, _| {
            let fabric = slow.fabric.as_mut().unwrap();
            fabric.conditions = [("degraded_bandwidth", true), ("route_unhealthy", false)].into();
            fabric.incorrect_configuration = Some("insufficient_nvlinks");
        });
        assert_eq!(faults(&bad).as_deref(), Some("degraded bandwidth, incorrect configuration: insufficient nvlinks"));
    }

    /// A second pod refers to the claim; with admin access or without.
    fn with_another_pod(admin_access: bool) -> Snapshot {
        let mut snapshot = fixture::snapshot();
        let mut claim = snapshot.claim_gpus[0].clone();
        let allocations = Arc::make_mut(Arc::make_mut(&mut snapshot.kubelet).allocations.as_mut().unwrap());
        let mut pod = allocations.pods.iter().find(|pod| &*pod.reference.pod == "claiming").unwrap().clone();
        pod.reference.pod = "second".into();
        pod.containers[0].reference.pod = "second".into();
        if admin_access {
            claim.claim.claim = "observe".into();
            claim.claim.record.allocation = Some(ClaimAllocation { admin_access: true, ..ClaimAllocation::default() });
            pod.containers[0].claims = vec![claim.claim.clone()];
            snapshot.claim_gpus.push(claim);
        }
        allocations.pods.push(pod);
        snapshot
    }

    #[test]
    fn claims_are_shown_with_their_holders_and_observers_apart_from_them() {
        let of_slice = |snapshot: &Snapshot| {
            let one = &snapshot.claim_gpus[0];
            facts(snapshot, &snapshot.hardware.inventory.gpus[&one.gpu], one.mig.as_ref()).into_string()
        };
        let claimed = |snapshot: &Snapshot| {
            let account = snapshot.accounts.iter().find(|account| &*account.container.pod == "claiming").unwrap();
            claim(snapshot, account)
        };
        let alone = fixture::snapshot();
        assert!(of_slice(&alone).contains("<dd>research/claiming/main (claim one-slice)</dd>"), "{}", of_slice(&alone));
        assert_eq!(claimed(&alone).as_deref(), Some("claim one-slice"));
        let shared = with_another_pod(false);
        assert!(of_slice(&shared).contains("research/second/main (claim one-slice, shared by 2 containers)"));
        assert_eq!(claimed(&shared).as_deref(), Some("claim one-slice, shared by 2 containers"));
        let observed = with_another_pod(true);
        let text = of_slice(&observed);
        assert!(text.contains("Observers by admin access</dt><dd>research/second/main (claim observe)<"), "{text}");
        assert_eq!(claimed(&observed).as_deref(), Some("claim one-slice"), "an observer shares nothing");
    }

    #[test]
    fn other_machines_show_nothing_of_it() {
        let mut snapshot = with(|slow, fast| {
            slow.c2c = C2c { enabled: Some(false), ..C2c::default() };
            slow.fabric.as_mut().unwrap().domain = None;
            fast.module_power_watts = None;
        });
        let hardware = Arc::make_mut(&mut snapshot.hardware);
        let gpu = GpuUuid::from(fixture::WHOLE);
        Arc::make_mut(&mut hardware.inventory).gpus.get_mut(&gpu).unwrap().platform = None;
        let readings = Arc::make_mut(hardware.readings.get_mut(&gpu).unwrap());
        readings.medium.as_mut().unwrap().value.vgpus.clear();
        let text = of(&Snapshot { claim_gpus: vec![], ..snapshot });
        assert_eq!(text, "");
    }
}
