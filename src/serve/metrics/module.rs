//! Superchip modules: a CPU with one or two GPUs. The driver gives their power with each of the GPUs; it is shown once.
//!
//! Modules have separate families, as their power contains that of their GPUs: no sum over a family counts it twice.

use std::sync::LazyLock;

use super::family::{Family, Group, counter, gauge};
use super::labels::Labels;
use crate::domain::model::{Gpu, PciBusId, Snapshot};

pub(super) static GROUP: LazyLock<Group> = LazyLock::new(|| Group {
    section: "Superchip modules",
    labels: "module scope",
    source: "NVML",
    metrics: vec![
        counter("podmeter_module_energy_joules_total")
            .help("Energy drawn by a superchip module, with its CPU and its GPUs; not attributed to containers.")
            .source("NVML samples of type 7, or fields 185 and 186 with module scope")
            .samples(|snapshot, family| {
                let of_all = &snapshot.hardware.module_energy_joules;
                of_each(snapshot, family, |module, _| of_all.get(module).copied());
            }),
        gauge("podmeter_module_power_watts")
            .help(
                "Power drawn by a superchip module, with its CPU and its GPUs; contains \
                     podmeter_device_power_watts.",
            )
            .source("NVML fields 185 and 186 with module scope")
            .samples(|snapshot, family| {
                // All GPUs of a module read the same value.
                let of_gpu =
                    |gpu: &Gpu| snapshot.hardware.readings.get(&gpu.uuid)?.fast.as_ref()?.value.module_power_watts;
                of_each(snapshot, family, |_, gpus| gpus.iter().filter_map(|gpu| of_gpu(gpu)).reduce(f64::max));
            }),
    ],
});

/// Adds one series per module that has the value. `scope` is NVML's power scope, of which there is only this one here.
fn of_each(snapshot: &Snapshot, family: &mut Family, value: impl Fn(&PciBusId, &[&Gpu]) -> Option<f64>) {
    for (module, gpus) in snapshot.hardware.inventory.modules() {
        family.push_known(Labels::new("module", module).and("scope", "module"), value(module, &gpus));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::model::{DeviceReadings, Fast, Monotonic, Stamped};
    use crate::serve::metrics::tests::{fixture, value};

    #[test]
    fn a_module_is_shown_once_and_its_energy_stays_when_a_gpu_is_lost() {
        let mut snapshot = fixture::snapshot();
        let hardware = Arc::make_mut(&mut snapshot.hardware);
        let inventory = Arc::make_mut(&mut hardware.inventory);
        inventory.gpus.clear();
        for (bus, serial, watts) in [("8", "1", None), ("9", "1", Some(486.0)), ("18", "2", Some(470.0))] {
            let gpu = Gpu { serial: Some(serial.into()), pci_bus_id: Some(bus.into()), ..Gpu::listed(bus.into(), 0) };
            inventory.gpus.insert(gpu.uuid.clone(), gpu);
            let fast = Fast { module_power_watts: watts, ..Fast::default() };
            let fast = watts.map(|_| Stamped { at: Monotonic::from_secs(599), value: fast });
            hardware.readings.insert(bus.into(), Arc::new(DeviceReadings { fast, ..DeviceReadings::default() }));
        }
        hardware.module_energy_joules = [("8".into(), 1000.0), ("18".into(), 900.0)].into();
        let page = GROUP.families(&snapshot);
        let shown = |module| {
            let of = |name| value(&page, name, &[("module", module), ("scope", "module")]);
            (of("podmeter_module_power_watts"), of("podmeter_module_energy_joules_total"))
        };
        assert_eq!(shown("8"), (Some(486.0), Some(1000.0)));
        assert_eq!(shown("18"), (Some(470.0), Some(900.0)));
        assert_eq!(shown("9"), (None, None));
    }
}
