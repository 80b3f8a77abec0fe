//! The figures that podmeter promises, measured on the release binary: `scripts/bench`.
//!
//! Conditions: fake driver library through the real `dlopen`, eight GPUs, eight GPU pods and thirty plain pods from a
//! fake kubelet on a real socket, everything on this machine. Prints one table; judges nothing.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement prints what it found")]
#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock and starts the binary")]

#[path = "../tests/support/agent.rs"]
mod agent;
#[path = "../tests/support/fake_nvml.rs"]
mod fake_nvml;
#[path = "../tests/support/kubelet.rs"]
mod kubelet;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use agent::Running;
use base64::Engine as _;
use fake_nvml::FakeNvml;
use kubelet::{Admission, ContainerSpec, ListedDevice, Node, Options, PodSpec, node};
use serde_json::json;

const GPUS: usize = 8;
const PLAIN_PODS: usize = 30;

fn main() {
    // cargo passes `--bench`; `cargo test --benches` would not, and measuring there would only cost time.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let node = runtime.block_on(usual_node());
    let driver = FakeNvml::start(json!({ "gpus": vec![json!({ "utilization": { "gpu": 60, "memory": 30 } }); GPUS] }));
    println!("| figure | measured | must reach |\n|---|---|---|");
    // `cargo bench -- plugin`, `health` or `hostile`, measures that part alone.
    if std::env::args().any(|argument| argument == "plugin") {
        return plugin(&runtime, &driver);
    }
    if std::env::args().any(|argument| argument == "health") {
        return health(&runtime, &driver);
    }
    if std::env::args().any(|argument| argument == "hostile") {
        return hostile(&node, &driver);
    }
    start(&node, &driver);
    steady(&node, &driver);
    let new_allocation = new_allocations(&node, &driver);
    row("new allocation by another plugin → on the page, median / p99", &new_allocation, "– / ≤ 0.5 s");
    refresh(&node, &driver);
    plugin(&runtime, &driver);
    health(&runtime, &driver);
    hostile(&node, &driver);
}

fn row(figure: &str, measured: &str, limit: &str) {
    println!("| {figure} | {measured} | {limit} |");
}

fn uuid(index: usize) -> String {
    format!("GPU-00000000-0000-0000-0000-{index:012}")
}

fn pods(plain: usize) -> Vec<PodSpec> {
    let gpu = |gpu| {
        let container = ContainerSpec::new("main").holds("nvidia.com/gpu", &uuid(gpu), &[i64::from(gpu > 3)]);
        PodSpec::new("team-a", &format!("trainer-{gpu}")).container(container)
    };
    let plain =
        (0..plain).map(|number| PodSpec::new("web", &format!("plain-{number}")).container(ContainerSpec::new("main")));
    (0..GPUS).map(gpu).chain(plain).collect()
}

async fn usual_node() -> Node {
    let node = node(Options::default()).await;
    let offered = |gpu| ListedDevice { id: uuid(gpu), healthy: true, numa_nodes: Some(vec![i64::from(gpu > 3)]) };
    node.set_devices("nvidia.com/gpu", (0..GPUS).map(offered).collect());
    node.set_pods(pods(PLAIN_PODS));
    node
}

/// The exporter's half: the devices are somebody else's.
fn run(node: &Node, driver: &FakeNvml) -> Running {
    agent::agent(node.root.path(), &["--device-plugin=off"], &driver.env())
}

/// Whether the page has device data with the holder's labels.
fn complete(page: &str) -> bool {
    page.contains("podmeter_device_power_watts{") && page.contains("podmeter_container_allocated_seconds_total{")
}

fn start(node: &Node, driver: &FakeNvml) {
    let agent_seconds = (0..20).map(|_| {
        let began = Instant::now();
        let running = run(node, driver);
        while !complete(&running.metrics().0) {}
        began.elapsed().as_secs_f64()
    });
    row(
        "exec → first page with GPU data and pod labels, agent, median / worst of 20",
        &quantiles(agent_seconds, 1.0, 1e3, "ms"),
        "≤ 100 ms",
    );
    let demo_seconds = (0..10).map(|_| {
        let began = Instant::now();
        let running = Running::start(&["demo", "--listen", "127.0.0.1:0"], &[], None);
        while !complete(&running.metrics().0) {}
        began.elapsed().as_secs_f64()
    });
    row("the same, demo, median / worst of 10", &quantiles(demo_seconds, 1.0, 1e3, "ms"), "≤ 1000 ms");
}

fn steady(node: &Node, driver: &FakeNvml) {
    // The fake driver looks for events all the time, where a real one sleeps: that is not podmeter's.
    let mut environment = driver.env();
    environment.push(("FAKE_NVML_LOOK_MICROS", "10000000".into()));
    let running = agent::agent(node.root.path(), &["--device-plugin=off"], &environment);
    running.until("a complete page", |page| complete(&page.0));
    let mut connection = Connection::open(&running.address);
    for _ in 0..200 {
        connection.scrape();
    }
    row("resident memory after 200 scrapes", &format!("{:.1} MiB", resident_mib(running.pid())), "≤ 14 MiB");
    let scrapes = (0..3000).map(|scrape| {
        // Spread over some seconds, so that new snapshots are among them.
        if scrape % 100 == 0 {
            std::thread::sleep(Duration::from_millis(200));
        }
        let began = Instant::now();
        connection.scrape();
        began.elapsed().as_secs_f64()
    });
    let scrapes = quantiles(scrapes, 0.99, 1e3, "ms");
    let page = running.metrics().0;
    let series = page.lines().filter(|line| !line.starts_with('#')).count();
    row(
        &format!("scrape, {series} series, {} bytes, one connection, median / p99 of 3000", page.len()),
        &scrapes,
        "≤ 0.4 / 1.5 ms",
    );
    let fresh = (0..1000).map(|_| {
        let began = Instant::now();
        Connection::open(&running.address).scrape();
        began.elapsed().as_secs_f64()
    });
    row("the same, a connection each, median / p99 of 1000", &quantiles(fresh, 0.99, 1e3, "ms"), "–");

    let calls = || driver.calls().values().sum::<u64>() as f64;
    let (before, cpu, began) = (calls(), cpu_seconds(running.pid()), Instant::now());
    std::thread::sleep(Duration::from_secs(120));
    let seconds = began.elapsed().as_secs_f64();
    let idle = (calls() - before) / seconds / GPUS as f64;
    row("NVML calls per GPU and second, all tiers, over 120 s", &format!("{idle:.2}"), "≤ 12");
    let cpu = (cpu_seconds(running.pid()) - cpu) / seconds * 100.0;
    row("idle processor time, not scraped", &format!("{cpu:.2} %"), "–");
    // An idle connection has been closed meanwhile.
    let mut connection = Connection::open(&running.address);
    let (before, began, mut scraped) = (calls(), Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(20) {
        connection.scrape();
        scraped += 1;
    }
    let extra = calls() - before - idle * GPUS as f64 * began.elapsed().as_secs_f64();
    row(
        &format!("NVML calls per scrape, beyond the idle rate, over {scraped} scrapes"),
        &format!("{:.4}", (extra / f64::from(scraped)).max(0.0)),
        "0",
    );
}

/// Another plugin's allocations, seen through the checkpoint file.
fn new_allocations(node: &Node, driver: &FakeNvml) -> String {
    let running = run(node, driver);
    running.until("a complete page", |page| complete(&page.0));
    let mut connection = Connection::open(&running.address);
    let seconds = (0..100).map(|round| {
        let name = format!("fresh-{round}");
        let mut all = pods(PLAIN_PODS);
        all[round % GPUS].name.clone_from(&name);
        // Not in step with any timer of the agent.
        std::thread::sleep(Duration::from_millis(900 + (round as u64 * 377) % 700));
        let began = Instant::now();
        node.set_pods(all);
        while !connection.scrape().contains(&name) {}
        began.elapsed().as_secs_f64()
    });
    quantiles(seconds, 0.99, 1e3, "ms")
}

/// One refresh with many pods, by the processor time of the whole process less its idle rate.
fn refresh(node: &Node, driver: &FakeNvml) {
    node.set_pods(pods(1000 - GPUS));
    let running = run(node, driver);
    running.until("a complete page", |page| complete(&page.0));
    let cpu_over = |changes: u64| {
        let (cpu, began) = (cpu_seconds(running.pid()), Instant::now());
        for change in 0..30 {
            if change < changes {
                let mut all = pods(1000 - GPUS);
                all[0].name = format!("changed-{change}");
                node.set_pods(all);
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        (cpu_seconds(running.pid()) - cpu) / began.elapsed().as_secs_f64() * 30.0
    };
    let (quiet, busy) = (cpu_over(0), cpu_over(30));
    row(
        "refresh with 1,000 pods, processor time each, over 30 changes",
        &format!("{:.1} ms", (busy - quiet) / 30.0 * 1e3),
        "≤ 10 ms",
    );
    row("resident memory with 1,000 pods", &format!("{:.1} MiB", resident_mib(running.pid())), "–");
}

/// The plugin's half, on a node where it has the GPUs to itself.
fn plugin(runtime: &tokio::runtime::Runtime, driver: &FakeNvml) {
    let node = runtime.block_on(node(Options::default()));
    let _inside = runtime.enter();
    let both = || agent::agent(node.root.path(), &[], &driver.env());
    let offered = |count: usize| {
        let becomes =
            node.node_status_becomes(|status| status.get("nvidia.com/gpu").is_some_and(|gpu| gpu.allocatable == count));
        assert!(runtime.block_on(becomes), "{:?}", node.node_status());
    };
    let registered = (0..20).map(|_| {
        // Twenty starts in a row would ask more than a kubelet answers in a second.
        std::thread::sleep(Duration::from_millis(250));
        let began = Instant::now();
        let running = both();
        offered(GPUS);
        let seconds = began.elapsed().as_secs_f64();
        drop(running);
        offered(0);
        seconds
    });
    let registered = quantiles(registered, 1.0, 1e3, "ms");
    row("exec → registered and listed, median / worst of 20", &registered, "≤ 20 ms");

    let running = both();
    offered(GPUS);
    let back = (0..20).map(|_| {
        node.stop();
        std::thread::sleep(Duration::from_millis(300));
        let made = || {
            std::fs::metadata(node.device_plugin_directory().join("kubelet.sock")).and_then(|file| file.modified()).ok()
        };
        let before = made();
        node.start_again().unwrap();
        while made().is_none_or(|made| Some(made) == before) {
            std::thread::sleep(Duration::from_micros(100));
        }
        let began = Instant::now();
        offered(GPUS);
        began.elapsed().as_secs_f64()
    });
    let back = quantiles(back, 1.0, 1e3, "ms");
    row("kubelet back → registered and listed again, median / worst of 20", &back, "≤ 200 ms");

    let seen = own_allocations(runtime, &node, &running);
    row("our own allocation, from the kubelet showing it → on the page, median / p99 of 100", &seen, "– / ≤ 100 ms");
    let mut connection = Connection::open(&running.address);
    for _ in 0..200 {
        connection.scrape();
    }
    let resident = format!("{:.1} MiB", resident_mib(running.pid()));
    row("resident memory of both halves after 200 scrapes", &resident, "≤ 14 MiB");
}

/// From when the kubelet's own list has the pod. It is admitted, so Allocate has been answered.
fn own_allocations(runtime: &tokio::runtime::Runtime, node: &Node, running: &Running) -> String {
    let mut connection = Connection::open(&running.address);
    let seconds = (0..100).map(|round| {
        let name = format!("own-{round}");
        std::thread::sleep(Duration::from_millis(900 + (round * 377) % 700));
        let container = ContainerSpec::new("main").asks("nvidia.com/gpu", 1);
        let pod = PodSpec::new("team-a", &name).container(container);
        assert_eq!(runtime.block_on(node.add_pod(pod)), Admission::Running);
        let began = Instant::now();
        while !connection.scrape().contains(&name) {}
        let seconds = began.elapsed().as_secs_f64();
        assert!(node.force_delete_pod("team-a", &name));
        seconds
    });
    quantiles(seconds, 0.99, 1e3, "ms")
}

/// From the moment at which the driver tells of an XID. The fake library looks for it every 5 ms, which is counted, too.
fn health(runtime: &tokio::runtime::Runtime, driver: &FakeNvml) {
    let node = runtime.block_on(node(Options::default()));
    let _inside = runtime.enter();
    let inside = |name: &str| node.root.path().join(name);
    let socket = inside("admin.sock");
    let (root, socket_name) = (node.root.path().to_str().unwrap(), socket.to_str().unwrap());
    let arguments = ["agent", "--listen", "127.0.0.1:0", "--kubelet-root", root, "--admin-socket", socket_name];
    let running = Running::start(&arguments, &driver.env(), None);
    let mut connection = Connection::open(&running.address);
    let offered = |count: usize| {
        let becomes =
            node.node_status_becomes(|status| status.get("nvidia.com/gpu").is_some_and(|gpu| gpu.allocatable == count));
        assert!(runtime.block_on(becomes), "{:?}", node.node_status());
    };
    offered(GPUS);
    running.until("events are heard", |page| {
        page.value("podmeter_collector_success", &["collector=\"events\""]) == Some(1.0)
    });
    let (mut to_kubelet, mut to_page) = (vec![], vec![]);
    for round in 1..=30 {
        let gpu = round as usize % GPUS;
        std::thread::sleep(Duration::from_millis(900 + (round * 377) % 700));
        let began = Instant::now();
        driver.update(|state| state["gpus"][gpu]["events"] = json!([{"sequence": round, "xid": 119}]));
        offered(GPUS - 1);
        to_kubelet.push(began.elapsed().as_secs_f64());
        let sick = format!("podmeter_device_healthy{{gpu_uuid=\"{}\",gpu=\"{gpu}\"}} 0\n", uuid(gpu));
        while !connection.scrape().contains(&sick) {}
        to_page.push(began.elapsed().as_secs_f64());
        assert_eq!(agent::post(&socket, "/unmark", &format!("{{\"device\": \"{gpu}\"}}")).status, 200);
        offered(GPUS);
    }
    let quantiles = |values: Vec<f64>| quantiles(values.into_iter(), 1.0, 1e3, "ms");
    row("XID → Unhealthy in the kubelet's list, median / worst of 30", &quantiles(to_kubelet), "≤ 50 ms / –");
    row("XID → on the page, median / worst of 30", &quantiles(to_page), "– / ≤ 1000 ms");

    let demo = Running::start(&["demo", "--faults", "--listen", "127.0.0.1:0"], &[], None);
    let days = || demo.log().matches("a day begins").count();
    while days() < 1 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let (cpu, began) = (process_seconds(demo.pid()), Instant::now());
    while days() < 2 {
        std::thread::sleep(Duration::from_millis(100));
    }
    let share = (process_seconds(demo.pid()) - cpu) / began.elapsed().as_secs_f64() * 100.0;
    let figure = "processor time over the demo's day of faults, simulated kubelet, pods and driver included";
    row(figure, &format!("{share:.2} % of a core"), "≤ 2 %");
}

/// Median and an upper quantile, times `scale`.
fn quantiles(values: impl Iterator<Item = f64>, upper: f64, scale: f64, unit: &str) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |quantile: f64| values[((values.len() - 1) as f64 * quantile).round() as usize] * scale;
    format!("{:.3} / {:.3} {unit}", at(0.5), at(upper))
}

/// What a crowd that opens connections as fast as it can costs an honest scraper, on a new connection each time.
fn hostile(node: &Node, driver: &FakeNvml) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("web-config.yaml");
    std::fs::write(&file, format!("basic_auth_users: {{alice: {}}}\n", bcrypt::hash("secret", 10).unwrap())).unwrap();
    let honest = "Authorization: Basic YWxpY2U6c2VjcmV0\r\n"; // alice:secret
    let running =
        agent::agent(node.root.path(), &["--device-plugin=off", "--web-config", file.to_str().unwrap()], &driver.env());
    let page = || Connection::open_with(&running.address, honest).scrape();
    while !complete(&page()) {}
    let measure = |crowd: &str| {
        let seconds = (0..500).map(|_| {
            let began = Instant::now();
            assert!(complete(&page()));
            began.elapsed().as_secs_f64()
        });
        let seconds = quantiles(seconds, 0.99, 1e3, "ms");
        let figure = format!("honest scrape with a password, median / p99 of 500, and resident memory: {crowd}");
        row(&figure, &format!("{seconds}, {:.1} MiB", resident_mib(running.pid())), "twice quiet");
    };
    measure("quiet");
    let unread = format!("GET /metrics HTTP/1.1\r\nHost: bench\r\n{honest}\r\n").repeat(50);
    for (crowd, sent) in [
        ("900 idle connections, always new ones", ""),
        ("heads that never end", "GET /metrics HTTP/1.1\r\nX: "),
        ("answers that nobody reads", &unread),
        ("wrong passwords", "guess"),
    ] {
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut held = std::collections::VecDeque::new();
                for guess in 0.. {
                    if done.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                    let mut stream = TcpStream::connect(&running.address).unwrap();
                    let text = match sent {
                        "guess" => {
                            let guess = base64::engine::general_purpose::STANDARD.encode(format!("alice:{guess}"));
                            format!("GET / HTTP/1.1\r\nHost: bench\r\nAuthorization: Basic {guess}\r\n\r\n")
                        }
                        sent => sent.to_owned(),
                    };
                    let _ = stream.write_all(text.as_bytes()); // it may be closed already
                    held.push_back(stream);
                    if held.len() > 900 {
                        held.pop_front();
                    }
                }
            });
            std::thread::sleep(Duration::from_secs(3));
            measure(crowd);
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}

/// A kept connection, as Prometheus keeps one.
struct Connection {
    stream: BufReader<TcpStream>,
    /// Whole lines, each ending in CRLF.
    headers: &'static str,
}

impl Connection {
    fn open(address: &str) -> Self {
        Self::open_with(address, "")
    }

    fn open_with(address: &str, headers: &'static str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::with_capacity(1 << 18, stream), headers }
    }

    fn scrape(&mut self) -> String {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: bench\r\n{}\r\n", self.headers);
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
        let mut length = 0;
        loop {
            let mut line = String::new();
            assert!(self.stream.read_line(&mut line).unwrap() > 0, "podmeter ended");
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).unwrap();
        String::from_utf8(body).unwrap()
    }
}

fn resident_mib(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
}

/// From the scheduler's own nanoseconds, over all threads.
fn cpu_seconds(pid: u32) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let nanoseconds = threads.filter_map(|thread| {
        let path: PathBuf = thread.ok()?.path().join("schedstat");
        std::fs::read_to_string(path).ok()?.split(' ').next()?.parse::<f64>().ok()
    });
    nanoseconds.sum::<f64>() / 1e9
}

/// Of all threads that the process has had, in the kernel's ticks of 10 ms.
fn process_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit(") ").next().unwrap().split(' ').collect();
    // utime and stime, the 14th and 15th of all.
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}
