use podmeter::client::{Node, Page};
use podmeter::top;

/// What an agent answers to `podmeter top`, in JSON.
pub fn node_answer(bytes: &[u8]) {
    let Ok(node) = serde_json::from_slice::<Node>(bytes) else { return };
    let text = top::plain::text(&node);
    // It contains no terminal control sequence.
    let harmless = |letter: char| letter == '\n' || !letter.is_control();
    assert!(text.chars().all(harmless), "{text:?}");
}

/// A page of metrics, as the doctor reads it.
pub fn metrics_page(bytes: &[u8]) {
    let Some(page) = std::str::from_utf8(bytes).ok().and_then(|text| Page::parse(text).ok()) else { return };
    let text = String::from_utf8_lossy(bytes);
    for sample in &page.samples {
        // What was parsed is in the page.
        assert!(text.contains(sample.name) && sample.labels.iter().all(|(name, _)| text.contains(name)));
    }
}
