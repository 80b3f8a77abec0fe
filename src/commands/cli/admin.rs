//! The commands of the admin socket: mark, unmark, clear-faults, release, resume.

use std::time::{Duration, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::arguments::{AdminSocket, DeviceArguments, MarkArguments, ReleaseArguments};
use super::{FAILED, Failed, block_on, print};
use crate::commands::client::{self, AgentTarget, ClientError, DEFAULT_SOCKET};
use crate::domain::health::{DeviceCause, OrderOutcome};
use crate::domain::model::Snapshot;
use crate::terminal::harmless;

pub fn mark(arguments: MarkArguments) -> Result<(), Failed> {
    let MarkArguments { device, reason, duration, socket } = arguments;
    let expiry = duration.map(|duration| duration.to_string());
    let end = duration.map_or_else(String::new, |duration| format!(" for {duration}"));
    let order = json!({"device": device, "reason": reason, "expiry": expiry});
    let OrderOutcome { device, .. } = send(&target(socket), "/mark", order)?;
    print(&format!(
        "Device {device} is marked as unhealthy{end}: no new pod gets it; containers that hold it keep running.\n\
         `podmeter unmark {device}` removes the mark; so does a reboot of the node.\n"
    ))
}

pub fn unmark(arguments: DeviceArguments) -> Result<(), Failed> {
    remove(arguments, "/unmark", "has no mark")
}

pub fn clear_faults(arguments: DeviceArguments) -> Result<(), Failed> {
    remove(arguments, "/clear-faults", "has no fault that an operator can clear")
}

/// Prints each cause that was removed and each that remains.
fn remove(arguments: DeviceArguments, path: &str, nothing: &str) -> Result<(), Failed> {
    let DeviceArguments { device, socket } = arguments;
    let outcome: OrderOutcome = send(&target(socket), path, json!({"device": device}))?;
    let mut text = String::new();
    if outcome.removed.is_empty() {
        text += &format!("Device {} {nothing}: nothing changes.\n", outcome.device);
    }
    for DeviceCause { device, cause } in &outcome.removed {
        text += &format!("Removed from {device}: {}.\n", harmless(&cause.detail));
    }
    for DeviceCause { device, cause } in &outcome.remaining {
        text += &format!("{device} is still unhealthy: {}; {}.\n", harmless(&cause.detail), harmless(&cause.clears));
    }
    if outcome.remaining.is_empty() {
        text += &format!("No cause is left that makes device {} unhealthy.\n", outcome.device);
    }
    print(&text)
}

pub fn release(arguments: ReleaseArguments) -> Result<(), Failed> {
    let ReleaseArguments { duration, socket } = arguments;
    let response: Value = send(&target(socket), "/release", json!({"for": duration.to_string()}))?;
    let until = response["until"].as_f64().and_then(|until| Duration::try_from_secs_f64(until).ok());
    let until = until.map_or_else(
        || format!("for {duration}"),
        |until| format!("until {}", humantime::format_rfc3339_seconds(UNIX_EPOCH + until)),
    );
    print(&format!(
        "The driver is closed {until}: reset GPUs, change the MIG layout or upgrade it now.\n\
         `podmeter resume` opens it again.\n"
    ))
}

pub fn resume(socket: AdminSocket) -> Result<(), Failed> {
    let target = target(socket);
    let node = block_on(client::json::<Snapshot>(&target, "/api/v1/node"))?.ok();
    send::<Value>(&target, "/resume", Value::Null)?;
    if node.is_some_and(|node| node.hardware.released.is_none()) {
        return print("The driver was not released: nothing changes.\n");
    }
    print("The release has ended: the agent opens the driver again.\n")
}

fn target(socket: AdminSocket) -> AgentTarget {
    AgentTarget::Socket(socket.path().unwrap_or_else(|| DEFAULT_SOCKET.into()))
}

fn send<T: DeserializeOwned>(target: &AgentTarget, path: &str, body: Value) -> Result<T, Failed> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    block_on(client::command(target, path, body))?.map_err(|error| Failed(FAILED, explained(error)))
}

/// The admin socket is the only way: there is no URL to try.
fn explained(error: ClientError) -> String {
    match error {
        ClientError::Unreachable { target, error } => format!(
            "{target} cannot be reached: {error}; run this as root on the agent's node or in its pod (kubectl exec -n \
             NAMESPACE POD -- podmeter ...), or give its --admin-socket"
        ),
        ClientError::Refused { text, .. } if !text.is_empty() => format!("the agent refused: {text}"),
        error => error.to_string(),
    }
}
