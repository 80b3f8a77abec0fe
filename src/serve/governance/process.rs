//! What the kernel reports of this process: user, capabilities, namespaces and mounts.
//!
//! In: the files of `/proc/self`, `uname`, whether a service account token exists. Out: `OwnProcess`. Does not use: the
//! snapshot, settings.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::thread::CapabilitySet;
use serde::Serialize;

use crate::files::unescaped;

/// Where Kubernetes puts the token of a service account.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// The inode numbers of the kernel's first namespaces (`include/linux/proc_ns.h`, `nsfs.h`), and whether every kernel
/// uses them. Older kernels give the first `mnt` and `net` any number, so that another number proves nothing.
const FIRST: [(&str, u64, bool); 7] = [
    ("cgroup", 0xEFFF_FFFB, true),
    ("ipc", 0xEFFF_FFFF, true),
    ("mnt", 0xEFFF_FFF8, false),
    ("net", 0xEFFF_FFF9, false),
    ("pid", 0xEFFF_FFFC, true),
    ("user", 0xEFFF_FFFD, true),
    ("uts", 0xEFFF_FFFE, true),
];
/// The actual privileges and mounts of this process. `None` and, in the record, null: its file could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OwnProcess {
    /// The kernel's release, shown beside the node's name.
    #[serde(skip)]
    pub kernel: String,
    pub privileges: Option<Privileges>,
    /// The AppArmor profile or SELinux context; `None` also where there is none.
    pub security_label: Option<String>,
    /// Whether there is a service account token; without one the Kubernetes API cannot be used.
    pub service_account_token: bool,
    /// The namespaces by type, without those that could not be read.
    pub namespaces: BTreeMap<&'static str, Namespace>,
    pub read_only_root: Option<bool>,
    /// The mounts by path, without those under `/proc`, `/sys` and `/dev` that every container has; the host's devtmpfs
    /// is included.
    pub mounts: Option<Vec<MountPoint>>,
}

/// User, group and capabilities, from `/proc/self/status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Privileges {
    /// The effective user ID.
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub capabilities: Capabilities,
    pub no_new_privileges: Option<bool>,
    /// The seccomp mode: `disabled`, `strict` or `filter`.
    pub seccomp: Option<&'static str>,
}

/// The names of the capabilities, in the kernel's order; `None` where the status has no such line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    pub effective: Option<Vec<String>>,
    pub permitted: Option<Vec<String>>,
    pub bounding: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Namespace {
    pub id: u64,
    /// Whether it is the host's; `None` where the number does not show it.
    pub host: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MountPoint {
    pub path: String,
    /// The directory of the file system that is mounted.
    pub root: String,
    pub file_system: String,
    pub source: String,
    pub read_only: bool,
}

/// Reads `proc`, which is `/proc/self` or a directory like it; does not block. It also checks whether there is a
/// service account token.
pub fn read(proc: &Path) -> OwnProcess {
    let text = |name: &str| std::fs::read_to_string(proc.join(name)).ok();
    let label = text("attr/current").map(|label| label.trim_end_matches(['\0', '\n']).to_owned());
    let mounts = text("mountinfo").map(|text| all_mounts(&text));
    let read_only_root = mounts
        .as_deref()
        .and_then(|mounts| mounts.iter().rev().find(|mount| mount.path == "/").map(|mount| mount.read_only));
    OwnProcess {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        privileges: text("status").map(|text| status(&text)),
        security_label: label.filter(|label| !label.is_empty()),
        service_account_token: Path::new(TOKEN).exists(),
        namespaces: FIRST.iter().filter_map(|first| Some((first.0, namespace(proc, *first)?))).collect(),
        read_only_root,
        mounts: mounts.map(relevant_mounts),
    }
}

fn namespace(proc: &Path, (name, first, of_every_kernel): (&str, u64, bool)) -> Option<Namespace> {
    let link = std::fs::read_link(proc.join("ns").join(name)).ok()?;
    let id = link.to_str()?.strip_prefix(name)?.strip_prefix(":[")?.strip_suffix(']')?.parse().ok()?;
    Some(Namespace { id, host: (id == first || of_every_kernel).then_some(id == first) })
}

/// Parses the text of `/proc/<pid>/status`.
fn status(text: &str) -> Privileges {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim);
    // The IDs are real, effective, saved, file system.
    let effective = |key| value(key)?.split_whitespace().nth(1)?.parse().ok();
    let capabilities = |key| Some(capability_names(u64::from_str_radix(value(key)?, 16).ok()?));
    Privileges {
        uid: effective("Uid"),
        gid: effective("Gid"),
        capabilities: Capabilities {
            effective: capabilities("CapEff"),
            permitted: capabilities("CapPrm"),
            bounding: capabilities("CapBnd"),
        },
        no_new_privileges: value("NoNewPrivs").and_then(|flag| match flag {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        }),
        seccomp: value("Seccomp").and_then(|mode| match mode {
            "0" => Some("disabled"),
            "1" => Some("strict"),
            "2" => Some("filter"),
            _ => None,
        }),
    }
}

/// A bit without a name is `CAP_<number>`.
fn capability_names(bits: u64) -> Vec<String> {
    let name = |bit: u32| {
        let known = CapabilitySet::from_bits_retain(1 << bit).iter_names().next();
        known.map_or_else(|| format!("CAP_{bit}"), |(name, _)| format!("CAP_{name}"))
    };
    (0..64).filter(|bit| bits & (1 << bit) != 0).map(name).collect()
}

/// The mounts in the text of `/proc/<pid>/mountinfo`, in the kernel's order. Invalid lines are skipped.
fn all_mounts(text: &str) -> Vec<MountPoint> {
    text.lines().filter_map(mount).collect()
}

/// Parses a line such as `36 35 98:0 /root /point rw,noatime master:1 - ext4 /dev/sda1 rw`.
fn mount(line: &str) -> Option<MountPoint> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(3);
    let (root, path, options) = (fields.next()?, fields.next()?, fields.next()?);
    let mut fields = after.split(' ');
    let (file_system, source, super_options) = (fields.next()?, fields.next()?, fields.next().unwrap_or_default());
    let is_read_only = |options: &str| options.split(',').any(|option| option == "ro");
    Some(MountPoint {
        path: unescaped(path).into_owned(),
        root: unescaped(root).into_owned(),
        file_system: file_system.to_owned(),
        source: unescaped(source).into_owned(),
        read_only: is_read_only(options) || is_read_only(super_options),
    })
}

/// The mounts to show, sorted by path; of several at one path only the last, which covers the others.
fn relevant_mounts(mounts: Vec<MountPoint>) -> Vec<MountPoint> {
    let by_path: BTreeMap<String, MountPoint> = mounts.into_iter().map(|mount| (mount.path.clone(), mount)).collect();
    by_path.into_values().filter(is_relevant).collect()
}

fn is_relevant(mount: &MountPoint) -> bool {
    let is_under =
        |top: &str| mount.path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let is_usual = is_under("/proc") || is_under("/sys") || is_under("/dev");
    // A device node of the host, or its whole `/dev`; the `/dev` that a container gets is a tmpfs.
    let is_of_host_dev = mount.file_system == "devtmpfs";
    !is_usual || is_of_host_dev
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_whole_dev_is_listed() {
        let text = "602 600 0:6 / /dev rw,nosuid - devtmpfs udev rw\n603 602 0:25 / /dev/shm rw - tmpfs tmpfs rw\n";
        let mounts = relevant_mounts(all_mounts(text));
        assert_eq!(mounts.iter().map(|mount| mount.path.as_str()).collect::<Vec<_>>(), ["/dev"]);
    }

    #[test]
    fn mounts_of_every_container_are_left_out() {
        let text = "600 500 0:50 / / ro,relatime master:1 - overlay overlay rw,lowerdir=/x\n\
                    601 600 0:51 / /proc rw,nosuid - proc proc rw\n\
                    602 600 0:52 / /dev rw - tmpfs tmpfs rw\n\
                    603 602 0:6 /nvidia0 /dev/nvidia0 ro,nosuid master:3 - devtmpfs devtmpfs rw\n\
                    604 600 8:1 /var/lib/kubelet/device-plugins /var/lib/kubelet/device-plugins rw shared:7 master:2 - ext4 /dev/sda1 rw\n\
                    605 600 8:1 /pod\\040resources /var/lib/kubelet/pod-resources ro - ext4 /dev/sda1 rw\n\
                    606 600 0:60 / /devices rw - tmpfs tmpfs ro\n\
                    nonsense\n7 8 - x\n";
        let mounts = relevant_mounts(all_mounts(text));
        let seen: Vec<_> = mounts.iter().map(|mount| (mount.path.as_str(), mount.read_only)).collect();
        assert_eq!(
            seen,
            [
                ("/", true),
                ("/dev/nvidia0", true),
                ("/devices", true),
                ("/var/lib/kubelet/device-plugins", false),
                ("/var/lib/kubelet/pod-resources", true),
            ]
        );
        assert_eq!(mounts[4].root, "/pod resources");
    }

    #[test]
    fn privileges_are_read_by_name() {
        let text = "Name:\tpodmeter\nUid:\t1000\t0\t0\t0\nGid:\t0\t0\t0\t0\nNoNewPrivs:\t1\nSeccomp:\t2\n\
                    CapPrm:\t0000000000000000\nCapEff:\t8000000400200001\nCapBnd:\tnonsense\n";
        let status = status(text);
        assert_eq!((status.uid, status.gid), (Some(0), Some(0)));
        assert_eq!((status.no_new_privileges, status.seccomp), (Some(true), Some("filter")));
        let effective = status.capabilities.effective.unwrap();
        assert_eq!(effective, ["CAP_CHOWN", "CAP_SYS_ADMIN", "CAP_SYSLOG", "CAP_63"]);
        assert_eq!(status.capabilities.permitted, Some(vec![]));
        assert_eq!(status.capabilities.bounding, None, "unknown is not empty");
        assert_eq!(super::status(""), Privileges::default());
    }

    #[test]
    fn this_process_is_read() {
        let own = read(Path::new("/proc/self"));
        assert!(own.privileges.is_some_and(|status| status.uid.is_some()));
        assert!(own.namespaces.contains_key("pid") && own.read_only_root.is_some());
        assert!(own.mounts.is_some_and(|mounts| mounts.iter().any(|mount| mount.path == "/")));
        let nothing = read(Path::new("/nonexistent"));
        assert_eq!((nothing.privileges, nothing.mounts, nothing.read_only_root), (None, None, None));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_accepted(text in "(?s).{0,200}") {
            let _ = (status(&text), all_mounts(&text));
        }
    }
}
