//! The XIDs that are known, as a table of class and effect; the XIDs of one GPU, counted, and kept while they make it
//! unhealthy.

use std::collections::{BTreeMap, BTreeSet};

use strum::IntoEnumIterator;

use super::config::{HealthConfig, XidRule};
use super::faults::XidFault;
use crate::domain::model::{
    MigDevice, MigUuid, Moment, RecentCount, UnixSeconds, XidClass, XidCount, XidCounts, XidEvent, XidInstance,
};

/// Codes with an entry of their own; about two hundred exist.
pub const MAX_CODES: usize = 256;
/// GPU instances with an entry of their own; a GPU has at most 7.
const MAX_INSTANCES: usize = 16;
/// The entry of the others. Events without a code have it too.
const OVERFLOW_CODE: u32 = 999;

/// What an XID does to the health of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Unhealthy,
    /// Until the driver reports the recovery action of the GPU, be it `none`.
    UnhealthyUnlessRecoveryActionKnown,
    /// The recovery action, which is read after every XID, may make the device unhealthy.
    Count,
    /// Not even counted.
    Ignore,
}

impl Effect {
    pub fn makes_unhealthy(self) -> bool {
        matches!(self, Self::Unhealthy | Self::UnhealthyUnlessRecoveryActionKnown)
    }
}

impl HealthConfig {
    /// What an XID does to the health of its device.
    pub fn effect(&self, code: u32) -> Effect {
        match self.xids.get(&code) {
            Some(XidRule::Unhealthy) => Effect::Unhealthy,
            Some(XidRule::Count) => Effect::Count,
            Some(XidRule::Ignore) => Effect::Ignore,
            None => row(code).map_or(Effect::Count, |row| row.effect),
        }
    }

    /// The class in which an XID counts; `None`: it is configured not to count.
    pub fn counted_class(&self, code: u32) -> Option<XidClass> {
        (self.effect(code) != Effect::Ignore).then(|| class(code))
    }
}

struct XidRow {
    class: XidClass,
    effect: Effect,
    codes: &'static [u32],
}

/// By NVIDIA's "immediate action" for each XID. A code in no row is unknown: it is counted and does not change the
/// health.
const TABLE: &[XidRow] = &[
    XidRow {
        class: XidClass::Application,
        effect: Effect::Count,
        codes: &[
            8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 96,
            97, 98, 99, 100, 101, 102, 103, 104, 105, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135, 139,
        ],
    },
    XidRow { class: XidClass::ContainedMemory, effect: Effect::Count, codes: &[94] },
    XidRow {
        class: XidClass::GpuReset,
        effect: Effect::Unhealthy,
        codes: &[46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158],
    },
    // The catalogue has no action for these: a PCIe timeout, a damaged protected region, a halted controller.
    XidRow { class: XidClass::GpuReset, effect: Effect::UnhealthyUnlessRecoveryActionKnown, codes: &[167, 168, 169] },
    XidRow { class: XidClass::NodeReboot, effect: Effect::Unhealthy, codes: &[79] },
    XidRow { class: XidClass::Nvlink, effect: Effect::UnhealthyUnlessRecoveryActionKnown, codes: &[74] },
    // How bad these are depends on details that only the kernel log has.
    XidRow { class: XidClass::Nvlink, effect: Effect::Count, codes: &[144, 145, 146, 147, 148, 149, 150, 166, 170] },
    XidRow { class: XidClass::Hardware, effect: Effect::Unhealthy, codes: &[54] },
    XidRow {
        class: XidClass::Informational,
        effect: Effect::Count,
        codes: &[
            14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161, 162, 163,
            164, 165,
        ],
    },
    // A job that ends leaves hundreds of 45 on healthy GPUs; 171 and 172 say where the memory error of a 48 was.
    XidRow { class: XidClass::Corroborating, effect: Effect::Count, codes: &[45, 171, 172] },
    XidRow { class: XidClass::RecoveryAction, effect: Effect::Count, codes: &[154] },
    XidRow { class: XidClass::Software, effect: Effect::Count, codes: &[78, 151, 159] },
];

/// In few words, for the log and the pages.
const NAMES: &[(&[u32], &str)] = &[
    (&[8, 46], "the GPU stopped processing"),
    (&[11, 25, 32], "invalid command stream"),
    (&[13], "graphics engine exception"),
    (&[31], "memory page fault of an application"),
    (&[37, 38], "driver firmware error"),
    (&[39, 40, 41, 70, 71, 72, 75, 76, 77, 85, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135], "copy engine error"),
    (&[43], "an application's channel was stopped"),
    (&[44], "graphics engine fault during a context switch"),
    (&[45], "channels cleaned up after another fault or a process's end"),
    (&[48], "double-bit memory error"),
    (&[54], "auxiliary power is not connected"),
    (&[60], "video processor exception"),
    (&[62], "internal micro-controller halted"),
    (&[63], "a memory row or page is marked for replacement"),
    (&[64], "a memory row or page could not be marked for replacement"),
    (&[66, 67], "illegal access by the driver"),
    (&[68, 83, 84, 88, 89, 96, 97, 98], "video decoder error"),
    (&[69], "graphics engine class error"),
    (&[74, 144, 145, 146, 147, 148, 149, 150], "NVLink error"),
    (&[78], "a vGPU could not be started"),
    (&[79], "the GPU has fallen off the bus"),
    (&[80], "corrupted data sent to the GPU"),
    (&[82, 99, 100, 101, 102, 103, 104, 105], "JPEG decoder error"),
    (&[86, 139], "optical flow accelerator error"),
    (&[92], "many corrected memory errors"),
    (&[93], "the InfoROM was written too often"),
    (&[94], "contained memory error"),
    (&[95], "uncontained memory error"),
    (&[106, 107], "test message"),
    (&[109], "context switch timeout"),
    (&[110], "security fault"),
    (&[119], "the GPU system processor does not answer"),
    (&[120], "the GPU system processor failed"),
    (&[121], "chip-to-chip link error"),
    (&[136], "link training failed"),
    (&[137], "NVLink privilege error"),
    (&[140], "uncorrected memory error"),
    (&[141], "fast path error"),
    (&[143], "GPU initialisation failed"),
    (&[151], "key rotation error"),
    (&[152, 153], "deep learning accelerator error"),
    (&[154], "the recovery action changed"),
    (&[155], "NVLink software error"),
    (&[156], "a resource was retired"),
    (&[157], "a resource could not be retired"),
    (&[158], "fatal timeout"),
    (&[159], "coherent interconnect error"),
    (&[160], "a channel was retired"),
    (&[161], "a channel could not be retired"),
    (&[162], "power smoothing works again"),
    (&[163], "power smoothing is disengaged"),
    (&[164], "power smoothing is near the end of its life"),
    (&[165], "power smoothing is at the end of its life"),
    (&[166], "unencrypted NVLink traffic in confidential computing"),
    (&[167], "fatal PCIe timeout"),
    (&[168], "errors in the write-protected memory region"),
    (&[169], "security controller halted"),
    (&[170], "NVLink interrupt in confidential computing"),
    (&[171], "uncorrectable error in DRAM"),
    (&[172], "uncorrectable error in SRAM"),
];

pub fn class(code: u32) -> XidClass {
    row(code).map_or(XidClass::Unknown, |row| row.class)
}

pub fn name(code: u32) -> Option<&'static str> {
    NAMES.iter().find(|(codes, _)| codes.contains(&code)).map(|(_, name)| *name)
}

/// `XID 79 (the GPU has fallen off the bus)`.
pub fn named(code: u32) -> String {
    name(code).map_or_else(|| format!("XID {code}"), |name| format!("XID {code} ({name})"))
}

fn row(code: u32) -> Option<&'static XidRow> {
    TABLE.iter().find(|row| row.codes.contains(&code))
}

#[derive(Debug, Default)]
pub struct GpuXids {
    pub counts: XidCounts,
    pub active: BTreeMap<u32, ActiveXid>,
}

/// An XID that makes the GPU or MIG devices of it unhealthy.
#[derive(Debug, Default)]
pub struct ActiveXid {
    /// The time of the last one; of one of an earlier agent, the monotonic time is the start.
    pub at: Moment,
    pub concerns_whole_gpu: bool,
    /// Those that it concerns, present or not.
    pub mig_devices: BTreeSet<MigUuid>,
    /// Instances that events since the last `resolve` named.
    unresolved: BTreeSet<XidInstance>,
}

impl GpuXids {
    pub fn new(created: UnixSeconds) -> Self {
        let by_class = XidClass::iter().map(|class| (class, 0)).collect();
        let counts = XidCounts { created, by_class, ..XidCounts::default() };
        Self { counts, active: BTreeMap::new() }
    }

    pub fn add(&mut self, event: &XidEvent, effect: Effect) {
        let has_entry = self.counts.by_code.contains_key(&event.code) || self.counts.by_code.len() < MAX_CODES;
        let code = if has_entry { event.code } else { OVERFLOW_CODE };
        *self.counts.by_class.entry(class(event.code)).or_default() += event.count;
        let (recent, last_of) = (RecentCount::default(), BTreeMap::new());
        let first = || XidCount { class: class(code), at: event.at, count: 0, recent, last_of };
        let of_code = self.counts.by_code.entry(code).or_insert_with(first);
        of_code.count = of_code.count.saturating_add(event.count);
        of_code.recent.add(event.at.monotonic, event.count);
        if event.at.monotonic >= of_code.at.monotonic {
            of_code.at = event.at;
        }
        // The driver may name more instances than a GPU has: such a one may be anywhere on it.
        let instance = event.instance.map(|instance| instance.gpu_instance);
        let instance = instance.filter(|_| of_code.last_of.len() < MAX_INSTANCES);
        let last = of_code.last_of.entry(instance).or_default();
        *last = event.at.monotonic.max(*last);
        if effect.makes_unhealthy() && self.active.len() < MAX_CODES {
            self.active.entry(event.code).or_default().add_event(event);
        }
    }

    /// Restores an XID of an earlier agent.
    pub fn restore(&mut self, code: u32, fault: &XidFault) {
        let (at, mig_devices) = (Moment { unix: fault.at, ..Moment::default() }, fault.mig_devices.clone());
        let xid = ActiveXid { at, concerns_whole_gpu: fault.is_of_gpu(), mig_devices, ..ActiveXid::default() };
        self.active.insert(code, xid);
    }

    /// Maps new instances to MIG devices, at once: the driver reuses their numbers after a repartition. An instance that
    /// the GPU does not have may be anywhere on it.
    pub fn resolve(&mut self, of_gpu: &[MigDevice]) {
        for xid in self.active.values_mut() {
            for instance in std::mem::take(&mut xid.unresolved) {
                let concerned = instance.mig_devices(of_gpu);
                xid.concerns_whole_gpu |= concerned.is_empty();
                xid.mig_devices.extend(concerned.into_iter().map(|mig| mig.uuid.clone()));
            }
        }
    }

    /// Clears all, or takes this MIG device out of those that do not concern the whole GPU.
    pub fn clear(&mut self, mig: Option<&MigUuid>) {
        let Some(mig) = mig else { return self.active.clear() };
        self.active.retain(|_, xid| {
            xid.mig_devices.remove(mig);
            xid.concerns_whole_gpu || !xid.mig_devices.is_empty() || !xid.unresolved.is_empty()
        });
    }
}

impl ActiveXid {
    fn add_event(&mut self, event: &XidEvent) {
        if event.at.monotonic >= self.at.monotonic {
            self.at = event.at;
        }
        // On a partitioned GPU too, an event without an instance concerns all of it.
        self.concerns_whole_gpu |= event.instance.is_none();
        self.unresolved.extend(event.instance);
    }

    /// The fault for an agent that starts later. An unresolved instance may be anywhere on the GPU.
    pub fn fault(&self) -> XidFault {
        XidFault {
            at: self.at.unix,
            whole: self.concerns_whole_gpu || !self.unresolved.is_empty(),
            mig_devices: self.mig_devices.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_its_codes_and_its_effect() {
        use Effect::{Count, Unhealthy, UnhealthyUnlessRecoveryActionKnown};
        use XidClass::*;
        for (codes, expected_class, expected_effect) in [
            (&[8, 13, 31, 32, 39, 41, 68, 72, 82, 86, 96, 105, 126, 135, 139][..], Application, Count),
            (&[94], ContainedMemory, Count),
            (&[46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158], GpuReset, Unhealthy),
            (&[167, 168, 169], GpuReset, UnhealthyUnlessRecoveryActionKnown),
            (&[79], NodeReboot, Unhealthy),
            (&[74], Nvlink, UnhealthyUnlessRecoveryActionKnown),
            (&[144, 145, 146, 147, 148, 149, 150, 166, 170], Nvlink, Count),
            (&[54], Hardware, Unhealthy),
            (
                &[14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 108, 121, 137, 141, 152, 157, 160, 165],
                Informational,
                Count,
            ),
            (&[45, 171, 172], Corroborating, Count),
            (&[154], RecoveryAction, Count),
            (&[78, 151, 159], Software, Count),
            (&[0, 1, 47, 73, 87, 142, 173, 999, u32::MAX], Unknown, Count),
        ] {
            for code in codes {
                assert_eq!(
                    (class(*code), HealthConfig::default().effect(*code)),
                    (expected_class, expected_effect),
                    "XID {code}"
                );
            }
        }
    }

    #[test]
    fn no_code_is_in_two_rows_and_each_of_a_row_has_one_name() {
        for code in 0..200 {
            assert!(TABLE.iter().filter(|row| row.codes.contains(&code)).count() <= 1, "XID {code}");
            // NVIDIA has no description of these two.
            let names = usize::from(row(code).is_some() && ![14, 108].contains(&code));
            assert_eq!(NAMES.iter().filter(|(codes, _)| codes.contains(&code)).count(), names, "XID {code}");
        }
    }
}
