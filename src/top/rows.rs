//! A response as rows, with numbers as numbers and text without control characters.

use std::collections::{BTreeMap, BTreeSet};

use super::format::{age, percent};
use super::totals;
use crate::client::{Account, Cause, DeviceHealth, DeviceOverview, Gpu, Mig, Name, Node, Readings, ResourceCount};
use crate::model::{ENDED_SHOWN, Figures};
use crate::terminal::clean;

/// A device's health in one word, with the reason where it is unhealthy.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceStatus {
    /// With the first reason: `xid`.
    Unhealthy(String),
    /// No longer listed by the driver.
    Gone,
    /// For virtual machines: the kernel driver that it is bound to.
    Passthrough(String),
    #[default]
    Unchecked,
    Healthy,
}

impl DeviceStatus {
    pub fn words(&self) -> String {
        match self {
            Self::Unhealthy(reason) => format!("unhealthy:{reason}"),
            Self::Gone => "gone".into(),
            Self::Passthrough(driver) => format!("passthrough:{driver}"),
            Self::Unchecked => "unchecked".into(),
            Self::Healthy => "healthy".into(),
        }
    }
}

/// A GPU, or a MIG device below its GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceRow {
    /// The UUID.
    pub key: String,
    /// Of the GPU that it is or is on.
    pub gpu: String,
    /// GPU number, and number of the MIG device plus one.
    pub order: (u32, u32),
    /// `0`, `0:1`
    pub name: String,
    /// `H100 80GB HBM3`, `1g.10gb`
    pub model: String,
    pub status: DeviceStatus,
    pub busy: Option<f64>,
    pub sm_active: Option<f64>,
    pub memory_used: Option<u64>,
    pub memory_total: Option<u64>,
    pub power: Option<f64>,
    pub power_limit: Option<f64>,
    pub heat: Option<f64>,
    /// `namespace/pod/container`, sorted.
    pub holders: Vec<String>,
    /// `free`, or how many of its slots or MIG devices are: `free:2/4`.
    pub free: Option<String>,
    /// Reasons of unattributed processes: `host`, `not_allocated`.
    pub unattributed: Vec<String>,
}

/// A container on one device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerRow {
    pub key: String,
    pub gpu: String,
    pub order: (u32, u32),
    /// As the device's name.
    pub device: String,
    pub namespace: String,
    pub pod: String,
    pub container: String,
    /// `exclusive`, or `ended`
    pub sharing: String,
    pub holds: bool,
    /// Busy in the last second, of what it holds.
    pub busy_now: Option<f64>,
    pub memory_used: Option<u64>,
    pub memory_limit: Option<u64>,
    pub figures: Figures,
    /// Seconds ago.
    pub last_active: Option<f64>,
}

/// GPUs by number, each followed by its MIG devices.
pub fn devices(node: &Node) -> Vec<DeviceRow> {
    let mut rows = vec![];
    for gpu in node.hardware.inventory.gpus.values() {
        rows.push(whole(node, gpu));
        rows.extend(gpu.mig_devices.iter().map(|mig| part(node, gpu, mig)));
    }
    rows.sort_by(|one, other| (one.order, &one.key).cmp(&(other.order, &other.key)));
    rows
}

/// A GPU that the driver has not listed has no index, and comes last.
fn number(gpu: &Gpu) -> u32 {
    gpu.index.unwrap_or(u32::MAX)
}

fn index(gpu: &Gpu) -> String {
    let address = || gpu.pci_bus_id.as_deref().map_or_else(|| "?".to_owned(), clean);
    gpu.index.map_or_else(address, |index| index.to_string())
}

fn whole(node: &Node, gpu: &Gpu) -> DeviceRow {
    let health = node.health.gpus.get(&gpu.uuid);
    let readings = node.hardware.readings.get(&gpu.uuid);
    let fast = readings.and_then(|readings| readings.fast.as_ref()).map(|fast| &fast.value);
    let medium = readings.and_then(|readings| readings.medium.as_ref()).map(|medium| &medium.value);
    let memory = medium.and_then(|medium| medium.memory.as_ref());
    let status = match node.hardware.inventory.passthrough.get(&gpu.uuid) {
        Some(of_kernel) => DeviceStatus::Passthrough(clean(&of_kernel.kernel_driver)),
        None => status(health.map(|health| &health.whole), gpu),
    };
    let overview = overview(node, &gpu.uuid, None);
    DeviceRow {
        key: gpu.uuid.clone(),
        gpu: gpu.uuid.clone(),
        order: (number(gpu), 0),
        name: index(gpu),
        model: gpu
            .model
            .as_deref()
            .map(|model| clean(model.strip_prefix("NVIDIA ").unwrap_or(model)))
            .unwrap_or_default(),
        status,
        busy: overview.and_then(|overview| overview.busy_ratio),
        sm_active: medium.and_then(|medium| medium.gpm.sm_active),
        memory_used: memory.map(|memory| memory.used),
        memory_total: memory.map(|memory| memory.total),
        power: fast.and_then(|fast| fast.power_watts),
        power_limit: medium.and_then(|medium| medium.power_limit_watts),
        heat: medium.and_then(|medium| medium.gpu_temperature_celsius),
        holders: holders(node, |account| account.gpu == gpu.uuid && account.mig.is_none()),
        free: free(node, overview),
        unattributed: unattributed(node, &gpu.uuid),
    }
}

fn part(node: &Node, gpu: &Gpu, mig: &Mig) -> DeviceRow {
    let health = node.health.gpus.get(&gpu.uuid).and_then(|health| health.instances.get(&mig.uuid));
    let instance = medium_instance(node.hardware.readings.get(&gpu.uuid), mig.gpu_instance);
    let memory = instance.and_then(|instance| instance.memory.as_ref());
    let overview = overview(node, &gpu.uuid, Some(&mig.uuid));
    DeviceRow {
        key: mig.uuid.clone(),
        gpu: gpu.uuid.clone(),
        order: (number(gpu), mig.index.saturating_add(1)),
        name: format!("{}:{}", index(gpu), mig.index),
        model: clean(&mig.profile),
        status: status(health, gpu),
        busy: overview.and_then(|overview| overview.busy_ratio),
        sm_active: instance.and_then(|instance| instance.gpm.sm_active),
        memory_used: memory.map(|memory| memory.used),
        memory_total: memory.map(|memory| memory.total).or(mig.memory_bytes),
        holders: holders(node, |account| account.mig.as_deref() == Some(mig.uuid.as_str())),
        free: free(node, overview),
        ..DeviceRow::default()
    }
}

fn medium_instance(readings: Option<&Readings>, number: u32) -> Option<&crate::client::Instance> {
    let medium = &readings?.medium.as_ref()?.value;
    medium.instances.iter().find(|instance| instance.gpu_instance == number)
}

fn status(health: Option<&DeviceHealth>, gpu: &Gpu) -> DeviceStatus {
    match health {
        Some(health) if health.healthy => DeviceStatus::Healthy,
        Some(health) => {
            DeviceStatus::Unhealthy(health.causes.first().map_or_else(String::new, |cause| clean(&cause.reason)))
        }
        None if !gpu.present => DeviceStatus::Gone,
        None => DeviceStatus::Unchecked,
    }
}

fn holders(node: &Node, on: impl Fn(&Account) -> bool) -> Vec<String> {
    let holding = node.accounts.iter().filter(|account| account.holding.is_some() && on(account));
    holding.map(|account| name(&account.container)).collect::<BTreeSet<_>>().into_iter().collect()
}

fn overview<'a>(node: &'a Node, gpu: &str, mig: Option<&str>) -> Option<&'a DeviceOverview> {
    node.overview.devices.iter().find(|device| device.gpu == gpu && device.mig.as_deref() == mig)
}

fn free(node: &Node, device: Option<&DeviceOverview>) -> Option<String> {
    let device = device?;
    let is_free = |device: &&DeviceOverview| device.state.as_deref() == Some("free");
    match (device.state.as_deref()?, device.free_slots, device.slots) {
        (_, Some(free), Some(slots)) if slots > 0 => Some(format!("free:{free}/{slots}")),
        ("free", ..) => Some("free".to_owned()),
        ("partitioned", ..) => {
            let parts = || node.overview.devices.iter().filter(|part| part.gpu == device.gpu && part.mig.is_some());
            Some(format!("free:{}/{}", parts().filter(is_free).count(), parts().count()))
        }
        _ => None,
    }
}

/// `nvidia.com/gpu 1 of 8`, by resource.
pub fn resources(node: &Node) -> Vec<String> {
    let known = |(resource, count): (&String, &ResourceCount)| {
        Some(format!("{} {} of {}", clean(resource), count.free?, count.allocatable))
    };
    node.overview.resources.iter().filter_map(known).collect()
}

/// Reasons with processes; the driver's own use is on every device and has none. A process may be seen shortly before
/// its allocation: `not_allocated` is shown where the agent names the pod.
fn unattributed(node: &Node, gpu: &str) -> Vec<String> {
    let unattributed = node.unattributed.iter().filter(|unattributed| unattributed.gpu == gpu);
    let is_foreign = node.unallocated_uses.iter().any(|one| one.gpu == gpu);
    let present = unattributed.flat_map(|unattributed| &unattributed.processes).filter(|(_, count)| **count > 0);
    let shown = present.filter(|(reason, _)| *reason != "not_allocated" || is_foreign);
    shown.map(|(reason, _)| clean(reason)).collect()
}

pub fn name(container: &Name) -> String {
    clean(&format!("{}/{}/{}", container.namespace, container.pod, container.container))
}

/// The line of totals.
pub fn totals(node: &Node) -> String {
    let containers = node.accounts.iter().filter(|account| account.holding.is_some()).count();
    let overview = &node.overview.node;
    let mut words = vec![totals::line(&devices(node), containers)];
    words.extend(overview.allocated_gpus.map(|gpus| format!("allocated {gpus:.1} GPUs")));
    words.extend(overview.busy_ratio.map(|ratio| format!("busy now {}", percent(Some(ratio)))));
    words.join("  ")
}

/// By name and device, without those that have long ended.
pub fn containers(node: &Node) -> Vec<ContainerRow> {
    let gpus = &node.hardware.inventory.gpus;
    let shown = node.accounts.iter().filter(|account| !has_long_ended(node, account));
    let mut rows: Vec<ContainerRow> = shown.map(|account| container(node, gpus, account)).collect();
    rows.sort_by(|one, other| by_name(one).cmp(&by_name(other)));
    rows
}

fn has_long_ended(node: &Node, account: &Account) -> bool {
    account.ended.as_ref().is_some_and(|ended| node.at.monotonic.saturating_sub(ended.monotonic) >= ENDED_SHOWN)
}

/// `3 more ended over a minute ago`
pub fn long_ended(node: &Node) -> Option<String> {
    let count = node.accounts.iter().filter(|account| has_long_ended(node, account)).count();
    (count > 0).then(|| format!("{count} more ended over a minute ago"))
}

pub fn by_name(row: &ContainerRow) -> (&str, &str, &str, (u32, u32), &str) {
    (&row.namespace, &row.pod, &row.container, row.order, &row.key)
}

fn container(node: &Node, gpus: &BTreeMap<String, Gpu>, account: &Account) -> ContainerRow {
    let gpu = gpus.get(&account.gpu);
    let mig = account.mig.as_ref().map(|mig| gpu.and_then(|gpu| gpu.mig(mig)));
    let number = gpu.map_or(u32::MAX, number);
    let (order, device) = match (gpu, mig) {
        (Some(gpu), None) => ((number, 0), index(gpu)),
        (Some(gpu), Some(Some(mig))) => {
            ((number, mig.index.saturating_add(1)), format!("{}:{}", index(gpu), mig.index))
        }
        (Some(gpu), Some(None)) => ((number, u32::MAX), format!("{}:?", index(gpu))),
        (None, _) => ((number, 0), clean(account.mig.as_ref().unwrap_or(&account.gpu))),
    };
    let holds = account.holding.is_some();
    let mig_key = account.mig.as_deref().unwrap_or_default();
    ContainerRow {
        key: format!("{}\n{}\n{mig_key}", name(&account.container), account.gpu),
        gpu: account.gpu.clone(),
        order,
        device,
        namespace: clean(&account.container.namespace),
        pod: clean(&account.container.pod),
        container: clean(&account.container.container),
        sharing: account.holding.as_ref().map_or_else(|| "ended".to_owned(), |holding| clean(&holding.sharing)),
        holds,
        busy_now: account.utilization_ratio.filter(|_| holds),
        memory_used: account.memory_used_bytes.filter(|_| holds),
        memory_limit: account.memory_limit_bytes.filter(|_| holds),
        figures: account.figures,
        last_active: account.last_active.map(|then| (node.at.unix - then).max(0.0)),
    }
}

/// The sources of the values, and their age at the time of the response.
pub fn sources(node: &Node) -> Vec<(String, Option<f64>, &'static str)> {
    let now = node.at.monotonic;
    let kubelet = ("kubelet".to_owned(), &node.kubelet.collector);
    let tiers = node.hardware.collectors.iter().map(|(name, collector)| (clean(name), collector));
    let source = |(name, collector): (String, &crate::client::Collector)| {
        let word = match (collector.stuck, collector.success) {
            (true, _) => "stuck",
            (false, false) => "failing",
            (false, true) => "",
        };
        (name, collector.last_success.as_ref().map(|then| age(now, then.monotonic)), word)
    };
    std::iter::once(kubelet).chain(tiers).map(source).collect()
}

/// `demo, simulated driver 570.124.06, up 1m15s`
pub fn title(node: &Node) -> String {
    let hardware = &node.hardware;
    let version = hardware.inventory.driver.as_ref().map(|driver| clean(&driver.driver_version));
    let driver = match (version, hardware.source.as_str()) {
        (Some(version), "simulated") => format!("simulated driver {version}"),
        (Some(version), _) => format!("driver {version}"),
        (None, "none") => "reading no hardware".to_owned(),
        (None, _) => "no driver".to_owned(),
    };
    let name = if node.node_name.is_empty() { "podmeter".to_owned() } else { clean(&node.node_name) };
    format!("{name}, {driver}, up {}", super::format::span(node.at.monotonic.as_secs_f64()))
}

/// Problems that the agent reports, and each unhealthy device.
pub fn problems(node: &Node) -> Vec<String> {
    let own = [node.hardware.problem.as_deref(), node.kubelet.problem.as_deref()];
    let mut problems: Vec<String> = own.into_iter().flatten().map(clean).collect();
    let mut gpus: Vec<&Gpu> = node.hardware.inventory.gpus.values().collect();
    gpus.sort_by_key(|gpu| number(gpu));
    for gpu in gpus {
        problems.extend(
            causes(node, &gpu.uuid).into_iter().map(|(name, cause)| {
                format!("GPU {name} unhealthy: {}; {}", clean(&cause.detail), clean(&cause.clears))
            }),
        );
    }
    problems
}

/// What a GPU is part of, a word group each: module, place, NVLink domain, conditions of the fabric that are faults or
/// limits. Empty on a machine without these.
pub fn machine(node: &Node, uuid: &str) -> Vec<String> {
    let readings = node.hardware.readings.get(uuid);
    let module = readings.and_then(|readings| readings.fast.as_ref()?.value.module_power_watts);
    let fabric = readings.and_then(|readings| readings.slow.as_ref()?.value.fabric.as_ref());
    let mut words: Vec<String> = module.map(|watts| format!("module with CPU {watts:.0}W")).into_iter().collect();
    if let Some(platform) = node.hardware.inventory.gpus.get(uuid).and_then(|gpu| gpu.platform.as_ref()) {
        let number = |name: &str, number: Option<u8>| number.map(|number| format!("{name} {number}"));
        words.extend([number("slot", platform.slot), number("tray", platform.tray)].into_iter().flatten());
        words.extend([number("host", platform.host), number("module ID", platform.module_id)].into_iter().flatten());
    }
    let Some(fabric) = fabric else { return words };
    let faults = fabric.conditions.iter().filter(|(_, active)| **active).map(|(name, _)| name);
    let faults = faults.chain(&fabric.incorrect_configuration);
    words.extend(faults.map(|fault| format!("✗ fabric: {}", clean(fault).replace('_', " "))));
    let domain = fabric.domain.as_ref();
    words.extend(domain.map(|one| format!("NVLink clique {} of {}", one.clique_id, clean(&one.cluster_uuid))));
    words
}

/// Why a GPU or MIG devices of it are unhealthy, by the device's name.
pub fn causes<'a>(node: &'a Node, uuid: &str) -> Vec<(String, &'a Cause)> {
    let (Some(gpu), Some(health)) = (node.hardware.inventory.gpus.get(uuid), node.health.gpus.get(uuid)) else {
        return vec![];
    };
    let whole = health.whole.causes.iter().map(|cause| (index(gpu), cause));
    let parts = health.instances.iter().flat_map(|(uuid, part)| {
        let place = gpu.mig(uuid).map_or_else(|| "?".to_owned(), |mig| mig.index.to_string());
        // The causes of the whole GPU are also in each part.
        let own = part.causes.iter().filter(|cause| !health.whole.causes.contains(cause));
        own.map(move |cause| (format!("{}:{place}", index(gpu)), cause))
    });
    whole.chain(parts).collect()
}
