//! The commands of the admin socket: mark, unmark, release, resume.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};

use super::arguments::{AdminSocket, MarkArguments, ReleaseArguments, UnmarkArguments};
use super::{FAILED, Failed, block_on, print};
use crate::commands::client::{self, AgentTarget, ClientError, DEFAULT_SOCKET};
use crate::serve::api::NodeResponse;

pub fn mark(arguments: MarkArguments) -> Result<(), Failed> {
    let MarkArguments { device, reason, duration, socket } = arguments;
    let expiry = duration.map(|duration| duration.to_string());
    let end = expiry.as_ref().map_or_else(String::new, |expiry| format!(" for {expiry}"));
    let response = send(&target(socket), "/mark", json!({"device": device, "reason": reason, "expiry": expiry}))?;
    let device = response["device"].as_str().unwrap_or(&device);
    print(&format!(
        "Device {device} is marked as unhealthy{end}: no new pod gets it; containers that hold it keep running.\n\
         `podmeter unmark {device}` removes the mark; so does a reboot of the node.\n"
    ))
}

pub fn unmark(arguments: UnmarkArguments) -> Result<(), Failed> {
    let UnmarkArguments { device, socket } = arguments;
    let target = target(socket);
    // Without a snapshot it is not known whether there was a mark.
    let node = block_on(client::json::<NodeResponse>(&target, "/api/v1/node"))?.ok();
    let response = send(&target, "/unmark", json!({"device": device}))?;
    let device = response["device"].as_str().unwrap_or(&device);
    if node.is_some_and(|node| has_no_causes(&node, device)) {
        return print(&format!("Device {device} was neither marked nor unhealthy: nothing changes.\n"));
    }
    print(&format!(
        "The mark of device {device} and its reasons that have ended are removed; faults that the driver still reports \
         remain.\n"
    ))
}

pub fn release(arguments: ReleaseArguments) -> Result<(), Failed> {
    let ReleaseArguments { duration, socket } = arguments;
    let response = send(&target(socket), "/release", json!({"for": duration.to_string()}))?;
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
    let node = block_on(client::json::<NodeResponse>(&target, "/api/v1/node"))?.ok();
    send(&target, "/resume", Value::Null)?;
    if node.is_some_and(|node| node.hardware.released.is_none()) {
        return print("The driver was not released: nothing changes.\n");
    }
    print("The release has ended: the agent opens the driver again.\n")
}

/// `device`: a UUID.
fn has_no_causes(node: &NodeResponse, device: &str) -> bool {
    let health = node.health.gpus.iter().find_map(|(gpu, health)| match gpu.as_str() == device {
        true => Some(&health.whole),
        false => health.mig_devices.iter().find(|(mig, _)| mig.as_str() == device).map(|(_, health)| health),
    });
    health.is_some_and(|health| health.causes.is_empty())
}

fn target(socket: AdminSocket) -> AgentTarget {
    AgentTarget::Socket(socket.path().unwrap_or_else(|| DEFAULT_SOCKET.into()))
}

fn send(target: &AgentTarget, path: &str, body: Value) -> Result<Value, Failed> {
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
