//! What a line of the log may contain.

use std::borrow::Cow;
use std::io::{self, Write};

use tracing_appender::non_blocking::NonBlocking;
use tracing_subscriber::fmt::MakeWriter;

/// Passes lines on, each as one line.
pub struct LogLines(pub NonBlocking);

impl<'a> MakeWriter<'a> for LogLines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        Self(self.0.clone())
    }
}

impl Write for LogLines {
    /// One call is one line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write_all(one_line(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The line with every control character before its end escaped, and what would hide or reorder text: a name or a
/// message from elsewhere cannot imitate a separate line. In the same form as in JSON.
fn one_line(line: &str) -> Cow<'_, str> {
    let (text, end) = line.strip_suffix('\n').map_or((line, ""), |text| (text, "\n"));
    if !text.chars().any(must_be_escaped) {
        return Cow::Borrowed(line);
    }
    let mut escaped = String::with_capacity(line.len() + 16);
    for character in text.chars() {
        match character {
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            character if must_be_escaped(character) => escaped.push_str(&format!("\\u{:04x}", u32::from(character))),
            character => escaped.push(character),
        }
    }
    Cow::Owned(escaped + end)
}

fn must_be_escaped(character: char) -> bool {
    // Line and paragraph separators, and the marks that reverse the direction of writing.
    let reorders = matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    character.is_control() || reorders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_makes_no_line_of_its_own() {
        let forged = "WARN pod=\"a\nERROR forged\r\u{1b}[2J\u{85}\u{2028}\u{202e}b\t\"\n";
        assert_eq!(one_line(forged), "WARN pod=\"a\\nERROR forged\\r\\u001b[2J\\u0085\\u2028\\u202eb\\t\"\n");
        assert!(matches!(one_line("INFO plain text,日本 too\n"), Cow::Borrowed(_)));
    }
}
