//! A line of the log: logfmt, as Prometheus and its exporters write, or JSON.
//!
//! In: an event. Out: one line, of limited length, whatever text is in the event. Does not write it.

use std::error::Error;
use std::fmt::{self, Debug, Write as _};

use tracing::Event;
use tracing::field::{Field, Visit};

use crate::agent::LogFormat;
use crate::domain::model::{Timestamp, UnixSeconds};

/// Characters of a text, which may be another program's.
const LONGEST: usize = 500;
/// The limit of a message, which may quote such a text.
const LONGEST_MESSAGE: usize = 2 * LONGEST;

/// The event as a line, with its end.
pub fn log_line(event: &Event<'_>, at: UnixSeconds, format: LogFormat) -> String {
    let mut fields = Fields::default();
    event.record(&mut fields);
    let (metadata, text) = (event.metadata(), |text: &str| FieldValue::Text(text.to_owned()));
    let (time, message) = match format {
        LogFormat::Text => ("time", "msg"),
        LogFormat::Json => ("timestamp", "message"),
    };
    let head = [
        (time, FieldValue::Text(format!("{:.6}", Timestamp(at)))),
        ("level", text(metadata.level().as_str())),
        (message, FieldValue::Text(fields.message)),
    ];
    let all = head.into_iter().chain(fields.others);
    match format {
        LogFormat::Text => {
            let all = all.map(|(name, value)| format!("{name}={}", value.logfmt()));
            all.collect::<Vec<_>>().join(" ") + "\n"
        }
        LogFormat::Json => {
            let all = all.chain([("target", text(metadata.target()))]);
            let all = all.map(|(name, value)| format!("\"{name}\":{}", value.json()));
            format!("{{{}}}\n", all.collect::<Vec<_>>().join(","))
        }
    }
}

enum FieldValue {
    Text(String),
    /// A number or a truth value.
    Plain(String),
}

impl FieldValue {
    fn json(&self) -> String {
        match self {
            Self::Text(text) => quoted(text),
            Self::Plain(text) => text.clone(),
        }
    }

    /// In quotes where a parser would not read it otherwise.
    fn logfmt(&self) -> String {
        let ends_it = |letter: char| letter.is_whitespace() || matches!(letter, '=' | '"' | '\\') || is_hidden(letter);
        match self {
            Self::Text(text) if text.is_empty() || text.contains(ends_it) => quoted(text),
            Self::Text(text) | Self::Plain(text) => text.clone(),
        }
    }
}

/// Quotes a text with the escapes of JSON, which logfmt has too.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            letter if is_hidden(letter) => quoted.push_str(&format!("\\u{:04x}", u32::from(letter))),
            letter => quoted.push(letter),
        }
    }
    quoted + "\""
}

/// Control characters, line and paragraph separators, and the marks that reverse the direction of writing.
fn is_hidden(letter: char) -> bool {
    let reorders = matches!(letter, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    letter.is_control() || reorders
}

#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, FieldValue)>,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let longest = match field.name() {
            "message" => LONGEST_MESSAGE,
            // Of this process, and useless without its end.
            "backtrace" => usize::MAX,
            _ => LONGEST,
        };
        let mut text = Cut { text: String::new(), left: longest };
        // An error: it has been cut.
        let _ = write!(text, "{value:?}");
        match field.name() {
            "message" => self.message = text.text,
            name => self.others.push((name, FieldValue::Text(text.text))),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.others.push((field.name(), FieldValue::Plain(value.to_string())));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.others.push((field.name(), FieldValue::Plain(value.to_string())));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.others.push((field.name(), FieldValue::Plain(value.to_string())));
    }
}

/// A text that takes so many characters more. What does not fit ends the formatting.
struct Cut {
    text: String,
    left: usize,
}

impl fmt::Write for Cut {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        match part.char_indices().nth(self.left) {
            None => {
                self.left -= part.chars().count();
                self.text.push_str(part);
                Ok(())
            }
            Some((end, _)) => {
                self.text.push_str(&part[..end]);
                self.text.push('…');
                Err(fmt::Error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::{Context, SubscriberExt as _};
    use tracing_subscriber::{Layer, Registry};

    use super::*;

    struct CapturedLines(LogFormat, Arc<Mutex<String>>);

    impl Layer<Registry> for CapturedLines {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, Registry>) {
            self.1.lock().unwrap().push_str(&log_line(event, UnixSeconds(0.0), self.0));
        }
    }

    fn logged(format: LogFormat, log: impl FnOnce()) -> String {
        let lines = Arc::<Mutex<String>>::default();
        tracing::subscriber::with_default(Registry::default().with(CapturedLines(format, Arc::clone(&lines))), log);
        lines.lock().unwrap().clone()
    }

    #[test]
    fn a_text_with_spaces_is_one_field() {
        let log = || {
            let detail = std::path::Path::new("XID 79 (the GPU has fallen off the bus)");
            tracing::warn!(gpus = 2, marked = true, reason = "xid", detail = %detail.display(), was = "", "not {:?}", "a");
        };
        assert_eq!(
            logged(LogFormat::Text, log),
            "time=1970-01-01T00:00:00.000000Z level=WARN msg=\"not \\\"a\\\"\" gpus=2 marked=true reason=xid \
             detail=\"XID 79 (the GPU has fallen off the bus)\" was=\"\"\n"
        );
        assert_eq!(
            logged(LogFormat::Json, log),
            "{\"timestamp\":\"1970-01-01T00:00:00.000000Z\",\"level\":\"WARN\",\"message\":\"not \\\"a\\\"\",\"gpus\":2,\
             \"marked\":true,\"reason\":\"xid\",\"detail\":\"XID 79 (the GPU has fallen off the bus)\",\"was\":\"\",\
             \"target\":\"podmeter::commands::cli::log_line::tests\"}\n"
        );
    }

    #[test]
    fn foreign_text_makes_no_line_of_its_own() {
        let forged = "a\nlevel=ERROR\r\u{1b}[2J\u{85}\u{2028}\u{202e}b\t\"\\日";
        for format in [LogFormat::Text, LogFormat::Json] {
            let line = logged(format, || tracing::info!(pod = forged, "{forged}"));
            let escaped = "\"a\\nlevel=ERROR\\r\\u001b[2J\\u0085\\u2028\\u202eb\\t\\\"\\\\日\"";
            assert_eq!((line.matches(escaped).count(), line.lines().count()), (2, 1), "{line}");
        }
    }

    #[test]
    fn foreign_text_does_not_fill_the_log() {
        let long = "日".repeat(1_000_000);
        let line = logged(LogFormat::Text, || tracing::info!(%long, short = "x".repeat(LONGEST), "{long}"));
        let cut = |longest| "日".repeat(longest) + "…";
        assert!(line.contains(&format!(" long={} short={}\n", cut(LONGEST), "x".repeat(LONGEST))), "{line}");
        assert!(line.contains(&format!(" msg={} ", cut(LONGEST_MESSAGE))), "{line}");
    }
}
