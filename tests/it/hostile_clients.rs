//! Hostile and broken clients against the real binary, while a scraper must get its responses. `tests/fault_matrix` has more of
//! them.

use crate::support::agent;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::agent::{Running, connect};
use crate::support::certificates::{Authority, TlsClient, basic};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const MIB: u64 = 1024 * 1024;
/// Beyond twice the resident memory before: allocators keep freed memory.
const SLACK: u64 = 16 * MIB;

#[test]
fn a_thousand_idle_connections() {
    let directory = tempfile::tempdir().unwrap();
    let probes = directory.path().join("probes.sock");
    let running = start(directory.path(), &["--probe-listen", &format!("unix:{}", probes.display())]);
    let mut honest = Honest::new(&running);
    let mut idle = vec![];
    for number in 0..1000 {
        idle.push(connect(&running.address));
        if number % 50 == 0 {
            honest.scrapes();
            assert_eq!(agent::get_over(&probes, "/-/healthy").unwrap().status, 200);
        }
    }
    honest.finds_memory_within_bounds();
    // 64 connections and the files of the agent itself.
    assert!(open_files(&running) < 64 + 64, "{}", open_files(&running));
    let log = running.until_logged("the limit of connections is reached");
    assert_eq!(log.matches("the limit of connections is reached").count(), 1, "{log}");
    drop(idle);
    honest.new_clients_are_served();
}

#[test]
fn endless_heads_and_urls() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(directory.path(), &[]);
    let mut honest = Honest::new(&running);
    for number in 0..100 {
        let mut stream = connect(&running.address);
        let long = "x".repeat(MIB as usize);
        let request = match number % 3 {
            0 => format!("GET /{long} HTTP/1.1\r\nHost: test\r\n\r\n"),
            1 => format!("GET / HTTP/1.1\r\nHost: test\r\nX-Long: {long}\r\n\r\n"),
            _ => format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(10_000)),
        };
        // The connection may be closed before all of it is sent.
        let _ = stream.write_all(request.as_bytes());
        let mut response = vec![];
        let _ = stream.read_to_end(&mut response);
        let refused = [&b"HTTP/1.1 431 "[..], b"HTTP/1.1 414 ", b"HTTP/1.1 400 "];
        let text = String::from_utf8_lossy(&response);
        assert!(response.is_empty() || refused.iter().any(|status| response.starts_with(status)), "{text}");
        if number % 10 == 0 {
            honest.scrapes();
            honest.new_clients_are_served();
        }
    }
    honest.finds_memory_within_bounds();
}

/// TLS and one user, "alice" with "secret".
fn with_password(directory: &Path) -> (Running, TlsClient, u64) {
    let authority = Authority::new();
    authority.server().write(directory, "server");
    let file = directory.join("web-config.yaml");
    let hash = bcrypt::hash("secret", 8).unwrap();
    let text = format!(
        "tls_server_config: {{cert_file: server.crt, key_file: server.key}}\nbasic_auth_users: {{alice: {hash}}}\n"
    );
    std::fs::write(&file, text).unwrap();
    let running = start(directory, &["--web-config", file.to_str().unwrap()]);
    let client = TlsClient::new(&authority, None);
    for _ in 0..20 {
        scrapes(&running, &client);
    }
    let before = resident(&running);
    (running, client, before)
}

fn scrapes(running: &Running, client: &TlsClient) {
    assert_eq!(client.status(&running.address, "/metrics", &basic("alice", "secret")).unwrap(), 200);
}

#[test]
fn connections_without_tls() {
    let directory = tempfile::tempdir().unwrap();
    let (running, client, before) = with_password(directory.path());
    let mut held = vec![];
    for number in 0..100_usize {
        let mut stream = connect(&running.address);
        let hello = [0x16, 0x03, 0x01, 0x40, 0x00, 0x01, 0x00, 0x3f, 0xfc, 0x03, 0x03];
        let _ = match number % 4 {
            0 => stream.write_all(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"),
            1 => stream.write_all(&[0xff; 10_000]),
            2 => stream.write_all(&hello), // without the rest
            _ => Ok(()),
        };
        held.push(stream);
        if number % 20 == 0 {
            scrapes(&running, &client);
        }
    }
    scrapes(&running, &client);
    assert_memory_within_bounds(&running, before);
    assert!(open_files(&running) < 64 + 64, "{}", open_files(&running));
}

#[test]
fn many_wrong_passwords() {
    let directory = tempfile::tempdir().unwrap();
    let (running, client, before) = with_password(directory.path());
    let done = AtomicBool::new(false);
    let answers = std::thread::scope(|scope| {
        let guessers: Vec<_> = (0..8)
            .map(|guesser| {
                let (client, running, done) = (&client, &running, &done);
                scope.spawn(move || {
                    let mut answers = vec![];
                    while !done.load(Ordering::Relaxed) {
                        let guess = basic("alice", &format!("{guesser}-{}", answers.len()));
                        answers.extend(client.status(&running.address, "/metrics", &guess));
                    }
                    answers
                })
            })
            .collect();
        for _ in 0..50 {
            scrapes(&running, &client);
        }
        done.store(true, Ordering::Relaxed);
        guessers.into_iter().flat_map(|guesser| guesser.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(answers.len() >= 8, "each did try: {answers:?}");
    assert!(answers.iter().all(|status| *status == 401), "{answers:?}");
    assert_memory_within_bounds(&running, before);
}

fn start(directory: &Path, arguments: &[&str]) -> Running {
    let running = agent::agent(directory, &[&["--hardware=simulated"], arguments].concat(), &[]);
    // Each client is an open file of this process too.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    running
}

fn resident(running: &Running) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn assert_memory_within_bounds(running: &Running, before: u64) {
    let now = resident(running);
    assert!(now <= 2 * before + SLACK, "{now} bytes after {before}");
}

fn open_files(running: &Running) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", running.pid())).unwrap().count()
}

/// A scraper with a kept connection, which must get every response.
struct Honest<'agent> {
    running: &'agent Running,
    kept: TcpStream,
    before: u64,
}

impl<'agent> Honest<'agent> {
    fn new(running: &'agent Running) -> Self {
        running.until("devices are read", |page| page.count("podmeter_device_power_watts", &[]) == 8);
        let mut honest = Self { running, kept: connect(&running.address), before: 0 };
        for _ in 0..20 {
            honest.scrapes();
            honest.new_clients_are_served();
        }
        honest.before = resident(running);
        honest
    }

    fn scrapes(&mut self) {
        write!(self.kept, "GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n").expect("the connection is kept");
        let response = one_response(&mut self.kept);
        assert!(
            response.starts_with("HTTP/1.1 200 OK\r\n") && response.contains("podmeter_device_power_watts{"),
            "{response}"
        );
    }

    fn new_clients_are_served(&self) {
        assert_eq!(self.running.get("/-/healthy").status, 200);
        assert!(self.running.metrics().count("podmeter_device_power_watts", &[]) == 8);
    }

    fn finds_memory_within_bounds(&self) {
        assert_memory_within_bounds(self.running, self.before);
    }
}

/// The head, and a body of the content length.
fn one_response(stream: &mut TcpStream) -> String {
    let mut bytes = vec![];
    let mut part = [0; 16 * 1024];
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            if body.len() >= length.parse().unwrap() {
                return text.into_owned();
            }
        }
        let read = stream.read(&mut part).expect("answered in time");
        assert!(read > 0, "closed in the middle of {text}");
        bytes.extend(&part[..read]);
    }
}
