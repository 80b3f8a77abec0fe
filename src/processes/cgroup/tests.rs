use super::*;

const ID: &str = "0fdb462000db5bb00c161392e7bf2821aea5b75611e8b40debadab16a33aa2b0";
const OTHER: &str = "11111111222222223333333344444444555555556666666677777777aaaaaaaa";
const UID: &str = "8f5d2c1e-90ab-4cde-8123-456789abcdef";
const BARE: &str = "229836ee3ad078911e99a2b8134d6713";

/// `ID`, `OTHER`, `UID`, `UNDER` (the UID with underscores) and `BARE` are placeholders.
fn written(text: &str) -> String {
    let under = UID.replace('-', "_");
    [("OTHER", OTHER), ("UNDER", &under), ("BARE", BARE), ("UID", UID), ("ID", ID)]
        .into_iter()
        .fold(text.to_owned(), |text, (word, meant)| text.replace(word, meant))
}

fn parsed(text: &str) -> CgroupOwner {
    parse(&written(text))
}

fn pod(uid: &str) -> CgroupOwner {
    CgroupOwner::Pod { uid: PodUid::from(uid), container: Some(ContainerId::from(ID)) }
}

#[test]
fn containers_of_every_runtime_driver_and_point_of_view() {
    for path in [
        // systemd driver
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUNDER.slice/cri-containerd-ID.scope",
        "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUNDER.slice/cri-containerd-ID.scope",
        "/kubepods.slice/kubepods-podUNDER.slice/cri-containerd-ID.scope",
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUNDER.slice/crio-ID.scope",
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUNDER.slice/crio-ID.scope/container",
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUNDER.slice/docker-ID.scope",
        // cgroupfs driver
        "/kubepods/burstable/podUID/ID",
        "/kubepods/besteffort/podUID/ID",
        "/kubepods/podUID/ID",
        "/kubepods/podUID/crio-ID",
        "/kubepods/podUID/crio-ID/container",
        // the kubelet's driver and the runtime's differ
        "/system.slice/containerd.service/kubepods-burstable-podUNDER.slice:cri-containerd:ID",
        "/kubepods-besteffort-podUNDER.slice:cri-containerd:ID",
        // a kubelet in a container, with its own cgroup root
        "/docker/OTHER/kubelet/kubepods/burstable/podUID/ID",
        "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podUNDER.slice/cri-containerd-ID.scope",
        "/system.slice/docker-OTHER.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podUNDER.slice/\
         cri-containerd-ID.scope",
        "/k3s/kubepods/podUID/ID",
        "/custom/root/kubepods.slice/kubepods-podUNDER.slice/cri-containerd-ID.scope",
        // seen from a private cgroup namespace
        "/../../podUID/ID",
        "/../podUID/ID",
        "/../../../kubepods-burstable.slice/kubepods-burstable-podUNDER.slice/cri-containerd-ID.scope",
        "/../kubepods-podUNDER.slice/cri-containerd-ID.scope",
        // a container's own cgroups and what runs inside it, a pod in a pod too
        "/kubepods/podUID/ID/init.scope",
        "/kubepods/podUID/ID/docker/OTHER",
        "/kubepods/podUID/ID/kubepods/podBARE/OTHER",
        // removed, with a process that does not die
        "/kubepods/podUID/ID (deleted)",
    ] {
        assert_eq!(parsed(&format!("0::{path}\n")), pod(UID), "{path}");
        let v1 = format!("12:rdma:/\n11:cpu,cpuacct:{path}\n10:memory:{path}\n1:name=systemd:{path}\n0::/\n");
        assert_eq!(parsed(&v1), pod(UID), "v1: {path}");
    }
}

#[test]
fn pods_from_manifests_have_32_digits() {
    for path in [
        "/kubepods.slice/kubepods-podBARE.slice/cri-containerd-ID.scope",
        "/kubepods/burstable/podBARE/ID",
        "/../../podBARE/ID",
        "/../kubepods-burstable-podBARE.slice/crio-ID.scope",
    ] {
        assert_eq!(parsed(&format!("0::{path}")), pod(BARE), "{path}");
    }
}

#[test]
fn a_monitor_or_a_sandbox_is_in_the_pod_but_in_no_container() {
    for path in [
        "/kubepods.slice/kubepods-podUNDER.slice/crio-conmon-ID.scope",
        "/kubepods.slice/kubepods-podUNDER.slice",
        "/kubepods/podUID",
        "/kubepods/podUID/kata_overhead",
    ] {
        let expected = CgroupOwner::Pod { uid: PodUid::from(UID), container: None };
        assert_eq!(parsed(&format!("0::{path}")), expected, "{path}");
    }
}

#[test]
fn a_container_without_a_pod_keeps_its_id() {
    for path in ["/docker/ID", "/system.slice/docker-ID.scope", "/../ID", "/machine.slice/libpod-ID.scope/container"] {
        assert_eq!(parsed(&format!("0::{path}")), CgroupOwner::Container(ContainerId::from(ID)), "{path}");
    }
}

#[test]
fn the_host_is_everything_else() {
    for text in [
        "0::/",
        "0::/init.scope",
        "0::/user.slice/user-1000.slice/session-3.scope",
        "0::/system.slice/nvidia-persistenced.service",
        "0::/../../../system.slice/sshd.service",
        "0::/system.slice/containerd.service",
        "0::/kubepods.slice",
        "",
        "\n\n",
        "nonsense",
        "0::",
        // close to a pod, and none
        "0::/kubepods/podUIDab/x",
        "0::/kubepods/podBAREf",
        "0::/kubepods/pod8f5d2c1e-90ab_4cde-8123-456789abcdef",
        "0::/kubepods/pod8f5d2c1e-90ab-4cde-8123-456789abcde",
        "0::/kubepods/tripodBARE",
        "0::/kubepods/pod",
        "0::/x/IDf",
        // a hierarchy of v1 that nothing is put in on purpose
        "7:rdma:/kubepods/podUID/ID",
    ] {
        assert_eq!(parsed(text), CgroupOwner::Host, "{text}");
    }
}

#[test]
fn a_recorded_container_of_both_hierarchies() {
    let text = include_str!("../../../tests/captures/20_proc_cgroup.txt");
    assert_eq!(parse(text), pod(BARE));
    let without_v2: Vec<&str> = text.lines().filter(|line| !line.starts_with("0::")).collect();
    assert_eq!(parse(&without_v2.join("\n")), pod(BARE));
}

#[test]
fn of_two_hierarchies_the_more_specific_one_counts() {
    assert_eq!(parsed("4:memory:/\n3:pids:/kubepods/podUID/ID\n0::/system.slice/x.service"), pod(UID));
    assert_eq!(parsed("4:memory:/kubepods/podUID/ID\n1:name=systemd:/kubepods/podBARE/ID"), pod(UID));
}

#[test]
fn a_uid_stands_alone() {
    assert!(PodUid::parse(UID).is_some() && PodUid::parse(BARE).is_some());
    for text in [&UID.replace('-', "_"), &UID[1..], &BARE[1..], "", &format!("{UID}.slice"), &format!("{BARE}/")] {
        assert_eq!(PodUid::parse(text), None, "{text}");
    }
}

proptest::proptest! {
    /// With any prefix and suffix, the outermost pod and its first container are found.
    #[test]
    fn surroundings_do_not_matter(
        before in "(/[a-z.-]{0,12}){0,4}",
        joint in "/|/cri-containerd-|/crio-|:cri-containerd:|\\.slice/docker-",
        after in "(\\.scope)?(/[a-z0-9.-]{0,70}){0,3}",
    ) {
        let text = format!("0::{before}/pod{UID}{joint}{ID}{after}");
        proptest::prop_assert_eq!(parse(&text), pod(UID));
    }
}
