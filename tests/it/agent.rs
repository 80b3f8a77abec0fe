//! The binary, end to end: a real process, a fake kubelet on real sockets, the fake driver library through the real
//! `dlopen`, pages over HTTP.

use crate::support::agent;
use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::agent::{Page, Running, agent, binary, ended};
use crate::support::fake_nvml::FakeNvml;
use crate::support::kubelet::{GPU, KubeletNode, ListedDevice, Options, holding_pod, node};
use crate::support::plugin_harness::sockets;
use crate::support::sick_node::eight_gpus;
use crate::support::test_data::uuid;
use serde_json::Value;

/// A kubelet that offers the eight GPUs; pod `trainer` holds GPU 1.
async fn one_holder() -> KubeletNode {
    let node = node(Options::default()).await;
    node.set_devices("nvidia.com/gpu", (0..8).map(|gpu| ListedDevice::new(&uuid(gpu))).collect());
    node.set_pods(vec![holding_pod("trainer", GPU, &uuid(1))]);
    node
}

fn with_driver(node: &KubeletNode, driver: &FakeNvml) -> Running {
    agent(node.root.path(), &["--sample-interval", "100ms"], &driver.env())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_calls_neither_the_driver_nor_the_kubelet() {
    let (node, driver) = (one_holder().await, FakeNvml::start(eight_gpus()));
    let running = agent(node.root.path(), &["--refresh-interval", "10m"], &driver.env());
    let settled = |page: &Page| page.value("podmeter_refresh_triggers_total", &["trigger=\"timer\""]) == Some(1.0);
    let succeeds =
        |page: &Page, tier| page.value("podmeter_collector_success", &[&format!("collector=\"{tier}\"")]) == Some(1.0);
    running.until("a settled kubelet, and readings of every tier", |page| {
        settled(page) && ["fast", "medium", "slow"].iter().all(|tier| succeeds(page, tier))
    });
    let lists =
        |page: &Page| page.value("podmeter_podresources_request_duration_seconds_count", &["method=\"List\""]).unwrap();
    let (calls, before) = (driver.calls(), lists(&running.metrics()));
    for _ in 0..500 {
        running.get("/metrics");
        running.get("/metrics/dcgm");
    }
    for (call, count) in driver.calls() {
        // The readings go on: eight GPUs, each a few times. One of the two pages alone would make 500.
        let more = count - calls.get(&call).copied().unwrap_or_default();
        assert!(more < 400 || call == "nvmlEventSetWait_v2", "{call}: {more}");
    }
    assert!((lists(&running.metrics()) - before).abs() < 0.5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_too_old_for_most_calls_still_gives_what_it_has() {
    let mut state = eight_gpus();
    let missing = "DeviceGetSamples DeviceGetTotalEnergyConsumption DeviceGetMemoryInfo_v2 GpmQueryDeviceSupport \
                   DeviceGetNumaNodeId DeviceGetFieldValues DeviceGetMarginTemperature DeviceGetGpuFabricInfoV \
                   DeviceGetGpuFabricInfo DeviceGetMigMode DeviceGetRemappedRows";
    state["function_not_found"] = missing.split(' ').map(|call| format!("nvml{call}")).collect();
    let (node, driver) = (one_holder().await, FakeNvml::start(state));
    let running = with_driver(&node, &driver);
    running.until("each GPU's utilization, and its energy integrated from power", |page| {
        ["podmeter_device_utilization_ratio", "podmeter_device_energy_joules_total"]
            .iter()
            .all(|metric| page.count(metric, &[]) == 8)
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn without_permission_the_page_names_the_required_user() {
    let node = one_holder().await;
    node.refuse_permission(true).unwrap();
    let root = node.root.path().to_str().unwrap();
    let arguments = format!("agent --listen 127.0.0.1:0 --admin-socket none --hardware none --kubelet-root {root}");
    let running = Running::start_unprivileged(node.root.path(), &arguments.split(' ').collect::<Vec<_>>());
    running.until("the failure counted", |page| {
        page.value("podmeter_podresources_errors_total", &["method=\"List\"", "code=\"permission_denied\""])
            .is_some_and(|errors| errors >= 1.0)
    });
    assert!(running.get("/").body.contains("run as uid 0"));
    node.refuse_permission(false).unwrap();
}

/// The limit of process IDs is the user's here, and a cgroup's or the node's in practice.
#[test]
fn without_free_process_ids_the_agent_goes_on_and_ends_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().join("own");
    std::fs::create_dir(&own).unwrap();
    std::fs::set_permissions(&own, Permissions::from_mode(0o777)).unwrap();
    let (config, own) = (own.join("podmeter.yaml"), own.to_str().unwrap());
    std::fs::write(&config, "retention: 1m\n").unwrap();
    let arguments = format!(
        "agent --listen 127.0.0.1:0 --admin-socket {own}/admin.sock --hardware simulated --kubelet-root {own} --config \
         {own}/podmeter.yaml --state-dir {own}/state --condition-file {own}/health.json"
    );
    let mut running = Running::start_unprivileged(directory.path(), &arguments.split(' ').collect::<Vec<_>>());
    let readings =
        |page: &Page| page.value("podmeter_collector_last_success_timestamp_seconds", &["collector=\"fast\""]);
    running.until("eight GPUs", |page| page.count("podmeter_device_power_watts", &[]) == 8);
    running.limit_process_ids("1");
    let threads = || std::fs::read_dir(format!("/proc/{}/task", running.pid())).unwrap().count();
    let (limited, before) = (threads(), readings(&running.metrics()).unwrap());
    running.signal("HUP");
    running.until_logged("configuration re-read");
    running.until("further readings", |page| readings(page) > Some(before + 2.5));
    for path in ["/", "/api/v1/node", "/api/v1/record", "/api/v1/allocations", "/-/healthy"] {
        assert_eq!(running.get(path).status, 200, "{path}");
    }
    assert_eq!(threads(), limited, "some have ended, or were started");

    let admin = Path::new(own).join("admin.sock");
    for command in ["/release", "/resume"] {
        assert_eq!(agent::post(&admin, command, "").status, 200, "{command}");
    }
    let events = |page: &Page| page.value("podmeter_collector_success", &["collector=\"events\""]);
    running.until("no thread for the events of the new session", |page| events(page) == Some(0.0));
    running.limit_process_ids("4096");
    running.until("a thread for them", |page| events(page) == Some(1.0));
    running.limit_process_ids("1");
    running.signal("TERM");
    assert_eq!(running.wait().code(), Some(0), "{}", running.log());
    assert!(!running.log().contains("panicked"), "{}", running.log());
}

#[test]
fn without_a_free_process_id_at_the_start_the_limit_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let (code, output) = Running::ended_without_process_ids(directory.path(), &["agent", "--hardware", "none"]);
    assert_eq!(code, Some(1), "{output}");
    assert!(output.starts_with("podmeter: a thread cannot be started") && output.contains("pids.max"), "{output}");
    assert_eq!(output.lines().count(), 1, "{output}");
}

/// Once, a pipe was waited for and the others were read to the end, on the thread that answers the kubelet.
#[test]
fn what_is_no_regular_file_of_a_few_mib_is_no_configuration() {
    use rustix::fs::{CWD, FileType, mknodat};
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (config, web) = (at("podmeter.yaml"), at("web-config.yaml"));
    let write = || [&config, &web].map(|file| std::fs::write(file, "# valid\n").unwrap());
    write();
    let [config_path, web_path] = [&config, &web].map(|file| file.to_str().unwrap());
    let arguments = ["--hardware", "none", "--config", config_path, "--web-config", web_path];
    let running = agent(directory.path(), &arguments, &[]);
    let successful = |page: &Page| page.value("podmeter_config_last_reload_successful", &[]);
    // The web configuration is read again by itself.
    let reload = |option: Option<_>| option.is_none().then(|| running.signal("HUP"));
    let pipe = |file: &Path| mknodat(CWD, file, FileType::Fifo, 0o600.into(), 0).unwrap();
    let endless = |file: &Path| std::os::unix::fs::symlink("/dev/zero", file).unwrap();
    let large = |file: &Path| std::fs::File::create(file).unwrap().set_len(4 << 30).unwrap();
    for (replace, problem) in [
        (&pipe as &dyn Fn(&Path), "not a regular file"),
        (&endless, "not a regular file"),
        (&large, "more than 4194304 bytes"),
    ] {
        for (file, option) in [(&config, None), (&web, Some("--web-config"))] {
            let logged = running.log().len();
            std::fs::remove_file(file).unwrap();
            replace(file);
            reload(option);
            running.until("a failed reload", |page| successful(page) == Some(0.0));
            running.until("the reason in the log", |_| running.log()[logged..].contains(problem));
            let arguments = [Some("check-config"), option, file.to_str()];
            let (code, output) = ended(&arguments.into_iter().flatten().collect::<Vec<_>>());
            // A command may be given a pipe, but nobody writes to this one.
            let is_unwritten = option.is_none() && output.contains("nothing has been written to it");
            assert!(code == 2 && (output.contains(problem) || is_unwritten), "{output}");
            std::fs::remove_file(file).unwrap();
            write();
            reload(option);
            running.until("a reload", |page| successful(page) == Some(1.0));
        }
    }
}

#[test]
fn wrong_usage_is_reported_before_anything_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("podmeter.yaml");
    std::fs::write(&file, "nodeName: n\nrefreshIntervall: 5s\n").unwrap();
    let many = directory.path().join("many.yaml");
    let text = "devicePlugin: {resources: [{kind: nvidia, sharing: {timeSlicing: {replicas: 70000}}}]}\n";
    std::fs::write(&many, text).unwrap();
    let [file, many] = [&file, &many].map(|path| path.to_str().unwrap());
    let replicas = "devicePlugin.resources[0].sharing.timeSlicing.replicas";
    for (arguments, words) in [
        (vec!["agent", "--refresh-intervall", "5s"], vec!["--refresh-interval"]),
        (vec!["agent", "--hardware", "gpu"], vec!["nvml", "simulated", "none"]),
        (vec!["agent", "--refresh-interval", "soon"], vec!["--refresh-interval", "soon"]),
        (vec!["agent", "--listen", "nowhere"], vec!["nowhere", "0.0.0.0:9410", "unix:"]),
        (vec!["agent", "--config", file], vec![file, "refreshIntervall", "line 2", "refreshInterval"]),
        (vec!["check-config", file], vec![file, "refreshIntervall"]),
        (vec!["check-config", many], vec![many, replicas, "70000", "accepted: 2 to 60000"]),
        (vec!["demo", "--profile", "9xh100"], vec!["9xh100", "8xh100-mig"]),
        (vec!["demo", "--faults", "--hardware", "nvml"], vec!["--faults", "--hardware"]),
        (vec!["demo", "--faults", "--fault-speed", "0"], vec!["--fault-speed", "1..=20"]),
        (vec!["top", "--url", "https://me:secret@node-a:9410"], vec!["--password-file"]),
        (vec!["top", "--interval", "1ms"], vec!["must be 200ms to 1h"]),
        (vec!["demo", "--seed", "abc"], vec!["abc", "--seed", "must be a whole number"]),
        (vec!["mark", "0", "--reason", "x", "--for", "-1h"], vec!["'-1h'", "--for", "must be a duration, such as 30s"]),
        (vec!["release", "--for", "100d"], vec!["'100d'", "--for", "must be 1s to 24h"]),
        (vec!["usage", "--since", "-1h"], vec!["--since -1h", "how long ago (24h)"]),
        (vec!["agnet"], vec!["agent"]),
    ] {
        let (code, printed) = ended(&arguments);
        assert_eq!(code, 2, "{arguments:?}: {printed}");
        for word in words {
            assert!(printed.contains(word), "{word:?} after {arguments:?}: {printed}");
        }
    }
}

#[test]
fn check_config_converts_the_configuration_of_nvidias_plugin() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let file = path("nvidia.yaml", "version: v1\nflags: {migStrategy: single}\n");
    let variables = path("variables", "MIG_STRATEGY=mixed\n");
    let (code, printed) = ended(&["check-config", "--nvidia-config", &file, "--env-file", &variables]);
    assert!(code == 0 && printed.contains("migStrategy: mixed"), "{printed}");
    let (code, checked) = ended(&["check-config", &path("podmeter.yaml", &printed)]);
    assert!(code == 0 && checked.ends_with(": valid\n"), "{checked}");
    let input = std::fs::File::open(path("input.yaml", "logLevel: loud\n")).unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"logLevel: loud\n").unwrap();
    drop(writer);
    for input in [Stdio::from(input), Stdio::from(reader)] {
        let output = Command::new(binary()).args(["check-config", "-"]).stdin(input).output().unwrap();
        let problem = String::from_utf8(output.stderr).unwrap();
        assert!(problem.starts_with("podmeter: /dev/stdin: line 1 column 11: \"loud\": must be"), "{problem}");
    }
    let (code, printed) = ended(&["check-config", "--env-file", &path("wrong", "MIG_STRATEGY=double\n")]);
    assert!(code == 2 && printed.contains("MIG_STRATEGY: \"double\""), "{printed}");
    let (code, printed) = ended(&["check-config", &file]);
    assert!(code == 2 && printed.contains("--nvidia-config"), "{printed}");
}

#[test]
fn a_demo_with_a_part_that_has_ended_ends() {
    let (code, printed) = ended(&["demo", "--listen", "127.0.0.1:0", "--ground-truth", "/dev/full"]);
    assert_eq!(code, 1, "{printed}");
    assert!(printed.contains("the ground truth task ended unexpectedly"), "{printed}");
}

#[test]
fn an_address_in_use_is_exit_code_3() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, printed) = ended(&["agent", "--listen", &address, "--admin-socket", "none"]);
    assert_eq!(code, 3, "{printed}");
    assert!(printed.contains(&address) && printed.contains("--listen"), "{printed}");
}

#[test]
fn unhandled_signals_do_not_end_it() {
    let root = tempfile::tempdir().unwrap();
    let running = agent::agent(root.path(), &["--hardware=simulated"], &[]);
    for signal in ["USR1", "USR2", "XFSZ", "PIPE"] {
        (0..3).for_each(|_| running.signal(signal));
    }
    running.until("it goes on", |page| page.value("podmeter_scrape_duration_seconds_count", &[]) >= Some(3.0));
}

#[test]
fn the_catalogue_is_printed_from_the_code() {
    let (code, markdown) = ended(&["metrics"]);
    assert_eq!(code, 0);
    assert!(markdown.contains("podmeter_container_allocated_seconds_total"));
    let (code, json) = ended(&["metrics", "-o", "json"]);
    assert_eq!(code, 0);
    assert!(serde_json::from_str::<Value>(&json).is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plugin_offers_what_the_driver_lists_and_leaves_no_socket() {
    let (node, driver) = (node(Options::default()).await, FakeNvml::start(eight_gpus()));
    let mut running = with_driver(&node, &driver);
    node.counts("nvidia.com/gpu", 8, 8).await;
    running.until("the same on the page", |page| {
        page.value("podmeter_plugin_registered", &[]) == Some(1.0)
            && page.value("podmeter_plugin_devices", &["health=\"healthy\""]) == Some(8.0)
            && page.value("podmeter_resource_devices", &["state=\"allocatable\""]) == Some(8.0)
    });
    assert_eq!(running.get("/-/ready").status, 200);
    running.signal("INT");
    assert_eq!(running.wait().code(), Some(0));
    let left = sockets(&node.device_plugin_directory());
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_waits_for_the_registration_and_gives_the_reason() {
    let root = tempfile::tempdir().unwrap();
    let driver = FakeNvml::start(eight_gpus());
    let running = agent(root.path(), &[], &driver.env());
    running.until("the devices", |page| page.count("podmeter_plugin_registered", &[]) == 1);
    let answer = running.get("/-/ready");
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert!(answer.body.contains("nvidia.com/gpu is not registered"), "{}", answer.body);
    let off = agent(root.path(), &["--device-plugin", "off"], &driver.env());
    off.until("the devices", |page| page.count("podmeter_device_info", &[]) == 8);
    assert_eq!(off.get("/-/ready").status, 200);
    assert_eq!(off.metrics().count("podmeter_plugin_registered", &[]), 0);
}
