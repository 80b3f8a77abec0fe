//! The XIDs that are known, as data: by class, with the effect of each unless configured otherwise.

use crate::domain::model::XidClass;

/// What an XID does to the health of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Unhealthy,
    /// Until the driver reports the recovery action of the GPU, be it `none`.
    UnhealthyUnlessRecoveryActionKnown,
    /// Counted, as with `Count`: the recovery action decides, which is read after every XID.
    ReadRecoveryAction,
    Count,
    /// Not even counted.
    Ignore,
}

impl Effect {
    pub fn makes_unhealthy(self) -> bool {
        matches!(self, Self::Unhealthy | Self::UnhealthyUnlessRecoveryActionKnown)
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
    XidRow { class: XidClass::NodeReboot, effect: Effect::Unhealthy, codes: &[79] },
    XidRow { class: XidClass::Nvlink, effect: Effect::UnhealthyUnlessRecoveryActionKnown, codes: &[74] },
    // How bad these are depends on details that only the kernel log has.
    XidRow { class: XidClass::Nvlink, effect: Effect::ReadRecoveryAction, codes: &[144, 145, 146, 147, 148, 149, 150] },
    XidRow { class: XidClass::Hardware, effect: Effect::Unhealthy, codes: &[54] },
    XidRow {
        class: XidClass::Informational,
        effect: Effect::Count,
        codes: &[14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161],
    },
    // A job that ends leaves hundreds of these on healthy GPUs.
    XidRow { class: XidClass::Corroborating, effect: Effect::Count, codes: &[45] },
    XidRow { class: XidClass::RecoveryAction, effect: Effect::ReadRecoveryAction, codes: &[154] },
    XidRow { class: XidClass::Software, effect: Effect::Count, codes: &[78, 151, 159] },
];

/// In few words, for the log and the page.
const NAMES: &[(u32, &str)] = &[
    (13, "graphics engine exception"),
    (31, "memory page fault of an application"),
    (43, "an application's channel was stopped"),
    (45, "channels cleaned up after another fault or a process's end"),
    (46, "the GPU stopped processing"),
    (48, "double-bit memory error"),
    (54, "auxiliary power is not connected"),
    (62, "internal micro-controller halted"),
    (63, "a memory row or page is marked for replacement"),
    (64, "a memory row or page could not be marked for replacement"),
    (74, "NVLink error"),
    (79, "the GPU has fallen off the bus"),
    (92, "many corrected memory errors"),
    (94, "contained memory error"),
    (95, "uncontained memory error"),
    (109, "context switch timeout"),
    (110, "security fault"),
    (119, "the GPU system processor does not answer"),
    (120, "the GPU system processor failed"),
    (136, "link training failed"),
    (140, "uncorrected memory error"),
    (143, "GPU initialisation failed"),
    (154, "the recovery action changed"),
    (155, "NVLink software error"),
    (156, "a resource was retired"),
    (158, "fatal timeout"),
];

pub fn class(code: u32) -> XidClass {
    row(code).map_or(XidClass::Unknown, |row| row.class)
}

/// Unless it is configured otherwise.
pub fn default_effect(code: u32) -> Effect {
    row(code).map_or(Effect::Count, |row| row.effect)
}

/// `XID 79 (the GPU has fallen off the bus)`.
pub fn named(code: u32) -> String {
    match NAMES.iter().find(|(known, _)| *known == code) {
        Some((_, name)) => format!("XID {code} ({name})"),
        None => format!("XID {code}"),
    }
}

fn row(code: u32) -> Option<&'static XidRow> {
    TABLE.iter().find(|row| row.codes.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_its_codes_and_its_effect() {
        use Effect::{Count, ReadRecoveryAction, Unhealthy, UnhealthyUnlessRecoveryActionKnown};
        use XidClass::*;
        for (codes, expected_class, expected_effect) in [
            (&[8, 13, 31, 32, 39, 41, 68, 72, 82, 86, 96, 105, 126, 135, 139][..], Application, Count),
            (&[94], ContainedMemory, Count),
            (&[46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158], GpuReset, Unhealthy),
            (&[79], NodeReboot, Unhealthy),
            (&[74], Nvlink, UnhealthyUnlessRecoveryActionKnown),
            (&[144, 145, 146, 147, 148, 149, 150], Nvlink, ReadRecoveryAction),
            (&[54], Hardware, Unhealthy),
            (&[14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 108, 121, 137, 141, 152, 157, 160], Informational, Count),
            (&[45], Corroborating, Count),
            (&[154], RecoveryAction, ReadRecoveryAction),
            (&[78, 151, 159], Software, Count),
            (&[0, 1, 47, 73, 87, 142, 162, 172, 999, u32::MAX], Unknown, Count),
        ] {
            for code in codes {
                assert_eq!((class(*code), default_effect(*code)), (expected_class, expected_effect), "XID {code}");
            }
        }
    }

    #[test]
    fn no_code_is_in_two_rows() {
        for code in 0..200 {
            assert!(TABLE.iter().filter(|row| row.codes.contains(&code)).count() <= 1, "XID {code}");
        }
    }
}
