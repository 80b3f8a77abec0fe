//! The demo on each simulated machine: it starts, containers hold its devices, and page and API show what that machine
//! has and nothing of another.

use podmeter::hardware::simulated::SimulatedProfile;
use serde_json::Value;

use crate::support::agent::Page;
use crate::support::demo::Demo;
use crate::support::polling::{until, until_true};

/// The metrics, the API's snapshot and the page.
struct Shown {
    demo: Demo,
    metrics: Page,
    node: Value,
    page: String,
}

/// Once containers hold devices and each GPU has been read by all tiers.
fn shown(profile: SimulatedProfile) -> Shown {
    let demo = Demo::start(&["--profile", profile.name]);
    demo.until_held();
    let get = |path: &str| demo.running.get(path).body;
    let node: Value = until("readings of every tier", || {
        let node = demo.running.node();
        let readings = node["hardware"]["readings"].as_object()?;
        readings.values().all(|readings| readings["slow"].is_object()).then_some(node.clone())
    });
    Shown { metrics: demo.running.metrics(), page: get("/"), node, demo }
}

fn check(profile: SimulatedProfile, gpus: usize, of_page: &[&str]) -> Shown {
    let (shown, profile) = (shown(profile), profile.name);
    assert_eq!(shown.metrics.count("podmeter_device_info", &[]), gpus, "{profile}");
    let violations: f64 =
        shown.metrics.samples("podmeter_conservation_violations_total", &[]).map(|(_, value)| value).sum();
    assert_eq!(violations, 0.0, "{profile}");
    let sum = |metric: &str| shown.metrics.samples(metric, &[]).map(|(_, value)| value).sum::<f64>();
    assert_eq!(sum("podmeter_device_healthy"), gpus as f64, "{profile}");
    let devices = sum("podmeter_device_energy_joules_total");
    let attributed =
        sum("podmeter_container_energy_joules_total") + sum("podmeter_device_unattributed_energy_joules_total");
    assert!((attributed - devices).abs() < devices * 1e-6, "{profile}: {attributed} of {devices} J");
    for words in of_page {
        assert!(shown.page.contains(words), "{profile}: {words}\n{}", shown.page);
    }
    shown
}

#[test]
fn a_tray_of_a_rack_shows_its_domain_its_place_and_the_power_of_its_superchips() {
    let tray = check(SimulatedProfile::GB200, 4, &["GB200", "GPU 3", ">module "]);
    let readings = tray.node["hardware"]["readings"].as_object().unwrap().values();
    for fast in readings.map(|readings| &readings["fast"]["value"]) {
        let [module, own] = ["module_power_watts", "power_watts"].map(|power| fast[power].as_f64().unwrap());
        // Two GPUs and a CPU.
        assert!(module >= own + 160.0 + 130.0 - 1e-6, "{module} against {own}");
    }
    assert!(!tray.page.contains("NVLink fabric: "), "nothing is wrong with it");
    // Each module once, and its energy in no sum over devices or containers.
    assert_eq!(tray.metrics.count("podmeter_module_power_watts", &["scope=\"module\""]), 2);
    let sum = |metric: &str| tray.metrics.samples(metric, &[]).map(|(_, value)| value).sum::<f64>();
    // Four GPUs and two CPUs, at least idle.
    assert!(sum("podmeter_module_power_watts") >= 4.0 * 160.0 + 2.0 * 130.0 - 1e-6);
    assert!(sum("podmeter_module_energy_joules_total") > sum("podmeter_device_energy_joules_total"));
    assert_eq!(tray.metrics.count("podmeter_device_fabric_info", &["clique_id=\"2\""]), 4);
    assert_eq!(tray.metrics.count("podmeter_device_platform_info", &["slot=\"14\"", "tray=\"4\""]), 4);
}

#[test]
fn a_board_of_blackwell_gpus_shows_its_mig_devices_and_no_module_power() {
    let board = check(SimulatedProfile::B200, 8, &["B200", "1g.23gb+me", "1g.45gb", "3g.90gb"]);
    assert!(!board.page.contains(">module "), "{}", board.page);
    assert_eq!(board.metrics.count("podmeter_mig_device_info", &[]), 4);
    board.demo.running.until("a holder of the media slice, a resource of its own", |page| {
        page.count("podmeter_container_device_info", &["resource=\"nvidia.com/mig-1g.23gb.me\""]) == 1
    });
}

#[test]
fn claims_are_joined_by_their_drivers_files_and_an_observer_holds_nothing() {
    let demo = Demo::start(&["--profile", SimulatedProfile::CLAIMED.name]);
    // Of eight claims: one has two GPUs and one two pods; one observes eight.
    let claims = "podmeter_container_claim_info";
    let page = demo.running.until("every claim", |page| {
        page.count(claims, &["join=\"checkpoint\"", "gpu_uuid="]) == 17
            && page.count("podmeter_container_allocated_seconds_total", &[]) == 9
    });
    assert_eq!(page.count(claims, &["pod=\"gpu-health-", "admin_access=\"true\""]), 8);
    assert_eq!(page.count(claims, &["admin_access="]), 8);
    assert_eq!(page.count("podmeter_container_allocation_info", &["pod=\"gpu-health-"]), 0);
    assert_eq!(page.count("podmeter_container_device_info", &["pod=\"gpu-health-"]), 0);
    assert_eq!(page.count("podmeter_container_allocation_info", &["sharing=\"mig\""]), 2);
    assert_eq!(page.count("podmeter_container_allocation_info", &["sharing=\"time_slicing\""]), 4);
    assert_eq!(page.value("podmeter_claim_files_unreadable", &["source=\"checkpoint\""]), Some(0.0));
    assert_eq!(page.count("podmeter_unresolved_devices", &[]), 0);
    // 60 and 20 GiB of one GPU.
    let seconds = |page: &Page, claim: &str| {
        let namespace = format!("namespace=\"{claim}\"");
        let shared = page.samples("podmeter_container_allocation_info", &[]).find(|(labels, _)| {
            labels.contains(&namespace) && labels.contains("sharing=\"time_slicing\"") && !labels.contains("llm-serve")
        });
        let pod = shared.and_then(|(labels, _)| labels.split_once("pod=\"")).unwrap().1.split_once('"').unwrap().0;
        page.value("podmeter_container_allocated_seconds_total", &[&format!("pod=\"{pod}\"")]).unwrap()
    };
    let later = demo.running.until("some time", |later| seconds(later, "research") > seconds(&page, "research") + 0.2);
    let gain = |claim: &str| seconds(&later, claim) - seconds(&page, claim);
    let ratio = gain("team-language") / gain("research");
    assert!((ratio - 3.0).abs() < 1e-6, "{ratio}");
}

#[test]
fn every_profile_starts() {
    std::thread::scope(|threads| {
        for profile in SimulatedProfile::ALL {
            threads.spawn(move || {
                let demo = Demo::start(&["--profile", profile.name]);
                until_true("readiness", || demo.running.get("/-/ready").status == 200);
            });
        }
    });
}
