//! One holder of one device: when it held it, and what it used. In: holdings, and the entry of each interval. Out: the
//! account, and the spans of time that it held the device in an interval. Does not use other holders.

use super::interval::is_nothing;
use super::parts::{Part, add_known};
use super::segments::{HoldingTerms, Span};
use crate::domain::holders::HoldingKey;
use crate::domain::model::{Account, Holding, HoldingCounters, Moment, Monotonic, RecentRatio, SharingForm};

/// One container and one device: the account, and the holding time that is not accounted yet.
///
/// | state | `open` | `closed` | it ends |
/// |---|---|---|---|
/// | held | `Some` | earlier terms since the clock last moved | when no observation has the holding |
/// | ended | `None` | time up to the end | when the clock has passed it: with a reading, or without one when readings are late (`skip_late`) |
/// | final, except energy of a gap that is read later | `None` | empty | when the retention is over: the account is removed |
#[derive(Debug, Default)]
pub struct HolderAccount {
    pub account: Account,
    /// The current holding: its start and its terms; not accounted yet.
    open: Option<(Monotonic, HoldingTerms)>,
    /// Ended holdings, and those whose terms have changed, since the device clock last moved.
    closed: Vec<Span>,
    /// `Retention::scrapes` when the final counters were first published, since the last change by energy of a gap.
    pub final_since_scrape: Option<u64>,
    /// The number of the last observation in which it was held.
    pub seen: u64,
    /// Its busy seconds in the known time held, since the holding or the last gap began.
    pub recent_use: RecentRatio,
    /// The start of the holding.
    pub held_since: Monotonic,
    /// Up to when others may have used the GPU: the start of the holding, or the end of the last interval of whose busy time
    /// it had not all.
    pub others_until: Monotonic,
    /// Whether it is unknown whether it was busy in the last interval.
    is_unread: bool,
}

/// The part of one account in one interval: the sum of its parts of segments.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AccountEntry {
    pub held_seconds: f64,
    /// The GPU time allocated; `None` where no fraction was known.
    pub allocated: Option<f64>,
    pub part: Part,
    /// The part of `held_seconds` for which it is known whether it was busy.
    pub known_seconds: f64,
    /// The part of `allocated` for which it is known whether it was busy; `None` without such time.
    covered: Option<f64>,
    /// The busy time in it.
    covered_busy: f64,
}

impl AccountEntry {
    /// The entry with what is allocated in these spans, and without use.
    pub fn unused(spans: &[Span]) -> Self {
        let mut entry = Self::default();
        for span in spans {
            let seconds = span.length().as_secs_f64();
            entry.held_seconds += seconds;
            add_known(&mut entry.allocated, span.terms.fraction.map(|fraction| fraction * seconds));
        }
        entry
    }

    /// Adds its part of a segment. `covered_seconds`: the seconds of the segment for which busy or idle is known.
    pub fn add(&mut self, part: Part, fraction: Option<f64>, covered_seconds: f64) {
        self.known_seconds += part.busy.map_or(0.0, |_| covered_seconds);
        if let Some((busy, fraction)) = part.busy.zip(fraction) {
            add_known(&mut self.covered, Some(fraction * covered_seconds));
            self.covered_busy += busy;
        }
        self.part.add(part);
    }
}

impl HolderAccount {
    pub fn opened(key: &HoldingKey, holding: &Holding, now: Moment, seen: u64) -> Self {
        let account = Account {
            holding: Some(holding.clone()),
            counters: HoldingCounters {
                held_seconds: Some(0.0),
                allocated_seconds: holding.fraction.map(|_| 0.0),
                uncovered_seconds: holding.fraction.map(|_| 0.0),
                ..HoldingCounters::default()
            },
            ..Account::new(key.container.clone(), key.gpu.clone(), key.mig.clone(), now.unix)
        };
        Self {
            account,
            open: Some((now.monotonic, HoldingTerms::from(holding))),
            seen,
            held_since: now.monotonic,
            others_until: now.monotonic,
            ..Self::default()
        }
    }

    /// Continues the holding, or begins a new one.
    pub fn hold(&mut self, holding: &Holding, now: Moment, seen: u64) {
        self.seen = seen;
        let terms = HoldingTerms::from(holding);
        if self.account.holding.as_ref().is_none_or(|before| !is_same_holding(before, holding)) {
            self.account.holding = Some(holding.clone());
        }
        if self.account.ended.take().is_some() {
            // It may be another pod of the same name, which cannot have been idle before it existed.
            self.account.last_active = self.account.last_active.map(|_| now.unix);
            self.final_since_scrape = None;
            self.recent_use.clear();
            (self.held_since, self.others_until) = (now.monotonic, now.monotonic);
        }
        if self.open.is_none_or(|(_, before)| before != terms) {
            let before = self.open.replace((now.monotonic, terms));
            self.closed.extend(before.map(|(from, terms)| Span { from, to: now.monotonic, terms }));
        }
    }

    /// Ends the holding, unless the observation `seen` has it. Returns whether it ends.
    pub fn close_unless_seen(&mut self, seen: u64, now: Moment) -> bool {
        let Some((from, terms)) = self.open.filter(|_| self.seen != seen) else { return false };
        self.open = None;
        self.closed.push(Span { from, to: now.monotonic, terms });
        self.account.holding = None;
        self.account.ended = Some(now);
        true
    }

    pub fn is_final(&self) -> bool {
        self.open.is_none() && self.closed.is_empty()
    }

    /// When it ended, and the number of scrapes before its final counters.
    pub fn ended(&self) -> Option<(Monotonic, u64)> {
        Some((self.account.ended?.monotonic, self.final_since_scrape?))
    }

    /// The spans in which it held the device between `from` and `to`; removes holdings up to `to`.
    pub fn drain_spans(&mut self, from: Monotonic, to: Monotonic) -> Vec<Span> {
        let mut spans = vec![];
        self.closed.retain_mut(|span| {
            spans.extend(span.between(from, to));
            span.from = span.from.max(to);
            span.from < span.to
        });
        if let Some((open, terms)) = &mut self.open
            && *open < to
        {
            spans.extend(Span { from: *open, to, terms: *terms }.between(from, to));
            *open = to;
        }
        spans
    }

    /// Adds an interval, which ended at `to`, and in which the GPU was busy for `gpu_busy` seconds.
    pub fn add(&mut self, entry: &AccountEntry, gpu_busy: Option<f64>, to: Monotonic, now: Moment) {
        let account = &mut self.account;
        let counters = &mut account.counters;
        add_known(&mut counters.held_seconds, Some(entry.held_seconds));
        add_known(&mut counters.allocated_seconds, entry.allocated);
        let uncovered = entry.allocated.map(|allocated| allocated - entry.covered.unwrap_or(0.0));
        add_known(&mut counters.uncovered_seconds, uncovered.map(|time| if is_nothing(time) { 0.0 } else { time }));
        if let Some(covered) = entry.covered {
            add_known(&mut counters.idle_seconds, Some((covered - entry.covered_busy).max(0.0)));
            add_known(&mut counters.borrowed_seconds, Some((entry.covered_busy - covered).max(0.0)));
        }
        add_known(&mut counters.busy_seconds, entry.part.busy);
        add_known(&mut counters.energy_joules, entry.part.energy);
        if let Some(busy) = entry.part.busy {
            self.recent_use.add(entry.known_seconds, busy);
            if gpu_busy.is_some_and(|gpu_busy| !is_nothing(gpu_busy - busy)) {
                self.others_until = self.others_until.max(to);
            }
            // It may have been busy up to now in time without readings.
            if std::mem::take(&mut self.is_unread) || !is_nothing(busy) {
                account.last_active = Some(now.unix);
            }
            account.last_active.get_or_insert(account.created);
        } else {
            self.is_unread = true;
            self.recent_use.clear();
            account.last_active = None;
        }
    }

    /// Adds energy of the last gap. It may come after the holding's other counters are final: scrapes then have to read these again.
    pub fn add_gap_energy(&mut self, joules: f64) {
        add_known(&mut self.account.counters.energy_joules, Some(joules));
        self.final_since_scrape = None;
    }
}

/// Whether all fields are equal except `attribution`, which `present` sets.
fn is_same_holding(one: &Holding, other: &Holding) -> bool {
    one.device_ids == other.device_ids
        && one.resource == other.resource
        && (one.sharing, one.fraction, one.weight) == (other.sharing, other.fraction, other.weight)
}

impl From<&Holding> for HoldingTerms {
    fn from(holding: &Holding) -> Self {
        let exclusive = holding.sharing == SharingForm::Exclusive;
        Self { fraction: holding.fraction, weight: holding.weight, exclusive }
    }
}
