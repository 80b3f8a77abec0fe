//! Lines and byte offsets of a text.

/// Start of each line.
#[derive(Debug)]
pub struct Lines(Vec<usize>);

impl Lines {
    pub fn new(text: &str) -> Self {
        Self(std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect())
    }

    /// The line, from 1, of a byte.
    pub fn line(&self, offset: usize) -> usize {
        self.0.partition_point(|start| *start <= offset)
    }
}

/// The byte at a line and a column, both from 1; the column counts bytes.
pub fn offset(text: &str, line: usize, column: usize) -> usize {
    let start = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum::<usize>();
    (start + column.saturating_sub(1)).min(text.len())
}
