//! Single values as people write them: resource names and references to devices.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde::{Serialize, Serializer};

use super::Hardware;
use crate::model::ResourceName;

/// A GPU by index (`0`), a MIG device by index (`0:1`), or either by UUID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceReference {
    Gpu(u32),
    /// GPU, then the MIG device on it.
    Mig(u32, u32),
    Uuid(String),
}

/// How narrowly a reference names a device: its GPU, or itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    ItsGpu,
    Itself,
}

impl DeviceReference {
    /// Whether this names `hardware`; a MIG device is also reached by a reference to its GPU.
    #[must_use]
    pub fn reaches(&self, hardware: &Hardware) -> Option<Reach> {
        match (self, hardware) {
            (Self::Gpu(number), Hardware::Gpu { index, .. }) => (number == index).then_some(Reach::Itself),
            (Self::Uuid(text), Hardware::Gpu { uuid, .. }) => (text == uuid.as_str()).then_some(Reach::Itself),
            (Self::Gpu(number), Hardware::Mig { gpu_index, .. }) => (number == gpu_index).then_some(Reach::ItsGpu),
            (Self::Mig(number, place), Hardware::Mig { gpu_index, index, .. }) => {
                (number == gpu_index && place == index).then_some(Reach::Itself)
            }
            (Self::Uuid(text), Hardware::Mig { uuid, gpu, .. }) => {
                if text == uuid.as_str() {
                    Some(Reach::Itself)
                } else {
                    (text == gpu.as_str()).then_some(Reach::ItsGpu)
                }
            }
            (Self::Mig(..), Hardware::Gpu { .. })
            | (_, Hardware::Missing(_) | Hardware::Nodes(_) | Hardware::Nothing) => None,
        }
    }

    pub const FORMS: &'static str = "a GPU index (0), a MIG index (0:1), or a GPU-… or MIG-… UUID";

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if let Ok(index) = text.parse() {
            return Some(Self::Gpu(index));
        }
        if let Some((gpu, place)) = text.split_once(':') {
            return Some(Self::Mig(gpu.parse().ok()?, place.parse().ok()?));
        }
        let uuid = text.strip_prefix("MIG-").or_else(|| text.strip_prefix("GPU-"))?;
        let plain = !uuid.is_empty() && uuid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        plain.then(|| Self::Uuid(text.to_owned()))
    }
}

impl fmt::Display for DeviceReference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu(index) => write!(formatter, "{index}"),
            Self::Mig(gpu, place) => write!(formatter, "{gpu}:{place}"),
            Self::Uuid(uuid) => formatter.write_str(uuid),
        }
    }
}

impl<'de> Deserialize<'de> for DeviceReference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reference;
        impl Visitor<'_> for Reference {
            type Value = DeviceReference;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(DeviceReference::FORMS)
            }

            fn visit_u64<E: de::Error>(self, index: u64) -> Result<Self::Value, E> {
                index
                    .try_into()
                    .map(DeviceReference::Gpu)
                    .map_err(|_| E::custom(format!("{index} names no device; accepted: {}", DeviceReference::FORMS)))
            }

            fn visit_i64<E: de::Error>(self, index: i64) -> Result<Self::Value, E> {
                self.visit_str(&index.to_string())
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                DeviceReference::parse(text)
                    .ok_or_else(|| E::custom(format!("{text:?} names no device; accepted: {}", DeviceReference::FORMS)))
            }
        }
        deserializer.deserialize_any(Reference)
    }
}

impl Serialize for DeviceReference {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Names that the kubelet accepts for an extended resource: `domain/name`, outside of kubernetes.io.
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
    // `requests.` is prefixed to the name in quotas, and the result must fit.
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

/// `a` or `[a, b]`.
pub(super) fn one_or_several<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct OneOrSeveral<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrSeveral<T> {
        type Value = Vec<T>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("one value or a list of them")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(vec![T::deserialize(de::value::StrDeserializer::new(text))?])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut values = vec![];
            while let Some(value) = list.next_element()? {
                values.push(value);
            }
            Ok(values)
        }
    }
    deserializer.deserialize_any(OneOrSeveral(PhantomData))
}

/// Of the configuration file's JSON schema.
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
        let uuid = |text: &str| Some(DeviceReference::Uuid(text.to_owned()));
        for (text, expected) in [
            ("0", Some(DeviceReference::Gpu(0))),
            ("0:1", Some(DeviceReference::Mig(0, 1))),
            ("GPU-b1028956-cfa2", uuid("GPU-b1028956-cfa2")),
            ("MIG-b1028956-cfa2", uuid("MIG-b1028956-cfa2")),
            ("MIG-GPU-b1028956/3/0", None),
            ("-1", None),
            ("0:", None),
            ("0:1:2", None),
            ("GPU-", None),
            ("GPU-xyz", None),
            ("b1028956", None),
            ("all", None),
        ] {
            assert_eq!(DeviceReference::parse(text), expected, "{text}");
        }
    }
}
