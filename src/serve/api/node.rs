//! The JSON of `/api/v1/node`, and of each event of `/api/v1/stream`: a snapshot.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::objects::{is_blank, written, written_and_read};
use crate::domain::model::*;

written_and_read! {
    Snapshot {
        sequence, at, started, node_name, hardware, kubelet, health, plugin, processes, accounts, unattributed,
        unallocated_uses, #[serde(skip_deserializing)] container_xids, violations,
        #[serde(skip_deserializing)] unresolved, #[serde(skip_deserializing)] claim_gpus,
        #[serde(skip_deserializing)] drift, journal, config_reload, overview, ..Default::default()
    }
    Moment { monotonic, unix }
    SourceStatus { success, stuck, last_success, duration }
    PodRef { namespace, pod }
    ContainerRef { namespace, pod, container, ..Default::default() }

    HardwareState {
        source, inventory, sessions, driver_loads, readings, node_devices, problem,
        #[serde(skip_deserializing)] collectors, released, ..Default::default()
    }
    NodeDevices { expected, ..Default::default() }
    Released { since, until }
    Inventory {
        generation, driver, gpus, #[serde(default, skip_serializing_if = "is_blank")] missing,
        #[serde(default, skip_serializing_if = "is_blank")] unserved, ..Default::default()
    }
    DriverInfo { driver_version, cuda_version, nvml_version }
    Gpu {
        uuid, index, minor, pci_bus_id, model, architecture, compute_capability, vbios_version, platform, numa_node,
        memory_bytes, mig_enabled, mig_devices, mig_slices, nvlink_peers, present, ..Default::default()
    }
    Platform { slot, tray, host, module_id, #[serde(skip_deserializing)] peer_type, ..Default::default() }
    NvLinkPeers { by_bus_id, switch_links }
    MigDevice {
        uuid, index, gpu_instance, compute_instance, profile, profile_id, placement_start, slices, memory_bytes
    }
    MissingGpu { detail, kubelet_ids, mig_devices }
    UnservedGpu { kernel_driver, pci_device_id }

    DeviceReadings {
        #[serde(skip_deserializing)] totals, fast, medium, #[serde(skip_deserializing)] slow, stuck, lost,
        #[serde(rename = "unlisted")] not_enumerated, #[serde(rename = "asked")] pass_began, ..Default::default()
    }
    Fast { utilization_ratio, power_watts, module_power_watts, ..Default::default() }
    Medium {
        memory, gpu_temperature_celsius, memory_temperature_celsius, temperature_margin_celsius, power_limit_watts,
        clocks, #[serde(skip_deserializing)] throttled_seconds, #[serde(skip_deserializing)] clock_events,
        performance_state, fan_speed_ratios, gpm, #[serde(skip_deserializing)] rates, sm_cycles, sm_active_cycles,
        instances, process_utilization_source, #[serde(skip_deserializing)] virtualization, ..Default::default()
    }
    MemoryUse { used, free, reserved, total }
    Clocks { sm_hertz, memory_hertz, graphics_hertz, video_hertz }
    GpmRatios { graphics_engine_active, sm_active, sm_occupancy, dram_active, #[serde(skip_deserializing)] pipes }
    InstanceReading { gpu_instance, members, memory, gpm }

    KubeletState {
        #[serde(skip_deserializing)] allocations, allocations_at, settled, #[serde(skip_deserializing)] allocatable,
        allocatable_at, truncated, problem, collector, #[serde(skip_deserializing)] unreadable_claim_files,
        ..Default::default()
    }

    HealthState { gpus, transitions }
    GpuHealth { whole, #[serde(rename = "instances")] mig_devices, xids }
    DeviceHealth { healthy, #[serde(skip)] known, since, causes }
    HealthCause { reason, detail, clears }
    HealthTransition { number, gpu, mig, to_healthy, reason, detail, at, holders }
    XidCounts { created, by_class, #[serde(rename = "last")] by_code }
    XidCount { class, at, count, #[serde(skip)] recent, #[serde(skip)] last_of }

    PluginState {
        #[serde(rename = "checked")] resources_complete, kubelet_restarts, problems,
        #[serde(skip_deserializing)] profile, resources, #[serde(skip_deserializing)] avoided, ..Default::default()
    }
    PluginResource {
        created, registered, registrations, problem, ended, conflict, unserved, unregistered, unregistered_since,
        devices, gpus, #[serde(skip_deserializing)] allocations, mps, prefers, ..Default::default()
    }

    ProcessState {
        enabled, problem, #[serde(skip_deserializing)] processes,
        #[serde(skip_deserializing)] pods [.values().collect::<Vec<_>>()], #[serde(skip_deserializing)] pod_labels,
        collector
    }
    Account {
        container, gpu, mig, holding, created, #[serde(flatten)] counters, last_active, utilization_ratio,
        #[serde(rename = "device_utilization_ratio")] gpu_utilization_ratio, sm_active_ratio, dram_active_ratio,
        memory_used_bytes, memory_limit_bytes, processes, over_limit, ended
    }
    Holding { resource, device_ids, sharing, attribution, #[serde(rename = "share")] fraction, weight }
    Unattributed { gpu, created, busy_seconds, energy_joules, memory_bytes, processes, divided }
    Divided { busy_seconds, energy_joules }
    UnallocatedUse { pod, container, gpu }

    JournalState { written, errors, dropped, size_bytes, problem }
    ConfigReload { successful, last_success }
    Overview { devices, resources, node }
    DeviceOverview { gpu, mig, state, busy_ratio, slots, free_slots }
    ResourceCount { allocatable, allocated, free, held_unhealthy, unhealthy }
    NodeOverview { gpus, allocated_gpus, free_gpus, mig_devices, free_mig_devices, busy_ratio, busy_known }
}

written! {
    DeviceTotals {
        #[serde(rename = "through")] complete_until, busy_seconds, memory_busy_seconds, engine_busy_seconds,
        energy_joules, module_energy_joules, uncovered_seconds
    }
    Rates { memory_utilization_ratio, engine_utilization_ratios, traffic }
    Traffic { pcie_transmitted, pcie_received, nvlink_transmitted, nvlink_received, c2c_transmitted, c2c_received }
    Slow {
        ecc, ecc_lifetime_corrected, ecc_lifetime_uncorrected, row_remap, row_remap_banks, bank_remaps,
        bank_remap_groups, bank_remap_pending, retired_pages, retired_pages_pending, pcie, nvlink, c2c, fabric,
        recovery_action
    }
    EccLocation { location, corrected, uncorrected }
    RowRemap { correctable, uncorrectable, pending, failed }
    Pcie {
        replays, errors, transmitted_bytes, received_bytes, link_generation, link_generation_max, link_width_lanes,
        link_width_lanes_max
    }
    NvLink { transmitted_bytes, received_bytes, errors, active_links, inactive_links }
    C2c { enabled, active_links, inactive_links, bytes_per_second_max }
    FabricState { state, domain, conditions, incorrect_configuration }
    FabricDomain { cluster_uuid, clique_id }

    Allocations { pods }
    Pod { reference, #[serde(skip_serializing_if = "is_blank")] uid, containers, exclusive_cpus, memory }
    Container { reference, devices, claims, exclusive_cpus, memory }
    HeldDevice { resource, id, numa_nodes }
    MemoryBlock { memory_type, numa_nodes, bytes }
    Allocatable { devices, cpus, memory }
    ClaimDevice { claim_namespace, claim, driver, pool, device, share_id, #[serde(flatten)] record }
    ClaimRecord { #[serde(flatten)] allocation }
    ClaimAllocation { #[serde(skip_serializing_if = "is_blank")] admin_access }
    ClaimGpu { #[serde(flatten)] claim, gpu, mig, #[serde(rename = "join")] source }

    Process { key, owner, mps_daemon }
    ProcessKey { pid, start_ticks }
    PodIdentity { pod, uid, runtime_uid, labels, terminal, containers }
    PodLabel { key, name }
    AppliedProfile { decision, name }
    ContainerXid { container, gpu, mig, code, class, count, created }
    UnresolvedDevices { resource, form, devices }
    InventoryDrift { resource, advertised_not_allocatable, allocatable_not_advertised }
}
