//! Single values of the configuration: resource names, references to devices, what to do in a conflict.

use std::collections::BTreeMap;

use serde::de::{self, DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::domain::model::ResourceName;

/// A GPU by index (`0`), a MIG device by index (`0:1`), or either by UUID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "Value")]
pub struct DeviceReference(String);

impl DeviceReference {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn parse(text: &str) -> Option<Self> {
        let index = |text: &str| text.parse::<u32>().ok();
        let uuid = |text: &str| {
            let (kind, digits) = text.split_at_checked(4).filter(|(_, digits)| !digits.is_empty())?;
            let is_uuid = digits.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
            (is_uuid && matches!(kind, "GPU-" | "MIG-")).then(|| format!("{kind}{}", digits.to_ascii_lowercase()))
        };
        // The driver writes indexes and UUIDs in this form.
        let reference = match text.split_once(':') {
            Some((gpu, mig)) => Some(format!("{}:{}", index(gpu)?, index(mig)?)),
            None => index(text).map(|gpu| gpu.to_string()).or_else(|| uuid(text)),
        };
        reference.map(Self)
    }
}

impl TryFrom<Value> for DeviceReference {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Self::parse(&text).ok_or_else(|| {
            format!("{text:?} names no device; accepted: a GPU index (0), a MIG index (0:1), or a GPU-… or MIG-… UUID")
        })
    }
}

/// What to do while another plugin serves the resource, or offers its hardware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum OnConflict {
    #[default]
    Wait,
    /// Waits as `wait` does, but registers once the kubelet has listed no device of the resource for a minute.
    WaitWhileServed,
    Takeover,
}

/// Checks a name by what the kubelet accepts for an extended resource: `domain/name`, outside of kubernetes.io.
pub fn resource_name(text: &str) -> Result<ResourceName, String> {
    let refuse =
        |why: &str| Err(format!("{text:?} is no resource name: {why}; accepted: domain/name, as nvidia.com/gpu"));
    let Some((domain, name)) = text.split_once('/') else { return refuse("it has no domain") };
    let ends_plainly = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_alphanumeric())
            && part.ends_with(|last: char| last.is_ascii_alphanumeric())
    };
    let label = |label: &str| {
        ends_plainly(label)
            && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    // Quotas prefix `requests.` to the name, and the result must fit.
    if domain.len() > 253 - "requests.".len() || !domain.split('.').all(label) {
        return refuse("the domain must be a lower-case DNS name");
    }
    if domain == "kubernetes.io" || domain.ends_with(".kubernetes.io") || domain.starts_with("requests.") {
        return refuse("that domain is Kubernetes' own");
    }
    if name.len() > 63
        || !ends_plainly(name)
        || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    {
        return refuse("the name must be 1 to 63 letters, digits, dashes, dots or underscores");
    }
    Ok(ResourceName::new(text))
}

pub(super) fn a_resource_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ResourceName, D::Error> {
    resource_name(&String::deserialize(deserializer)?).map_err(de::Error::custom)
}

pub(super) fn by_resource_name<'de, D, T>(deserializer: D) -> Result<BTreeMap<ResourceName, T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    BTreeMap::<String, T>::deserialize(deserializer)?
        .into_iter()
        .map(|(name, value)| Ok((resource_name(&name).map_err(de::Error::custom)?, value)))
        .collect()
}

/// Reads `a` or `[a, b]`.
pub(super) fn one_or_several<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let value = Value::deserialize(deserializer)?;
    let list = if value.is_array() { value } else { Value::Array(vec![value]) };
    Vec::deserialize(list).map_err(de::Error::custom)
}

/// The schemas of these values in the configuration file's JSON schema.
#[cfg(test)]
pub(super) mod schema {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::{DeviceReference, ResourceName};

    pub fn one_or_several<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [one, { "type": "array", "items": one }] })
    }

    macro_rules! written_as {
        ($($type:ident: $schema:tt;)*) => {$(
            impl JsonSchema for $type {
                fn schema_name() -> Cow<'static, str> {
                    stringify!($type).into()
                }

                fn json_schema(_: &mut SchemaGenerator) -> Schema {
                    json_schema!($schema)
                }
            }
        )*};
    }

    written_as! {
        ResourceName: {
            "type": "string",
            "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
        };
        DeviceReference: {
            "type": ["integer", "string"],
            "minimum": 0,
            "pattern": "^([0-9]+(:[0-9]+)?|(MIG-|GPU-)[-0-9a-fA-F]+)$",
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_names_are_those_the_kubelet_takes() {
        for name in ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb.me.all", "a/b", "example.com/NIC_1"] {
            assert!(resource_name(name).is_ok(), "{name}");
        }
        let long = format!("example.com/{}", "x".repeat(64));
        for name in [
            "gpu",
            "",
            "/",
            "nvidia.com/",
            "/gpu",
            "Nvidia.com/gpu",
            "nvidia..com/gpu",
            "kubernetes.io/gpu",
            "x.kubernetes.io/gpu",
            "requests.nvidia.com/gpu",
            "nvidia.com/a/b",
            "nvidia.com/-a",
            "nvidia.com/a b",
            &long,
        ] {
            let error = resource_name(name).expect_err(name);
            assert!(error.contains("accepted: domain/name"), "{error}");
        }
    }

    #[test]
    fn devices_are_named_by_index_or_uuid() {
        for (text, reference) in [
            ("0", "0"),
            ("007", "7"),
            ("0:01", "0:1"),
            ("GPU-B1028956-cfa2", "GPU-b1028956-cfa2"),
            ("MIG-b1028956-cfa2", "MIG-b1028956-cfa2"),
        ] {
            assert_eq!(DeviceReference::parse(text).unwrap().as_str(), reference, "{text}");
        }
        for text in ["MIG-GPU-b1028956/3/0", "-1", "0:", "0:1:2", "GPU-", "GPU-xyz", "b1028956x", "all"] {
            assert_eq!(DeviceReference::parse(text), None, "{text}");
        }
    }
}
