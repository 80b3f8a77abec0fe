//! Compares podmeter with another exporter on the same fakes: `--peer COMMAND URL`.
//!
//! In both, `{driver}` is the driver library's file, `{root}` the kubelet's directory, `{kubelet}` its PodResources
//! socket, `{port}` a free port. The command also finds the library by `LD_LIBRARY_PATH`.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::beside::{Other, Side, compare, free_port};
use crate::load::ConnectionLoad;
use crate::measure::{Resident, family, process_seconds, row, series};
use crate::{Bench, exporter, quiet};

const ROUNDS: usize = 5;
/// Some exporters answer only after half a minute.
const PATIENCE: Duration = Duration::from_secs(60);
const IDLE: Duration = Duration::from_secs(12);

pub fn measure(bench: &Bench, command: &str, url: &str) {
    let node = bench.usual_node();
    let port = free_port().to_string();
    let (driver, kubelet) = (bench.driver.library_path(), node.pod_resources_socket());
    let filled = |text: &str| {
        text.replace("{driver}", driver.to_str().unwrap())
            .replace("{root}", node.root.path().to_str().unwrap())
            .replace("{kubelet}", kubelet.to_str().unwrap())
            .replace("{port}", &port)
    };
    let (command, url) = (filled(command), filled(url));
    let running = exporter(&node, &bench.driver);
    let log = node.root.path().join("peer.log");
    let mut shell = Command::new("sh");
    shell.args(["-c", &command]).envs(quiet(&bench.driver)).stderr(File::create(&log).unwrap());
    let mut peer = Other::start(&mut shell);
    let page = until_answered(&mut peer, &url, &log);
    let sides = [&Side::ours(&running), &Side { name: "peer".to_owned(), url, pid: peer.pid() }];

    let ours = running.metrics().0;
    let sizes = format!("{}, {} / {}, {}", ours.len(), series(&ours), page.len(), series(&page));
    row("page: bytes, series, podmeter / peer", &sizes, "–");
    let used = || sides.map(|side| process_seconds(side.pid));
    let before = used();
    std::thread::sleep(IDLE);
    let after = used();
    let idle = [0, 1].map(|side| (after[side] - before[side]) / IDLE.as_secs_f64() * 100.0);
    let figure = format!("idle processor time over {} s, podmeter / peer", IDLE.as_secs());
    row(&figure, &format!("{:.2} / {:.2} % of a core", idle[0], idle[1]), "–");
    for connections in [1, 8] {
        let load = ConnectionLoad { connections, seconds: 2 };
        compare("scrape", sides, load, ROUNDS);
    }
    let resident = sides.map(|side| family(side.pid).into_iter().map(|pid| Resident::of(pid).all).sum::<f64>());
    let ratio = resident[0] / resident[1];
    row("resident memory, podmeter / peer", &format!("{:.1} / {:.1} MiB = {ratio:.2}", resident[0], resident[1]), "–");
}

/// Waits for the peer's first page and returns it.
fn until_answered(peer: &mut Other, url: &str, log: &Path) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(page) = page(url) {
            return page;
        }
        let log = || fs::read_to_string(log).unwrap_or_default();
        assert!(peer.is_running(), "the peer has exited; its log:\n{}", log());
        assert!(Instant::now() < deadline, "no 200 from {url} within {PATIENCE:?}; the peer's log:\n{}", log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// HTTP/1.0: no chunked encoding, no kept connection.
fn page(url: &str) -> Option<String> {
    let rest = url.strip_prefix("http://").expect("the peer's URL begins with http://");
    let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut stream = TcpStream::connect(address).ok()?;
    write!(stream, "GET /{path} HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
    let mut bytes = vec![];
    stream.read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n")?;
    (head.split(' ').nth(1) == Some("200")).then(|| body.to_owned())
}
