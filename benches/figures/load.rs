//! wrk as the load generator.

use std::process::Command;

/// wrk's settings.
#[derive(Clone, Copy)]
pub struct ConnectionLoad {
    pub connections: usize,
    pub seconds: u32,
}

/// wrk's results; times in milliseconds.
pub struct Answered {
    pub requests: f64,
    pub per_second: f64,
    pub median: f64,
    pub p99: f64,
}

impl ConnectionLoad {
    pub fn on(self, url: &str) -> Answered {
        // No more than connections.
        let threads = self.connections.min(2).to_string();
        let (connections, seconds) = (self.connections.to_string(), format!("{}s", self.seconds));
        let output = Command::new("wrk")
            .args(["--threads", &threads, "--connections", &connections, "--duration", &seconds])
            .args(["--latency", "--header", "Accept: text/plain", url])
            .output()
            .expect("wrk is installed (Debian: apt-get install wrk)");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "wrk: {text}{}", String::from_utf8_lossy(&output.stderr));
        Answered::read(&text).unwrap_or_else(|| panic!("wrk reports failed requests to {url}, or no results:\n{text}"))
    }
}

impl Answered {
    fn read(text: &str) -> Option<Self> {
        if text.contains("Non-2xx") {
            return None;
        }
        let line = |part: &str| text.lines().map(str::trim).find(|line| line.contains(part));
        let latency =
            |quantile: &str| milliseconds(text.lines().find_map(|line| line.trim().strip_prefix(quantile))?.trim());
        Some(Self {
            requests: line(" requests in ")?.split(' ').next()?.parse().ok()?,
            per_second: line("Requests/sec:")?.rsplit(' ').next()?.parse().ok()?,
            median: latency("50%")?,
            p99: latency("99%")?,
        })
    }
}

fn milliseconds(text: &str) -> Option<f64> {
    let unit = text.find(|character: char| character.is_ascii_alphabetic())?;
    let scale = match &text[unit..] {
        "us" => 1e-3,
        "ms" => 1.0,
        "s" => 1e3,
        _ => return None,
    };
    Some(text[..unit].parse::<f64>().ok()? * scale)
}
