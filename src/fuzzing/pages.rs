use crate::client::Node;
use crate::top;

/// What an agent answers to `podmeter top`, in JSON.
///
/// # Panics
///
/// As `device_id`.
pub fn node_answer(bytes: &[u8]) {
    let Ok(node) = serde_json::from_slice::<Node>(bytes) else { return };
    let text = top::plain::text(&node);
    // Nothing in it commands the terminal.
    let harmless = |letter: char| letter == '\n' || !letter.is_control();
    assert!(text.chars().all(harmless), "{text:?}");
}
