use super::*;
use crate::model::{Allocatable, Container, ContainerRef, CpuSet, HeldDevice, Moment, Pod, PodRef, UnhealthyReason};
use crate::plugin::{Hardware, OfferedDevice, PluginUnhealthy};

const RESOURCE: &str = "nvidia.com/gpu";
const PODMETER: &str = "podmeter-nvidia.com_gpu-0123456789ab.sock";

fn at(milliseconds: u64) -> Monotonic {
    Monotonic::new(Duration::from_millis(milliseconds))
}

fn offer(health: Result<(), PluginUnhealthy>) -> Offer {
    let device = OfferedDevice { id: "x".into(), numa_nodes: BTreeSet::new(), health, hardware: Hardware::Nothing };
    Offer { resource: RESOURCE.into(), devices: vec![device] }
}

/// A registration whose list was sent at 1000 ms, and what surrounds it.
struct World {
    check: RegistrationCheck,
    kubelet: KubeletState,
    live: LiveSockets,
    grants: Grants,
    offer: Offer,
    list_sent_at: Option<Monotonic>,
}

impl World {
    fn new() -> Self {
        let mut check = RegistrationCheck::new(RESOURCE.into(), &LiveSockets::new(), LiveSockets::new(), at(1000));
        check.sent(at(1000));
        Self {
            check,
            kubelet: KubeletState::default(),
            live: LiveSockets::new(),
            grants: Grants::default(),
            offer: offer(Ok(())),
            list_sent_at: Some(at(1000)),
        }
    }

    fn examine(&mut self, milliseconds: u64) -> RegistrationState {
        let inputs = CheckInputs {
            live: &self.live,
            kubelet: &self.kubelet,
            offer: &self.offer,
            advertised: &BTreeSet::from(["earlier".into()]),
            grants: &mut self.grants,
            list_sent_at: self.list_sent_at,
        };
        self.check.examine(inputs, at(milliseconds))
    }

    /// The kubelet lists these as allocatable.
    fn answer(&mut self, milliseconds: u64, ids: &[&str]) -> RegistrationState {
        let mut allocatable = Allocatable::default();
        allocatable.devices.insert(RESOURCE.into(), ids.iter().map(|id| (*id).into()).collect());
        self.kubelet.allocatable = Some(Arc::new(allocatable));
        self.kubelet.allocatable_at = Some(Moment { monotonic: at(milliseconds), ..Moment::default() });
        self.examine(milliseconds)
    }

    /// Pods of these names hold device x.
    fn held_by(&mut self, milliseconds: u64, pods: &[&str]) -> RegistrationState {
        let pod = |name: &&str| {
            let devices = vec![HeldDevice { resource: RESOURCE.into(), id: "x".into(), numa_nodes: BTreeSet::new() }];
            let reference = ContainerRef::new("team", name, "main");
            let (claims, exclusive_cpus, memory) = (vec![], CpuSet::default(), vec![]);
            let container = Container { reference, devices, claims, exclusive_cpus, memory };
            let (exclusive_cpus, memory) = (CpuSet::default(), vec![]);
            Pod { reference: PodRef::new("team", name), uid: None, containers: vec![container], exclusive_cpus, memory }
        };
        self.kubelet.allocations = Some(Arc::new(Allocations { pods: pods.iter().map(pod).collect() }));
        self.kubelet.allocations_at = Some(Moment { monotonic: at(milliseconds), ..Moment::default() });
        self.examine(milliseconds)
    }

    fn bind(&mut self, name: &str, modified: i64) {
        self.live.insert(name.to_owned(), Identity::numbered(modified));
    }
}

fn is_replaced(standing: &RegistrationState, by: &str) -> bool {
    matches!(standing, RegistrationState::Replaced(text) if text.contains(by))
}

#[test]
fn two_empty_answers_some_time_apart_decide() {
    let mut world = World::new();
    assert_eq!(world.answer(900, &[]), RegistrationState::Used, "before the list");
    assert_eq!(world.check.scan_at(), Some(at(6000)));
    assert_eq!(world.answer(1001, &["x"]), RegistrationState::Used);
    world.check.scanned(at(1001));
    assert_eq!(world.answer(1002, &[]), RegistrationState::Used);
    assert_eq!(world.check.scan_at(), Some(at(1502)));
    assert_eq!(world.answer(1400, &[]), RegistrationState::Used, "too soon");
    assert_eq!(world.answer(1600, &["x"]), RegistrationState::Used);
    assert_eq!(world.answer(1700, &[]), RegistrationState::Used);
    assert_eq!(world.answer(2200, &[]), RegistrationState::Forgotten);
}

#[test]
fn a_kubelet_slow_to_take_in_the_first_list_has_not_forgotten_it() {
    let mut world = World::new();
    for milliseconds in [1001, 1600, 3000, 5999] {
        assert_eq!(world.answer(milliseconds, &[]), RegistrationState::Used, "{milliseconds}");
    }
    assert_eq!(world.check.scan_at(), Some(at(6000)));
    assert_eq!(world.answer(6001, &[]), RegistrationState::Used, "one answer decides nothing");
    assert_eq!(world.check.scan_at(), Some(at(6501)));
    assert_eq!(world.answer(6501, &[]), RegistrationState::Forgotten);
}

#[test]
fn a_resource_without_healthy_devices_is_rightly_not_listed() {
    let mut world = World::new();
    world.offer = offer(Err(PluginUnhealthy::device(UnhealthyReason::Lost, "lost")));
    for milliseconds in [1100, 2000, 7000, 8000] {
        assert_eq!(world.answer(milliseconds, &[]), RegistrationState::Used);
    }
}

#[test]
fn devices_that_were_never_ours_are_another_plugins() {
    let mut world = World::new();
    assert_eq!(world.answer(2000, &["x", "earlier"]), RegistrationState::Used, "of a registration before");
    assert_eq!(world.answer(3000, &["slot-0", "slot-1"]), RegistrationState::Used, "one answer decides nothing");
    assert_eq!(world.check.scan_at(), Some(at(3200)));
    assert!(is_replaced(&world.answer(3200, &["slot-0", "slot-1"]), "lists 2 devices"));
    assert_eq!(world.check.scan_at(), Some(at(3800)), "its end must be seen");
    assert_eq!(world.answer(3800, &[]), RegistrationState::OtherEnded, "one answer is enough");
}

#[test]
fn devices_of_another_podmeter_are_a_rolling_update() {
    let mut world = World::new();
    world.bind(PODMETER, 1);
    for milliseconds in [2000, 3000, 4000] {
        assert_eq!(world.answer(milliseconds, &["slot-0"]), RegistrationState::Used);
    }
    assert_eq!(world.held_by(5000, &["theirs"]), RegistrationState::Used);
    world.live.clear();
    world.check.scanned(at(5000));
    assert_eq!(world.examine(6000), RegistrationState::Used);
    assert_eq!(world.check.scan_at(), Some(at(6100)), "its end is checked");
    assert_eq!(world.held_by(6500, &["theirs", "granted-before-its-end"]), RegistrationState::Used);
}

#[test]
fn a_known_plugin_has_replaced_us_until_its_socket_ends_or_the_kubelet_calls_us() {
    let mut world = World::new();
    world.bind("nvidia-mig-1g.10gb.sock", 1);
    assert_eq!(world.answer(2000, &["x"]), RegistrationState::Used, "of another resource");
    world.bind("nvidia-gpu.sock", 2);
    assert!(is_replaced(&world.examine(3000), "nvidia-gpu.sock"));
    assert!(is_replaced(&world.answer(3500, &[]), "nvidia-gpu.sock"), "it has no healthy device");
    world.bind("nvidia-gpu.sock", 3);
    assert_eq!(world.examine(4000), RegistrationState::OtherEnded, "it was started again");

    let mut world = World::new();
    world.bind("nvidia-gpu.sock", 2);
    assert!(is_replaced(&world.examine(3000), "nvidia-gpu.sock"));
    world.grants.grant(["x".into()], at(3500));
    assert!(is_replaced(&world.examine(3600), "nvidia-gpu.sock"), "that one may have been under way");
    world.grants.grant(["x".into()], at(5500));
    assert_eq!(world.examine(5600), RegistrationState::Used);
    assert_eq!(world.examine(7000), RegistrationState::Used);
}

#[test]
fn an_allocation_that_was_not_granted_here_is_another_plugins() {
    let mut world = World::new();
    assert_eq!(world.held_by(1500, &["before"]), RegistrationState::Used);
    assert_eq!(world.held_by(3100, &["before", "meanwhile"]), RegistrationState::Used, "the baseline");
    world.grants.grant(["x".into()], at(3200));
    assert_eq!(world.held_by(3300, &["before", "meanwhile", "ours"]), RegistrationState::Used);
    let standing = world.held_by(4000, &["before", "meanwhile", "ours", "theirs"]);
    assert!(is_replaced(&standing, "x to team/theirs/main"), "{standing:?}");
    assert!(is_replaced(&world.answer(4500, &["x"]), "team/theirs"), "until more is known");
    assert_eq!(world.answer(5000, &[]), RegistrationState::OtherEnded);
}

#[test]
fn after_the_end_of_an_unknown_plugin_two_answers_follow_soon() {
    let mut world = World::new();
    world.bind("other.sock", 1);
    assert_eq!(world.answer(2000, &["x"]), RegistrationState::Used);
    world.check.scanned(at(2000));
    world.live.clear();
    assert_eq!(world.examine(3000), RegistrationState::Used);
    assert_eq!(world.check.scan_at(), Some(at(3100)));
    assert_eq!(world.answer(3100, &[]), RegistrationState::Used);
    assert_eq!(world.check.scan_at(), Some(at(3300)));
    assert_eq!(world.answer(3300, &[]), RegistrationState::Forgotten);
}

/// Up to 1.36: the list is shown, and nothing of it can be allocated.
#[test]
fn a_list_sent_around_the_end_of_another_plugin_hides_it() {
    for (sent_at, expected) in
        [(1900, RegistrationState::Used), (2950, RegistrationState::OtherEnded), (3050, RegistrationState::OtherEnded)]
    {
        let mut world = World::new();
        world.bind("other.sock", 1);
        assert_eq!(world.answer(2000, &["x"]), RegistrationState::Used);
        world.live.clear();
        world.list_sent_at = Some(at(sent_at));
        assert_eq!(world.examine(3000), RegistrationState::Used);
        assert_eq!(world.answer(3100, &["x"]), expected, "{sent_at}");
    }
}

/// Its end would have ended our stream.
#[test]
fn a_plugin_from_before_the_registration_hides_nothing() {
    let mut world = World::new();
    world.bind(PODMETER, 1);
    world.check = RegistrationCheck::new(RESOURCE.into(), &world.live, LiveSockets::new(), at(1000));
    world.check.sent(at(1000));
    world.live.clear();
    assert_eq!(world.examine(1010), RegistrationState::Used);
    assert_eq!(world.answer(1110, &["x"]), RegistrationState::Used);
}
