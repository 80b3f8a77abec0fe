//! Which container holds what, and what it made of it.

use super::device_identity::{DEVICE, of_device};
use super::resources::of_container;
use super::{Descriptor, Family, Group, Label, Value};
use crate::model::{Account, Snapshot};

const ATTRIBUTED: &[&str] = &["namespace", "pod", "container", "gpu_uuid", "mig_uuid"];
const LEDGER: &str = "PodResources List joined with NVML";

static ALLOCATION_INFO: Descriptor = Descriptor::gauge(
    "podmeter_container_allocation_info",
    &["namespace", "pod", "container", "gpu_uuid", "mig_uuid", "resource", "device_id", "sharing", "attribution"],
    "",
    LEDGER,
    "A GPU that a container holds now, and how its use is told apart; always 1.",
);
static ALLOCATED: Descriptor = Descriptor::counter(
    "podmeter_container_allocated_seconds_total",
    ATTRIBUTED,
    "seconds",
    LEDGER,
    "GPU-seconds held: a shared slot counts its part, a MIG device its slices.",
);
static BUSY: Descriptor = Descriptor::counter(
    "podmeter_container_busy_seconds_total",
    ATTRIBUTED,
    "seconds",
    LEDGER,
    "GPU-seconds in which the container kept what it holds busy.",
);
static IDLE: Descriptor = Descriptor::counter(
    "podmeter_container_idle_seconds_total",
    ATTRIBUTED,
    "seconds",
    LEDGER,
    "GPU-seconds held and not busy, of the time in which busy seconds are known.",
);
static UNCOVERED: Descriptor = Descriptor::counter(
    "podmeter_container_uncovered_seconds_total",
    ATTRIBUTED,
    "seconds",
    LEDGER,
    "GPU-seconds held in which busy seconds are not known: neither busy nor idle.",
);
static LAST_ACTIVE: Descriptor = Descriptor::gauge(
    "podmeter_container_last_active_timestamp_seconds",
    ATTRIBUTED,
    "seconds",
    LEDGER,
    "Unix time of the last activity, or of the last time without readings; else the start of the allocation.",
);
static UTILIZATION: Descriptor = Descriptor::gauge(
    "podmeter_container_utilization_ratio",
    ATTRIBUTED,
    "ratio",
    LEDGER,
    "Use of what the container holds in the last sample, 0 to 1; of a shared slot at most 1.",
);
static SM_ACTIVE: Descriptor = Descriptor::gauge(
    "podmeter_container_sm_active_ratio",
    ATTRIBUTED,
    "ratio",
    LEDGER,
    "SM activity of what the container holds alone, 0 to 1; absent where it is shared.",
);
static DRAM_ACTIVE: Descriptor = Descriptor::gauge(
    "podmeter_container_dram_active_ratio",
    ATTRIBUTED,
    "ratio",
    LEDGER,
    "Memory bandwidth use of what the container holds alone, 0 to 1; absent where it is shared.",
);
static MEMORY_USED: Descriptor = Descriptor::gauge(
    "podmeter_container_memory_used_bytes",
    ATTRIBUTED,
    "bytes",
    LEDGER,
    "Device memory that the container uses.",
);
static MEMORY_LIMIT: Descriptor = Descriptor::gauge(
    "podmeter_container_memory_limit_bytes",
    ATTRIBUTED,
    "bytes",
    LEDGER,
    "Device memory that the container may use.",
);
static ENERGY: Descriptor = Descriptor::counter(
    "podmeter_container_energy_joules_total",
    ATTRIBUTED,
    "joules",
    LEDGER,
    "Energy attributed to the container.",
);
static PROCESSES: Descriptor = Descriptor::gauge(
    "podmeter_container_processes",
    ATTRIBUTED,
    "",
    LEDGER,
    "Processes of the container on the device; absent where processes are not known.",
);
static DEVICE_ALLOCATED: Descriptor = Descriptor::gauge(
    "podmeter_device_allocated_ratio",
    DEVICE,
    "ratio",
    LEDGER,
    "Part of the GPU that is allocated, 0 to 1.",
);

pub(super) const GROUP: Group = Group {
    section: "Allocation and attribution",
    descriptors: &[
        &ALLOCATION_INFO,
        &ALLOCATED,
        &BUSY,
        &IDLE,
        &UNCOVERED,
        &LAST_ACTIVE,
        &UTILIZATION,
        &SM_ACTIVE,
        &DRAM_ACTIVE,
        &MEMORY_USED,
        &MEMORY_LIMIT,
        &ENERGY,
        &PROCESSES,
        &DEVICE_ALLOCATED,
    ],
    families,
};

type Read = fn(&Account) -> Option<Value>;

/// Stay after the container has let go.
static COUNTERS: &[(&Descriptor, Read)] = &[
    (&ALLOCATED, |account| account.allocated_seconds.map(Into::into)),
    (&BUSY, |account| account.busy_seconds.map(Into::into)),
    (&IDLE, |account| account.idle_seconds.map(Into::into)),
    (&UNCOVERED, |account| account.uncovered_seconds.map(Into::into)),
    (&ENERGY, |account| account.energy_joules.map(Into::into)),
];

/// Of now: a container that has let go has none.
static GAUGES: &[(&Descriptor, Read)] = &[
    (&LAST_ACTIVE, |account| account.last_active.map(Into::into)),
    (&UTILIZATION, |account| account.utilization_ratio.map(Into::into)),
    (&SM_ACTIVE, |account| account.sm_active_ratio.map(Into::into)),
    (&DRAM_ACTIVE, |account| account.dram_active_ratio.map(Into::into)),
    (&MEMORY_USED, |account| account.memory_used_bytes.map(Into::into)),
    (&MEMORY_LIMIT, |account| account.memory_limit_bytes.map(Into::into)),
    (&PROCESSES, |account| account.processes.map(Into::into)),
];

fn families(snapshot: &Snapshot) -> Vec<Family> {
    let accounts: Vec<&Account> = snapshot.accounts.iter().filter(|account| !account.over_limit).collect();
    let mut families = vec![allocations(&accounts)];
    for (descriptor, read) in COUNTERS {
        let mut family = Family::new(descriptor);
        for account in &accounts {
            family.push_created(of_account(account), read(account), account.created);
        }
        families.push(family);
    }
    for (descriptor, read) in GAUGES {
        let mut family = Family::new(descriptor);
        for account in accounts.iter().filter(|account| account.holding.is_some()) {
            family.push_known(of_account(account), read(account));
        }
        families.push(family);
    }
    families.push(allocated_ratio(snapshot));
    families
}

/// How many series an account has on the page.
pub(super) fn series_of(account: &Account) -> usize {
    let known = |table: &[(&Descriptor, Read)]| table.iter().filter(|(_, read)| read(account).is_some()).count();
    let of_now = |holding: &crate::model::Holding| holding.device_ids.len() + known(GAUGES);
    known(COUNTERS) + account.holding.as_ref().map_or(0, of_now)
}

fn allocations(accounts: &[&Account]) -> Family {
    let mut family = Family::new(&ALLOCATION_INFO);
    for account in accounts {
        let Some(holding) = &account.holding else { continue };
        for device in &holding.device_ids {
            let mut labels = of_account(account);
            labels.extend(holding.resource.as_ref().map(|resource| ("resource", resource.to_shared().into())));
            labels.push(("device_id", device.to_shared().into()));
            labels.push(("sharing", holding.sharing.as_str().into()));
            labels.extend(holding.attribution.map(|method| ("attribution", method.as_str().into())));
            family.push(labels, 1u64);
        }
    }
    family
}

fn allocated_ratio(snapshot: &Snapshot) -> Family {
    let mut family = Family::new(&DEVICE_ALLOCATED);
    if snapshot.kubelet.allocations.is_none() {
        return family; // nobody has said yet who holds what
    }
    for gpu in snapshot.hardware.inventory.gpus.values() {
        let mut holdings =
            snapshot.accounts.iter().filter(|account| account.gpu == gpu.uuid).filter_map(|one| one.holding.as_ref());
        // From plain zero: the sum of no floats is -0. One part that is not known leaves the whole unknown.
        let allocated = holdings.try_fold(0.0, |sum, holding| Some(sum + holding.share?));
        if let Some(allocated) = allocated {
            // Parts such as 1/3 do not add up exactly.
            family.push(of_device(gpu), allocated.min(1.0));
        }
    }
    family
}

fn of_account(account: &Account) -> Vec<(&'static str, Label)> {
    let mut labels = of_container(&account.container);
    labels.push(("gpu_uuid", account.gpu.to_shared().into()));
    labels.extend(account.mig.as_ref().map(|mig| ("mig_uuid", mig.to_shared().into())));
    labels
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::metrics::tests::{fixture, value};

    #[test]
    fn an_ended_container_keeps_its_counters_alone() {
        let page = families(&fixture::snapshot());
        let of = |name| value(&page, name, &[("pod", "finished")]);
        assert_eq!(of("podmeter_container_busy_seconds_total"), Some(12.0));
        assert_eq!(of("podmeter_container_idle_seconds_total"), Some(0.0));
        assert_eq!(of("podmeter_container_utilization_ratio"), None);
        assert_eq!(of("podmeter_container_allocation_info"), None);
    }

    #[test]
    fn parts_add_up_to_a_whole_and_no_more() {
        let mut snapshot = fixture::snapshot();
        let whole = snapshot.accounts[0].clone();
        snapshot.accounts = (0..10)
            .map(|number| {
                let mut account = whole.clone();
                account.container.pod = format!("pod-{number}").into();
                account.holding.as_mut().unwrap().share = Some(0.1);
                account
            })
            .collect();
        let ratio = |snapshot: &Snapshot, uuid| {
            value(&families(snapshot), "podmeter_device_allocated_ratio", &[("gpu_uuid", uuid)])
        };
        let allocated = ratio(&snapshot, fixture::WHOLE).unwrap();
        assert!((0.999_999..=1.0).contains(&allocated), "{allocated}");
        assert_eq!(ratio(&snapshot, fixture::PARTITIONED), Some(0.0));
        Arc::make_mut(&mut snapshot.kubelet).allocations = None;
        assert_eq!(ratio(&snapshot, fixture::WHOLE), None, "nobody has said");
    }

    #[test]
    fn counters_know_when_they_began() {
        let page = families(&fixture::snapshot());
        for family in page {
            let counts = family.descriptor.kind == super::super::Kind::Counter;
            assert!(family.samples.iter().all(|sample| sample.created.is_some() == counts), "{family:?}");
        }
    }
}
