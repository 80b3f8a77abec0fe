//! Counts as people write them. Pure.

use std::fmt::Display;

/// `1 GPU`, `2 GPUs`, `0 processes`.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let ending = match noun.ends_with('s') {
        _ if count == N::from(1) => "",
        true => "es",
        false => "s",
    };
    format!("{count} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_counted_as_many() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "GPU")), ["0 GPUs", "1 GPU", "2 GPUs"]);
        assert_eq!([1, 2].map(|count| counted(count, "process")), ["1 process", "2 processes"]);
    }
}
