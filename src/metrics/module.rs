//! Superchip modules: a CPU with one or two GPUs. The driver gives their power with each of the GPUs; it is shown once.
//!
//! Families of their own, as a module's power contains that of its GPUs: no sum over a family counts anything twice.

use super::family::{Family, Group, counter, gauge};
use super::labels::Labels;
use crate::model::{DeviceReadings, Snapshot};

const MODULE: &[&str] = &["module", "scope"];

pub(super) static GROUP: Group = Group {
    section: "Superchip modules",
    metrics: &[
        counter(
            "podmeter_module_energy_joules_total",
            MODULE,
            "NVML samples of type 7, or fields 185 and 186 with module scope",
            "Energy drawn by a superchip module, with its CPU and its GPUs: its power integrated, without time that has no \
             readings. It contains podmeter_device_energy_joules_total and is not attributed to containers.",
            |snapshot, family| {
                of_each(snapshot, family.since(snapshot.started), |readings| readings.totals.module_energy_joules);
            },
        ),
        gauge(
            "podmeter_module_power_watts",
            MODULE,
            "NVML fields 185 and 186 with module scope",
            "Power drawn by a superchip module, with its CPU and its GPUs, averaged by the driver. It contains \
             podmeter_device_power_watts.",
            |snapshot, family| {
                of_each(snapshot, family, |readings| readings.fast.as_ref()?.value.module_power_watts);
            },
        ),
    ],
};

/// One series per module of which a GPU has the value. Its GPUs read the same thing, so the highest is it: a GPU that
/// is lost keeps an old total.
fn of_each(snapshot: &Snapshot, family: &mut Family, read: impl Fn(&DeviceReadings) -> Option<f64>) {
    for (number, module) in (0u32..).zip(snapshot.hardware.inventory.modules()) {
        let readings = module.iter().filter_map(|gpu| snapshot.hardware.readings.get(&gpu.uuid));
        let value = readings.filter_map(|readings| read(readings)).reduce(f64::max);
        family.push_known(Labels::of("module", number).and("scope", "module"), value);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::metrics::tests::{fixture, value};
    use crate::model::{Fast, Gpu, Monotonic, Stamped, Totals};

    /// Power and energy as each GPU of a module reads them; `None`: the GPU is lost and keeps its total.
    fn node(gpus: &[(&str, &str, Option<f64>, f64)]) -> Snapshot {
        let mut snapshot = fixture::snapshot();
        let hardware = Arc::make_mut(&mut snapshot.hardware);
        let inventory = Arc::make_mut(&mut hardware.inventory);
        inventory.gpus.clear();
        for (uuid, serial, watts, joules) in gpus {
            let gpu = Gpu { serial: Some((*serial).into()), ..Gpu::listed((*uuid).into(), 0) };
            inventory.gpus.insert(gpu.uuid.clone(), gpu);
            let fast = Fast { module_power_watts: *watts, ..Fast::default() };
            let readings = DeviceReadings {
                totals: Totals { module_energy_joules: Some(*joules), ..Totals::default() },
                fast: watts.map(|_| Stamped { at: Monotonic::from_secs(599), value: fast }),
                ..DeviceReadings::default()
            };
            hardware.readings.insert((*uuid).into(), Arc::new(readings));
        }
        snapshot
    }

    #[test]
    fn a_module_is_counted_once_and_its_energy_does_not_fall_when_a_gpu_is_lost() {
        let mut tray =
            [("a", "1", Some(488.0), 1000.0), ("b", "1", Some(486.0), 990.0), ("c", "2", Some(470.0), 900.0)];
        let shown = |snapshot: &Snapshot, module| {
            let page = GROUP.families(snapshot);
            let of = |name| value(&page, name, &[("module", module), ("scope", "module")]);
            (of("podmeter_module_power_watts"), of("podmeter_module_energy_joules_total"))
        };
        let snapshot = node(&tray);
        assert_eq!(shown(&snapshot, "0"), (Some(488.0), Some(1000.0)));
        assert_eq!(shown(&snapshot, "1"), (Some(470.0), Some(900.0)));
        assert_eq!(shown(&snapshot, "2"), (None, None));
        tray[0].2 = None;
        tray[1].3 = 995.0;
        assert_eq!(shown(&node(&tray), "0"), (Some(486.0), Some(1000.0)));
        tray[1].3 = 1500.0;
        assert_eq!(shown(&node(&tray), "0"), (Some(486.0), Some(1500.0)));
    }
}
