//! Where each byte of a scalar's value stands in the text: what lets a change of a few bytes of the value replace a few bytes of
//! the text, whatever quotes, escapes, folds and indentation are around them.

use std::ops::Range;

/// A value as it is decoded from a text, piece by piece.
#[derive(Debug, Default)]
pub struct Decoded {
    pub text: String,
    /// In order, without gaps in the value.
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Piece {
    value: Range<usize>,
    source: Range<usize>,
    /// The same bytes in the value as in the text. Otherwise the piece is one character, such as an escape or a fold.
    verbatim: bool,
}

impl Decoded {
    /// Appends bytes of the text as they are.
    pub fn verbatim(&mut self, text: &str, source: Range<usize>) {
        if source.is_empty() {
            return;
        }
        let start = self.text.len();
        self.text.push_str(&text[source.clone()]);
        let value = start..self.text.len();
        match self.pieces.last_mut() {
            Some(last) if last.verbatim && last.source.end == source.start => {
                last.value.end = value.end;
                last.source.end = source.end;
            }
            _ => self.pieces.push(Piece { value, source, verbatim: true }),
        }
    }

    /// Appends a character that is written otherwise in the text.
    pub fn special(&mut self, character: char, source: Range<usize>) {
        let start = self.text.len();
        self.text.push(character);
        self.pieces.push(Piece { value: start..self.text.len(), source, verbatim: false });
    }

    /// Cuts the value.
    pub fn truncate(&mut self, length: usize) {
        self.text.truncate(length);
        self.pieces.retain(|piece| piece.value.start < length);
        if let Some(last) = self.pieces.last_mut()
            && last.verbatim
            && last.value.end > length
        {
            last.source.end -= last.value.end - length;
            last.value.end = length;
        }
    }

    /// Position of a byte of the value in the text; the end of the last piece for the end of the value.
    pub fn start(&self, offset: usize) -> Option<usize> {
        match self.pieces.binary_search_by(|piece| piece.value.start.cmp(&offset)) {
            Ok(found) => Some(self.pieces[found].source.start),
            Err(0) => None,
            Err(after) => {
                let piece = &self.pieces[after - 1];
                if offset >= piece.value.end {
                    Some(piece.source.end)
                } else {
                    Some(piece.source.start + if piece.verbatim { offset - piece.value.start } else { 0 })
                }
            }
        }
    }

    /// The bytes of the text for bytes of the value that begin and end with whole characters. An insertion stands before the
    /// character that follows it, thus after the indentation.
    pub fn source(&self, value: &Range<usize>) -> Option<Range<usize>> {
        let start = self.start(value.start)?;
        if value.is_empty() {
            return Some(start..start);
        }
        let after = self.pieces.partition_point(|piece| piece.value.start < value.end);
        let last = self.pieces.get(after.checked_sub(1)?)?;
        let end = if last.verbatim {
            last.source.start + (value.end - last.value.start)
        } else {
            // With a line break goes the indentation after it.
            self.pieces.get(after).map_or(last.source.end, |next| next.source.start)
        };
        Some(start..end)
    }
}
