use std::time::Duration;

/// After this much idle time a past reading weighs half.
const HALF_LIFE: Duration = Duration::from_secs(300);
/// The energy counter moves in steps of up to 0.1 s.
const LEAST: Duration = Duration::from_secs(1);

/// What one board draws with nothing running: the mean over the time in which it was not busy at all,
/// with older readings weighing less. A board that was never idle has no known idle power.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IdlePower {
    seconds: f64,
    joules: f64,
}

impl IdlePower {
    pub fn add(&mut self, seconds: f64, joules: f64) {
        let fading = 0.5_f64.powf(seconds / HALF_LIFE.as_secs_f64());
        self.seconds = self.seconds * fading + seconds;
        self.joules = self.joules * fading + joules;
    }

    #[must_use]
    pub fn watts(&self) -> Option<f64> {
        (self.seconds >= LEAST.as_secs_f64()).then(|| self.joules / self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_before_a_second_of_idleness_and_older_readings_weigh_less() {
        let mut power = IdlePower::default();
        power.add(0.6, 60.0);
        assert_eq!(power.watts(), None);
        power.add(0.6, 60.0);
        assert!((power.watts().unwrap() - 100.0).abs() < 1e-9);
        (0..3000).for_each(|_| power.add(1.0, 60.0));
        assert!((power.watts().unwrap() - 60.0).abs() < 0.1, "{power:?}");
    }
}
