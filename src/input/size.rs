use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// The suffixes of Kubernetes.
const UNITS: [(&str, u64); 8] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
];

/// A number of bytes, written `64Mi`, `64MiB`, `64M`, `64MB` or `67108864`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Size(pub u64);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a size, such as 64MiB, 500M or a number of bytes")]
pub struct SizeError;

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let without_b = text.strip_suffix('B').unwrap_or(text);
        let unit = UNITS.iter().find_map(|(unit, factor)| Some((without_b.strip_suffix(unit)?, *factor)));
        let (number, factor) = unit.unwrap_or((text, 1));
        let number: Option<u64> = number.trim_end().parse().ok();
        number.and_then(|number| number.checked_mul(factor)).map(Self).ok_or(SizeError)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1 << 20) {
            write!(formatter, "{}MiB", self.0 >> 20)
        } else {
            write!(formatter, "{}", self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Amount;
        impl Visitor<'_> for Amount {
            type Value = Size;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a size, such as 64MiB or 500M")
            }

            fn visit_u64<E: Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(|error| E::custom(format!("{text:?}: {error}")))
            }
        }
        deserializer.deserialize_any(Amount)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Size {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let pattern = "^[0-9]+ *((Ki|Mi|Gi|Ti|k|M|G|T)B?)?$";
        schemars::json_schema!({ "type": ["integer", "string"], "minimum": 0, "pattern": pattern })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_and_kubernetes_write_them() {
        for (text, bytes) in [
            ("64MiB", 64 << 20),
            ("64 Mi", 64 << 20),
            ("1Gi", 1 << 30),
            ("3TiB", 3 << 40),
            ("5000000", 5_000_000),
            ("2MB", 2_000_000),
            ("500M", 500_000_000),
            ("1k", 1_000),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "MiB", "-1MiB", "64B", "1.5Gi", "64 parsecs", "99999999999GiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
