//! Pages as bytes, rendered on first request and kept until a request for a newer snapshot.

use std::collections::BTreeMap;
use std::io::Write as _;

use parking_lot::Mutex;
use prost::bytes::Bytes;

use super::dcgm::{self, Generation};
use super::{exposition, families};
use crate::model::Snapshot;

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

/// The content coding of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Coding {
    Identity,
    Gzip,
}

/// Renders each snapshot at most once per format, and packs it at most once per coding.
#[derive(Debug, Default)]
pub struct Pages {
    cache: Mutex<Cache>,
}

#[derive(Debug, Default)]
struct Cache {
    sequence: u64,
    bytes: BTreeMap<(Format, Coding), Bytes>,
}

impl Pages {
    /// The page if it is cached: cheap, and enough for most scrapes.
    #[must_use]
    pub fn ready(&self, snapshot: &Snapshot, format: Format, coding: Coding) -> Option<Bytes> {
        // The lock's holder may be rendering; do not wait for it here.
        let cache = self.cache.try_lock()?;
        if cache.sequence == snapshot.sequence { cache.bytes.get(&(format, coding)).cloned() } else { None }
    }

    /// The page, rendered now if necessary: milliseconds for a thousand series. Concurrent requests for it wait and
    /// share it.
    pub fn page(&self, snapshot: &Snapshot, format: Format, coding: Coding) -> Bytes {
        let mut cache = self.cache.lock();
        if snapshot.sequence < cache.sequence {
            // A scrape of a newer snapshot was first; its pages are kept.
            drop(cache);
            return packed(&rendered(snapshot, format), coding);
        }
        if snapshot.sequence > cache.sequence {
            *cache = Cache { sequence: snapshot.sequence, bytes: BTreeMap::new() };
        }
        if let Some(bytes) = cache.bytes.get(&(format, coding)) {
            return bytes.clone();
        }
        let plain = match cache.bytes.get(&(format, Coding::Identity)) {
            Some(plain) => plain.clone(),
            None => rendered(snapshot, format),
        };
        cache.bytes.insert((format, Coding::Identity), plain.clone());
        let bytes = packed(&plain, coding);
        cache.bytes.insert((format, coding), bytes.clone());
        bytes
    }
}

fn rendered(snapshot: &Snapshot, format: Format) -> Bytes {
    match format {
        Format::Text => exposition::text(&families(snapshot)).into(),
        Format::OpenMetrics => exposition::open_metrics(&families(snapshot)).into(),
        Format::Protobuf => exposition::protobuf(&families(snapshot)).into(),
        Format::Dcgm(generation) => exposition::text(&dcgm::families(snapshot, generation)).into(),
    }
}

/// At the lowest level: the page is repetitive enough, and CPU time matters more.
fn packed(plain: &Bytes, coding: Coding) -> Bytes {
    match coding {
        Coding::Identity => plain.clone(),
        Coding::Gzip => {
            let buffer = Vec::with_capacity(plain.len() / 8);
            let mut encoder = flate2::write::GzEncoder::new(buffer, flate2::Compression::fast());
            let packed = encoder.write_all(plain).and_then(|()| encoder.finish());
            packed.expect("writing to memory does not fail").into()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::metrics::tests::fixture;

    #[test]
    fn a_page_is_made_once_per_snapshot() {
        let pages = Pages::default();
        let snapshot = fixture::snapshot();
        assert!(pages.ready(&snapshot, Format::Text, Coding::Identity).is_none());
        let first = pages.page(&snapshot, Format::Text, Coding::Identity);
        let second = pages.ready(&snapshot, Format::Text, Coding::Identity).unwrap();
        assert_eq!(first.as_ptr(), second.as_ptr(), "the same bytes, not a copy");

        let mut next = fixture::snapshot();
        next.sequence += 1;
        assert!(pages.ready(&next, Format::Text, Coding::Identity).is_none());
        pages.page(&next, Format::Text, Coding::Identity);
        assert!(pages.ready(&snapshot, Format::Text, Coding::Identity).is_none(), "the old page is dropped");
    }

    #[test]
    fn an_overtaken_scrape_gets_its_own_page() {
        let pages = Pages::default();
        let old = fixture::snapshot();
        let mut new = fixture::snapshot();
        new.sequence += 1;
        new.process.open_files = Some(4711);
        let of_new = pages.page(&new, Format::Text, Coding::Identity);
        let of_old = pages.page(&old, Format::Text, Coding::Identity);
        assert_ne!(of_new, of_old);
        assert_eq!(pages.ready(&new, Format::Text, Coding::Identity), Some(of_new));
    }

    #[test]
    fn packed_pages_unpack_to_the_plain_one() {
        let pages = Pages::default();
        let snapshot = fixture::snapshot();
        let plain = pages.page(&snapshot, Format::OpenMetrics, Coding::Identity);
        let gzip = pages.page(&snapshot, Format::OpenMetrics, Coding::Gzip);
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(gzip.as_ref()).read_to_end(&mut unpacked).unwrap();
        assert_eq!(unpacked, plain);
    }
}
