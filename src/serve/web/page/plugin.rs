//! What the device plugin offers to the kubelet, and what it cannot offer.

use std::collections::BTreeMap;
use std::sync::Arc;

use maud::{Markup, html};

use super::{NUMBER, section, table};
use crate::domain::model::{AppliedProfile, DeviceId, PluginResource, PluginState};

/// The most unhealthy devices shown per resource; the snapshot has all.
const DEVICES_SHOWN: usize = 16;

/// The section of the plugin; open at first where something is wrong.
pub fn plugin(plugin: &PluginState) -> Markup {
    let (registered, all) =
        (plugin.resources.values().filter(|resource| resource.registered).count(), plugin.resources.len());
    let profile = plugin.profile.as_ref();
    let about = html! {
        (registered) " of " (all) " resources registered"
        @if let Some(name) = profile.and_then(|profile| profile.name.as_ref()) { ", profile " (name) }
    };
    let is_open = registered < all || !plugin.problems.is_empty();
    let body = html! {
        @if let Some(profile) = profile {
            p { (self::profile(profile)) }
        }
        @for problem in &plugin.problems {
            p.problem { (problem) }
        }
        @for (gpu, reason) in &plugin.avoided {
            p { "Given to pods last: " span.id { (gpu) } ": " (reason) "." }
        }
        @if plugin.resources.is_empty() {
            p { @if plugin.resources_complete { "There are no devices to offer." } @else { "Devices not read yet." } }
        } @else {
            (table(
                [("Resource", None), ("State", None), ("Healthy", NUMBER), ("Unhealthy", NUMBER), ("Why unhealthy", None)],
                plugin.resources.iter().map(|(name, resource)| {
                    let (healthy, unhealthy) = resource.count();
                    let [healthy, unhealthy] = [healthy, unhealthy].map(|count| html! { (count) });
                    let reasons = reasons(&resource.devices);
                    [html! { (name) }, html! { (state(resource)) }, healthy, unhealthy, reasons]
                }),
            ))
        }
    };
    section("plugin", "Device plugin", about, is_open, body)
}

fn profile(profile: &AppliedProfile) -> String {
    match (&profile.name, profile.decision) {
        (Some(name), _) => format!("Profile {name} of the configuration applies."),
        (None, "common") => "No profile of the configuration matches: the common settings apply.".to_owned(),
        (None, _) => {
            "Which profile of the configuration applies is decided once the driver reports the GPUs.".to_owned()
        }
    }
}

fn state(resource: &PluginResource) -> String {
    let why = |state: &str, reason: &Arc<str>| format!("{state}: {reason}");
    match resource {
        PluginResource { registered: true, conflict: Some(reason), .. } => why("registered", reason),
        PluginResource { registered: true, .. } => "registered".to_owned(),
        PluginResource { ended: Some(reason), .. } => why("ended", reason),
        PluginResource { conflict: Some(reason), .. } => why("waiting", reason),
        PluginResource { problem: Some(reason), .. } => why("not registered", reason),
        _ => "registering".to_owned(),
    }
}

/// Each reason once, with its devices.
fn reasons(devices: &BTreeMap<DeviceId, Option<Arc<str>>>) -> Markup {
    let mut reasons: BTreeMap<&str, Vec<&DeviceId>> = BTreeMap::new();
    for (device, reason) in devices {
        if let Some(reason) = reason {
            reasons.entry(reason).or_default().push(device);
        }
    }
    html! {
        @if reasons.is_empty() { "–" }
        @for (reason, devices) in reasons {
            div { (reason) }
            @for device in devices.iter().take(DEVICES_SHOWN) { div.id { (device) } }
            @if devices.len() > DEVICES_SHOWN { div { "and " (devices.len() - DEVICES_SHOWN) " more" } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::metrics::tests::fixture;

    fn page(of: &PluginState) -> String {
        plugin(of).into_string()
    }

    #[test]
    fn each_resource_has_a_state_and_reasons() {
        let mut plugin = PluginState::clone(fixture::snapshot().plugin.as_ref().unwrap());
        for (decision, name, expected) in [
            ("profile", Some("a100"), "Profile a100 of"),
            ("common", None, "No profile"),
            ("undecided", None, "decided once the driver"),
        ] {
            plugin.profile = Some(AppliedProfile { decision, name: name.map(Into::into) });
            assert!(page(&plugin).contains(expected), "{expected}");
        }
        plugin.profile = None;
        assert!(!page(&plugin).contains("rofile"));
        let text = page(&plugin);
        let row = |name: &str| text.split("<tr>").skip(1).find(|row| row.contains(name)).unwrap().to_owned();
        let gpu = row("nvidia.com/gpu");
        assert!(
            gpu.contains("registered") && gpu.contains("says that it is lost") && gpu.contains(fixture::LOST),
            "{gpu}"
        );
        assert!(!gpu.contains(fixture::WHOLE), "healthy");
        assert!(row("nvidia.com/mig-1g.10gb").contains("waiting: another device plugin serves it"));
        assert!(text.contains("MIG-9 &lt;b&gt;is not offered"), "{text}");

        let gpu = plugin.resources.get_mut(&"nvidia.com/gpu".into()).unwrap();
        (gpu.registered, gpu.problem) = (false, Some("the kubelet was restarted".into()));
        assert!(page(&plugin).contains("not registered: the kubelet was restarted"));
        plugin.resources.get_mut(&"nvidia.com/gpu".into()).unwrap().ended = Some("nothing is left".into());
        assert!(page(&plugin).contains("ended: nothing is left"));
    }

    #[test]
    fn no_devices_and_devices_not_read_yet_differ() {
        assert!(page(&PluginState::default()).contains("not read yet"));
        assert!(
            page(&PluginState { resources_complete: true, ..PluginState::default() }).contains("no devices to offer")
        );
    }
}
