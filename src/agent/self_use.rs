//! What this process uses, for its own metrics.

use rustix::process::{Resource, getrlimit};

use crate::domain::model::{SelfUse, UnixSeconds};

/// The resources that this process uses, from `/proc` and its limits. A value that cannot be read is absent.
pub fn read() -> SelfUse {
    let stat = std::fs::read_to_string("/proc/self/stat").ok();
    // The second field is the command in parentheses and may contain anything; the rest is numbers.
    let fields: Vec<&str> =
        stat.as_deref().and_then(|stat| stat.rsplit_once(')')).map_or(vec![], |(_, rest)| rest.split(' ').collect());
    let number = |position: usize| fields.get(position).and_then(|field| field.parse::<f64>().ok());
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let count = |value: f64| value as u64;
    // Fields 14, 15, 22, 23 and 24 of proc_pid_stat(5). Field n is at index n - 2: the text before the first space is empty.
    let (user, system, start, virtual_bytes, pages) = (number(12), number(13), number(20), number(21), number(22));
    SelfUse {
        cpu_seconds: user.zip(system).map(|(user, system)| (user + system) / ticks),
        resident_bytes: pages.map(|pages| count(pages) * rustix::param::page_size() as u64),
        virtual_bytes: virtual_bytes.map(count),
        open_files: std::fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as u64),
        max_files: getrlimit(Resource::Nofile).current,
        start: start.zip(boot_time()).map(|(start, boot)| UnixSeconds(boot + start / ticks)),
    }
}

fn boot_time() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime ")?.parse().ok())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_use_of_this_process_is_read() {
        let own = super::read();
        assert!(own.resident_bytes.is_some_and(|bytes| bytes > 100_000), "{own:?}");
        assert!(own.open_files.is_some_and(|files| files >= 3), "{own:?}");
        assert!(own.max_files.is_some() && own.cpu_seconds.is_some(), "{own:?}");
        assert!(own.start.is_some_and(|start| start.0 > 1e9), "{own:?}");
    }
}
