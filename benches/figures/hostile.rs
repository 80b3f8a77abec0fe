//! Scrape latency and memory while hostile clients connect.

use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;

use crate::measure::{Resident, ScrapeConnection, quantiles, row};
use crate::{Bench, agent, complete};

/// Measures a scraper that opens a new connection each time, while hostile clients open connections as fast as they
/// can.
pub fn measure(bench: &Bench) {
    let (node, driver) = (bench.usual_node(), &bench.driver);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("web-config.yaml");
    std::fs::write(&file, format!("basic_auth_users: {{alice: {}}}\n", bcrypt::hash("secret", 10).unwrap())).unwrap();
    let credentials = "Authorization: Basic YWxpY2U6c2VjcmV0\r\n"; // alice:secret
    let running =
        agent::agent(node.root.path(), &["--device-plugin=off", "--web-config", file.to_str().unwrap()], &driver.env());
    let page = || ScrapeConnection::open_with(&running.address, credentials).scrape();
    while !complete(&page()) {}
    let measure = |crowd: &str| {
        let seconds = (0..500).map(|_| {
            let began = Instant::now();
            assert!(complete(&page()));
            began.elapsed().as_secs_f64()
        });
        let seconds = quantiles(seconds, 0.99, 1e3, "ms");
        let figure = format!("scrape with a password, median / p99 of 500, and resident memory: {crowd}");
        row(&figure, &format!("{seconds}, {:.1} MiB", Resident::of(running.pid()).all), "≤ 2 × no other clients");
    };
    measure("no other clients");
    let unread = format!("GET /metrics HTTP/1.1\r\nHost: bench\r\n{credentials}\r\n").repeat(50);
    for (crowd, sent) in [
        ("900 idle connections, constantly replaced", ""),
        ("request heads that never end", "GET /metrics HTTP/1.1\r\nX: "),
        ("responses never read", &unread),
        ("wrong passwords", "guess"),
    ] {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut held = VecDeque::new();
                let runtime = Runtime::new().unwrap();
                for guess in 0.. {
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    let mut stream = connect_from_elsewhere(&runtime, &running.address);
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
            let _stop = StopOnDrop(&done);
            std::thread::sleep(Duration::from_secs(3));
            measure(crowd);
        });
    }
}

/// Connects from another address than the scraper's: the connection limit is shared by address.
fn connect_from_elsewhere(runtime: &Runtime, address: &str) -> TcpStream {
    let connecting = async {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, 2], 0)))?;
        socket.connect(address.parse().unwrap()).await?.into_std()
    };
    let stream = runtime.block_on(connecting).unwrap();
    stream.set_nonblocking(false).unwrap();
    stream
}

/// Stops the hostile thread at the end of its row and after a panic; the scope would wait for it otherwise.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
