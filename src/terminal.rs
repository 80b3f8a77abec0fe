//! Text for a terminal: names without control characters, and aligned columns.
//!
//! Input: any text. Output: printable text. Does not write.

use std::borrow::Cow;
use std::fmt::Write as _;

use textwrap::{Options, WordSplitter};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// The substitute for a character that must not be shown.
const SUBSTITUTE: char = '\u{FFFD}';
/// The least columns of text beside a head.
const LEAST_COLUMNS: usize = 24;
/// The most characters of a name. A container's full name has at most 380.
const LONGEST: usize = 400;

/// Makes untrusted text harmless for a terminal: characters that move the cursor, change the writing direction or are
/// invisible are replaced.
pub fn harmless(text: &str) -> String {
    let visible = |letter: char| if letter.width().is_some_and(|width| width > 0) { letter } else { SUBSTITUTE };
    text.chars().map(visible).collect()
}

/// Makes a name harmless, and cuts it to the longest length.
pub fn clean(text: &str) -> String {
    let end = text.char_indices().nth(LONGEST).map_or(text.len(), |(end, _)| end);
    harmless(&text[..end])
}

/// The text in exactly this many columns: padded, or cut with an ellipsis.
pub fn fit(text: &str, columns: usize, right: bool) -> String {
    let width = text.width();
    if width <= columns {
        let padding = " ".repeat(columns - width);
        return if right { padding + text } else { text.to_owned() + &padding };
    }
    let mut kept = String::new();
    for letter in text.chars() {
        kept.push(letter);
        if kept.width() + 1 > columns {
            kept.pop();
            break;
        }
    }
    if columns > 0 {
        kept.push('…');
    }
    let padding = columns.saturating_sub(kept.width());
    kept + &" ".repeat(padding)
}

/// A table with a line per row: the first `texts` columns aligned to the left, the others to the right.
pub fn aligned(table: &[Vec<String>], texts: usize) -> String {
    let table: Vec<Vec<String>> = table.iter().map(|row| row.iter().map(|cell| clean(cell)).collect()).collect();
    let mut widths: Vec<usize> = vec![];
    for row in &table {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.width().max(*width);
        }
    }
    let mut text = String::new();
    for row in &table {
        let cells =
            row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| fit(cell, *width, column >= texts));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// The text in lines of at most this many columns, wrapped at spaces where there are any.
pub fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let options = Options::new(columns.max(1)).word_splitter(WordSplitter::NoHyphenation);
    textwrap::wrap(text, options).into_iter().map(Cow::into_owned).collect()
}

/// Writes `text` after the head, which is as wide as the indent of the lines below it, or under the head. A word, such as a
/// path, stays whole.
pub fn write_wrapped(output: &mut String, head: &str, indent: usize, text: &str, columns: usize) {
    let text = harmless(text);
    let longest = text.split(' ').map(str::width).max().unwrap_or(0);
    let (mut head, mut indent) = (head, indent);
    // The space beside the head is too narrow.
    if columns < indent + text.width().min(longest.max(LEAST_COLUMNS)) && !head.is_empty() {
        let _ = writeln!(output, "{}", head.trim_end());
        indent = head.len() - head.trim_start().len() + 2;
        head = "";
    }
    let below = " ".repeat(indent);
    let options = Options::new(columns).word_splitter(WordSplitter::NoHyphenation).break_words(false);
    let options = options.initial_indent(if head.is_empty() { &below } else { head }).subsequent_indent(&below);
    let _ = writeln!(output, "{}", textwrap::fill(&text, options));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_text_cannot_control_the_terminal() {
        assert_eq!(harmless("a\x1b[2Jb\nc\u{202e}d\u{200b}e\u{9b}"), "a�[2Jb�c�d�e�");
        assert_eq!(harmless("日本 ok"), "日本 ok");
        assert_eq!(clean(&"日".repeat(9999)), "日".repeat(LONGEST));
    }

    #[test]
    fn text_fills_its_columns() {
        for text in ["", "a", "abcdef", "日本語日本語", "a日b本c", "e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}"] {
            for columns in 0..9 {
                assert_eq!(fit(text, columns, false).width(), columns, "{text:?} in {columns}");
                assert_eq!(fit(text, columns, true).width(), columns, "{text:?} in {columns}");
            }
        }
        assert_eq!(fit("abcdef", 4, false), "abc…");
        assert_eq!(fit("日本語", 4, false), "日… ");
        assert_eq!(fit("7", 3, true), "  7");
    }

    #[test]
    fn columns_are_aligned_for_any_name() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        assert_eq!(aligned(&[row(["NAME", "N"]), row(["a", "10"])], 1), "NAME   N\na     10\n");
        assert_eq!(aligned(&[row(["日本", "1"]), row(["\x1b[2J", "10"])], 2), "日本  1\n�[2J  10\n");
        let long = aligned(&[row([&"x".repeat(70_000), "1"])], 1);
        assert_eq!(long.len(), LONGEST + "  1\n".len());
    }

    #[test]
    fn a_path_is_not_broken_and_goes_under_a_head_that_leaves_no_room() {
        let path = "/var/lib/kubelet/pod-resources/kubelet.sock";
        let written = |columns| {
            let mut text = String::new();
            write_wrapped(&mut text, "failed   PodResources  ", 23, &format!("{path}: no such file, or none"), columns);
            text
        };
        assert_eq!(written(80), format!("failed   PodResources  {path}: no such\n{:23}file, or none\n", ""));
        assert_eq!(written(50), format!("failed   PodResources\n  {path}: no\n  such file, or none\n"));
        assert_eq!(written(24), format!("failed   PodResources\n  {path}:\n  no such file, or none\n"));
    }

    #[test]
    fn lines_are_wrapped_at_spaces_and_long_words_anywhere() {
        assert_eq!(wrapped("a bc def", 4), ["a bc", "def"]);
        assert_eq!(wrapped("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrapped("日本語", 4), ["日本", "語"]);
        assert_eq!(wrapped("", 4), [""]);
        assert_eq!(wrapped("日", 0), ["日"]);
    }
}
