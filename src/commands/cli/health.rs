//! `podmeter health`: the condition of the node's devices, as text and as an exit code.

use serde_json::json;

use super::arguments::{HealthArguments, HealthFormat};
use super::{ENDED, Failed, block_on, print};
use crate::clock::Clock;
use crate::commands::client::{self, NoCondition};
use crate::domain::condition::SCHEMA;
use crate::serve::api::{ConditionStatus, DeviceCondition, NodeCondition};
use crate::terminal::clean;

/// The exit codes of custom plugins of node-problem-detector.
const UNHEALTHY: u8 = 1;
const UNKNOWN: u8 = 2;

/// The exit code. A failure of this command is no fault of a device.
pub fn run(arguments: HealthArguments) -> Result<u8, Failed> {
    check(arguments).map_err(|Failed(_, message)| Failed(UNKNOWN, message))
}

/// Without an answer the condition is unknown; that is a result too, on standard output.
fn check(arguments: HealthArguments) -> Result<u8, Failed> {
    let HealthArguments { output, file, agent } = arguments;
    let now = Clock::start().now().unix.0;
    let condition = match file {
        Some(file) => client::condition_in(&file, now),
        None => block_on(client::condition(&agent.target()?, now))?,
    };
    print(&match output {
        HealthFormat::Text => text(&condition),
        HealthFormat::Json => json_of(&condition),
        HealthFormat::Npd => line(&condition),
    })?;
    Ok(code(&condition))
}

fn code(condition: &Result<NodeCondition, NoCondition>) -> u8 {
    match condition.as_ref().map(|condition| condition.status) {
        Ok(ConditionStatus::Healthy) => ENDED,
        Ok(ConditionStatus::Unhealthy) => UNHEALTHY,
        _ => UNKNOWN,
    }
}

fn line(condition: &Result<NodeCondition, NoCondition>) -> String {
    match condition {
        Ok(condition) => clean_line(&condition.message),
        Err(error) => clean_line(&error.to_string()),
    }
}

fn clean_line(text: &str) -> String {
    // A message is longer than the name that `clean` cuts to.
    crate::terminal::harmless(text) + "\n"
}

fn json_of(condition: &Result<NodeCondition, NoCondition>) -> String {
    match condition {
        Ok(condition) => condition.json(),
        Err(error) => {
            let value = json!({"schema": SCHEMA, "status": "unknown", "message": error.to_string()});
            serde_json::to_string_pretty(&value).expect("plain values are JSON") + "\n"
        }
    }
}

fn text(condition: &Result<NodeCondition, NoCondition>) -> String {
    let Ok(condition) = condition else { return format!("unknown: {}", line(condition)) };
    let mut text = format!("{}: {}", condition.status.into_str(), clean_line(&condition.message));
    for device in &condition.devices {
        text += &device_text(device);
    }
    text
}

fn device_text(device: &DeviceCondition) -> String {
    let index = device.gpu.map_or_else(String::new, |index| format!("GPU {index} "));
    let mig = device.mig_uuid.as_ref().map_or_else(String::new, |mig| format!("{} of ", clean(mig.as_str())));
    let mut text = format!(
        "\n{mig}{index}{} is {} since {}\n",
        clean(device.gpu_uuid.as_str()),
        device.status.into_str(),
        clean(&device.since)
    );
    for reason in &device.reasons {
        text += &format!("  {}: {}; {}\n", clean(&reason.reason), clean(&reason.detail), clean(&reason.clears));
    }
    if let Some(action) = &device.recovery_action {
        text += &format!("  the driver requests: {}\n", clean(action));
    }
    let more = if device.pods_omitted > 0 { format!(" and {} more", device.pods_omitted) } else { String::new() };
    text + &match &device.pods {
        None => "  pods: unknown until the kubelet answers\n".to_owned(),
        Some(pods) if pods.is_empty() => "  pods: none\n".to_owned(),
        Some(pods) => format!("  pods: {}{more}\n", pods.iter().map(|pod| clean(pod)).collect::<Vec<_>>().join(", ")),
    }
}
