use std::fmt;
use std::str::FromStr;

const UNITS: [(&str, u64); 8] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

/// Bytes, written `64MiB`, `64Mi`, `64MB` or `67108864`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a size; write it as 64MiB")]
pub struct SizeError(String);

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let unit = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
        let (number, factor) = unit.unwrap_or((text, 1));
        let number: Option<u64> = number.trim().parse().ok();
        number.and_then(|number| number.checked_mul(factor)).map(Self).ok_or_else(|| SizeError(text.to_owned()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_and_kubernetes_write_them() {
        for (text, bytes) in [("64MiB", 64 << 20), ("1Gi", 1 << 30), ("5000000", 5_000_000), ("2MB", 2_000_000)] {
            assert_eq!(text.parse(), Ok(Size(bytes)));
        }
        for text in ["", "MiB", "-1MiB", "64 parsecs", "99999999999GiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
