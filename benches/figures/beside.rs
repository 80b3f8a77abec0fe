//! Compares two servers under the same client, in turns, so that other load on the machine affects both.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::load::{Answered, ConnectionLoad};
use crate::measure::{median, process_seconds, row};
use crate::support::agent::Running;

/// Another server, in its own process group, which ends with it.
pub struct Other {
    child: Child,
}

impl Other {
    pub fn start(command: &mut Command) -> Self {
        let child = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Self { child: child.unwrap_or_else(|error| panic!("{command:?} does not start: {error}")) }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.child);
        let _ = kill_process_group(group, Signal::TERM);
        let deadline = Instant::now() + Duration::from_secs(3);
        while Instant::now() < deadline && self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
    }
}

/// A free port of 127.0.0.1, for servers that cannot choose one and report it.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// One of the two servers.
pub struct Side {
    pub name: String,
    pub url: String,
    /// Its processor time includes its descendants'.
    pub pid: u32,
}

impl Side {
    pub fn ours(running: &Running) -> Self {
        Self { name: "podmeter".to_owned(), url: format!("http://{}/metrics", running.address), pid: running.pid() }
    }
}

/// The results of one side in one round.
struct Turn {
    answered: Answered,
    /// Milliseconds of processor time per request.
    cpu: f64,
}

/// Prints throughput, latency and processor time of both, ours first.
pub fn compare(what: &str, sides: [&Side; 2], load: ConnectionLoad, rounds: usize) {
    let turns: Vec<[Turn; 2]> = (0..rounds)
        .map(|round| {
            // Alternate which side is first.
            if round % 2 == 0 {
                let ours = turn(sides[0], load);
                [ours, turn(sides[1], load)]
            } else {
                let other = turn(sides[1], load);
                [turn(sides[0], load), other]
            }
        })
        .collect();
    let names = format!("{} / {}", sides[0].name, sides[1].name);
    let of = |value: fn(&Turn) -> f64| {
        let side = |side: usize| median(turns.iter().map(|turns| value(&turns[side])));
        // Ratio per round: both of its turns ran under the same conditions.
        (side(0), side(1), median(turns.iter().map(|turns| value(&turns[0]) / value(&turns[1]))))
    };
    let connections = match load.connections {
        1 => "one connection".to_owned(),
        several => format!("{several} connections"),
    };
    let conditions = format!("{what}, {connections}, median of {rounds} rounds in turns");
    let (ours, other, ratio) = of(|turn| turn.answered.per_second);
    row(&format!("{conditions}: requests per second, {names}"), &format!("{ours:.0} / {other:.0} = {ratio:.2}"), "–");
    for (figure, value) in [
        ("processor time per request", (|turn| turn.cpu) as fn(&Turn) -> f64),
        ("median latency", |turn| turn.answered.median),
        ("p99 latency", |turn| turn.answered.p99),
    ] {
        let (ours, other, ratio) = of(value);
        row(&format!("the same: {figure}, {names}"), &format!("{ours:.3} / {other:.3} ms = {ratio:.2}"), "–");
    }
}

fn turn(side: &Side, load: ConnectionLoad) -> Turn {
    let before = process_seconds(side.pid);
    let answered = load.on(&side.url);
    let cpu = (process_seconds(side.pid) - before) / answered.requests * 1e3;
    Turn { answered, cpu }
}
