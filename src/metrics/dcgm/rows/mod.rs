//! The rows of the table, by subject.

mod activity;
mod errors;
mod exporter;
mod interconnect;
mod labels;
mod memory;
mod power;

use super::name::Name;

pub use labels::ROWS as LABELS;

pub(super) static ALL: [&[Name]; 6] =
    [activity::ROWS, memory::ROWS, power::ROWS, errors::ROWS, interconnect::ROWS, exporter::ROWS];
