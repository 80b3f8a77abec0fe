//! Grafana variables in an expression. Each becomes a token of the kind that its place needs, of the same length, so that the
//! parser accepts the text and every position stays.

use std::ops::Range;

/// An expression whose variables are replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filled {
    /// As long as the expression.
    pub text: String,
    /// Where the variables were, outside of strings.
    pub variables: Vec<Range<usize>>,
}

impl Filled {
    /// Whether a variable is in the range.
    pub fn is_variable(&self, range: &Range<usize>) -> bool {
        self.variables.iter().any(|variable| variable.start < range.end && range.start < variable.end)
    }
}

/// Replaces `$name`, `${name}`, `${name:format}` and `[[name]]` outside of strings and comments.
pub fn fill(expression: &str) -> Filled {
    let mut filled = Filled { text: expression.to_owned(), variables: vec![] };
    let bytes = expression.as_bytes();
    let mut at = 0;
    let mut in_range = false;
    let mut in_braces = false;
    // For each open parenthesis, whether a list of labels is in it.
    let mut parentheses: Vec<bool> = vec![];
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'"' | b'\'' | b'`') => {
                at = end_of_string(bytes, at, quote);
                continue;
            }
            b'#' => {
                at = bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |length| at + length);
                continue;
            }
            b'(' => parentheses.push(is_label_keyword(word_before(&filled.text, at))),
            b')' => {
                parentheses.pop();
            }
            b'{' => in_braces = true,
            b'}' => in_braces = false,
            b']' => in_range = false,
            b'[' | b'$' => {
                if let Some(length) = variable(&expression[at..]) {
                    let range = at..at + length;
                    let in_labels = in_braces || parentheses.last() == Some(&true);
                    let token = token(&filled.text, &range, in_range, in_labels);
                    filled.text.replace_range(range.clone(), &token);
                    at = range.end;
                    filled.variables.push(range);
                    continue;
                }
                in_range |= bytes[at] == b'[';
            }
            _ => {}
        }
        at += 1;
    }
    filled
}

/// The length of the variable at the start of `text`.
fn variable(text: &str) -> Option<usize> {
    let is_name = |name: &str| {
        let mut bytes = name.bytes();
        bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let closed = |inner: &str, close: &str| {
        let inner = &inner[..inner.find(close)?];
        let name = inner.split([':', '.']).next()?;
        (is_name(name) && !inner.contains(['\n', '"', '{'])).then_some(inner.len())
    };
    if let Some(inner) = text.strip_prefix("${") {
        return closed(inner, "}").map(|length| length + 3);
    }
    if let Some(inner) = text.strip_prefix("[[") {
        return closed(inner, "]]").map(|length| length + 4);
    }
    let name = text.strip_prefix('$')?;
    let length = name.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
    is_name(&name[..length]).then_some(length + 1)
}

/// What stands for the variable at `range`, as long as it.
fn token(text: &str, range: &Range<usize>, in_range: bool, in_labels: bool) -> String {
    let length = range.len();
    let number = format!("{:0>length$}", "1");
    let duration = format!("{:0>length$}", "1m");
    let identifier = format!("{:_<length$}", "v");
    let before = &text[..range.start];
    let after = &text[range.end..];
    let is_word = |character: char| character.is_ascii_alphanumeric() || character == '_' || character == ':';
    if in_range {
        // `[${seconds}s]`
        return if after.starts_with(|next: char| next.is_ascii_alphabetic()) { number } else { duration };
    }
    if in_labels || before.ends_with(is_word) || after.starts_with(is_word) {
        return identifier;
    }
    let previous = before.trim_end();
    if word_before(text, range.start) == "offset"
        || previous.ends_with('-') && previous[..previous.len() - 1].trim_end().ends_with("offset")
    {
        return duration;
    }
    let next = after.trim_start();
    if next.starts_with(['{', '[', '(']) || previous.ends_with('(') && next.starts_with(')') {
        return identifier;
    }
    number
}

/// The word that ends before `at`, with blanks between.
fn word_before(text: &str, at: usize) -> &str {
    let before = text[..at].trim_end();
    let start = before.rfind(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    &before[start.map_or(0, |start| start + before[start..].chars().next().map_or(1, char::len_utf8))..]
}

fn is_label_keyword(word: &str) -> bool {
    ["by", "without", "on", "ignoring", "group_left", "group_right"]
        .iter()
        .any(|keyword| word.eq_ignore_ascii_case(keyword))
}

/// After the closing quote.
fn end_of_string(bytes: &[u8], start: usize, quote: u8) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if quote != b'`' => at += 1,
            byte if byte == quote => return at + 1,
            _ => {}
        }
        at += 1;
    }
    // A backslash may be the last byte.
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &str, expect: &str) {
        assert_eq!(fill(input).text, expect);
        assert_eq!(input.len(), expect.len());
    }

    #[test]
    fn a_variable_becomes_the_token_that_its_place_needs() {
        check("rate(X[$__rate_interval])", "rate(X[000000000000001m])");
        check("max_over_time(X[$range:${step}])", "max_over_time(X[00001m:000001m])");
        check("X > $limit", "X > 000001");
        check("sum by ($label, gpu) (X)", "sum by (v_____, gpu) (X)");
        check("sum by (${label:csv}) (X)", "sum by (v___________) (X)");
        check("X{gpu=~\"$gpu\", pod=~\"[[pod]]\"}", "X{gpu=~\"$gpu\", pod=~\"[[pod]]\"}");
        check("X[[[interval]]]", "X[00000000001m]");
        check("X[${seconds}s]", "X[0000000001s]");
        check("X offset $shift", "X offset 00001m");
        check("X offset -$shift", "X offset -00001m");
        check("DCGM_FI_DEV_$metric", "DCGM_FI_DEV_v______");
        check("${metric}{gpu=\"0\"}", "v________{gpu=\"0\"}");
        check("topk($n, X)", "topk(01, X)");
        check("X # $comment\n", "X # $comment\n");
    }
}
