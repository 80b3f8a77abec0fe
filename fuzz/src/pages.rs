use crate::commands::top;
use crate::domain::model::Snapshot;

/// What an agent answers to `podmeter top`, in JSON.
pub fn node_answer(bytes: &[u8]) {
    let Ok(node) = serde_json::from_slice::<Snapshot>(bytes) else { return };
    let text = top::text(&node);
    // It contains no terminal control sequence.
    let harmless = |letter: char| letter == '\n' || !letter.is_control();
    assert!(text.chars().all(harmless), "{text:?}");
}
