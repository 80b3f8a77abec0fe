//! How often each NVML call is made: once in a pass, and as often as its tier is due.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::support::fake_nvml::{FakeNvml, h100};
use crate::support::hardware::{at, gpu, open, quick, run};
use crate::support::watching::wait;
use podmeter::hardware::{HardwareSettings, Tier};
use serde_json::json;

const TIERS: [Tier; 4] = [Tier::Slow, Tier::Fast, Tier::Medium, Tier::Processes];

/// As of `FakeNvml::record`.
type CallRecord = BTreeMap<(String, String), Vec<u64>>;

/// A second of the test is twenty of a node.
const SPEED: u32 = 20;
const MINUTE: Duration = Duration::from_secs(60 / SPEED as u64);

/// Of an H100, without what they cost.
fn fake(gpus: usize) -> FakeNvml {
    let process = json!({"pid": 10, "sm": 50, "memory_bytes": 1 << 20});
    let mut state = h100(vec![json!({"utilization": {"gpu": 50}, "processes": [process]}); gpus]);
    state.as_object_mut().unwrap().remove("cost");
    FakeNvml::start(state)
}

/// How often each call was made on each GPU, in `time` from the end of the record `before`.
fn counts(before: &CallRecord, fake: &FakeNvml, time: Duration) -> BTreeMap<(String, String), usize> {
    let from = before.values().flatten().max().copied().unwrap_or_default();
    let to = from + u64::try_from(time.as_micros()).unwrap();
    let counts = fake.record().into_iter().map(|(call, times)| {
        let of_time = times.iter().filter(|at| (from + 1..=to).contains(*at));
        (call, of_time.count())
    });
    counts.filter(|(_, count)| *count > 0).collect()
}

/// The calls of each tier, with how often a pass makes them.
fn calls_by_tier(fake: &FakeNvml) -> BTreeMap<Tier, BTreeMap<String, usize>> {
    let session = open(fake);
    let mut reader = session.reader(&gpu(0)).unwrap();
    // What a device does not support is found out, and buffers grow, in the first passes.
    for second in 1..=3 {
        TIERS.iter().for_each(|tier| drop(reader.read(&[*tier].into(), at(10 * second))));
    }
    let of_tier = |tier: Tier| {
        let before = fake.record();
        reader.read(&[tier].into(), at(100));
        let counts = counts(&before, fake, MINUTE).into_iter().map(|((call, _), count)| (call, count));
        (tier, counts.collect())
    };
    TIERS.map(of_tier).into()
}

#[test]
fn no_call_is_made_twice_in_a_pass() {
    let fake = fake(1);
    for (tier, calls) in calls_by_tier(&fake) {
        assert!(!calls.is_empty(), "{tier:?}");
        for (call, count) in calls {
            // Each list has other fields.
            assert!(count == 1 || call == "nvmlDeviceGetFieldValues", "{tier:?}: {call} {count} times");
        }
    }
}

#[test]
fn no_call_is_made_more_often_than_its_tier_is_due() {
    let (idle, held, watched) = (0, 1, 2);
    let by_tier = calls_by_tier(&fake(1));
    let fake = fake(3);
    let settings = HardwareSettings { sys_root: quick().sys_root, ..HardwareSettings::default() }.sped_up(SPEED);
    let hardware = run(&fake, settings);
    // The driver's rings are empty at first, for which a GPU is read as if it were watched.
    wait(&hardware, "the first readings", |state| {
        let is_settled =
            |index| state.readings.get(&gpu(index)).is_some_and(|one| one.totals.complete_until >= at(1).monotonic);
        (0..3).all(is_settled)
    });
    assert!(hardware.demand.held([gpu(held)].into(), BTreeSet::new()));
    assert!(hardware.demand.watched([gpu(watched)].into()));
    let complete_until = |index: usize| hardware.states.borrow().readings[&gpu(index)].totals.complete_until;
    let from = complete_until(watched);
    let before = fake.record();
    wait(&hardware, "a minute", |state| state.readings[&gpu(watched)].totals.complete_until.since(from) >= MINUTE);
    let counts = counts(&before, &fake, MINUTE);
    let counted = |call: &str, index: usize| counts.get(&(call.to_owned(), index.to_string())).copied().unwrap_or(0);
    let mut found = BTreeSet::new();
    for index in [idle, held, watched] {
        let per_minute = |tier: Tier| match tier {
            Tier::Slow => 1,
            Tier::Fast if index == watched => 60,
            Tier::Processes if index == held => 60,
            Tier::Processes => 12,
            Tier::Fast => 6,
            Tier::Medium => 4,
        };
        let calls: BTreeSet<&String> = by_tier.values().flat_map(BTreeMap::keys).collect();
        for call in calls {
            let in_pass = |tier: &Tier| by_tier[tier].get(call).copied().unwrap_or(0);
            // The minute begins and ends somewhere between two passes, of which one may be late.
            let most: usize = TIERS.iter().map(|tier| (per_minute(*tier) + 2) * in_pass(tier)).sum();
            let count = counted(call, index);
            assert!(count <= most, "{call} on GPU {index}: {count} times, at most {most}");
            found.extend((count > 0).then_some(call));
        }
    }
    let samples = "nvmlDeviceGetSamples(1)";
    assert!(found.len() > 20 && counted(samples, watched) > 2 * counted(samples, idle), "{found:?}");
}
