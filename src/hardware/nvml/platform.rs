//! Where a GPU is in its chassis, its links to the CPU of its module, and its registration with the NVLink fabric: its
//! state, its domain and the conditions of the fabric.

use nvml_wrapper_sys::bindings::{
    nvmlC2cModeInfo_v1_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfoV_t, nvmlPlatformInfo_v2_t,
};

use super::calls::{Blank, CallRefusal, Caller, fetch, value, version};
use super::codes;
use super::library::DeviceHandle;
use super::rows::{self, FieldRow};
use crate::domain::model::{C2c, FabricDomain, FabricState, Platform};
use crate::hardware::plausible;

/// The value of a number that the platform does not give.
const UNKNOWN: u8 = u8::MAX;
const PEER_TYPES: [&str; 2] = ["direct", "switch"];

const C2C_LINK_COUNT: FieldRow = FieldRow::plain(170);
const C2C_LINK_STATUS: FieldRow = FieldRow::plain(171);
/// The speed of an active link, in MB a second.
const C2C_LINK_SPEED: FieldRow = FieldRow::plain(172);
/// More links than any GPU has; the header names 14.
const C2C_LINK_LIMIT: u32 = 64;

/// The states of the registration by the driver's number.
const STATES: [&str; 4] = ["not_supported", "not_started", "in_progress", "completed"];
const COMPLETED: u8 = 3;

/// The position of each condition's two bits in the health mask, their value where it is true, and its name. Of 1 and 2
/// the other value means false; 0 means that it is not supported.
const CONDITIONS: [(u32, u32, &str); 6] = [
    (0, 1, "degraded_bandwidth"),
    (2, 1, "route_recovery"),
    (4, 1, "route_unhealthy"),
    (6, 1, "access_timeout_recovery"),
    (12, 2, "partition_unassigned"),
    (14, 2, "fabric_manager_disconnected"),
];
/// The position of the configuration's four bits in the health mask: 0 unsupported, 1 correct, others incorrect.
const CONFIGURATION: u32 = 8;
const CORRECT: u32 = 1;
/// The incorrect configurations, from 2 on.
const INCORRECT: [&str; 7] =
    ["system_guid", "chassis_serial", "no_partition", "insufficient_nvlinks", "gpu_firmware", "location", "gpu_state"];

/// The GPU's place in its chassis, from Blackwell on. Both versions of the structure have the same layout; only the
/// names of their fields differ.
pub fn read(caller: &mut Caller, handle: DeviceHandle) -> Option<Platform> {
    for number in [2, 1] {
        let version = version::<nvmlPlatformInfo_v2_t>(number);
        let wanted = nvmlPlatformInfo_v2_t { version, ..Blank::blank() };
        match fetch!(caller, wanted, nvmlDeviceGetPlatformInfo[number](handle.0)) {
            Ok(info) => return Some(platform(&info)),
            Err(CallRefusal::WrongVersion) => {}
            Err(_) => return None,
        }
    }
    None
}

fn platform(info: &nvmlPlatformInfo_v2_t) -> Platform {
    let known = |number: u8| Some(number).filter(|number| *number != UNKNOWN);
    let serial: String =
        info.chassisSerialNumber.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect();
    Platform {
        chassis_serial: Some(serial.trim())
            .filter(|serial| !serial.is_empty() && serial.chars().all(|letter| letter.is_ascii_graphic()))
            .map(Into::into),
        slot: known(info.slotNumber),
        tray: known(info.trayIndex),
        host: known(info.hostId),
        module_id: known(info.moduleId),
        peer_type: PEER_TYPES.get(usize::from(info.peerType)).copied(),
    }
}

/// Whether NVLink-C2C to a CPU on the module is enabled.
pub fn is_c2c_enabled(caller: &mut Caller, handle: DeviceHandle) -> Result<bool, CallRefusal> {
    let mode = fetch!(caller, nvmlC2cModeInfo_v1_t::blank(), nvmlDeviceGetC2cModeInfoV(handle.0));
    mode.map(|mode| mode.isC2cEnabled != 0)
}

pub fn c2c(caller: &mut Caller, handle: DeviceHandle) -> C2c {
    let enabled = is_c2c_enabled(caller, handle).ok();
    if enabled != Some(true) {
        return C2c { enabled, ..C2c::default() };
    }
    let links = rows::fields(caller, handle, &[C2C_LINK_COUNT])[0].map_or(0, |count| count as u32);
    let links: Vec<u32> = (0..links.min(C2C_LINK_LIMIT)).collect();
    let wanted: Vec<_> =
        links.iter().flat_map(|link| [C2C_LINK_STATUS.with_scope(*link), C2C_LINK_SPEED.with_scope(*link)]).collect();
    let values = rows::fields(caller, handle, &wanted);
    let status = |pair: &[Option<f64>]| pair[0].map(|status| status != 0.0);
    // A link whose state is unknown makes the numbers of both unknown.
    let Some(states) = values.chunks(2).map(status).collect::<Option<Vec<bool>>>().filter(|states| !states.is_empty())
    else {
        return C2c { enabled, ..C2c::default() };
    };
    let number = |wanted: bool| u32::try_from(states.iter().filter(|is_active| **is_active == wanted).count()).ok();
    let active = values.chunks(2).zip(&states).filter(|(_, is_active)| **is_active);
    let speed: Option<f64> = active.map(|(pair, _)| Some(pair[1]? * 1e6)).sum();
    C2c {
        enabled,
        active_links: number(true),
        inactive_links: number(false),
        bytes_per_second_max: speed.and_then(|speed| caller.plausible(&plausible::TRAFFIC, speed)),
    }
}

/// The registration with the fabric, by the newest version of the structure that the driver supports, up to the third.
/// The versions share their beginning; the second has no health summary, and the first no health mask either. The
/// fourth, a separate call, splits the clique by kinds of access, the first of which is the clique here.
pub fn fabric(caller: &mut Caller, handle: DeviceHandle) -> Option<FabricState> {
    for word in [version::<nvmlGpuFabricInfoV_t>(3), version::<nvmlGpuFabricInfo_v2_t>(2)] {
        let wanted = nvmlGpuFabricInfoV_t { version: word, ..Blank::blank() };
        match fetch!(caller, wanted, nvmlDeviceGetGpuFabricInfoV[word >> 24](handle.0)) {
            Ok(info) => return fabric_state(&info, word >> 24),
            Err(CallRefusal::WrongVersion | CallRefusal::Unsupported) => {}
            Err(_) => return None,
        }
    }
    let nvmlGpuFabricInfo_t { clusterUuid, status, cliqueId, state } =
        value!(caller, nvmlDeviceGetGpuFabricInfo(handle.0))?;
    fabric_state(&nvmlGpuFabricInfoV_t { clusterUuid, status, cliqueId, state, ..Blank::blank() }, 1)
}

/// The state of the fabric; `None` for one newer than the table.
fn fabric_state(info: &nvmlGpuFabricInfoV_t, version: u32) -> Option<FabricState> {
    let state = *STATES.get(usize::from(info.state))?;
    let is_completed = info.state == COMPLETED;
    let failed = is_completed && info.status != codes::SUCCESS;
    let health_mask = (version > 1).then_some(info.healthMask);
    let group = |shift: u32, width: u32| health_mask.unwrap_or(0) >> shift & ((1 << width) - 1);
    let condition = |(shift, is_true, name): (u32, u32, &'static str)| match group(shift, 2) {
        value @ (1 | 2) => Some((name, value == is_true)),
        _ => None,
    };
    let configuration = group(CONFIGURATION, 4);
    let incorrect = configuration.checked_sub(CORRECT + 1).and_then(|number| INCORRECT.get(number as usize)).copied();
    let is_incorrect = (configuration >= CORRECT).then_some(("incorrect_configuration", configuration > CORRECT));
    Some(FabricState {
        // A registration that completed with an error has ended: the GPU is in no fabric.
        state: if failed { "failed" } else { state },
        // A single node has an all-zero UUID: its GPUs are registered with a fabric, and in no domain.
        domain: (is_completed && !failed && info.clusterUuid != [0; 16])
            .then(|| FabricDomain { cluster_uuid: uuid_text(info.clusterUuid).into(), clique_id: info.cliqueId }),
        conditions: CONDITIONS.into_iter().filter_map(condition).chain(is_incorrect).collect(),
        incorrect_configuration: incorrect,
        health_mask,
        health_summary: (version > 2).then_some(info.healthSummary),
    })
}

/// The UUID as nvidia-smi prints it: `8-4-4-4-12`.
fn uuid_text(bytes: [u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(bytes));
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_platform_does_not_give_is_absent() {
        let with = |serial: &[u8], slot, peer| {
            let mut chassis = [0; 16];
            chassis[..serial.len()].copy_from_slice(serial);
            platform(&nvmlPlatformInfo_v2_t {
                version: 0,
                ibGuid: [0; 16],
                chassisSerialNumber: chassis,
                slotNumber: slot,
                trayIndex: 15,
                hostId: 1,
                peerType: peer,
                moduleId: 2,
            })
        };
        let rack = with(b"1820000000001", 25, 1);
        let expected = Platform {
            chassis_serial: Some("1820000000001".into()),
            slot: Some(25),
            tray: Some(15),
            host: Some(1),
            module_id: Some(2),
            peer_type: Some("switch"),
        };
        assert_eq!(rack, expected);
        let board = with(b"", u8::MAX, 0);
        assert_eq!((board.chassis_serial, board.slot, board.peer_type), (None, None, Some("direct")));
        let odd = with(&[0xff; 16], 1, 7);
        assert_eq!((odd.chassis_serial, odd.peer_type), (None, None));
    }

    const RACK: [u8; 16] =
        [0x9c, 0x6f, 0x5a, 0xf3, 0x53, 0xbf, 0x49, 0xb5, 0xa4, 0x36, 0xb6, 0x67, 0x66, 0xc4, 0x13, 0xc3];

    fn info(state: u8, status: u32, cluster_uuid: [u8; 16], mask: u32) -> nvmlGpuFabricInfoV_t {
        nvmlGpuFabricInfoV_t {
            version: 0,
            clusterUuid: cluster_uuid,
            status,
            cliqueId: 4026,
            state,
            healthMask: mask,
            healthSummary: 1,
        }
    }

    fn with(state: u8, status: u32, cluster_uuid: [u8; 16], mask: u32) -> FabricState {
        fabric_state(&info(state, status, cluster_uuid, mask), 2).unwrap()
    }

    #[test]
    fn conditions_are_only_those_that_the_driver_supports() {
        let state = with(3, 0, [0; 16], 0b10_00_01_10);
        assert_eq!(state.state, "completed");
        assert_eq!(
            state.conditions,
            [("degraded_bandwidth", false), ("route_recovery", true), ("access_timeout_recovery", false)].into()
        );
        assert!(with(1, 0, [0; 16], 0).conditions.is_empty());
        assert!(with(3, 0, [0; 16], u32::MAX).conditions.keys().eq(["incorrect_configuration"].iter()));
    }

    #[test]
    fn a_condition_is_true_where_something_is_wrong() {
        let fine = with(3, 0, RACK, 0x51AA);
        assert_eq!(fine.conditions.len(), 7);
        assert!(fine.conditions.values().all(|is_wrong| !is_wrong), "{fine:?}");
        let state = with(3, 0, RACK, 0xA5AA);
        let wrong: Vec<_> = state.conditions.iter().filter(|(_, is_wrong)| **is_wrong).map(|(name, _)| *name).collect();
        assert_eq!(wrong, ["fabric_manager_disconnected", "incorrect_configuration", "partition_unassigned"]);
        assert_eq!(state.incorrect_configuration, Some("insufficient_nvlinks"));
        // A value newer than the table is incorrect for an unknown reason.
        let newer = with(3, 0, RACK, 0xF00);
        assert_eq!((newer.conditions["incorrect_configuration"], newer.incorrect_configuration), (true, None));
    }

    #[test]
    fn a_domain_has_a_cluster_uuid_and_a_completed_registration() {
        let domain = FabricDomain { cluster_uuid: "9c6f5af3-53bf-49b5-a436-b66766c413c3".into(), clique_id: 4026 };
        for (state, status, uuid, expected) in [
            (3, 0, RACK, Some(domain)),
            (3, 0, [0; 16], None),
            (3, 999, RACK, None),
            (2, 0, RACK, None),
            (0, 999, [0; 16], None),
        ] {
            assert_eq!(with(state, status, uuid, 0).domain, expected, "{state} {status} {uuid:?}");
        }
    }

    #[test]
    fn a_fabric_that_completed_with_an_error_is_not_in_progress() {
        let state = |(state, status)| with(state, status, RACK, 0).state;
        let states = [(2, 0), (3, 0), (3, 3), (2, 999), (0, 999)].map(state);
        assert_eq!(states, ["in_progress", "completed", "failed", "in_progress", "not_supported"]);
        assert_eq!(fabric_state(&info(7, 0, RACK, 0), 2), None, "a state newer than the table is unknown");
    }
}
