//! The page as a whole.

use std::sync::Arc;

use super::view::Sort;
use super::*;
use crate::domain::model::{Attribution, SharingForm, UnhealthyReason};
use crate::serve::metrics::tests::fixture;

fn rendered(snapshot: &Snapshot, not_ready: Option<&str>) -> String {
    seen(snapshot, not_ready, View::default())
}

fn seen(snapshot: &Snapshot, not_ready: Option<&str>, view: View) -> String {
    let mut history = NodeHistory::default();
    history.add(snapshot);
    let not_ready = not_ready.map(str::to_owned);
    NodePage { snapshot, history: &history, now: snapshot.at, not_ready, view }.whole()
}

/// The row of this device or container.
fn row<'a>(page: &'a str, key: &str) -> &'a str {
    let start = page.find(&format!("data-key=\"{key}")).expect("it has a row");
    page[start..].split("</details>").next().unwrap()
}

#[test]
fn a_tile_distinguishes_a_part_of_the_gpus_from_all_and_unknown_from_none() {
    let mut snapshot = fixture::snapshot();
    let tile = |snapshot: &Snapshot, label| {
        let page = rendered(snapshot, None);
        let tile = page.split(&format!("<dt>{label}</dt>")).nth(1).unwrap();
        tile.split("</dd>").next().unwrap().to_owned()
    };
    for label in ["Busy now", "Memory", "Power"] {
        assert!(tile(&snapshot, label).contains("2 of 4 GPUs known"), "{}", tile(&snapshot, label));
    }
    assert!(!tile(&snapshot, "Held and idle").contains("data-value"), "{}", tile(&snapshot, "Held and idle"));
    snapshot.accounts.clear();
    assert!(tile(&snapshot, "Held and idle").contains("data-value=\"0.000\""));
}

#[test]
fn no_free_slot_is_not_shown_as_good() {
    let mut snapshot = fixture::snapshot();
    for (free, class) in [(2, "free"), (0, "free none")] {
        let device = &mut snapshot.overview.devices[0];
        (device.slots, device.free_slots) = (Some(125), Some(free));
        let page = rendered(&snapshot, None);
        let shown = format!(
            "<p class=\"{class}\"><b data-figure=\"free\" data-value=\"{free}.000\">{free}</b> of 125 slots free"
        );
        assert!(page.contains(&shown), "{page}");
    }
}

#[test]
fn equal_division_is_shown_with_its_remedy_and_each_percentage_is_of_the_device() {
    let mut snapshot = fixture::snapshot();
    assert!(!rendered(&snapshot, None).contains("divided equally"));
    snapshot.processes = None;
    let account = &mut snapshot.accounts[0];
    (account.utilization_ratio, account.gpu_utilization_ratio) = (Some(1.0), Some(0.34));
    let holding = account.holding.as_mut().unwrap();
    (holding.sharing, holding.fraction) = (SharingForm::TimeSlicing, Some(0.25));
    holding.attribution = Some(Attribution::EqualShare);
    let page = rendered(&snapshot, None);
    assert!(page.contains("is divided equally among their holders: hostPID is off; with hostPID=true"), "{page}");
    let row = row(&page, &format!("research/training-0/main {}", fixture::WHOLE));
    assert!(row.contains("data-figure=\"busy-now\" data-value=\"0.340\">34\u{a0}%<"), "not 100 % of its slot: {row}");
    assert!(row.contains("time slicing, holds 25\u{a0}%, in equal parts"), "{row}");
}

fn only_marked() -> Snapshot {
    let mut snapshot = fixture::snapshot();
    for health in Arc::make_mut(&mut snapshot.health).gpus.values_mut() {
        for device in [&mut health.whole].into_iter().chain(health.mig_devices.values_mut()) {
            device.causes.iter_mut().for_each(|cause| cause.reason = UnhealthyReason::Admin);
        }
    }
    snapshot
}

#[test]
fn a_mark_is_no_fault_and_a_gpu_that_is_not_served_has_no_unknown_model() {
    let page = rendered(&only_marked(), None);
    assert!(page.contains("2 marked, 1 not served") && !page.contains(" unhealthy, "), "{page}");
    assert!(page.contains(">marked</span>") && !page.contains("model unknown"), "{page}");
}

#[test]
fn names_are_escaped() {
    let mut snapshot = fixture::snapshot();
    snapshot.node_name = "<script>alert(1)</script>".into();
    let page = rendered(&snapshot, Some("<img src=x>"));
    assert_eq!(page.matches("<script").count(), 1, "our own");
    assert!(!page.contains("<img") && !page.contains("<b>&amp;"), "{page}");
    assert!(page.contains("ev&quot;il\\pod\n") && page.contains(" 1 &lt;b&gt;&amp;amp;β€"), "{page}");
}

#[test]
fn unknown_is_a_dash_and_a_hatched_chart() {
    let page = rendered(&fixture::snapshot(), None);
    let lost = row(&page, fixture::LOST);
    assert!(lost.contains("<b data-figure=\"busy-now\">–</b>"), "{lost}");
    for chart in ["busy, last 5 min: unknown", "power, last 5 min: unknown"] {
        assert!(lost.contains(&format!("aria-label=\"{chart}\"")) && !lost.contains("<path"), "{lost}");
    }
}

#[test]
fn nothing_is_loaded_from_other_servers() {
    let page = rendered(&fixture::snapshot(), None);
    // An XML namespace, which is not loaded.
    let page = page.replace("xmlns='http://www.w3.org/2000/svg'", "");
    for word in ["http:", "https:", "src=", "@import", "url("] {
        assert!(!page.contains(word), "{word}");
    }
    assert!(!page.contains(" style=") && !page.contains(" onclick"), "the policy would refuse it");
}

#[test]
fn the_health_is_shown_with_its_cause_and_the_unhealthy_part() {
    let page = rendered(&fixture::snapshot(), None);
    assert!(row(&page, fixture::WHOLE).contains(">healthy<"));
    let lost = row(&page, fixture::LOST);
    assert!(lost.contains("the driver no longer lists it; recovers after a reset.</p>"), "{lost}");
    assert!(row(&page, fixture::OTHER_SLICE).contains("XID 95"));
    assert!(!row(&page, fixture::SLICE).contains("unhealthy"));
}

#[test]
fn every_link_has_a_target() {
    let page = rendered(&fixture::snapshot(), None);
    let links: BTreeSet<&str> = page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    for link in &links {
        assert!(page.contains(&format!("id=\"{link}\"")), "#{link} has no target");
    }
    assert_eq!(links.len(), 5, "{links:?}");
}

#[test]
fn containers_are_sorted_as_chosen_and_the_ended_come_last() {
    let snapshot = fixture::snapshot();
    let pods = |sort: Sort| -> Vec<String> {
        let page = seen(&snapshot, None, View { sort, ..View::default() });
        let table = page.split("<table class=\"containers\"").nth(1).unwrap().to_owned();
        let keys = table.split("<tr").skip(1).filter_map(|row| row.split('>').next()?.split("data-key=\"").nth(1));
        keys.map(|key| key.split('"').next().unwrap().to_owned()).collect()
    };
    let by_name = pods(Sort::Name);
    let held = snapshot.accounts.iter().filter(|account| account.holding.is_some()).count();
    assert!(by_name[..held].is_sorted(), "{by_name:?}");
    let by_energy = pods(Sort::Energy);
    assert_ne!(by_name, by_energy);
    let most = snapshot.accounts.iter().filter(|account| account.holding.is_some());
    let most = most
        .max_by(|one, other| one.counters.energy_joules.partial_cmp(&other.counters.energy_joules).unwrap())
        .unwrap();
    assert!(by_energy[0].starts_with(&most.container.to_string()), "{by_energy:?}");
    assert_eq!(by_name.len(), by_energy.len());
}

#[test]
fn busy_beyond_the_time_held_is_called_borrowed() {
    let mut snapshot = fixture::snapshot();
    snapshot.accounts.truncate(1);
    snapshot.accounts[0].counters.borrowed_seconds = None;
    assert!(!rendered(&snapshot, None).contains(" borrowed"));
    (snapshot.accounts[0].counters.busy_seconds, snapshot.accounts[0].counters.borrowed_seconds) =
        (Some(20.0), Some(10.0));
    assert!(rendered(&snapshot, None).contains("data-value=\"10.000\">10 s</b> borrowed"));
}

#[test]
fn those_that_ended_over_a_minute_ago_are_folded() {
    let mut snapshot = fixture::snapshot();
    snapshot.accounts.truncate(1);
    snapshot.accounts[0].holding = None;
    snapshot.accounts[0].ended = Some(snapshot.at);
    assert!(!rendered(&snapshot, None).contains("ended over a minute ago"));
    snapshot.at.monotonic = snapshot.at.monotonic + std::time::Duration::from_secs(60);
    assert!(rendered(&snapshot, None).contains("1 ended over a minute ago"));
}

/// The row has the same text in another table: an event that omitted it would leave an empty row.
#[test]
fn a_row_that_moves_to_those_that_ended_long_ago_is_sent_again() {
    let mut snapshot = fixture::snapshot();
    snapshot.accounts.truncate(1);
    snapshot.accounts[0].holding = None;
    snapshot.accounts[0].ended = Some(snapshot.at);
    let mut last = parts::PartHashes::new();
    for (seconds, is_left_out) in [(30, false), (59, true), (60, false), (61, true)] {
        let history = NodeHistory::default();
        let mut now = snapshot.at;
        now.monotonic = now.monotonic + std::time::Duration::from_secs(seconds);
        let page = NodePage { snapshot: &snapshot, history: &history, now, not_ready: None, view: View::default() };
        let (_, change, parts) = parts::changes(page.changing_part(), &last);
        assert_eq!(change.contains("<tr data-key=\"research/training-0/main"), is_left_out, "{seconds}: {change}");
        last = parts;
    }
}

#[test]
fn an_empty_node_has_a_message() {
    let (snapshot, history) = (Snapshot::default(), NodeHistory::default());
    let not_ready = Some("no snapshot yet".to_owned());
    let page =
        NodePage { snapshot: &snapshot, history: &history, now: Moment::default(), not_ready, view: View::default() };
    let page = page.whole();
    assert!(page.contains("No GPU found.") && page.contains("no snapshot yet"));
}

#[test]
fn the_title_counts_gpus_that_are_unhealthy_or_have_such_a_mig_device() {
    let page = rendered(&fixture::snapshot(), None);
    assert!(page.contains("<title>2 unhealthy · node-a · podmeter</title>"));
    assert!(page.contains("<span class=\"muted\">2 unhealthy, 1 not served</span>"), "the tile agrees: {page}");
    assert!(rendered(&only_marked(), None).contains("<title>node-a · podmeter</title>"), "marks are no faults");
}

#[test]
fn a_filter_counts_and_sums_what_it_matches() {
    let snapshot = fixture::snapshot();
    let view = View { filter: filter::Filter::new("pod:training-0").unwrap(), ..View::default() };
    let page = seen(&snapshot, None, view);
    assert!(page.contains("data-found=\"1 GPU, 1 container, "), "{page}");
    assert!(page.contains("<span class=\"value\">1</span> <span class=\"muted\">on 1 of 4 GPUs</span>"), "{page}");
    let namespaces = page.split("<div class=\"namespaces\"").nth(1).unwrap().split("</table>").next().unwrap();
    assert!(namespaces.contains("<th scope=\"row\">research</th><td class=\"number\">1</td>"), "{namespaces}");
    assert!(!page.contains("research/claiming/main MIG"), "another pod");
    let none = View { filter: filter::Filter::new("<none>").unwrap(), ..View::default() };
    let page = seen(&snapshot, None, none);
    assert!(page.contains("value=\"&lt;none&gt;\"") && page.contains("No container matches the filter."), "{page}");
}

/// The counts of GPUs, containers and events that the filter finds.
fn found(snapshot: &Snapshot, filter: &str) -> String {
    let view = View { filter: filter::Filter::new(filter).unwrap(), ..View::default() };
    let page = seen(snapshot, None, view);
    page.split("data-found=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

#[test]
fn a_mig_profile_or_model_finds_gpus_and_their_containers() {
    let snapshot = fixture::snapshot();
    for (filter, expected) in [("1g.10gb", "1 GPU, 2 containers, "), ("H100", "3 GPUs, 4 containers, ")] {
        assert!(found(&snapshot, filter).starts_with(expected), "{filter}: {}", found(&snapshot, filter));
    }
}

#[test]
fn words_that_different_holders_have_find_no_gpu() {
    let mut snapshot = fixture::snapshot();
    let mut other = snapshot.accounts[0].clone();
    other.container = ContainerRef::new("ml", "serving", "main");
    snapshot.accounts.push(other);
    for (filter, expected) in [
        ("namespace:ml pod:training", "0 GPUs, 0 containers, 0 events"),
        ("namespace:ml pod:serving device:0", "1 GPU, 1 container, "),
    ] {
        assert!(found(&snapshot, filter).starts_with(expected), "{filter}: {}", found(&snapshot, filter));
    }
}

#[test]
fn sums_of_which_a_part_is_unknown_tell_so() {
    let mut snapshot = fixture::snapshot();
    let mut other = snapshot.accounts[0].clone();
    (other.container.pod, other.memory_used_bytes) = ("other".into(), None);
    snapshot.accounts = vec![snapshot.accounts.remove(0), other];
    let view = View { filter: filter::Filter::new("research").unwrap(), ..View::default() };
    let page = seen(&snapshot, None, view);
    let namespaces = page.split("<div class=\"namespaces\"").nth(1).unwrap().split("</table>").next().unwrap();
    assert!(namespaces.contains("</b><div class=\"muted\">1 of 2 known</div>"), "{namespaces}");
    assert!(page.contains(" <span class=\"muted\">used; 1 of 2 known</span>"), "{page}");
}

#[test]
fn rows_beyond_the_first_are_on_pages_of_their_own() {
    let mut snapshot = fixture::snapshot();
    let account = snapshot.accounts[0].clone();
    let named = |number: usize| {
        let container = ContainerRef::new("ml", &format!("pod-{number:03}"), "main");
        Account { container, ..account.clone() }
    };
    snapshot.accounts = (0..150).map(named).collect();
    let names = |from: usize| {
        let page = seen(&snapshot, None, View { sort: Sort::Name, from, ..View::default() });
        let table = page.split("<table class=\"containers\"").nth(1).unwrap().to_owned();
        let pods = table.split("data-key=\"ml/").skip(1).map(|row| row[..7].to_owned()).collect::<Vec<_>>();
        // A link without a key would become the other one under the focus.
        let has =
            |link: &str| table.contains(&format!("<a data-key=\"{link}\"")) && table.contains(&format!(">{link}</a>"));
        (pods, has("Previous"), has("Next"))
    };
    let (pods, previous, next) = names(0);
    assert_eq!((pods.len(), &*pods[0], previous, next), (64, "pod-000", false, true));
    // Beyond the last row: the last page.
    for from in [128, 1280] {
        let (pods, previous, next) = names(from);
        assert_eq!((pods.len(), &*pods[0], previous, next), (22, "pod-128", true, false));
    }
}
