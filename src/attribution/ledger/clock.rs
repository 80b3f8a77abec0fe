use crate::model::{Divided, Monotonic};

/// Busy time that the driver has told for time the clock has not reached yet.
const CARRY_LIMIT_SECONDS: f64 = 2.0;

/// In a long silence the first ones say enough.
const CHANGES_LIMIT: usize = 64;

/// Up to when one device is accounted, and what its totals were then.
#[derive(Debug)]
pub struct DeviceClock {
    pub accounted: Monotonic,
    /// Whether a reading has been seen; the first one is where counting starts.
    pub read: bool,
    /// When somebody took hold or let go since `accounted`, or in the silence that it is in.
    changes: Vec<Monotonic>,
    /// Since when `accounted` has gone on without readings.
    pub late_since: Option<Monotonic>,
    busy_seconds: Option<f64>,
    energy_joules: Option<f64>,
    busy_carry: f64,
}

/// What one interval of a device brought.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub from: Monotonic,
    pub to: Monotonic,
    /// From here on the time is not allocated to its holders yet; later than `from` after a silence of the device.
    pub allocated_from: Monotonic,
    pub busy_seconds: Option<f64>,
    pub energy_joules: Option<f64>,
    /// Of time that cannot be told apart any more.
    pub nobodys_busy_seconds: f64,
    pub nobodys_energy_joules: f64,
}

impl Interval {
    /// Time in which the device told nothing.
    pub fn silent(from: Monotonic, to: Monotonic) -> Self {
        Self {
            from,
            to,
            allocated_from: from,
            busy_seconds: None,
            energy_joules: None,
            nobodys_busy_seconds: 0.0,
            nobodys_energy_joules: 0.0,
        }
    }

    pub fn seconds(&self) -> f64 {
        self.to.since(self.from).as_secs_f64()
    }
}

impl DeviceClock {
    pub fn starting(at: Monotonic) -> Self {
        Self {
            accounted: at,
            read: false,
            changes: vec![],
            late_since: None,
            busy_seconds: None,
            energy_joules: None,
            busy_carry: 0.0,
        }
    }

    /// Somebody took hold or let go.
    pub fn holders_changed(&mut self, now: Monotonic) {
        if self.changes.last() != Some(&now) && self.changes.len() < CHANGES_LIMIT {
            self.changes.push(now);
        }
    }

    /// Goes on to `now` without a reading.
    pub fn be_late(&mut self, now: Monotonic) -> Interval {
        self.late_since.get_or_insert(self.accounted);
        Interval::silent(std::mem::replace(&mut self.accounted, now), now)
    }

    pub fn advance(&mut self, through: Monotonic, busy_total: Option<f64>, energy_total: Option<f64>) -> Interval {
        let allocated_from = std::mem::replace(&mut self.accounted, through);
        let silent_since = self.late_since.take();
        // What was done in a silence belongs to whoever held the device all that time, or to nobody.
        let within = |since: Monotonic| self.changes.iter().any(|change| since < *change && *change < through);
        let same_holders = silent_since.is_none_or(|since| !within(since));
        self.changes.retain(|change| *change > through);
        let from = silent_since.filter(|_| same_holders).unwrap_or(allocated_from);
        let mut interval = Interval { allocated_from, ..Interval::silent(from, through) };
        // The first sight of a total is where it starts: what it had before is nobody's.
        match gain(&mut self.energy_joules, energy_total) {
            Some((true, energy)) if same_holders => interval.energy_joules = Some(energy),
            Some((_, energy)) => interval.nobodys_energy_joules = energy,
            None => {}
        }
        match gain(&mut self.busy_seconds, busy_total) {
            Some((true, busy)) => {
                // Samples come in steps of a sixth of a second or more, and up to two seconds late: what one interval
                // has too much of, the next has too little.
                let due = busy + self.busy_carry;
                let taken = if same_holders { due.min(interval.seconds()) } else { 0.0 };
                self.busy_carry = if same_holders { (due - taken).min(CARRY_LIMIT_SECONDS) } else { 0.0 };
                interval.busy_seconds = same_holders.then_some(taken);
                interval.nobodys_busy_seconds = due - taken - self.busy_carry;
            }
            Some((false, busy)) => interval.nobodys_busy_seconds = busy,
            None => {}
        }
        interval
    }

    /// What the device's totals were when it was last accounted, less what is not divided yet.
    pub fn divided(&self) -> Divided {
        Divided {
            busy_seconds: self.busy_seconds.map(|busy| (busy - self.busy_carry).max(0.0)),
            energy_joules: self.energy_joules,
        }
    }

    /// Told by the driver, and not divided yet.
    #[cfg(test)]
    pub fn busy_carry(&self) -> f64 {
        self.busy_carry
    }
}

/// What a total has gained since it was last seen, and whether it was seen before.
fn gain(last: &mut Option<f64>, total: Option<f64>) -> Option<(bool, f64)> {
    let total = total?;
    Some(match last.replace(total) {
        Some(before) => (true, (total - before).max(0.0)),
        None => (false, total),
    })
}
