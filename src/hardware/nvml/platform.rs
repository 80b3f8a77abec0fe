//! Where a GPU is in its chassis, and its links to the CPU of its module.

use nvml_wrapper_sys::bindings::{nvmlC2cModeInfo_v1_t, nvmlPlatformInfo_v2_t};

use super::calls::{Caller, Refusal, call, version};
use super::fields::{self, Row};
use super::library::Handle;
use crate::hardware::plausible;
use crate::model::{C2c, Platform};

/// What the platform does not give.
const UNKNOWN: u8 = u8::MAX;
const PEER_TYPES: [&str; 2] = ["direct", "switch"];

const C2C_LINK_COUNT: Row = Row::plain(170);
const C2C_LINK_STATUS: Row = Row::plain(171);
/// In MB a second, of an active link.
const C2C_LINK_SPEED: Row = Row::plain(172);
/// More links than any GPU has; the header names 14.
const C2C_LINK_LIMIT: u32 = 64;
const MEGABYTE: f64 = 1e6;

/// Blackwell and newer. Both versions of the structure have the same places; only their names differ.
pub fn read(caller: &mut Caller, handle: Handle) -> Option<Platform> {
    for number in [2, 1] {
        // SAFETY: numbers only; all zeroes is a valid value.
        let mut info: nvmlPlatformInfo_v2_t = unsafe { std::mem::zeroed() };
        info.version = version::<nvmlPlatformInfo_v2_t>(number);
        match call!(caller, nvmlDeviceGetPlatformInfo[number](handle.0, &raw mut info)) {
            Ok(()) => return Some(place(&info)),
            Err(Refusal::WrongVersion) => {}
            Err(_) => return None,
        }
    }
    None
}

fn place(info: &nvmlPlatformInfo_v2_t) -> Platform {
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

pub fn c2c(caller: &mut Caller, handle: Handle) -> C2c {
    let mut mode = nvmlC2cModeInfo_v1_t { isC2cEnabled: 0 };
    let enabled =
        call!(caller, nvmlDeviceGetC2cModeInfoV(handle.0, &raw mut mode)).ok().map(|()| mode.isC2cEnabled != 0);
    if enabled != Some(true) {
        return C2c { enabled, ..C2c::default() };
    }
    let links = fields::read(caller, handle, &[C2C_LINK_COUNT])[0].map_or(0, |count| count as u32);
    let links: Vec<u32> = (0..links.min(C2C_LINK_LIMIT)).collect();
    let wanted: Vec<_> = links.iter().flat_map(|link| [C2C_LINK_STATUS.of(*link), C2C_LINK_SPEED.of(*link)]).collect();
    let values = fields::read(caller, handle, &wanted);
    let status = |pair: &[Option<f64>]| pair[0].map(|status| status != 0.0);
    // A link whose state is unknown makes the numbers of both unknown.
    let Some(states) = values.chunks(2).map(status).collect::<Option<Vec<bool>>>().filter(|states| !states.is_empty())
    else {
        return C2c { enabled, ..C2c::default() };
    };
    let number = |wanted: bool| u32::try_from(states.iter().filter(|is_active| **is_active == wanted).count()).ok();
    let active = values.chunks(2).zip(&states).filter(|(_, is_active)| **is_active);
    let speed: Option<f64> = active.map(|(pair, _)| Some(pair[1]? * MEGABYTE)).sum();
    C2c {
        enabled,
        active_links: number(true),
        inactive_links: number(false),
        bytes_per_second_max: speed.and_then(|speed| caller.plausible(&plausible::TRAFFIC, speed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_platform_does_not_give_is_absent() {
        let with = |serial: &[u8], slot, peer| {
            let mut chassis = [0; 16];
            chassis[..serial.len()].copy_from_slice(serial);
            place(&nvmlPlatformInfo_v2_t {
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
}
