use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Unexpected, Visitor};

/// A value that is `on`, `off`, or a mapping. An untagged enum would have errors without a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwitchOr<T> {
    /// `None` for a mapping.
    pub on: Option<bool>,
    pub section: T,
}

impl<'de, T: Default + Deserialize<'de>> Deserialize<'de> for SwitchOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SwitchOrVisitor(PhantomData))
    }
}

struct SwitchOrVisitor<T>(PhantomData<T>);

impl<'de, T: Default + Deserialize<'de>> Visitor<'de> for SwitchOrVisitor<T> {
    type Value = SwitchOr<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("on, off, or a mapping")
    }

    /// YAML 1.1 has `on` and `off` as booleans.
    fn visit_bool<E: Error>(self, on: bool) -> Result<Self::Value, E> {
        Ok(SwitchOr { on: Some(on), section: T::default() })
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        match text {
            "on" => self.visit_bool(true),
            "off" => self.visit_bool(false),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(SwitchOr::default())
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(|section| SwitchOr { on: None, section })
    }
}

#[cfg(test)]
impl<T: schemars::JsonSchema> schemars::JsonSchema for SwitchOr<T> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("SwitchOr{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": ["object", "string", "boolean"],
            "if": { "type": "object" },
            "then": generator.subschema_for::<T>(),
            "else": { "enum": ["on", "off", true, false] },
        })
    }
}
