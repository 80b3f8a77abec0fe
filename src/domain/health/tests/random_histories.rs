use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn unhealthy_with_a_signal_and_healthy_only_after_the_hold_down(steps in prop::collection::vec(step(), 1..60)) {
        let mut node = TwoGpuNode::new(HealthConfig::default());
        let mut reference = ReferenceHealth::default();
        let mut counted: BTreeMap<XidClass, u64> = BTreeMap::new();
        node.at(1);
        let mut now = 1;
        for (step, wait) in steps {
            let mut events = vec![];
            now += wait;
            reference.apply(&step, now, &mut node, &mut events);
            let answers = node.unresponsive.is_empty();
            let state = node.with(now, &events);
            let slow = &node.slow[&GPU.into()];
            if answers {
                // An unknown action is no signal.
                reference.action = slow.recovery_action.filter(|action| *action < 8).unwrap_or(reference.action);
                reference.row_remap_failed = slow.row_remap.is_some_and(|remap| remap.failed);
                reference.fabric_missing = slow.fabric.as_ref().is_some_and(|fabric| fabric.state != "completed");
            }
            let stuck = reference.stuck_since.is_some_and(|since| now - since >= 10);
            let is_faulty = reference.action != 0 || reference.lost || stuck || reference.row_remap_failed
                || reference.fabric_missing;
            let healthy = state.device(&GPU.into(), None).unwrap().healthy;
            if is_faulty || matches!(step, HealthStep::Xid(48 | 54 | 79 | 95 | 119)) {
                prop_assert!(!healthy, "at {now} in spite of {:?}", reference.action);
                reference.last_fault_at = Some(now);
            }
            let fault_at = reference.last_fault_at.filter(|_| healthy);
            prop_assert!(fault_at.is_none_or(|at| now - at >= 60), "healthy at {now}, faulty at {fault_at:?}");
            prop_assert!(state.device(&OTHER.into(), None).unwrap().healthy, "the other GPU");
            let of_other = state.transitions.iter().filter(|transition| transition.gpu == OTHER.into()).count();
            prop_assert_eq!(of_other, 0);
            for (class, count) in &state.gpus[&GPU.into()].xids.by_class {
                let before = counted.insert(*class, *count).unwrap_or(0);
                prop_assert!(*count >= before);
            }
            // Evaluating at every deadline is enough: health cannot change before it.
            if let Some(deadline) = node.health.next_deadline() {
                prop_assert!(deadline > Monotonic::from_secs(now));
            }
        }
        // With every fault cleared it becomes healthy, after any history.
        node.respond();
        let well = Slow {
            recovery_action: Some(0),
            row_remap: Some(RowRemap::default()),
            fabric: Some(FabricState { state: "completed", ..FabricState::default() }),
            ..Slow::default()
        };
        node.slow.insert(GPU.into(), well);
        node.hardware.driver_loads += 1;
        node.at(now + 1);
        node.at(now + 2);
        node.at(now + 100);
        prop_assert_eq!(node.reasons(), WELL);
    }

    #[test]
    fn the_order_of_events_does_not_matter(
        codes in prop::collection::vec((prop::sample::select(vec![31, 45, 48, 79, 95]), 2_u64..40, 1_u64..5,
            prop::option::of(prop::sample::select(vec![3_u32, 7, 8]))), 1..30),
        seed in any::<u64>(),
    ) {
        let event = |(code, seconds, count, instance): &(u32, u64, u64, Option<u32>)| XidEvent {
            count: *count,
            instance: instance.map(|gpu_instance| XidInstance { gpu_instance, compute_instance: Some(0) }),
            ..xid(*code, *seconds)
        };
        let events: Vec<XidEvent> = codes.iter().map(event).collect();
        let mut shuffled = events.clone();
        crate::simulation::Random::seeded(seed).shuffle(&mut shuffled);
        let run = |events: &[XidEvent]| {
            let mut node = TwoGpuNode::partitioned(HealthConfig::default());
            node.at(1);
            node.with(50, events)
        };
        prop_assert_eq!(run(&events), run(&shuffled));
    }
}

/// What may happen to the first GPU in one step.
#[derive(Clone, Debug)]
enum HealthStep {
    Xid(u32),
    Action(u32),
    Lost(bool),
    Stuck(bool),
    RowRemapFailed(bool),
    FabricReady(bool),
    Reload,
    Nothing,
}

fn step() -> impl Strategy<Value = (HealthStep, u64)> {
    let step = prop_oneof![
        prop::sample::select(vec![13, 31, 45, 48, 54, 74, 79, 94, 95, 119, 145, 154, 500]).prop_map(HealthStep::Xid),
        (0_u32..9).prop_map(HealthStep::Action),
        any::<bool>().prop_map(HealthStep::Lost),
        any::<bool>().prop_map(HealthStep::Stuck),
        any::<bool>().prop_map(HealthStep::RowRemapFailed),
        any::<bool>().prop_map(HealthStep::FabricReady),
        Just(HealthStep::Reload),
        Just(HealthStep::Nothing),
    ];
    (step, 1_u64..90)
}

/// The obvious reading of the rules, for a GPU that has a recovery action: when a signal last made it unhealthy.
#[derive(Default)]
struct ReferenceHealth {
    action: u32,
    lost: bool,
    stuck_since: Option<u64>,
    row_remap_failed: bool,
    fabric_missing: bool,
    last_fault_at: Option<u64>,
}

impl ReferenceHealth {
    /// Changes the node by one step.
    fn apply(&mut self, step: &HealthStep, now: u64, node: &mut TwoGpuNode, events: &mut Vec<XidEvent>) {
        match *step {
            HealthStep::Xid(code) => events.push(xid(code, now)),
            HealthStep::Action(action) => node.slow(|slow| slow.recovery_action = Some(action)),
            HealthStep::Lost(lost) => {
                self.lost = lost;
                self.stuck_since = None;
                if lost { node.stop_responding(|readings| readings.lost = true) } else { node.respond() }
            }
            HealthStep::Stuck(stuck) => {
                if stuck && !self.lost {
                    self.stuck_since.get_or_insert(now);
                    node.stop_responding(|readings| readings.stuck = true);
                } else if !stuck && !self.lost {
                    self.stuck_since = None;
                    node.respond();
                }
            }
            HealthStep::RowRemapFailed(failed) => {
                node.slow(|slow| slow.row_remap = Some(RowRemap { failed, ..RowRemap::default() }));
            }
            HealthStep::FabricReady(ready) => {
                let state = if ready { "completed" } else { "in_progress" };
                node.slow(|slow| slow.fabric = Some(FabricState { state, ..FabricState::default() }));
            }
            HealthStep::Reload => node.hardware.driver_loads += 1,
            HealthStep::Nothing => {}
        }
    }
}
