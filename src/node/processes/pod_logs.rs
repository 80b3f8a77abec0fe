//! The names of the kubelet's log directories, which map UIDs to pods.

use super::cgroup::is_uid;
use super::mountinfo::is_name;
use crate::domain::model::{PodRef, PodUid};

/// The longest name that Kubernetes gives a pod.
const LONGEST_POD: usize = 253;

/// `<namespace>_<pod>_<uid>`, a directory below `/var/log/pods`.
pub fn parse_directory(name: &str) -> Option<(PodUid, PodRef)> {
    let mut parts = name.split('_');
    let (namespace, pod, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let valid = parts.next().is_none() && is_name(namespace) && is_pod(pod) && is_uid(uid);
    valid.then(|| (PodUid::from(uid), PodRef::new(namespace, pod)))
}

/// A DNS subdomain, near enough: no path and no separator of ours gets through.
fn is_pod(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    !name.is_empty() && name.len() <= LONGEST_POD && name.bytes().all(is_allowed) && !name.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "8f5d2c1e-90ab-4cde-8123-456789abcdef";
    const BARE: &str = "229836ee3ad078911e99a2b8134d6713";

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

    proptest::proptest! {
        #[test]
        fn anything_is_survived(name in "(?s).{0,120}") {
            let _ = parse_directory(&name);
        }
    }
}
