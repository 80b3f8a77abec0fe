//! `podmeter-migrate FILE…`

fn main() {}
