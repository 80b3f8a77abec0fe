//! When a process started, its parent, and whether it is a kernel thread, by `/proc/<pid>/stat`. Pure.

/// The fields of `/proc/<pid>/stat` that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// 0: none that is visible here.
    pub parent: u32,
    /// It has the name of NVIDIA's MPS server or control daemon.
    pub is_mps: bool,
    /// Clock ticks after boot.
    pub start_ticks: u64,
    /// Kernel threads are seen from the host's process namespace alone.
    pub kernel_thread: bool,
}

/// What the kernel keeps of `nvidia-cuda-mps-server` and `nvidia-cuda-mps-control`.
const MPS: &[u8] = b"nvidia-cuda-mps";
/// The kernel's PF_KTHREAD.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// Fields after the name, from 0: the kernel's fields 4, 9 and 22.
const PARENT: usize = 1;
const FLAGS: usize = 6;
const START_TIME: usize = 19;

/// `None` for what no kernel writes. The name is the process's own and may hold anything: parentheses, spaces, line
/// feeds, bytes that are no text. What follows its last parenthesis is the kernel's.
pub fn parse(bytes: &[u8]) -> Option<Stat> {
    let start = bytes.iter().position(|byte| *byte == b'(')?;
    let end = bytes.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&bytes[end + 1..]).ok()?;
    let field = |number: usize| rest.split_ascii_whitespace().nth(number);
    let flags: u64 = field(FLAGS)?.parse().ok()?;
    Some(Stat {
        parent: field(PARENT)?.parse().ok()?,
        is_mps: bytes.get(start + 1..end) == Some(MPS),
        start_ticks: field(START_TIME)?.parse().ok()?,
        kernel_thread: flags & KERNEL_THREAD != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &[u8], flags: u64, start: u64) -> Vec<u8> {
        let after =
            format!(") S 77 10 10 0 -1 {flags} 0 0 0 0 5 4 0 0 20 0 1 0 {start} 10000 99 18446744073709551615\n");
        [b"4242 (", name, after.as_bytes()].concat()
    }

    #[test]
    fn parent_and_start_time_are_found_behind_any_name() {
        let names: [&[u8]; 8] = [b"python3", b"a b", b"a) S 1 2 3", b"((", b")", b"\n\n", b"\xff\xfe) (", b""];
        for name in names {
            let expected = Some(Stat { parent: 77, is_mps: false, start_ticks: 123_456, kernel_thread: false });
            assert_eq!(parse(&line(name, 0x0040_0100, 123_456)), expected, "{name:?}");
        }
        assert!(parse(&line(b"nvidia-cuda-mps", 0, 0)).unwrap().is_mps);
        assert!(parse(&line(b"kthreadd", 0x0020_8040, 0)).unwrap().kernel_thread);
    }

    #[test]
    fn truncated_or_non_numeric_fields_are_rejected() {
        let whole = line(b"x", 1, 2);
        for bytes in
            [&b""[..], b"1 (x", b"1 (x)", b"1 (x) S 1 2", b"1 (x) S 1 2 3 4 5 x 7 8 9 10 11 12 13 14 15 16 17 18"]
        {
            assert_eq!(parse(bytes), None, "{bytes:?}");
        }
        assert_eq!(parse(&whole[..20]), None);
    }

    proptest::proptest! {
        #[test]
        fn anything_is_survived_and_no_name_moves_the_start(name: Vec<u8>, start: u64) {
            let _ = parse(&name);
            proptest::prop_assert_eq!(parse(&line(&name, 0, start)).map(|stat| stat.start_ticks), Some(start));
        }
    }
}
