//! The HTTP client, quantiles, and memory and processor time from `/proc`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

pub fn row(figure: &str, measured: &str, limit: &str) {
    println!("| {figure} | {measured} | {limit} |");
}

/// Median and an upper quantile, times `scale`.
pub fn quantiles(values: impl IntoIterator<Item = f64>, upper: f64, scale: f64, unit: &str) -> String {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    format!("{:.3} / {:.3} {unit}", at(&values, 0.5) * scale, at(&values, upper) * scale)
}

pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    at(&values, 0.5)
}

/// A quantile of sorted values.
pub fn at(sorted: &[f64], quantile: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * quantile).round() as usize]
}

/// The number of series on a text page.
pub fn series(page: &str) -> usize {
    page.lines().filter(|line| !line.starts_with('#')).count()
}

/// A kept connection, like Prometheus'.
pub struct ScrapeConnection {
    stream: BufReader<TcpStream>,
    path: &'static str,
    /// Complete lines, each ending in CRLF.
    headers: &'static str,
}

/// Prometheus' default.
pub const GZIP: &str = "Accept-Encoding: gzip\r\n";

impl ScrapeConnection {
    pub fn open(address: &str) -> Self {
        Self::open_with(address, "")
    }

    pub fn open_with(address: &str, headers: &'static str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::with_capacity(1 << 18, stream), path: "/metrics", headers }
    }

    pub fn open_at(address: &str, path: &'static str) -> Self {
        Self { path, ..Self::open(address) }
    }

    pub fn scrape(&mut self) -> String {
        String::from_utf8(self.bytes()).unwrap()
    }

    /// The body as received, compressed where the request allows it.
    pub fn bytes(&mut self) -> Vec<u8> {
        let request = format!("GET {} HTTP/1.1\r\nHost: bench\r\n{}\r\n", self.path, self.headers);
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
        let mut length = 0;
        loop {
            let mut line = String::new();
            assert!(self.stream.read_line(&mut line).unwrap() > 0, "podmeter closed the connection");
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).unwrap();
        body
    }
}

/// Resident memory in MiB: total, private (anonymous), and mapped files including the binary.
pub struct Resident {
    pub all: f64,
    pub own: f64,
    pub mapped: f64,
}

impl Resident {
    pub fn of(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let mib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
        };
        Self { all: mib("VmRSS:"), own: mib("RssAnon:"), mapped: mib("RssFile:") }
    }
}

impl std::fmt::Display for Resident {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:.1} MiB ({:.1} private, {:.1} mapped files)", self.all, self.own, self.mapped)
    }
}

/// Processor time of a process's threads, from the scheduler's nanoseconds. The time of a thread that ends is lost, so
/// use this for seconds, not minutes.
pub struct Cpu {
    pid: u32,
    began: BTreeMap<String, f64>,
}

impl Cpu {
    pub fn of(pid: u32) -> Self {
        Self { pid, began: threads(pid) }
    }

    /// In seconds.
    pub fn since(&self) -> f64 {
        let now = threads(self.pid);
        now.into_iter().map(|(thread, used)| used - self.began.get(&thread).unwrap_or(&0.0)).sum()
    }
}

fn threads(pid: u32) -> BTreeMap<String, f64> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let used = threads.filter_map(|thread| {
        let thread = thread.ok()?;
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let nanoseconds: f64 = text.split(' ').next()?.parse().ok()?;
        Some((thread.file_name().to_string_lossy().into_owned(), nanoseconds / 1e9))
    });
    used.collect()
}

/// One process of `/proc`.
struct ProcessorStat {
    parent: u32,
    /// Processor time of all its threads, ended ones too, and of the children that it has waited for.
    seconds: f64,
}

impl ProcessorStat {
    fn of(pid: u32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = text.rsplit(") ").next()?.split(' ').collect();
        // utime, stime, cutime and cstime, the 14th to 17th of all, in the kernel's ticks of 10 ms.
        let ticks: f64 = fields[11..15].iter().map(|field| field.parse::<f64>().unwrap()).sum();
        Some(Self { parent: fields[1].parse().ok()?, seconds: ticks / 100.0 })
    }
}

/// Processor time of a process and its descendants, in seconds.
pub fn process_seconds(root: u32) -> f64 {
    family(root).into_iter().filter_map(ProcessorStat::of).map(|stat| stat.seconds).sum()
}

/// A process and its running descendants.
pub fn family(root: u32) -> Vec<u32> {
    let names = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let parents: Vec<(u32, u32)> = names.filter_map(|pid: u32| Some((pid, ProcessorStat::of(pid)?.parent))).collect();
    let mut family = vec![root];
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| pid));
        next += 1;
    }
    family
}
