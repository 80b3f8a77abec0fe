//! A strict reader of logfmt: what it accepts, the readers of log collectors do.

/// The fields of a line, or what is wrong with it: no field without a value, no quotation mark inside a value.
pub fn fields(line: &str) -> Result<Vec<(String, String)>, String> {
    let (mut fields, mut rest) = (vec![], line);
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=').ok_or_else(|| format!("no = in {rest:?}"))?;
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '.';
        if name.is_empty() || !name.chars().all(is_name) {
            return Err(format!("{name:?} is no name, in {line}"));
        }
        let (value, after) = if after.starts_with('"') { quoted(after)? } else { bare(after)? };
        fields.push((name.to_owned(), value));
        rest = match after.strip_prefix(' ') {
            Some(next) if !next.is_empty() => next,
            None if after.is_empty() => after,
            _ => return Err(format!("{after:?} follows {name}, in {line}")),
        };
    }
    Ok(fields)
}

fn bare(text: &str) -> Result<(String, &str), String> {
    let (value, rest) = text.split_at(text.find(' ').unwrap_or(text.len()));
    match value.is_empty() || value.contains(['=', '"', '\\']) || value.contains(char::is_control) {
        true => Err(format!("{value:?} needs quotation marks")),
        false => Ok((value.to_owned(), rest)),
    }
}

/// As in JSON.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<String>();
    let value = values.next().expect("it begins with one").map_err(|error| format!("{error} in {text}"))?;
    Ok((value, &text[values.byte_offset()..]))
}
