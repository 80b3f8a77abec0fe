//! GPU-seconds and joules reach the container that they belong to.

use crate::support::accuracy;
use std::time::Duration;

#[test]
fn seconds_and_joules_of_short_pods_are_on_the_right_container() {
    for case in accuracy::cases(Duration::from_secs(1), Duration::from_secs(600)) {
        let outcome = accuracy::run(case);
        let percent = |score: &accuracy::Score| score.percent(score.right);
        let (busy, energy, allocated) = (percent(&outcome.busy), percent(&outcome.energy), percent(&outcome.allocated));
        println!("{}: busy {busy:.3} %, joules {energy:.3} %, allocated {allocated:.3} %", case.name);
        assert!(outcome.pods > 60, "{} pods lived", outcome.pods);
        assert_eq!(outcome.violations, 0, "{}", case.name);
        for right in [busy, energy, allocated] {
            assert!(right >= 99.9, "{}: {outcome:#?}", case.name);
        }
        // The end of a pod is seen at the next call to the kubelet, in half a second: idle time and idle power until
        // then.
        let over = |score: &accuracy::Score| score.percent(score.wrong);
        assert!(over(&outcome.busy) < 0.1 && over(&outcome.energy) < 0.5, "{}: {outcome:#?}", case.name);
        assert!(over(&outcome.allocated) < 2.0, "{}: {outcome:#?}", case.name);
    }
}
