use podmeter::client::{Answer, Node, Page};
use podmeter::conformance::{Anonymous, Observation, judge};
use podmeter::top;

/// What an agent answers to `podmeter top`, in JSON.
pub fn node_answer(bytes: &[u8]) {
    let Ok(node) = serde_json::from_slice::<Node>(bytes) else { return };
    let text = top::plain::text(&node);
    // It contains no terminal control sequence.
    let harmless = |letter: char| letter == '\n' || !letter.is_control();
    assert!(text.chars().all(harmless), "{text:?}");
}

/// A page of metrics of any exporter, as `podmeter conformance` and the doctor read it.
pub fn metrics_page(bytes: &[u8]) {
    let answer = Answer { content_type: Some("text/plain".to_owned()), body: bytes.to_vec() };
    let url = "http://node/metrics".to_owned();
    let report = judge(&Observation { url, is_https: false, answer, anonymous: Anonymous::Answered });
    let harmless = |letter: char| letter == '\n' || !letter.is_control();
    assert!(report.text(false, 80).chars().all(harmless), "{:?}", report.text(false, 80));
    let Some(page) = std::str::from_utf8(bytes).ok().and_then(|text| Page::parse(text).ok()) else { return };
    let text = String::from_utf8_lossy(bytes);
    for sample in &page.samples {
        // What was parsed is in the page.
        assert!(text.contains(sample.name) && sample.labels.iter().all(|(name, _)| text.contains(name)));
    }
    assert_eq!(report.samples, page.samples.len());
}
