//! Parses the driver's lines in the kernel log about failed GPUs. Formats as in `kernel_rc.c` of the open kernel
//! modules.

use std::sync::Arc;

use crate::model::{PciBusId, XidInstance, XidProcess};

/// Longer than any process name in the kernel.
const NAME_BYTES: usize = 64;
const OFF_THE_BUS: &str = "fallen off the bus";

/// A line about a failed GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelLine {
    Xid(KernelXid),
    /// The GPU has fallen off the bus, without an XID.
    OffTheBus(PciBusId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelXid {
    pub bus_id: PciBusId,
    /// `None`: the whole GPU.
    pub instance: Option<XidInstance>,
    pub code: u32,
    pub process: Option<XidProcess>,
}

/// Reads one line of `/dev/kmsg` (`3,1234,5678,-;text`), of `dmesg` (`[ 12.3] text`), or the bare text. `None` for
/// every other line, and for one that a process wrote instead of the kernel.
#[must_use]
pub fn parse_kernel_line(line: &str) -> Option<KernelLine> {
    let message = without_prefix(line)?.strip_prefix("NVRM:")?.trim_start();
    match message.strip_prefix("Xid") {
        Some(xid) => parse_xid(xid.trim_start()).map(KernelLine::Xid),
        None if message.contains(OFF_THE_BUS) => {
            let words = message.split(|letter: char| letter.is_whitespace() || "(),".contains(letter));
            words.filter_map(|word| parse_bus_id(word.trim_end_matches(':'))).next().map(KernelLine::OffTheBus)
        }
        None => None,
    }
}

/// One form for all names of the same GPU: `PCI:0000:3B:00`, `0000:3b:00.0`, `00000000:3B:00.0`.
pub fn parse_bus_id(text: &str) -> Option<PciBusId> {
    let text = text.strip_prefix("PCI:").unwrap_or(text);
    let mut parts = text.split(':');
    let domain = hexadecimal(parts.next()?, 8)?;
    let bus = hexadecimal(parts.next()?, 2)?;
    let device = parts.next()?;
    let device = hexadecimal(device.strip_suffix(".0").unwrap_or(device), 2)?;
    parts.next().is_none().then(|| PciBusId::new(format!("{domain:04x}:{bus:02x}:{device:02x}.0")))
}

fn without_prefix(line: &str) -> Option<&str> {
    if let Some((prefix, text)) = line.split_once(';') {
        let mut fields = prefix.split(',');
        let numbers = [fields.next(), fields.next(), fields.next()].map(|field| field?.parse::<u64>().ok());
        if let [Some(priority), Some(_), Some(_)] = numbers {
            // The bits above the level are the facility: 0 is the kernel, which no process can use.
            return (priority < 8).then_some(text);
        }
    }
    match line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((_, text)) => Some(text.trim_start()),
        None => Some(line),
    }
}

/// `(PCI:0000:3b:00 GPU-I:05 GPU-CI:00): 79, pid=1234, name=python3, GPU has fallen off the bus.`
fn parse_xid(text: &str) -> Option<KernelXid> {
    let (place, rest) = text.strip_prefix('(')?.split_once(')')?;
    let mut place = place.split_whitespace();
    let bus_id = parse_bus_id(place.next()?)?;
    let (mut gpu_instance, mut compute_instance) = (None, None);
    for word in place {
        if let Some(number) = word.strip_prefix("GPU-I:") {
            gpu_instance = Some(number.parse().ok()?);
        } else if let Some(number) = word.strip_prefix("GPU-CI:") {
            compute_instance = Some(number.parse().ok()?);
        }
    }
    let rest = rest.strip_prefix(':')?.trim_start();
    let digits = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    let (code, rest) = rest.split_at(digits);
    let ends = rest.is_empty() || rest.starts_with([',', ' ', '.']);
    Some(KernelXid {
        bus_id,
        instance: gpu_instance.map(|gpu_instance| XidInstance { gpu_instance, compute_instance }),
        code: code.parse().ok().filter(|_| ends)?,
        process: parse_process(rest.trim_start_matches([',', ' '])),
    })
}

/// `pid=1234, name=python3, ...`; older drivers have no name, and both may be unknown.
fn parse_process(text: &str) -> Option<XidProcess> {
    let (pid, rest) = text.strip_prefix("pid=")?.split_once(',').unwrap_or((text.strip_prefix("pid=")?, ""));
    let pid = pid.trim().trim_matches(['\'', '"']);
    let pid: u32 = match pid.strip_prefix("0x") {
        Some(digits) => hexadecimal(digits, 8)?,
        None => pid.parse().ok()?,
    };
    let name = rest.trim_start().strip_prefix("name=").map(|rest| {
        let name = rest.split_once(", ").map_or(rest, |(name, _)| name);
        name.trim().trim_matches(['\'', '"'])
    });
    let name = name.filter(|name| !name.is_empty() && *name != "<unknown>");
    let name = name.map(|name| Arc::from(&name[..name.floor_char_boundary(NAME_BYTES)]));
    (pid != 0).then_some(XidProcess { pid, name })
}

/// Digits only: the parser of the standard library also takes a sign.
fn hexadecimal(text: &str, longest: usize) -> Option<u32> {
    let digits = !text.is_empty() && text.len() <= longest && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u32::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xid(line: &str) -> KernelXid {
        match parse_kernel_line(line) {
            Some(KernelLine::Xid(xid)) => xid,
            other => panic!("{line:?} is {other:?}"),
        }
    }

    fn process(line: &str) -> Option<(u32, Option<String>)> {
        let process = xid(line).process?;
        Some((process.pid, process.name.map(|name| name.to_string())))
    }

    #[test]
    fn all_forms_of_prefix_and_bus_id_name_the_same_gpu() {
        for line in [
            "3,1234,56789,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
            "3,1234,56789,-,caller=T12;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
            "[ 1234.567890] NVRM: Xid (PCI:0000:3B:00): 79, pid=9, GPU has fallen off the bus.",
            "NVRM: Xid (PCI:00000000:3b:00.0): 79",
            "NVRM: Xid (0000:3b:00): 79, GPU has fallen off the bus; it was; there",
        ] {
            let xid = xid(line);
            assert_eq!((xid.bus_id.as_str(), xid.code, xid.instance), ("0000:3b:00.0", 79, None), "{line}");
        }
        assert_eq!(xid("NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406)").code, 149);
        assert_eq!(xid("NVRM: Xid (PCI:00010000:01:00): 149").bus_id.as_str(), "10000:01:00.0");
    }

    #[test]
    fn the_process_is_read_where_the_line_names_it() {
        let process_in = |rest: &str| process(&format!("NVRM: Xid (PCI:0000:3b:00): {rest}"));
        let named = |pid, name: &str| Some((pid, Some(name.to_owned())));
        assert_eq!(process_in("43, pid=1045242, name=pt_main_thread, Ch 00000008"), named(1_045_242, "pt_main_thread"));
        assert_eq!(process_in("31, pid=7, name=a b,c, Ch 0000000a, intr 00000000. MMU Fault"), named(7, "a b,c"));
        assert_eq!(process_in("79, pid=1122, GPU has fallen off the bus."), Some((1122, None)));
        assert_eq!(process_in("13, pid=0x4d2, name=exe"), named(1234, "exe"));
        assert_eq!(process_in("13, pid=7, name=<unknown>, Graphics"), Some((7, None)));
        for unknown in [
            "94, pid='<unknown>', name=<unknown>, Contained: SM (0x1). RST: No, D-RST: No",
            "94, pid=<unknown>, Contained",
            "149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000)",
            "13, pid=-1, name=x, y",
            "13, pid=0, name=x, y",
        ] {
            assert_eq!(process_in(unknown), None, "{unknown}");
        }
        let long = format!("13, pid=1, name={}, y", "ü".repeat(100));
        assert_eq!(process_in(&long), named(1, &"ü".repeat(32)));
    }

    #[test]
    fn an_instance_is_distinguished_from_the_gpu() {
        let instance =
            |place: &str| xid(&format!("NVRM: Xid (PCI:0000:01:00{place}): 94, pid=7194, Contained")).instance;
        assert_eq!(instance(""), None);
        assert_eq!(instance(" GPU-I:05"), Some(XidInstance { gpu_instance: 5, compute_instance: None }));
        assert_eq!(instance(" GPU-I:05 GPU-CI:00"), Some(XidInstance { gpu_instance: 5, compute_instance: Some(0) }));
    }

    #[test]
    fn a_gpu_may_fall_off_the_bus_without_an_xid() {
        let gone = Some(KernelLine::OffTheBus("0000:01:00.0".into()));
        for line in [
            "3,1,2,-;NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
            "NVRM: GPU at PCI:0000:01:00: GPU-efbdfde9 has fallen off the bus",
        ] {
            assert_eq!(parse_kernel_line(line), gone, "{line}");
        }
        assert_eq!(parse_kernel_line("NVRM: installed in this system has fallen off the bus"), None);
    }

    #[test]
    fn other_lines_are_ignored() {
        for line in [
            "",
            "6,1,2,-;usb 1-1: new device",
            // Facility 1: a process wrote to the log.
            "12,1234,56789,-;NVRM: Xid (PCI:0000:3b:00): 79, forged",
            "6,1,2,-;systemd[1]: NVRM: Xid (PCI:0000:3b:00): 79, forged",
            "NVRM: Xid (PCI:0000:3b:00): x79",
            "NVRM: Xid (PCI:0000:3b:00): 79x",
            "NVRM: Xid (PCI:0000:3b:00): 99999999999",
            "NVRM: Xid (PCI:0000:3b:+0): 79",
            "NVRM: Xid (PCI:0000:3b:00 GPU-I:x): 79",
            "NVRM: Xid (PCI:0000:3b:00",
            "NVRM: Xid (PCI:0000:3b:00): ",
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.183.01",
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32",
        ] {
            assert_eq!(parse_kernel_line(line), None, "{line}");
        }
    }
}
