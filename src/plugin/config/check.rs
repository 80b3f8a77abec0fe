//! Values that the configuration refuses: the error names the key, the value and what is accepted.

use std::fmt;
use std::path::Path;

/// The most slots of one device: more exceed what the kubelet accepts. `offer` has the limit for all devices.
pub const MOST_SLOTS: u32 = 60_000;
/// The most bytes of a device ID without a slot's number, of four digits here: the API limits an ID to 63, which the
/// kubelet does not check.
pub const LONGEST_UNSHARED_ID: usize = 63 - "::9999".len();

/// What in the section cannot be used, and why, as text for the user. The caller adds the file's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PluginConfigError(pub(crate) String);

pub(super) fn check_range(key: &str, value: u32, least: u32, most: u32) -> Result<(), PluginConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    refuse(key, value, format!("accepted: {least} to {most}"))
}

pub(super) fn check_absolute(key: &str, path: &Path) -> Result<(), PluginConfigError> {
    let climbs = path.components().any(|part| part == std::path::Component::ParentDir);
    if path.is_absolute() && !climbs {
        return Ok(());
    }
    refuse(key, path.display(), "accepted: an absolute path without ..")
}

pub(super) fn refuse<T>(
    key: &str,
    value: impl fmt::Display,
    accepted: impl fmt::Display,
) -> Result<T, PluginConfigError> {
    Err(PluginConfigError(format!("{key}: {value} cannot be used; {accepted}")))
}
