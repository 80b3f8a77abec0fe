//! The text of the page, cut at its cards, rows and sections, so that an event has only those that changed.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use maud::{Markup, PreEscaped};

/// Marks the start and the end of a part. No foreign text contains it: maud escapes it.
const EDGE: &str = "<!---->";

/// Marks an element with a `data-key`, and without other parts in it, as a part that events omit while it is the same.
/// Where it moves into another element, its text must differ.
pub(super) fn part(element: Markup) -> Markup {
    PreEscaped([EDGE, &element.0, EDGE].concat())
}

pub(super) fn without_edges(text: Markup) -> String {
    text.0.replace(EDGE, "")
}

/// Hashes of the parts of a text.
pub(in crate::serve::web) type PartHashes = BTreeSet<u64>;

/// The whole text, the text of what has changed since the parts `last`, and the new parts. The second has an empty
/// element with `data-same` and the key in place of each unchanged part.
pub(in crate::serve::web) fn changes(text: Markup, last: &PartHashes) -> (String, String, PartHashes) {
    let (mut whole, mut changed, mut parts) = (String::with_capacity(text.0.len()), String::new(), PartHashes::new());
    for (index, piece) in text.0.split(EDGE).enumerate() {
        whole.push_str(piece);
        if index % 2 == 1 {
            let mut hasher = DefaultHasher::new();
            piece.hash(&mut hasher);
            let hash = hasher.finish();
            parts.insert(hash);
            if last.contains(&hash) {
                changed.push_str(&stub(piece));
                continue;
            }
        }
        changed.push_str(piece);
    }
    (whole, changed, parts)
}

fn stub(part: &str) -> String {
    let tag = part[1..].split([' ', '>']).next().unwrap_or_default();
    let key = part.split("data-key=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
    format!("<{tag} data-key=\"{key}\" data-same></{tag}>")
}

#[cfg(test)]
mod tests {
    use maud::html;

    use super::*;

    #[test]
    fn a_part_that_is_the_same_is_left_out_and_keeps_its_place() {
        let text = |busy: u32| {
            html! { p { (busy) } ul { (part(html! { li.a data-key="<1>" { "same" } })) (part(html! { li data-key="2" { (busy) } })) } }
        };
        let (whole, first, parts) = changes(text(1), &PartHashes::new());
        assert_eq!((&whole, &whole), (&first, &without_edges(text(1))));
        assert_eq!(whole, "<p>1</p><ul><li class=\"a\" data-key=\"&lt;1&gt;\">same</li><li data-key=\"2\">1</li></ul>");
        let (whole, changed, parts) = changes(text(2), &parts);
        assert_eq!(whole, without_edges(text(2)));
        assert_eq!(changed, "<p>2</p><ul><li data-key=\"&lt;1&gt;\" data-same></li><li data-key=\"2\">2</li></ul>");
        assert!(changes(text(2), &parts).1.contains("<li data-key=\"2\" data-same>"));
    }

    #[test]
    fn escaped_text_cannot_end_a_part() {
        let text = html! { (part(html! { li data-key="1" { (EDGE) } })) };
        assert_eq!(changes(text, &PartHashes::new()).0, "<li data-key=\"1\">&lt;!----&gt;</li>");
    }
}
