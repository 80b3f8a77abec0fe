use super::*;
use crate::domain::model::UnattributedReason;
use crate::kubelet::pod_logs;
use crate::simulation::kubelet::container_id;
use crate::simulation::proc_tree::{ContainerIdentity, ProcTree};

const UID: &str = "8f5d2c1e-90ab-4cde-8123-456789abcdef";
const HASH: &str = "229836ee3ad078911e99a2b8134d6713";
const MAIN: ContainerIdentity<'_> =
    ContainerIdentity { namespace: "research", pod: "training-0", uid: UID, container: "main" };
const SIDE: ContainerIdentity<'_> = ContainerIdentity { container: "side", ..MAIN };
const MANIFEST: ContainerIdentity<'_> =
    ContainerIdentity { namespace: "kube-system", pod: "probe-node", uid: HASH, container: "probe" };

struct ResolvedNode {
    _directory: tempfile::TempDir,
    tree: ProcTree,
    resolver: Resolver,
    pods: PodDirectory,
}

#[test]
fn directories_and_mounts_name_the_container() {
    let mut lab = ResolvedNode::with_pods();
    let processes = lab.resolve(1, &[100, 101, 102, 103]);
    assert_eq!(processes[&100].owner, container(MAIN));
    assert_eq!(processes[&100].key, Some(ProcessKey { pid: 100, start_ticks: 5000 }));
    assert_eq!(processes[&101].owner, container(SIDE));
    assert_eq!(processes[&102].owner, Owner::Host);
    assert_eq!(processes[&103], Process { key: None, owner: Owner::Unknown(UnknownOwner::Gone), mps_daemon: None });
    assert!(lab.resolver.sees_the_host());
}

/// Otherwise scan follows scan for those that are not among the found.
#[test]
fn processes_beyond_the_limit_are_not_resolved_and_not_new_to_each_scan() {
    let pids: Vec<u32> = (100_000..).take(MOST_PROCESSES + 1).collect();
    let processes = ResolvedNode::with_pods().resolve(1, &pids);
    assert!(processes.keys().eq(&pids));
    assert_eq!(processes.last_key_value().unwrap().1.owner, Owner::Unknown(UnknownOwner::NotResolved));
}

#[test]
fn a_number_given_out_again_is_another_process() {
    let mut lab = ResolvedNode::with_pods();
    assert_eq!(lab.owner(1, 100), container(MAIN));
    lab.tree.start(100, 9000, SIDE).unwrap();
    assert_eq!(lab.owner(2, 100), container(SIDE));
    lab.tree.start_on_host(100, 9500).unwrap();
    assert_eq!(lab.owner(3, 100), Owner::Host);
}

#[test]
fn an_ended_process_keeps_its_owner_while_readings_include_it() {
    let mut lab = ResolvedNode::with_pods();
    assert_eq!(lab.owner(1, 100), container(MAIN));
    lab.tree.end(100).unwrap();
    assert_eq!(lab.owner(2, 100), container(MAIN));
    assert_eq!(lab.owner(600, 100), container(MAIN));
    lab.resolve(601, &[]);
    assert_eq!(lab.owner(602, 100), Owner::Unknown(UnknownOwner::Gone));
}

#[test]
fn a_process_whose_files_cannot_be_read_has_not_ended_with_its_pod() {
    let mut lab = ResolvedNode::with_pods();
    lab.list(MAIN, UID, false, &["main"]);
    assert_eq!(lab.owner(1, 100), container(MAIN));
    lab.list(MAIN, UID, true, &["main"]);
    assert_eq!(lab.owner(2, 100), ended(true));
    lab.write(100, "stat", b"");
    assert_eq!(lab.owner(3, 100), ended(true));
    lab.tree.end(100).unwrap();
    assert_eq!(lab.owner(4, 100), container(MAIN));
}

#[test]
fn a_zombie_that_has_left_its_cgroup_keeps_its_owner() {
    let mut lab = ResolvedNode::with_pods();
    lab.write(101, "mountinfo", b"");
    assert_eq!(lab.owner(1, 101), Owner::Pod(PodRef::new(SIDE.namespace, SIDE.pod)), "it has no mounts");
    lab.write(101, "cgroup", b"0::/\n");
    assert_eq!(lab.owner(20, 101), Owner::Pod(PodRef::new(SIDE.namespace, SIDE.pod)));
}

#[test]
fn a_process_may_get_its_cgroup_late() {
    let mut lab = ResolvedNode::with_pods();
    let cgroup = std::fs::read(lab.tree.proc_root().join("100/cgroup")).unwrap();
    lab.write(100, "cgroup", b"0::/system.slice/containerd.service\n");
    assert_eq!(lab.owner(1, 100), Owner::Host);
    lab.write(100, "cgroup", &cgroup);
    assert_eq!(lab.owner(7, 100), container(MAIN));
}

#[test]
fn a_pod_whose_directory_was_removed_has_ended() {
    let mut lab = ResolvedNode::with_pods();
    assert_eq!(lab.owner(1, 100), container(MAIN));
    lab.tree.remove_pod_logs(MAIN).unwrap();
    assert_eq!(lab.owner(12, 100), ended(false));
    assert_eq!(lab.owner(12, 100).unattributed_reason(), Some(UnattributedReason::TerminatedPod));
}

/// As an engine in the container makes them: it starts 110 in the container's cgroup, that 111 and 112 elsewhere.
fn with_engine_in_main() -> ResolvedNode {
    let lab = ResolvedNode::with_pods();
    let id = container_id(UID, "nested");
    lab.tree.start_child(110, 5010, 100, "/system.slice/docker.service").unwrap();
    lab.tree.start_child(111, 5020, 110, &format!("/docker/{id}")).unwrap();
    lab.tree.start_child(112, 5020, 110, &format!("/kubepods/burstable/pod{HASH}/{id}")).unwrap();
    lab
}

#[test]
fn a_cgroup_without_a_listed_pod_leaves_the_nearest_ancestor_with_one() {
    let mut lab = with_engine_in_main();
    lab.tree.start_child(113, 5020, 101, "/user.slice/session-4.scope").unwrap();
    for pid in [110, 111, 112] {
        assert_eq!(lab.owner(1, pid), container(MAIN), "{pid}");
    }
    assert_eq!(lab.owner(1, 113), container(SIDE), "moved to a session's");
    lab.list(MAIN, UID, false, &["main"]);
    lab.without_logs();
    assert_eq!(lab.owner(2, 112), container(MAIN), "by the Pods API");
}

#[test]
fn the_own_pod_of_a_process_precedes_its_ancestors() {
    let mut lab = with_engine_in_main();
    let inner = ContainerIdentity { uid: HASH, ..MANIFEST };
    lab.tree.add_container(inner).unwrap();
    assert_eq!(lab.owner(1, 112), Owner::Pod(PodRef::new(inner.namespace, inner.pod)));
}

#[test]
fn a_pod_that_was_never_listed_has_not_ended() {
    let mut lab = ResolvedNode::with_pods();
    lab.tree.start_child(120, 1, 1, &format!("/docker/x/kubepods/pod{HASH}/{}", container_id(HASH, "a"))).unwrap();
    assert_eq!(lab.owner(1, 120), Owner::Host, "of a cluster in a container of the host");
    lab.list(MAIN, UID, false, &["main"]);
    assert_eq!(lab.owner(2, 120), Owner::Host);
    lab.tree.add_container(MANIFEST).unwrap();
    let ended = Owner::EndedPod { uid: HASH.into(), pod: Some(PodRef::new(MANIFEST.namespace, MANIFEST.pod)) };
    assert_eq!(lab.owner(3, 120), ended, "its directory is still there");
    lab.tree.remove_pod_logs(MANIFEST).unwrap();
    let ended = Owner::EndedPod { uid: HASH.into(), pod: None };
    assert_eq!(lab.owner(4, 120), ended, "it was");
    assert_eq!(lab.owner(4000, 120), ended, "for as long as it has processes");
}

#[test]
fn a_process_keeps_its_owner_when_its_parent_ends() {
    let mut lab = with_engine_in_main();
    assert_eq!(lab.owner(1, 111), container(MAIN));
    lab.tree.end(110).unwrap();
    lab.tree.start_child(111, 5020, 1, &format!("/docker/{}", container_id(UID, "nested"))).unwrap();
    assert_eq!(lab.owner(20, 111), container(MAIN));
}

#[test]
fn a_process_that_started_later_is_no_ancestor() {
    let mut lab = with_engine_in_main();
    lab.tree.start(110, 9000, MAIN).unwrap();
    assert_eq!(lab.owner(1, 111), Owner::Host, "the number of its parent was given out again");
}

#[test]
fn a_process_with_too_many_ancestors_is_the_hosts() {
    let mut lab = ResolvedNode::with_pods();
    for pid in 1000..1100 {
        lab.tree.start_child(pid, 5001, if pid == 1000 { 100 } else { pid - 1 }, "/user.slice").unwrap();
    }
    lab.tree.start_child(1100, 5001, 1100, "/user.slice").unwrap();
    let found = [1000, 1030, 1099, 1100].map(|pid| lab.owner(1, pid));
    assert_eq!(found, [container(MAIN), container(MAIN), Owner::Host, Owner::Host]);
}

#[test]
fn without_a_source_of_pod_names_the_owner_is_unknown() {
    let mut lab = ResolvedNode::with_pods();
    lab.without_logs();
    assert_eq!(lab.owner(1, 100), Owner::Unknown(UnknownOwner::NoNames));
    assert_eq!(lab.owner(1, 102), Owner::Host, "the host needs no names");
}

#[test]
fn the_pods_api_names_pods_by_itself() {
    let mut lab = ResolvedNode::with_pods();
    lab.without_logs();
    lab.list(MAIN, UID, false, &["main", "side"]);
    lab.write(100, "mountinfo", b"");
    assert_eq!(lab.owner(1, 100), container(MAIN), "by its id");
    lab.list(MAIN, UID, true, &[]);
    assert_eq!(lab.owner(2, 100), ended(true), "it has finished");
    lab.pods.pods.clear();
    assert_eq!(lab.owner(3, 100), ended(false), "the directory has all pods");
    lab.pods.complete = false;
    assert_eq!(lab.owner(4, 100), Owner::Unknown(UnknownOwner::NoNames), "or not of all");
}

#[test]
fn the_kubelets_data_on_an_id_precede_a_mount() {
    let mut lab = ResolvedNode::with_pods();
    lab.list(MAIN, UID, false, &["main", "side"]);
    let mounts = std::fs::read(lab.tree.proc_root().join("101/mountinfo")).unwrap();
    lab.write(100, "mountinfo", &mounts);
    assert_eq!(lab.owner(1, 100), container(MAIN));
}

#[test]
fn a_pod_from_a_manifest_has_two_uids() {
    let mut lab = ResolvedNode::new();
    lab.without_logs();
    lab.tree.start(200, 1, MANIFEST).unwrap();
    lab.list(MANIFEST, UID, false, &[]);
    assert_eq!(lab.owner(1, 200), container(MANIFEST));
}

#[test]
fn without_the_pods_api_directories_show_removed_pods() {
    let mut lab = ResolvedNode::with_pods();
    lab.list(MAIN, UID, false, &["main"]);
    lab.pods.complete = false;
    assert_eq!(lab.owner(1, 100), container(MAIN));
    lab.tree.remove_pod_logs(MAIN).unwrap();
    assert_eq!(lab.owner(12, 100), ended(true));
}

#[test]
fn a_container_without_a_pod_is_the_hosts_unless_it_has_the_kubelets_mounts() {
    let mut lab = ResolvedNode::with_pods();
    lab.tree.start_on_host(301, 1).unwrap();
    lab.write(301, "cgroup", format!("0::/docker/{}\n", container_id(UID, "other")).as_bytes());
    assert_eq!(lab.owner(2, 301), Owner::Host, "somebody's own container");
    let mounts = std::fs::read(lab.tree.proc_root().join("101/mountinfo")).unwrap();
    lab.tree.start_on_host(302, 1).unwrap();
    lab.write(302, "cgroup", format!("0::/docker/{}\n", container_id(UID, "third")).as_bytes());
    lab.write(302, "mountinfo", &mounts);
    assert_eq!(lab.owner(3, 302), container(SIDE), "by the kubelet's mounts");
}

#[test]
fn nonsense_in_proc_is_an_unknown_owner() {
    let mut lab = ResolvedNode::with_pods();
    lab.write(100, "stat", &[0xff; 9000]);
    assert_eq!(lab.owner(1, 100), Owner::Unknown(UnknownOwner::Unreadable));
    lab.write(101, "cgroup", &[b':'; 200_000]);
    lab.write(101, "mountinfo", &[0; 1_000_000]);
    assert_eq!(lab.owner(1, 101), Owner::Host);
}

#[test]
fn the_uid_identifies_a_leftover_process_of_an_earlier_pod() {
    let mut lab = ResolvedNode::with_pods();
    let again = ContainerIdentity { uid: "00000000-0000-4000-8000-000000000001", ..MAIN };
    lab.tree.add_container(again).unwrap();
    lab.tree.start(300, 1, again).unwrap();
    assert_eq!((lab.owner(1, 100), lab.owner(1, 300)), (container(MAIN), container(again)));
    assert_ne!(container(MAIN), container(again));
}

#[test]
fn pods_are_known_by_name_and_the_later_of_two() {
    let mut lab = ResolvedNode::with_pods();
    let again = ContainerIdentity { uid: "00000000-0000-4000-8000-000000000001", ..MAIN };
    lab.tree.add_container(again).unwrap();
    let path = |identity: ContainerIdentity<'_>| format!("{}_{}_{}", identity.namespace, identity.pod, identity.uid);
    let later = std::fs::File::open(lab.tree.pod_logs_root().join(path(again))).unwrap();
    let time = later.metadata().unwrap().modified().unwrap() + Duration::from_secs(5);
    later.set_modified(time).unwrap();
    let (directory, logs) = (Arc::new(PodDirectory::default()), lab.logs(Monotonic::from_secs(1)));
    let pods = lab.resolver.pods(&directory, &logs);
    let uids: Vec<&str> = pods.values().map(|identity| identity.uid.as_str()).collect();
    assert_eq!(uids, [again.uid]);
    assert!(Arc::ptr_eq(&pods, &lab.resolver.pods(&directory, &logs)), "made once");
    lab.list(MAIN, UID, false, &[]);
    let listed = Arc::new(lab.pods.clone());
    assert_eq!(
        lab.resolver.pods(&listed, &logs).values().next().unwrap().uid.as_str(),
        UID,
        "the Pods API comes first"
    );
}

impl ResolvedNode {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let tree = ProcTree::create(directory.path()).unwrap();
        let resolver = Resolver::new(&tree.proc_root());
        Self { _directory: directory, tree, resolver, pods: PodDirectory::default() }
    }

    fn with_pods() -> Self {
        let lab = Self::new();
        lab.tree.add_container(MAIN).unwrap();
        lab.tree.add_container(SIDE).unwrap();
        lab.tree.start(100, 5000, MAIN).unwrap();
        lab.tree.start(101, 5001, SIDE).unwrap();
        lab.tree.start_on_host(102, 40).unwrap();
        lab
    }

    fn resolve(&mut self, seconds: u64, wanted: &[u32]) -> BTreeMap<u32, Process> {
        let (wanted, now) = (wanted.iter().copied().collect(), Monotonic::from_secs(seconds));
        self.resolver.resolve(now, &wanted, &self.pods, &self.logs(now))
    }

    fn logs(&self, now: Monotonic) -> PodLogs {
        pod_logs::read(&self.tree.pod_logs_root(), now)
    }

    fn owner(&mut self, seconds: u64, pid: u32) -> Owner {
        self.resolve(seconds, &[pid]).remove(&pid).expect("wanted").owner
    }

    /// The Pods API lists this pod and its containers.
    fn list(&mut self, identity: ContainerIdentity<'_>, api_uid: &str, terminal: bool, containers: &[&str]) {
        let identity = PodIdentity {
            pod: PodRef::new(identity.namespace, identity.pod),
            uid: api_uid.into(),
            runtime_uid: (api_uid != identity.uid).then(|| identity.uid.into()),
            labels: BTreeMap::new(),
            terminal,
            containers: containers
                .iter()
                .map(|name| (ContainerId::new(container_id(identity.uid, name)), Arc::from(*name)))
                .collect(),
        };
        self.pods.pods.insert(api_uid.into(), Arc::new(identity));
        self.pods.complete = true;
    }

    fn without_logs(&self) {
        std::fs::remove_dir_all(self.tree.pod_logs_root()).unwrap();
    }

    fn write(&self, pid: u32, file: &str, bytes: &[u8]) {
        std::fs::write(self.tree.proc_root().join(pid.to_string()).join(file), bytes).unwrap();
    }
}

fn container(identity: ContainerIdentity<'_>) -> Owner {
    let container = ContainerRef::new(identity.namespace, identity.pod, identity.container);
    Owner::Container(container.with_uid(Some(identity.uid.into())))
}

fn ended(named: bool) -> Owner {
    Owner::EndedPod { uid: UID.into(), pod: named.then(|| PodRef::new(MAIN.namespace, MAIN.pod)) }
}
