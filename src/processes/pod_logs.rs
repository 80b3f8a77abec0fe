//! The names of the kubelet's log directories, which map UIDs to pods and container IDs to containers.

use std::sync::Arc;

use super::cgroup::is_uid;
use super::mountinfo::is_name;
use crate::model::{ContainerId, PodRef, PodUid};

/// The longest name that Kubernetes gives a pod.
const LONGEST_POD: usize = 253;
const ID: usize = 64;

/// `<namespace>_<pod>_<uid>`, a directory below `/var/log/pods`.
#[must_use]
pub fn parse_directory(name: &str) -> Option<(PodUid, PodRef)> {
    let mut parts = name.split('_');
    let (namespace, pod, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let valid = parts.next().is_none() && is_name(namespace) && is_pod(pod) && is_uid(uid);
    valid.then(|| (PodUid::from(uid), PodRef::new(namespace, pod)))
}

/// `<pod>_<namespace>_<container>-<id>.log`, a link in `/var/log/containers`.
#[must_use]
pub fn parse_link(name: &str) -> Option<(ContainerId, (PodRef, Arc<str>))> {
    let mut parts = name.strip_suffix(".log")?.split('_');
    let (pod, namespace, last) = (parts.next()?, parts.next()?, parts.next()?);
    let (container, id) = last.rsplit_once('-')?;
    let is_id = id.len() == ID && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let valid = parts.next().is_none() && is_id && is_name(namespace) && is_pod(pod) && is_name(container);
    valid.then(|| (ContainerId::from(id), (PodRef::new(namespace, pod), container.into())))
}

/// A DNS subdomain, near enough: no path and no separator of ours gets through.
fn is_pod(name: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    !name.is_empty() && name.len() <= LONGEST_POD && name.bytes().all(inside) && !name.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "8f5d2c1e-90ab-4cde-8123-456789abcdef";
    const BARE: &str = "229836ee3ad078911e99a2b8134d6713";
    const ID: &str = "0fdb462000db5bb00c161392e7bf2821aea5b75611e8b40debadab16a33aa2b0";

    #[test]
    fn directories() {
        for (namespace, pod, uid) in
            [("default", "web-0", UID), ("kube-system", "etcd-node.example.com", BARE), ("a", "1.2", UID)]
        {
            let found = parse_directory(&format!("{namespace}_{pod}_{uid}"));
            assert_eq!(found, Some((uid.into(), PodRef::new(namespace, pod))));
        }
        for name in [
            "",
            "default_web",
            "lost+found",
            &format!("default_{UID}"),
            &format!("a_b_c_{UID}"),
            &format!("a_b_{UID}_c"),
            &format!("_b_{UID}"),
            &format!("a__{UID}"),
            &format!("a_.._{UID}"),
            &format!("A_b_{UID}"),
            &format!("a_b_{}", UID.replace('-', "_")),
        ] {
            assert_eq!(parse_directory(name), None, "{name}");
        }
    }

    #[test]
    fn links() {
        let found = parse_link(&format!("web-0_default_side-car-{ID}.log"));
        assert_eq!(found, Some((ID.into(), (PodRef::new("default", "web-0"), "side-car".into()))));
        for name in [
            "x.log",
            &format!("web-0_default_main-{ID}"),
            &format!("web-0_default_main{ID}.log"),
            &format!("web-0_default_-{ID}.log"),
            &format!("web-0_main-{ID}.log"),
            &format!("web-0_default_main-{}.log", &ID[1..]),
        ] {
            assert_eq!(parse_link(name), None, "{name}");
        }
    }

    proptest::proptest! {
        #[test]
        fn anything_is_survived(name in "(?s).{0,120}") {
            let _ = (parse_directory(&name), parse_link(&name));
        }
    }
}
