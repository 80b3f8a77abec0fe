//! The pod and container in the mounts of a process. Pure.

use std::sync::Arc;

use crate::domain::model::{PodUid, is_dns_label};
use crate::files::unescaped;

/// The identity in a container's mounts from its pod's directory of the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletMounts {
    pub uid: PodUid,
    /// `None`: only the pod's hosts file is mounted.
    pub container: Option<Arc<str>>,
}

/// The text of `/proc/<pid>/mountinfo`. The kubelet mounts `<root>/pods/<uid>/containers/<name>/<file>` (the
/// termination log) and `<root>/pods/<uid>/etc-hosts` into each container; where `pods` is a file system of its own, the
/// paths begin with the UID.
///
/// A process may mount more, so the runtime's mounts, which come first, count; mounts inside a pod's volumes do not;
/// and where the cgroup names the pod, mounts of other pods are ignored. Without that, mounts of two pods
/// are those of the kubelet or of a program that watches it: no answer.
pub fn parse(text: &str, uid: Option<&PodUid>) -> Option<KubeletMounts> {
    let mut found: Option<KubeletMounts> = None;
    for line in text.lines() {
        // Mount id, parent, device, then the mounted directory within its file system.
        let Some(root) = line.split(' ').nth(3) else { continue };
        let root = unescaped(root);
        let Some(mounts) = kubelet_mount(&root) else { continue };
        if uid.is_some_and(|uid| *uid != mounts.uid) {
            continue;
        }
        match &mut found {
            None => found = Some(mounts),
            Some(found) if found.uid != mounts.uid => return None,
            Some(found) => found.container = found.container.take().or(mounts.container),
        }
    }
    found
}

/// A UID that begins the path, or else the first `pods/<uid>`, when the kubelet's own files of a container follow.
fn kubelet_mount(root: &str) -> Option<KubeletMounts> {
    let below_pods = root.match_indices("/pods/").map(|(position, word)| &root[position + word.len()..]);
    let mut candidates = root.strip_prefix('/').into_iter().chain(below_pods);
    let (uid, rest) = candidates.find_map(|path| Some((PodUid::parse(path.split('/').next()?)?, path)))?;
    let mut parts = rest.split('/').skip(1);
    let (kind, name) = (parts.next()?, parts.next());
    match (kind, name) {
        // What was removed meanwhile ends in `//deleted`.
        ("etc-hosts", None | Some("")) => Some(KubeletMounts { uid, container: None }),
        ("containers", Some(name)) if is_dns_label(name) && parts.next().is_some_and(|file| !file.is_empty()) => {
            Some(KubeletMounts { uid, container: Some(name.into()) })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "8f5d2c1e-90ab-4cde-8123-456789abcdef";
    const OTHER: &str = "229836ee3ad078911e99a2b8134d6713";
    const ROOT: &str = "700 600 0:150 / / rw,relatime master:300 - overlay overlay rw,lowerdir=/x\n";

    fn mount(root: &str, point: &str) -> String {
        format!("710 700 8:1 {root} {point} rw,relatime - ext4 /dev/sda1 rw\n")
    }

    fn container(text: &str) -> Option<String> {
        parse(text, Some(&PodUid::from(UID)))?.container.map(|name| name.to_string())
    }

    #[test]
    fn the_termination_log_names_the_container() {
        let roots =
            ["/var/lib/kubelet/pods", "/kubelet/pods", "/pods", "", "/mnt/my\\040disk/k/pods", "/d\\134x\\011/pods"];
        for root in roots {
            let hosts = mount(&format!("{root}/{UID}/etc-hosts"), "/etc/hosts");
            let log = mount(&format!("{root}/{UID}/containers/main/8a1b2c3d"), "/dev/termination-log");
            assert_eq!(container(&format!("{ROOT}{hosts}{log}")).as_deref(), Some("main"), "{root}");
            assert_eq!(container(&format!("{ROOT}{log}{hosts}")).as_deref(), Some("main"), "{root}");
            let found = parse(&format!("{ROOT}{hosts}"), None);
            assert_eq!(found, Some(KubeletMounts { uid: UID.into(), container: None }), "{root}");
        }
    }

    #[test]
    fn a_removed_file_still_names_it() {
        let log = mount(&format!("/var/lib/kubelet/pods/{UID}/containers/main/8a1b2c3d//deleted"), "/dev/x");
        let hosts = mount(&format!("/var/lib/kubelet/pods/{UID}/etc-hosts//deleted"), "/etc/hosts");
        assert_eq!(container(&log).as_deref(), Some("main"));
        assert!(parse(&hosts, None).is_some());
    }

    #[test]
    fn what_a_process_mounts_itself_does_not_count() {
        let log = mount(&format!("/var/lib/kubelet/pods/{UID}/containers/main/8a1b2c3d"), "/dev/termination-log");
        let later = mount(&format!("/pods/{UID}/containers/other/1"), "/mnt");
        assert_eq!(container(&format!("{log}{later}")).as_deref(), Some("main"), "the first");
        let volume = format!("/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/v/pods/{UID}/containers/x/1");
        assert_eq!(container(&mount(&volume, "/mnt")), None, "a volume");
        let foreign = mount(&format!("/pods/{OTHER}/containers/other/1"), "/mnt");
        assert_eq!(container(&format!("{foreign}{log}")).as_deref(), Some("main"), "another pod's");
        assert_eq!(container(&foreign), None);
        assert_eq!(parse(&format!("{foreign}{log}"), None), None, "without a cgroup's word, two pods are none");
    }

    #[test]
    fn a_name_that_no_container_has_is_none() {
        for name in ["", ".", "..", "Main", "a_b", "-a", "a-", &"a".repeat(64), "ä", "a\\040b"] {
            assert_eq!(container(&mount(&format!("/k/pods/{UID}/containers/{name}/1"), "/x")), None, "{name}");
        }
        for rest in ["containers", "containers/main", "containers/main/", "plugins/x/y", "etc-hosts/x", ""] {
            assert_eq!(parse(&mount(&format!("/k/pods/{UID}/{rest}"), "/x"), None), None, "{rest}");
        }
        assert_eq!(parse(&mount("/k/pods/not-a-uid/containers/main/1", "/x"), None), None);
    }

    proptest::proptest! {
        #[test]
        fn other_mounts_do_not_matter(before in "([ -~]{0,80}\n){0,5}", after in "([ -~]{0,80}\n){0,5}") {
            let log = mount(&format!("/var/lib/kubelet/pods/{UID}/containers/main/1"), "/dev/termination-log");
            let found = container(&format!("{before}{log}{after}"));
            proptest::prop_assert_eq!(found.as_deref(), Some("main"));
        }
    }
}
