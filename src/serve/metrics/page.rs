//! The page of metrics in each format, written a family at a time.

use std::io::{self, Write};

use super::dcgm::{self, Generation};
use super::exposition::{END, protobuf, push_family};
use super::families;
use super::family::Family;
use crate::domain::model::Snapshot;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Prometheus text 0.0.4.
    Text,
    OpenMetrics,
    /// Delimited `io.prometheus.client.MetricFamily`.
    Protobuf,
    /// dcgm-exporter's names, as text 0.0.4.
    Dcgm(Generation),
}

/// Writes the page of a snapshot, one family after the other: no page is in memory as a whole. Returns how many
/// accounts `Format::Dcgm` leaves off; 0 for the others, whose accounts `SeriesBudget` has marked. An error is one of `to`.
pub fn write(snapshot: &Snapshot, format: Format, to: &mut impl Write) -> io::Result<usize> {
    let mut text = String::new();
    let mut one = |family: Family| {
        if format == Format::Protobuf {
            return to.write_all(&protobuf(&family));
        }
        text.clear();
        push_family(&mut text, &family, format == Format::OpenMetrics);
        to.write_all(text.as_bytes())
    };
    if let Format::Dcgm(generation) = format {
        return dcgm::each_family(snapshot, generation, &mut one);
    }
    families(snapshot).try_for_each(one)?;
    if format == Format::OpenMetrics {
        to.write_all(END.as_bytes())?;
    }
    Ok(0)
}
