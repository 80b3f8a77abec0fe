//! The condition in one line of plain ASCII. In: status and devices. Out: as many devices as fit. Does not know snapshots.

use itertools::Itertools as _;

use super::{ConditionStatus, DeviceCondition};
use crate::words::counted;

/// node-problem-detector cuts longer output where its configuration says so; the recipe gives the same number.
pub const BYTES: usize = 512;
/// The most pods that are named for one device.
const PODS: usize = 8;
/// The most characters of a text of the driver or an operator.
const DETAIL: usize = 120;

/// The status in one line: the worst devices first, and how many did not fit.
pub fn message(status: ConditionStatus, healthy: usize, problem: Option<&str>, devices: &[DeviceCondition]) -> String {
    let mut sentences: Vec<String> = devices.iter().sorted_by_key(|device| device.status).map(sentence).collect();
    let general = problem.map(|problem| plain(problem, DETAIL));
    match (status, general) {
        // What was seen comes before what is not known.
        (ConditionStatus::Unhealthy, Some(general)) => sentences.push(general),
        (_, Some(general)) => sentences.insert(0, general),
        (ConditionStatus::Healthy, None) => {
            let verb = if healthy == 1 { "is" } else { "are" };
            sentences.insert(0, format!("{} {verb} healthy", counted(healthy, "GPU")));
        }
        (_, None) => {}
    }
    fitted(&sentences)
}

fn sentence(device: &DeviceCondition) -> String {
    let gpu = match device.gpu {
        Some(index) => format!("GPU {index} ({})", device.gpu_uuid),
        None => format!("GPU {}", device.gpu_uuid),
    };
    let name = device.mig_uuid.as_ref().map_or(gpu.clone(), |mig| format!("{mig} of {gpu}"));
    let reasons: Vec<&str> = device.reasons.iter().map(|reason| &*reason.reason).collect();
    let detail = device.reasons.first().map_or("", |reason| &*reason.detail);
    let pods = match &device.pods {
        None => "unknown".to_owned(),
        Some(pods) if pods.is_empty() => "none".to_owned(),
        Some(pods) => {
            let more = (pods.len() + device.pods_omitted).saturating_sub(PODS);
            let named = pods.iter().take(PODS).map(String::as_str).collect::<Vec<_>>().join(", ");
            if more > 0 { format!("{named} and {more} more") } else { named }
        }
    };
    let action = device.recovery_action.as_ref().map_or_else(String::new, |action| format!("; action {action}"));
    let text =
        format!("{name}: {} since {}{action}; pods {pods}; {}", reasons.join("+"), device.since, plain(detail, DETAIL));
    plain(&text, BYTES)
}

/// The sentences that fit, and how many did not.
fn fitted(sentences: &[String]) -> String {
    let more = |left: usize| if left > 0 { format!(" | and {left} more") } else { String::new() };
    (1..=sentences.len())
        .rev()
        .map(|shown| sentences[..shown].join(" | ") + &more(sentences.len() - shown))
        .find(|text| text.len() <= BYTES)
        .unwrap_or_else(|| plain(sentences.first().map_or("", String::as_str), BYTES))
}

/// Printable ASCII that a shell, a JSON string and a cut at any byte leave intact.
fn plain(text: &str, limit: usize) -> String {
    let harmless = |letter: char| match letter {
        '"' | '`' | '\'' => None,
        '\\' => Some('_'),
        ' '..='~' => Some(letter),
        _ => Some('?'),
    };
    text.chars().filter_map(harmless).take(limit).collect()
}
