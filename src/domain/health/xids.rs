//! The XIDs that are known, as a table; the XIDs of one GPU, counted, and kept while they make it
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

impl HealthConfig {
    /// What an XID does to the health of its device.
    pub fn xid_rule(&self, code: u32) -> XidRule {
        self.xids.get(&code).copied().unwrap_or_else(|| row(code).map_or(XidRule::Count, |(_, _, rule, _)| *rule))
    }

    /// The class in which an XID counts; `None`: it is configured not to count.
    pub fn counted_class(&self, code: u32) -> Option<XidClass> {
        (self.xid_rule(code) != XidRule::Ignore).then(|| class(code))
    }
}

/// The codes, their class, what they do to the health, and what they are in few words, for the log and the pages.
type XidRow = (&'static [u32], XidClass, XidRule, &'static str);

/// By NVIDIA's "immediate action" for each XID. A code in no row is unknown: it is counted and does not change the
/// health.
const TABLE: &[XidRow] = {
    use XidClass::{
        Application, ContainedMemory, Corroborating, GpuReset, Hardware, Informational, NodeReboot, Nvlink,
        RecoveryAction, Software,
    };
    use XidRule::{Count, Unhealthy, UnhealthyUnlessRecoveryActionKnown};
    &[
        (&[8], Application, Count, "the GPU stopped processing"),
        (&[11, 25, 32], Application, Count, "invalid command stream"),
        (&[13], Application, Count, "graphics engine exception"),
        (&[31], Application, Count, "memory page fault of an application"),
        (
            &[39, 40, 41, 70, 71, 72, 75, 76, 77, 85, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135],
            Application,
            Count,
            "copy engine error",
        ),
        (&[60], Application, Count, "video processor exception"),
        (&[68, 83, 84, 88, 89, 96, 97, 98], Application, Count, "video decoder error"),
        (&[69], Application, Count, "graphics engine class error"),
        (&[80], Application, Count, "corrupted data sent to the GPU"),
        (&[82, 99, 100, 101, 102, 103, 104, 105], Application, Count, "JPEG decoder error"),
        (&[86, 139], Application, Count, "optical flow accelerator error"),
        (&[94], ContainedMemory, Count, "contained memory error"),
        (&[46], GpuReset, Unhealthy, "the GPU stopped processing"),
        (&[48], GpuReset, Unhealthy, "double-bit memory error"),
        (&[62], GpuReset, Unhealthy, "internal micro-controller halted"),
        (&[64], GpuReset, Unhealthy, "a memory row or page could not be marked for replacement"),
        (&[95], GpuReset, Unhealthy, "uncontained memory error"),
        (&[109], GpuReset, Unhealthy, "context switch timeout"),
        (&[110], GpuReset, Unhealthy, "security fault"),
        (&[119], GpuReset, Unhealthy, "the GPU system processor does not answer"),
        (&[120], GpuReset, Unhealthy, "the GPU system processor failed"),
        (&[136], GpuReset, Unhealthy, "link training failed"),
        (&[140], GpuReset, Unhealthy, "uncorrected memory error"),
        (&[143], GpuReset, Unhealthy, "GPU initialisation failed"),
        (&[155], GpuReset, Unhealthy, "NVLink software error"),
        (&[156], GpuReset, Unhealthy, "a resource was retired"),
        (&[158], GpuReset, Unhealthy, "fatal timeout"),
        // The catalogue has no action for these: a PCIe timeout, a damaged protected region, a halted controller.
        (&[167], GpuReset, UnhealthyUnlessRecoveryActionKnown, "fatal PCIe timeout"),
        (&[168], GpuReset, UnhealthyUnlessRecoveryActionKnown, "errors in the write-protected memory region"),
        (&[169], GpuReset, UnhealthyUnlessRecoveryActionKnown, "security controller halted"),
        (&[79], NodeReboot, Unhealthy, "the GPU has fallen off the bus"),
        (&[74], Nvlink, UnhealthyUnlessRecoveryActionKnown, "NVLink error"),
        // How bad these are depends on details that only the kernel log has.
        (&[144, 145, 146, 147, 148, 149, 150], Nvlink, Count, "NVLink error"),
        (&[166], Nvlink, Count, "unencrypted NVLink traffic in confidential computing"),
        (&[170], Nvlink, Count, "NVLink interrupt in confidential computing"),
        (&[54], Hardware, Unhealthy, "auxiliary power is not connected"),
        // NVIDIA has no description of these two.
        (&[14, 108], Informational, Count, ""),
        (&[37, 38], Informational, Count, "driver firmware error"),
        (&[43], Informational, Count, "an application's channel was stopped"),
        (&[44], Informational, Count, "graphics engine fault during a context switch"),
        (&[63], Informational, Count, "a memory row or page is marked for replacement"),
        (&[66, 67], Informational, Count, "illegal access by the driver"),
        (&[92], Informational, Count, "many corrected memory errors"),
        (&[93], Informational, Count, "the InfoROM was written too often"),
        (&[106, 107], Informational, Count, "test message"),
        (&[121], Informational, Count, "chip-to-chip link error"),
        (&[137], Informational, Count, "NVLink privilege error"),
        (&[141], Informational, Count, "fast path error"),
        (&[152, 153], Informational, Count, "deep learning accelerator error"),
        (&[157], Informational, Count, "a resource could not be retired"),
        (&[160], Informational, Count, "a channel was retired"),
        (&[161], Informational, Count, "a channel could not be retired"),
        (&[162], Informational, Count, "power smoothing works again"),
        (&[163], Informational, Count, "power smoothing is disengaged"),
        (&[164], Informational, Count, "power smoothing is near the end of its life"),
        (&[165], Informational, Count, "power smoothing is at the end of its life"),
        // A job that ends leaves hundreds of 45 on healthy GPUs; 171 and 172 say where the memory error of a 48 was.
        (&[45], Corroborating, Count, "channels cleaned up after another fault or a process's end"),
        (&[171], Corroborating, Count, "uncorrectable error in DRAM"),
        (&[172], Corroborating, Count, "uncorrectable error in SRAM"),
        (&[154], RecoveryAction, Count, "the recovery action changed"),
        (&[78], Software, Count, "a vGPU could not be started"),
        (&[151], Software, Count, "key rotation error"),
        (&[159], Software, Count, "coherent interconnect error"),
    ]
};

pub fn class(code: u32) -> XidClass {
    row(code).map_or(XidClass::Unknown, |(_, class, ..)| *class)
}

pub fn name(code: u32) -> Option<&'static str> {
    row(code).map(|(.., name)| *name).filter(|name| !name.is_empty())
}

/// `XID 79 (the GPU has fallen off the bus)`.
pub fn named(code: u32) -> String {
    name(code).map_or_else(|| format!("XID {code}"), |name| format!("XID {code} ({name})"))
}

fn row(code: u32) -> Option<&'static XidRow> {
    TABLE.iter().find(|(codes, ..)| codes.contains(&code))
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

    pub fn add(&mut self, event: &XidEvent, rule: XidRule) {
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
        if rule.makes_unhealthy() && self.active.len() < MAX_CODES {
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
    fn every_class_has_its_codes_and_its_rule() {
        use XidClass::*;
        use XidRule::{Count, Unhealthy, UnhealthyUnlessRecoveryActionKnown};
        for (codes, expected_class, expected_rule) in [
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
                    (class(*code), HealthConfig::default().xid_rule(*code)),
                    (expected_class, expected_rule),
                    "XID {code}"
                );
            }
        }
    }

    #[test]
    fn no_code_is_in_two_rows() {
        for code in 0..200 {
            assert!(TABLE.iter().filter(|(codes, ..)| codes.contains(&code)).count() <= 1, "XID {code}");
        }
        assert_eq!(
            TABLE.iter().filter(|(.., name)| name.is_empty()).map(|(codes, ..)| *codes).collect::<Vec<_>>(),
            [[14, 108]]
        );
    }
}
