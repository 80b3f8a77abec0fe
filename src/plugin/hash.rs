//! Numbers for names: hashes that are the same for the same bytes, and random numbers.

use std::hash::{BuildHasher as _, Hasher as _};

/// The FNV-1a hash: the same in every build and on every machine, which the standard library's does not promise.
pub fn stable_hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A random number: the standard library seeds each hasher at random.
pub fn random() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
