//! The pod and container in the path of a cgroup, as each runtime and cgroup driver writes it. Pure.

use crate::domain::model::{ContainerId, PodUid};

/// Whose process it is, by the path of its cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CgroupOwner {
    Pod {
        uid: PodUid,
        /// `None`: in the pod, but in none of its containers (a monitor, a sandbox without an id).
        container: Option<ContainerId>,
    },
    /// In a container of which the path names no pod.
    Container(ContainerId),
    /// Neither.
    Host,
}

/// A container's id, as every runtime makes it.
const ID: usize = 64;
/// Of cgroup v1, the hierarchies in which every runtime puts its containers, then what systemd keeps.
const CONTROLLERS: [&str; 4] = ["memory", "pids", "cpu", "name=systemd"];

/// The text of `/proc/<pid>/cgroup`: of cgroup v2 one line, of v1 one for each hierarchy.
pub fn parse(text: &str) -> CgroupOwner {
    let mut found: Option<(usize, CgroupOwner)> = None;
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let Some(rank) = rank(controllers) else { continue };
        let owner = owner(path);
        let weight = rank + CONTROLLERS.len() * 2 * specificity(&owner);
        if found.as_ref().is_none_or(|(best, _)| weight > *best) {
            found = Some((weight, owner));
        }
    }
    found.map_or(CgroupOwner::Host, |(_, owner)| owner)
}

/// Of lines with equal content, the one with the higher rank counts. `None`: a hierarchy that runtimes may leave out.
fn rank(controllers: &str) -> Option<usize> {
    if controllers.is_empty() {
        return Some(CONTROLLERS.len());
    }
    let of = |controller: &str| CONTROLLERS.iter().rev().position(|known| *known == controller);
    controllers.split(',').filter_map(of).max()
}

fn specificity(owner: &CgroupOwner) -> usize {
    match owner {
        CgroupOwner::Pod { container: Some(_), .. } => 3,
        CgroupOwner::Pod { container: None, .. } => 2,
        CgroupOwner::Container(_) => 1,
        CgroupOwner::Host => 0,
    }
}

/// The outermost pod and the first container in it: what a container starts inside itself is its own use.
fn owner(path: &str) -> CgroupOwner {
    match find_pod(path) {
        Some((uid, rest)) => CgroupOwner::Pod { uid, container: find_container(rest) },
        None => find_container(path).map_or(CgroupOwner::Host, CgroupOwner::Container),
    }
}

/// The first `pod` that is directly followed by a UID, and what comes after it. The words around it differ by runtime,
/// driver and namespace: none is required.
fn find_pod(path: &str) -> Option<(PodUid, &str)> {
    path.match_indices("pod").find_map(|(position, word)| {
        if path[..position].bytes().next_back().is_some_and(|before| before.is_ascii_alphanumeric()) {
            return None;
        }
        let (uid, length) = PodUid::leading(&path[position + word.len()..])?;
        Some((uid, &path[position + word.len() + length..]))
    })
}

/// The first run of exactly 64 hex digits that is not the id of CRI-O's monitor.
fn find_container(path: &str) -> Option<ContainerId> {
    let mut position = 0;
    while let Some(run) = path.get(position..).and_then(next_run) {
        let (start, end) = (position + run.0, position + run.1);
        let text = &path[start..end];
        let is_id = text.len() == ID && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_id && !path[..start].ends_with("conmon-") {
            return Some(ContainerId::from(text));
        }
        position = end;
    }
    None
}

/// Where the next run of letters and digits begins and ends.
fn next_run(text: &str) -> Option<(usize, usize)> {
    let start = text.bytes().position(|byte| byte.is_ascii_alphanumeric())?;
    let length = text[start..].bytes().position(|byte| !byte.is_ascii_alphanumeric());
    Some((start, length.map_or(text.len(), |length| start + length)))
}

#[cfg(test)]
mod tests;
