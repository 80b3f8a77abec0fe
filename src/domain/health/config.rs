//! The section `health` of the configuration file: what makes devices unhealthy, and healthy again.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::{input, words};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What makes devices unhealthy, and healthy again.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct HealthConfig {
    /// By code: exceptions to the class table.
    pub xids: BTreeMap<u32, XidRule>,
    /// How long a fault must be over before a device is healthy again.
    #[serde(deserialize_with = "hold_down")]
    #[cfg_attr(test, schemars(schema_with = "schema::duration"), serde(serialize_with = "schema::written"))]
    pub hold_down: Duration,
    pub recovery: Recovery,
    #[serde(rename = "uncorrectableECC")]
    pub uncorrectable_ecc: EccPolicy,
    pub fabric: FabricPolicy,
    /// How long a driver call that is known to hang, or a driver that cannot be opened, is tolerated.
    #[serde(deserialize_with = "stuck_limit")]
    #[cfg_attr(test, schemars(schema_with = "schema::duration"), serde(serialize_with = "schema::written"))]
    pub stuck_limit: Duration,
    /// How long the last health state stays valid while the GPUs are released.
    #[serde(deserialize_with = "released_limit")]
    #[cfg_attr(test, schemars(schema_with = "schema::duration"), serde(serialize_with = "schema::written"))]
    pub released_limit: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum XidRule {
    /// Counts, and makes the device unhealthy until it was reset.
    Unhealthy,
    /// Until the driver reports the recovery action of the GPU, be it `none`. Not to configure.
    #[serde(skip)]
    UnhealthyUnlessRecoveryActionKnown,
    // The recovery action, which is read after every XID, may make the device unhealthy.
    /// Counts only.
    Count,
    /// Does not even count.
    Ignore,
}

impl XidRule {
    pub fn makes_unhealthy(self) -> bool {
        matches!(self, Self::Unhealthy | Self::UnhealthyUnlessRecoveryActionKnown)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum Recovery {
    /// A device becomes healthy by its signals.
    #[default]
    Auto,
    /// A fault also needs an operator's `podmeter clear-faults`.
    Manual,
}

/// The default is to count: such errors are contained and their rows replaced while work continues, the count stays up
/// until the driver is reloaded, and an uncontained error raises an XID or a recovery action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum EccPolicy {
    #[default]
    Count,
    Unhealthy,
}

/// A GPU that awaits its registration with the NVLink fabric. CUDA does not start on it (error 802), so the default is
/// unhealthy. Where partitions are activated for the pods that get them, a GPU without a partition waits by design.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum FabricPolicy {
    #[default]
    Unhealthy,
    Ignore,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self {
            xids: BTreeMap::new(),
            hold_down: MINUTE,
            recovery: Recovery::default(),
            uncorrectable_ecc: EccPolicy::default(),
            fabric: FabricPolicy::default(),
            stuck_limit: Duration::from_secs(10),
            // Long enough for a reset, and too short for pods to be scheduled to a GPU that is not read.
            released_limit: Duration::from_secs(30),
        }
    }
}

fn hold_down<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    duration(deserializer, "holdDown", DAY)
}

fn stuck_limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    duration(deserializer, "stuckLimit", 60 * MINUTE)
}

fn released_limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    duration(deserializer, "releasedLimit", DAY)
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D, key: &str, most: Duration) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let value: input::Duration = text.parse().map_err(|error| D::Error::custom(format!("{key} {text:?}: {error}")))?;
    match *value <= most {
        true => Ok(*value),
        false => Err(D::Error::custom(format!("{key} {text}: must be 0s to {}", words::duration(most)))),
    }
}

/// The JSON schema of the configuration file.
#[cfg(test)]
pub mod schema {
    use std::time::Duration;

    use schemars::{Schema, SchemaGenerator, json_schema};
    use serde::Serializer;

    /// The pattern of a duration that humantime reads.
    pub const DURATION: &str = "^(0|([0-9]+([.][0-9]+)? *(nanos|nsec|ns|usec|us|µs|millis|msec|ms|seconds?|secs?|s|minutes?|\
        mins?|m|hours?|hrs?|h|days?|d|weeks?|wks?|w|months?|M|years?|yr|y) *)+)$";

    pub fn duration(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": DURATION })
    }

    pub fn written<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(*duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<HealthConfig, String> {
        serde_saphyr::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn every_key_is_read() {
        let text = "xids:\n  48: count\n  31: unhealthy\n  45: ignore\nholdDown: 2m\nrecovery: manual\n\
                    uncorrectableECC: unhealthy\nfabric: ignore\nstuckLimit: 30s\nreleasedLimit: 1h\n";
        let config = parse(text).unwrap();
        let expected = HealthConfig {
            xids: [(48, XidRule::Count), (31, XidRule::Unhealthy), (45, XidRule::Ignore)].into(),
            hold_down: 2 * MINUTE,
            recovery: Recovery::Manual,
            uncorrectable_ecc: EccPolicy::Unhealthy,
            fabric: FabricPolicy::Ignore,
            stuck_limit: Duration::from_secs(30),
            released_limit: 60 * MINUTE,
        };
        assert_eq!(config, expected);
        let rules = [48, 31, 45, 79].map(|code| config.xid_rule(code));
        assert_eq!(rules, [XidRule::Count, XidRule::Unhealthy, XidRule::Ignore, XidRule::Unhealthy]);
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_accepted() {
        for (text, parts) in [
            ("xids:\n  48: fatal\n", ["fatal", "one of unhealthy, count, ignore"]),
            ("xids:\n  all: count\n", ["all", "line 2"]),
            ("holdDown: soon\n", ["holdDown", "soon"]),
            ("holdDown: 2days\n", ["holdDown", "0s to 1d"]),
            ("recovery: never\n", ["never", "manual"]),
            ("uncorrectableECC: bad\n", ["bad", "count"]),
            ("fabric: bad\n", ["bad", "ignore"]),
            ("stuckLimit: 2h\n", ["stuckLimit", "0s to 1h"]),
            ("releasedLimit: 2days\n", ["releasedLimit", "0s to 1d"]),
            ("holddown: 1s\n", ["holddown", "holdDown"]),
        ] {
            let error = parse(text).expect_err(text);
            for part in parts {
                assert!(error.contains(part), "{part:?} in {error}");
            }
        }
    }
}
