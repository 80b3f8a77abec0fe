//! The live page: plain tables, no outside asset, no script. Whatever is not known is a dash.

mod plugin;

use std::fmt::Display;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::model::{Account, Attribution, Collector, DeviceReadings, Gpu, Holding, Medium, Moment, Snapshot};

const STYLE: &str = "\
:root{color-scheme:light dark;font:15px/1.45 system-ui,sans-serif}\
body{margin:1rem auto;max-width:78rem;padding:0 1rem}\
h1{font-size:1.3rem}h2{font-size:1.05rem;margin-top:1.6rem}\
.scroll{overflow-x:auto}\
table{border-collapse:collapse;width:100%}\
th,td{text-align:left;padding:.25rem .7rem .25rem 0;border-bottom:1px solid #8885;vertical-align:top}\
th{font-weight:600;white-space:nowrap}\
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\
.id{font-size:.8em;min-width:10rem;opacity:.75;overflow-wrap:anywhere}\
.problem{border-left:.3rem solid #d33;padding:.2rem .7rem}";

/// In the table of devices; all of them are in the table of containers.
const HOLDERS_SHOWN: usize = 4;

/// `not_ready` is the reason why the agent is not ready, if it is not.
pub(super) fn page(snapshot: &Snapshot, now: Moment, not_ready: Option<String>) -> String {
    let hardware = &snapshot.hardware;
    let journal = snapshot.journal.as_ref().and_then(|journal| journal.problem.as_deref());
    let journal = journal.map(|problem| format!("the journal of allocations is not written: {problem}"));
    let problems =
        [not_ready.as_deref(), hardware.problem.as_deref(), snapshot.kubelet.problem.as_deref(), journal.as_deref()];
    let title = if snapshot.node_name.is_empty() { "podmeter" } else { &*snapshot.node_name };
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="refresh" content="10";
                title { (title) " · podmeter" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                p { "podmeter " (env!("CARGO_PKG_VERSION")) ", " (driver(snapshot)) ", up for " (span(now.monotonic.as_duration().as_secs())) }
                @for problem in problems.into_iter().flatten() {
                    p.problem { (problem) }
                }
                h2 { "Devices" }
                (devices(snapshot))
                h2 { "Containers" }
                (containers(snapshot, now))
                @if let Some(plugin) = &snapshot.plugin {
                    h2 { "Device plugin" }
                    (plugin::section(plugin))
                }
                h2 { "Freshness" }
                (freshness(snapshot, now))
                p {
                    a href="/metrics" { "metrics" } " · " a href="/metrics/dcgm" { "metrics under DCGM names" } " · "
                    a href="/api/v1/node" { "snapshot as JSON" } " · " a href="/-/ready" { "readiness" } " · "
                    a href="/-/healthy" { "health" }
                }
            }
        }
    }
    .into_string()
}

fn driver(snapshot: &Snapshot) -> String {
    let hardware = &snapshot.hardware;
    match (&hardware.inventory.driver, hardware.source) {
        (Some(driver), "simulated") => format!("simulated driver {}", driver.driver_version),
        (Some(driver), _) => format!("driver {}", driver.driver_version),
        (None, "none") => "reading no hardware".to_owned(),
        (None, _) => "no driver".to_owned(),
    }
}

fn devices(snapshot: &Snapshot) -> Markup {
    let hardware = &snapshot.hardware;
    if hardware.inventory.gpus.is_empty() {
        return html! { p { "No GPU has been seen." } };
    }
    let mut gpus: Vec<&Gpu> = hardware.inventory.gpus.values().collect();
    gpus.sort_by_key(|gpu| gpu.index);
    html! {
        div.scroll { table {
            tr {
                th { "GPU" } th { "Model" } th { "State" } th.number { "Busy" } th.number { "SM active" }
                th.number { "Memory" } th.number { "Power" } th.number { "Heat" } th { "Held by" }
            }
            @for gpu in gpus {
                (device(snapshot, gpu, hardware.readings.get(&gpu.uuid).map(|readings| &**readings)))
            }
        } }
    }
}

fn device(snapshot: &Snapshot, gpu: &Gpu, readings: Option<&DeviceReadings>) -> Markup {
    let fast = readings.and_then(|readings| readings.fast.as_ref()).map(|stamped| &stamped.value);
    let medium: Option<&Medium> = readings.and_then(|readings| readings.medium.as_ref()).map(|stamped| &stamped.value);
    let memory = medium.and_then(|medium| medium.memory);
    let mut holders: Vec<String> = snapshot
        .accounts
        .iter()
        .filter(|account| account.gpu == gpu.uuid && account.holding.is_some())
        .map(|account| account.container.to_string())
        .collect();
    holders.sort();
    holders.dedup();
    html! {
        tr {
            td { (gpu.index) div.id { (gpu.uuid) } }
            td { (known(gpu.model.as_deref())) }
            td { (state(snapshot, gpu, readings)) }
            td.number { (percent(fast.and_then(|fast| fast.utilization_ratio))) }
            td.number { (percent(medium.and_then(|medium| medium.gpm.sm_active))) }
            td.number { (of(memory.map(|memory| memory.used), memory.map(|memory| memory.total))) }
            td.number { (unit(fast.and_then(|fast| fast.power_watts), "W")) }
            td.number { (unit(medium.and_then(|medium| medium.gpu_temperature_celsius), "°C")) }
            td { @if holders.is_empty() { "–" }
                @for holder in holders.iter().take(HOLDERS_SHOWN) { div { (holder) } }
                @if holders.len() > HOLDERS_SHOWN { div { "and " (holders.len() - HOLDERS_SHOWN) " more" } }
            }
        }
    }
}

/// The verdict and why.
fn state(snapshot: &Snapshot, gpu: &Gpu, readings: Option<&DeviceReadings>) -> Markup {
    let Some(health) = snapshot.health.gpus.get(&gpu.uuid) else { return html! { "not checked" } };
    let parts = health.instances.iter().filter(|(_, part)| !part.healthy);
    html! {
        @if health.whole.healthy {
            "healthy" @if gpu.mig_enabled == Some(true) { ", MIG" } @if readings.is_none() { ", no readings" }
            @for (mig, part) in parts {
                @for cause in &part.causes { div.problem { (mig) " unhealthy: " (cause.detail) } }
            }
        } @else {
            "unhealthy"
            @for cause in &health.whole.causes {
                " " (cause.reason.as_str())
                div.problem title=(format!("comes back by: {}", cause.clears)) { (cause.detail) }
            }
        }
    }
}

fn containers(snapshot: &Snapshot, now: Moment) -> Markup {
    if snapshot.accounts.is_empty() {
        return html! { p { "No container holds a GPU." } };
    }
    let mut accounts: Vec<&Account> = snapshot.accounts.iter().collect();
    accounts
        .sort_by(|one, other| (&one.container, &one.gpu, &one.mig).cmp(&(&other.container, &other.gpu, &other.mig)));
    html! {
        div.scroll { table {
            tr {
                th { "Namespace" } th { "Pod" } th { "Container" } th { "Device" } th { "Sharing" }
                th.number { "Use" } th.number { "Memory" } th.number { "Held" } th.number { "Busy" } th.number { "Idle" }
                th.number { "Energy" } th.number { "Last active" }
            }
            @for account in accounts { (container(account, now)) }
        } }
    }
}

fn container(account: &Account, now: Moment) -> Markup {
    let now_values = account.holding.as_ref().map(|_| account);
    let since_active = account.last_active.map(|then| (now.unix.0 - then.0).max(0.0));
    html! {
        tr {
            td { (account.container.namespace) }
            td { (account.container.pod) }
            td { (account.container.container) }
            td.id { @if let Some(mig) = &account.mig { (mig) } @else { (account.gpu) } }
            td { (account.holding.as_ref().map_or_else(|| "ended".to_owned(), sharing)) }
            td.number { (percent(now_values.and_then(|account| account.utilization_ratio))) }
            td.number { (of(
                now_values.and_then(|account| account.memory_used_bytes),
                now_values.and_then(|account| account.memory_limit_bytes),
            )) }
            td.number { (known(account.allocated_seconds.map(|seconds| span(seconds as u64)))) }
            td.number { (known(account.busy_seconds.map(|seconds| span(seconds as u64)))) }
            td.number { (known(account.idle_seconds.map(|seconds| span(seconds as u64)))) }
            td.number { (known(account.energy_joules.map(|joules| format!("{:.3} kWh", joules / 3.6e6)))) }
            td.number { (known(since_active.map(|seconds| format!("{} ago", span(seconds as u64))))) }
        }
    }
}

fn sharing(holding: &Holding) -> String {
    let name = |text: &str| text.replace('_', " ");
    match holding.attribution {
        Some(Attribution::Exclusive) | None => name(holding.sharing.as_str()),
        Some(method) => format!("{} ({})", name(holding.sharing.as_str()), name(method.as_str())),
    }
}

fn freshness(snapshot: &Snapshot, now: Moment) -> Markup {
    let kubelet = &snapshot.kubelet;
    let tiers = snapshot.hardware.collectors.iter().map(|(name, collector)| (*name, collector));
    html! {
        div.scroll { table {
            tr { th { "Source" } th { "Last run" } th.number { "Last success" } th.number { "Took" } }
            @for (name, collector) in [("kubelet", &kubelet.collector)].into_iter().chain(tiers) {
                tr {
                    td { (name) }
                    td { (outcome(collector)) }
                    td.number { (known(collector.last_success.map(|then| ago(now, then)))) }
                    td.number { (known(collector.duration.map(|took| format!("{:.1} ms", took.as_secs_f64() * 1e3)))) }
                }
            }
            tr {
                td { "allocations in use" }
                td { @if kubelet.relation.is_none() { "–" } @else if kubelet.settled { "settled" } @else { "settling" } }
                td.number { (known(kubelet.relation_at.map(|then| ago(now, then)))) }
                td.number { "–" }
            }
        } }
    }
}

fn outcome(collector: &Collector) -> &'static str {
    match collector {
        Collector { stuck: true, .. } => "stuck",
        Collector { success: true, .. } => "succeeded",
        _ => "failed or not yet run",
    }
}

fn ago(now: Moment, then: Moment) -> String {
    format!("{} ago", span(now.monotonic.since(then.monotonic).as_secs()))
}

fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

fn percent(ratio: Option<f64>) -> String {
    unit(ratio.map(|ratio| ratio * 100.0), "%")
}

fn unit(value: Option<f64>, unit: &str) -> String {
    known(value.map(|value| format!("{value:.0} {unit}")))
}

fn of(used: Option<u64>, total: Option<u64>) -> String {
    let gibibytes = |bytes: Option<u64>| known(bytes.map(|bytes| format!("{:.1}", bytes as f64 / f64::from(1 << 30))));
    match (used, total) {
        (None, None) => "–".to_owned(),
        (used, total) => format!("{} of {} GiB", gibibytes(used), gibibytes(total)),
    }
}

fn known(value: Option<impl Display>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::fixture;

    #[test]
    fn foreign_names_cannot_become_markup() {
        let mut snapshot = fixture::snapshot();
        snapshot.node_name = "<script>alert(1)</script>".into();
        let page = page(&snapshot, snapshot.at, Some("<img src=x>".into()));
        assert!(!page.contains("<script") && !page.contains("<img") && !page.contains("<b>"), "{page}");
        assert!(page.contains("ev&quot;il\\pod\n} 1 &lt;b&gt;&amp;amp;β€"), "{page}");
    }

    #[test]
    fn absent_is_a_dash() {
        let snapshot = fixture::snapshot();
        let page = page(&snapshot, snapshot.at, None);
        let lost =
            page.split("<tr>").find(|row| row.contains(fixture::LOST) && row.contains("unhealthy lost")).unwrap();
        assert!(lost.matches("<td class=\"number\">–</td>").count() == 5, "{lost}");
        assert!(!page.contains("http://") && !page.contains("https://"), "no outside asset");
    }

    #[test]
    fn the_verdict_is_shown_with_its_reason_and_the_sick_part() {
        let snapshot = fixture::snapshot();
        let page = page(&snapshot, snapshot.at, None);
        let row = |gpu: &str| page.split("<tr>").find(|row| row.contains(gpu)).unwrap();
        assert!(row(fixture::WHOLE).contains("healthy") && !row(fixture::WHOLE).contains("unhealthy"));
        assert!(row(fixture::LOST).contains("the driver no longer lists it"));
        let partitioned = row(fixture::PARTITIONED);
        assert!(partitioned.contains(&format!("{} unhealthy: XID 95", fixture::OTHER_SLICE)), "{partitioned}");
        assert!(!partitioned.contains(&format!("{} unhealthy", fixture::SLICE)));
    }

    #[test]
    fn an_empty_node_says_so() {
        let page = page(&Snapshot::default(), Moment::default(), Some("no snapshot yet".into()));
        assert!(page.contains("No GPU has been seen.") && page.contains("no snapshot yet"));
    }

    #[test]
    fn spans_are_short() {
        let spans = [59, 61, 3_660, 90_000].map(span);
        assert_eq!(spans, ["59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]);
    }
}
