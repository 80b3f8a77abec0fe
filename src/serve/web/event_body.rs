//! Server-sent events as bytes: each compressed once for all of its subscribers, also those that do not accept gzip.
//!
//! In: the text of events. Out: the pieces of one subscriber's response. A subscriber's gzip stream is its header, the blocks
//! of its events, which refer to no other event, and a trailer with the sums of them.

use std::io::{Cursor, Read as _, Write as _};

use axum::body::Bytes;
use flate2::bufread::DeflateDecoder;
use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};

use super::body::{Coding, pieces};

/// The gzip header of RFC 1952: deflate, no name or time, an unknown system.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
/// An empty last block of RFC 1951.
const LAST_BLOCK: [u8; 2] = [3, 0];

/// The text of one event, as deflate blocks of which none is the last.
pub(super) struct EventBody {
    blocks: Bytes,
    sum: Crc,
}

/// What one subscriber gets.
pub(super) struct EventWriter {
    coding: Coding,
    sum: Crc,
}

pub(super) type Pieces = Box<dyn Iterator<Item = Bytes> + Send>;

impl EventBody {
    pub fn new(text: &str) -> Self {
        let mut sum = Crc::new();
        sum.update(text.as_bytes());
        let mut encoder = DeflateEncoder::new(vec![], Compression::fast());
        // The flush ends the blocks at a byte.
        let written = encoder.write_all(text.as_bytes()).and_then(|()| encoder.flush());
        written.expect("writing to memory does not fail");
        Self { blocks: std::mem::take(encoder.get_mut()).into(), sum }
    }
}

impl EventWriter {
    /// A writer, and the first bytes of the response.
    pub fn new(coding: Coding) -> (Self, Bytes) {
        let head = if coding == Coding::Gzip { &GZIP_HEADER[..] } else { &[] };
        (Self { coding, sum: Crc::new() }, Bytes::from_static(head))
    }

    pub fn event(&mut self, body: &EventBody) -> Pieces {
        match self.coding {
            Coding::Gzip => {
                self.sum.combine(&body.sum);
                Box::new(pieces(Cursor::new(body.blocks.clone())))
            }
            Coding::Identity => {
                let whole = Cursor::new(body.blocks.clone()).chain(Cursor::new(LAST_BLOCK));
                Box::new(pieces(DeflateDecoder::new(whole)))
            }
        }
    }

    /// The end of a stream.
    pub fn end(&self) -> Bytes {
        match self.coding {
            Coding::Gzip => {
                let sums = [self.sum.sum().to_le_bytes(), self.sum.amount().to_le_bytes()];
                [&LAST_BLOCK[..], &sums.concat()].concat().into()
            }
            Coding::Identity => Bytes::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn events_are_one_gzip_stream_from_whichever_is_the_first() {
        let texts: Vec<String> = (0..4).map(|number| format!("event {number}\n").repeat(40_000)).collect();
        let events: Vec<EventBody> = texts.iter().map(|text| EventBody::new(text)).collect();
        for first in 0..events.len() {
            for coding in [Coding::Gzip, Coding::Identity] {
                let (mut writer, head) = EventWriter::new(coding);
                let mut sent = head.to_vec();
                for event in &events[first..] {
                    writer.event(event).for_each(|piece| sent.extend_from_slice(&piece));
                }
                sent.extend_from_slice(&writer.end());
                let mut read = String::new();
                match coding {
                    Coding::Gzip => GzDecoder::new(&*sent).read_to_string(&mut read).unwrap(),
                    Coding::Identity => (&*sent).read_to_string(&mut read).unwrap(),
                };
                assert!(read == texts[first..].concat(), "{} bytes of {coding:?}", read.len());
            }
        }
    }
}
