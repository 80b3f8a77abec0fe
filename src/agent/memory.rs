//! Gives back what lies in memory and is not needed now: code that is mapped, and what the heap keeps for later.
//!
//! Knows of mappings and of the C library's heap, and nothing of what the agent does. The kernel maps 64 KiB around every address
//! that is called, so that after the start most of the binary and of its libraries is resident. What is needed comes back within
//! microseconds; the linker has laid it side by side (`function_order.ld`), so that little else comes with it.
#![allow(unsafe_code, reason = "what is mapped is given back by its address")]

use std::ops::Range;
use std::time::Duration;

use rustix::mm::{Advice, madvise};

/// By then every kind of work has been done once.
const SETTLED: Duration = Duration::from_secs(20);
/// What the start needed, a visitor or a doctor does not stay for ever. A scrape that follows takes a millisecond longer.
const EVERY: Duration = Duration::from_secs(600);

/// Begun when the start is over. Never ends.
pub async fn give_back_unneeded() {
    tokio::time::sleep(SETTLED).await;
    loop {
        give_back_code();
        trim_heap();
        tokio::time::sleep(EVERY).await;
    }
}

fn give_back_code() {
    // Where it cannot be read, the code stays where it is, which costs memory and nothing else.
    for range in read_only(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default()) {
        // SAFETY: private mappings of files, never written, lose nothing: the next access reads the file's page again.
        let _ = unsafe { madvise(range.start as *mut _, range.len(), Advice::LinuxDontNeed) };
    }
}

/// Whole pages between what is in use; without this the heap keeps the most that it ever held.
#[cfg(target_env = "gnu")]
fn trim_heap() {
    unsafe extern "C" {
        safe fn malloc_trim(keep: usize) -> i32;
    }
    malloc_trim(0);
}

#[cfg(not(target_env = "gnu"))]
fn trim_heap() {}

/// Where files are mapped that nobody ever wrote to: code, and what lies at the head of a file. Other read-only mappings were
/// written by the dynamic linker before they became so.
fn read_only(maps: &str) -> Vec<Range<usize>> {
    let range = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (range, rights, offset) = (fields.next()?, fields.next()?, fields.next()?);
        let path = fields.nth(2)?;
        let head = rights == "r--p" && offset.bytes().all(|digit| digit == b'0');
        if !path.starts_with('/') || !(rights == "r-xp" || head) {
            return None;
        }
        let (start, end) = range.split_once('-')?;
        Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
    };
    maps.lines().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_or_is_no_file_is_left_alone() {
        let maps = "\
55a0-55b0 r--p 00000000 fe:00 12  /usr/bin/podmeter
55b0-55f0 r-xp 0000b000 fe:00 12  /usr/bin/podmeter
55f0-5600 r--p 0004b000 fe:00 12  /usr/bin/podmeter
5600-5700 rw-p 0005b000 fe:00 12  /usr/bin/podmeter
6000-6100 r-xs 00000000 fe:00 13  /shared
6100-6200 r--p 00000000 00:00 0
7000-7100 r-xp 00000000 fe:00 14  /usr/lib/a name with spaces.so (deleted)
7ff0-7ff1 r-xp 00000000 00:00 0   [vdso]
";
        assert_eq!(read_only(maps), [0x55a0..0x55b0, 0x55b0..0x55f0, 0x7000..0x7100]);
    }

    #[tokio::test(start_paused = true)]
    async fn this_process_lives_on() {
        let own = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(read_only(&own).len() >= 2, "{own}");
        let forever = tokio::time::timeout(3 * EVERY, give_back_unneeded());
        assert!(forever.await.is_err());
    }
}
