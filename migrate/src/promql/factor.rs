//! Positive factors between units, exact, and how they are written.

use std::fmt;

/// A positive fraction in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Factor {
    numerator: u128,
    denominator: u128,
}

impl Factor {
    pub const ONE: Self = Self { numerator: 1, denominator: 1 };

    /// `None` where a part is zero.
    pub fn new(numerator: u128, denominator: u128) -> Option<Self> {
        if numerator == 0 || denominator == 0 {
            return None;
        }
        let divisor = greatest_common_divisor(numerator, denominator);
        Some(Self { numerator: numerator / divisor, denominator: denominator / divisor })
    }

    /// The integer, the fraction 1/n or else the decimal number nearest to `value`; `None` unless it is positive and finite.
    pub fn from_number(value: f64) -> Option<Self> {
        if !value.is_finite() || value <= 0.0 {
            return None;
        }
        let inverse = (1.0 / value).round();
        if (1.0..1e15).contains(&inverse) && 1.0 / inverse == value {
            return Self::new(1, inverse as u128);
        }
        Self::from_text(&format!("{value}"))
    }

    /// A number as it is written in an expression: `1024`, `0.5`, `1e-3`, `0x400`.
    pub fn from_text(text: &str) -> Option<Self> {
        if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            return Self::new(u128::from_str_radix(digits, 16).ok()?, 1);
        }
        let (digits, exponent) = match text.split_once(['e', 'E']) {
            Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        // The parser reads it as octal.
        if whole.len() > 1 && whole.starts_with('0') && digits == whole {
            return None;
        }
        let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if !is_digits(whole) || !is_digits(fraction) {
            return None;
        }
        let fraction = fraction.trim_end_matches('0');
        let significant: u128 = format!("{whole}{fraction}").parse().ok()?;
        let exponent = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
        let power = 10u128.checked_pow(exponent.unsigned_abs())?;
        if exponent < 0 { Self::new(significant, power) } else { Self::new(significant.checked_mul(power)?, 1) }
    }

    pub fn is_one(self) -> bool {
        self == Self::ONE
    }

    pub fn inverse(self) -> Self {
        Self { numerator: self.denominator, denominator: self.numerator }
    }

    /// `None` where it cannot be held exactly.
    pub fn times(self, other: Self) -> Option<Self> {
        // Crosswise first, so that the products stay small.
        let a = Self::new(self.numerator, other.denominator)?;
        let b = Self::new(other.numerator, self.denominator)?;
        Self::new(a.numerator.checked_mul(b.numerator)?, a.denominator.checked_mul(b.denominator)?)
    }

    pub fn divided_by(self, other: Self) -> Option<Self> {
        self.times(other.inverse())
    }

    pub fn power(self, exponent: u32) -> Option<Self> {
        Self::new(self.numerator.checked_pow(exponent)?, self.denominator.checked_pow(exponent)?)
    }

    /// Whether it is written as one multiplication or division.
    pub fn is_one_number(self) -> bool {
        self.numerator == 1 || self.number().is_some()
    }

    /// A power of 10 or of 1024: a step between units, rather than a quantity.
    pub fn is_power_of_unit(self) -> bool {
        let number = self.numerator.max(self.denominator);
        let is_power_of =
            |base: u128| (1..=12).filter_map(|power| base.checked_pow(power)).any(|power| power == number);
        self.numerator.min(self.denominator) == 1 && (is_power_of(10) || is_power_of(1024))
    }

    pub fn value(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }

    /// The number alone, where it has few digits: `80`, `0.8`, `1e6`.
    pub fn number(self) -> Option<String> {
        if self.denominator == 1 {
            return Some(integer(self.numerator));
        }
        let places = (1..=12).find(|places| 10u128.pow(*places) % self.denominator == 0)?;
        let scaled = self.numerator.checked_mul(10u128.pow(places) / self.denominator)?;
        let digits = format!("{scaled:0width$}", width = places as usize + 1);
        let (whole, fraction) = digits.split_at(digits.len() - places as usize);
        Some(format!("{whole}.{}", fraction.trim_end_matches('0')))
    }
}

/// As an operation: `* 100`, `/ 1e6`, `* 1048576 / 1000`.
impl fmt::Display for Factor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.numerator == 1 && self.denominator != 1 {
            return write!(formatter, "/ {}", integer(self.denominator));
        }
        match self.number() {
            Some(number) => write!(formatter, "* {number}"),
            None => write!(formatter, "* {} / {}", integer(self.numerator), integer(self.denominator)),
        }
    }
}

/// Many zeros as an exponent.
fn integer(number: u128) -> String {
    let text = number.to_string();
    let significant = text.trim_end_matches('0');
    let zeros = text.len() - significant.len();
    if zeros >= 6 && significant.len() <= 3 { format!("{significant}e{zeros}") } else { text }
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_of_the_units_are_exact_and_read_well() {
        for (value, written) in [
            (100.0, "* 100"),
            (0.01, "/ 100"),
            (1e6, "* 1e6"),
            (1e-6, "/ 1e6"),
            (0.001, "/ 1000"),
            (1_048_576.0, "* 1048576"),
            (1.0 / 1_048_576.0, "/ 1048576"),
            (1_024_000.0, "* 1024000"),
            (1e9, "* 1e9"),
            (1.048_576, "* 1.048576"),
        ] {
            let factor = Factor::from_number(value).expect("positive");
            assert_eq!(factor.to_string(), written);
            assert_eq!(factor.value(), value);
        }
        assert_eq!(Factor::new(1_048_576, 1000).expect("positive").to_string(), "* 1048.576");
        assert_eq!(Factor::new(2, 3).expect("positive").to_string(), "* 2 / 3");
    }

    #[test]
    fn numbers_are_read_as_prometheus_reads_them() {
        let value = |text| Factor::from_text(text).map(Factor::value);
        assert_eq!(value("1024"), Some(1024.0));
        assert_eq!(value("1e-3"), Some(0.001));
        assert_eq!(value("0x400"), Some(1024.0));
        assert_eq!(value(".5"), Some(0.5));
        assert_eq!(value("010"), None, "octal");
        assert_eq!(value("0"), None);
        assert_eq!(value("Inf"), None);
        assert_eq!(value("1e400"), None);
        assert_eq!(value(""), None);
    }
}
