//! The version word of the versioned structs: size | version << 24.

use crate::codes::{ARGUMENT_VERSION_MISMATCH, Answer};

pub const fn word(version: u32, size: usize) -> u32 {
    size as u32 | (version << 24)
}

pub fn check(given: u32, version: u32, size: usize) -> Answer {
    if given == word(version, size) { Ok(()) } else { Err(ARGUMENT_VERSION_MISMATCH) }
}
