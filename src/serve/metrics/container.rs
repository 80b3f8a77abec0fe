//! Which container holds which device, and what of its use is attributed to the container.

use std::sync::LazyLock;

use super::family::{Group, counter, gauge};
use super::labels::{DEVICE, Labels, of_account, of_device};
use crate::domain::model::{Account, Snapshot, allocated_ratios};

pub(super) static GROUP: LazyLock<Group> = LazyLock::new(|| Group {
    section: "Allocation and attribution",
    labels: "namespace pod container gpu_uuid mig_uuid",
    source: "PodResources List joined with NVML",
    metrics: vec![
        gauge("podmeter_container_allocation_info")
            .help("A GPU that a container holds now, and how its use is attributed.")
            .labels("namespace pod container gpu_uuid mig_uuid resource device_id sharing attribution")
            .samples(|snapshot, family| {
                for (labels, account) in shown(snapshot) {
                    let Some(holding) = &account.holding else { continue };
                    for device in &holding.device_ids {
                        let labels = labels
                            .clone()
                            .and_known("resource", holding.resource.as_ref())
                            .and("device_id", device)
                            .and("sharing", holding.sharing.into_str())
                            .and_known("attribution", holding.attribution.map(<&str>::from));
                        family.push(labels, 1u64);
                    }
                }
            }),
        counter("podmeter_container_allocated_seconds_total")
            .help("GPU-seconds held: a shared slot counts its share of the GPU, a MIG device its slices.")
            .each(shown, |account| account.counters.allocated_seconds),
        counter("podmeter_container_busy_seconds_total")
            .help("GPU-seconds in which the container kept its device busy.")
            .each(shown, |account| account.counters.busy_seconds),
        counter("podmeter_container_borrowed_seconds_total")
            .help("The part of podmeter_container_busy_seconds_total beyond what the container holds.")
            .each(shown, |account| account.counters.borrowed_seconds),
        counter("podmeter_container_idle_seconds_total")
            .help("GPU-seconds held and not busy, of the time with known busy seconds.")
            .each(shown, |account| account.counters.idle_seconds),
        counter("podmeter_container_uncovered_seconds_total")
            .help("GPU-seconds held without known busy seconds: neither busy nor idle.")
            .each(shown, |account| account.counters.uncovered_seconds),
        gauge("podmeter_container_last_active_timestamp_seconds")
            .help(
                "Unix time of the last activity, or of the last time without readings; else the start of the \
                     allocation.",
            )
            .each(current, |account| account.last_active),
        gauge("podmeter_container_utilization_ratio")
            .help("Busy part of what the container holds, in the last ten seconds read of the holding.")
            .each(current, |account| account.utilization_ratio),
        gauge("podmeter_container_sm_active_ratio")
            .help("SM activity of the container's exclusive device, while no others keep it busy.")
            .each(current, |account| account.sm_active_ratio),
        gauge("podmeter_container_dram_active_ratio")
            .help("Memory bandwidth use of the container's exclusive device, while no others keep it busy.")
            .each(current, |account| account.dram_active_ratio),
        gauge("podmeter_container_memory_used_bytes")
            .help("Device memory that the container uses.")
            .each(current, |account| account.memory_used_bytes),
        gauge("podmeter_container_memory_limit_bytes")
            .help("Device memory that the container may use.")
            .each(current, |account| account.memory_limit_bytes),
        counter("podmeter_container_energy_joules_total")
            .help("Energy attributed to the container.")
            .each(shown, |account| account.counters.energy_joules),
        gauge("podmeter_container_processes")
            .help("Processes of the container on the device.")
            .each(current, |account| account.processes),
        gauge("podmeter_device_allocated_ratio").help("Fraction of the GPU that is allocated.").labels(DEVICE).samples(
            |snapshot, family| {
                let allocated = allocated_ratios(snapshot);
                for gpu in snapshot.hardware.inventory.gpus.values() {
                    family.push_known(of_device(gpu), allocated.get(&gpu.uuid).copied());
                }
            },
        ),
    ],
});

/// The accounts that have series, also of containers that have released the device: their totals stay.
fn shown(snapshot: &Snapshot) -> Vec<(Labels, &Account)> {
    let shown = snapshot.accounts.iter().filter(|account| !account.over_limit);
    shown.map(|account| (of_account(account), account)).collect()
}

fn current(snapshot: &Snapshot) -> Vec<(Labels, &Account)> {
    shown(snapshot).into_iter().filter(|(_, account)| account.holding.is_some()).collect()
}

/// How many series an account has in this group.
pub(super) fn series_of(account: &Account) -> usize {
    let counters = &account.counters;
    let totals = [
        counters.allocated_seconds,
        counters.busy_seconds,
        counters.borrowed_seconds,
        counters.idle_seconds,
        counters.uncovered_seconds,
        counters.energy_joules,
    ];
    let current = [
        account.last_active.is_some(),
        account.utilization_ratio.is_some(),
        account.sm_active_ratio.is_some(),
        account.dram_active_ratio.is_some(),
        account.memory_used_bytes.is_some(),
        account.memory_limit_bytes.is_some(),
        account.processes.is_some(),
    ];
    let held = account
        .holding
        .as_ref()
        .map_or(0, |holding| holding.device_ids.len() + current.into_iter().filter(|is_known| *is_known).count());
    totals.into_iter().flatten().count() + held
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::serve::metrics::tests::{fixture, value};

    #[test]
    fn the_series_limit_counts_what_is_on_the_page() {
        let snapshot = fixture::snapshot();
        for account in &snapshot.accounts {
            let alone = Snapshot { accounts: vec![account.clone()], ..Snapshot::default() };
            let shown: usize = GROUP.families(&alone).iter().map(|family| family.samples.len()).sum();
            assert_eq!(series_of(account), shown, "{account:?}");
        }
    }

    #[test]
    fn parts_add_up_to_a_whole_and_no_more() {
        let mut snapshot = fixture::snapshot();
        let whole = snapshot.accounts[0].clone();
        snapshot.accounts = (0..10)
            .map(|number| {
                let mut account = whole.clone();
                account.container.pod = format!("pod-{number}").into();
                account.holding.as_mut().unwrap().fraction = Some(0.1);
                account
            })
            .collect();
        let ratio = |snapshot: &Snapshot, uuid| {
            value(&GROUP.families(snapshot), "podmeter_device_allocated_ratio", &[("gpu_uuid", uuid)])
        };
        let allocated = ratio(&snapshot, fixture::WHOLE).unwrap();
        assert!((0.999_999..=1.0).contains(&allocated), "{allocated}");
        assert_eq!(ratio(&snapshot, fixture::PARTITIONED), Some(0.0));
        Arc::make_mut(&mut snapshot.kubelet).allocations = None;
        assert_eq!(ratio(&snapshot, fixture::WHOLE), None, "the kubelet has not answered");
    }
}
