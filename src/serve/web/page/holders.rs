//! The use of a whole GPU: its busy time in the window and its memory now, as bars of holders and unattributed use.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use itertools::Itertools as _;
use maud::{Markup, html};

use super::NodePage;
use super::chart::{Segment, bar};
use super::text::{gibibytes, or_unknown, percent};
use super::view::window_words;
use crate::domain::history::{ShareOwner, WindowShares};
use crate::domain::model::{ContainerRef, Gpu, GpuUuid, UnattributedReason};

/// The most holders per device; the others are one row, and the table of containers has all of them.
const SHOWN: usize = 8;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum User {
    Holder(ContainerRef),
    /// All containers that held it in the window and no longer do.
    FormerHolders,
    Unattributed(UnattributedReason),
}

#[derive(Default)]
struct Use {
    /// The part of the GPU that is busy now.
    now: Option<f64>,
    /// The busy time as a part of the whole window.
    busy: Option<f64>,
    /// The memory used now, in bytes.
    memory: Option<u64>,
}

/// One or more users in list and bars. The list has rows in their order, the bars in the order of their classes.
struct Row {
    name: String,
    class: String,
    used: Use,
}

pub(super) fn of_gpu(page: &NodePage<'_>, gpu: &Gpu, capacity: Option<u64>) -> Markup {
    let division = page.history.division(&gpu.uuid, page.view.window);
    let unknown = division.as_ref().map_or(1.0, |division| division.uncovered);
    // Bars show `busy` as part of the whole window, text as part of its known time.
    let of_known = |ratio: Option<f64>| division.as_ref()?.known_ratio(ratio?).map(percent);
    let rows = rows(page, &gpu.uuid, uses(page, gpu, division.as_ref()));
    let is_partitioned = !gpu.mig_devices.is_empty();
    let is_memory_known = capacity.is_some() && rows.iter().any(|row| row.used.memory.is_some());
    let segments = |of: &dyn Fn(&Use) -> Option<f64>| -> Vec<Segment> {
        let segment = |row: &Row| Some(Segment { class: row.class.clone(), ratio: of(&row.used)? });
        rows.iter().sorted_by_key(|row| &row.class).filter_map(segment).collect()
    };
    let words = |what: &str, show: &dyn Fn(&Use) -> Option<String>| {
        let parts = rows.iter().filter_map(|row| Some(format!("{} {}", row.name, show(&row.used)?)));
        format!("{what}: {}", parts.collect::<Vec<_>>().join(", "))
    };
    let memory_ratio = |used: &Use| Some(used.memory? as f64 / capacity.filter(|capacity| *capacity > 0)? as f64);
    let busy_words = format!("busy, {}", window_words(page.view.window));
    html! {
        @if !rows.is_empty() && !is_partitioned {
            div.bars {
                "busy"
                (bar(&words(&busy_words, &|used| of_known(used.busy)), segments(&|used| used.busy), unknown))
                "memory"
                (bar(&words("memory now", &|used| used.memory.map(gibibytes)), segments(&memory_ratio),
                    if is_memory_known { 0.0 } else { 1.0 }))
            }
        }
        @if !rows.is_empty() {
            ul.parts {
                @for Row { name, class, used } in &rows {
                    li {
                        svg.swatch viewBox="0 0 1 1" aria-hidden="true" { rect class=(class) width="1" height="1" {} }
                        span.part { (name) }
                        span.number { (or_unknown(of_known(used.busy))) }
                        span.number { (or_unknown(used.memory.map(gibibytes))) }
                    }
                }
            }
        }
    }
}

/// The holders, those first that the filter matches, then by use now and memory; then use without a holder. A holder keeps
/// its colour while the same are shown.
fn rows(page: &NodePage<'_>, gpu: &GpuUuid, uses: BTreeMap<User, Use>) -> Vec<Row> {
    let mut holders = vec![];
    let mut others = vec![];
    for (user, used) in uses {
        match user {
            User::Holder(container) => holders.push((container, used)),
            User::FormerHolders => {
                others.push(Row { name: "ended containers".to_owned(), class: "part-ended".to_owned(), used });
            }
            User::Unattributed(reason) => {
                // Use without an allocation has the warning colour, the rest is grey.
                let class = if reason == UnattributedReason::NotAllocated { "part-taken" } else { "part-rest" };
                others.push(Row { name: name(reason).to_owned(), class: class.to_owned(), used });
            }
        }
    }
    let now = |used: &Use| used.now.map_or(-1, |ratio| (ratio * 100.0).round() as i64);
    let matches = |container: &ContainerRef| page.view.filter.matches(Some(container), page.names(gpu, None));
    holders.sort_by_cached_key(|(container, used)| {
        (!matches(container), Reverse((now(used), used.memory)), container.clone())
    });
    let rest = holders.split_off(holders.len().min(SHOWN));
    let by_name: Vec<ContainerRef> = holders.iter().map(|(container, _)| container.clone()).sorted().collect();
    let mut rows: Vec<Row> = holders
        .into_iter()
        .map(|(container, used)| {
            let colour = by_name.iter().position(|other| *other == container).unwrap_or_default();
            Row { name: format!("{}/{}", container.namespace, container.pod), class: format!("part-{colour}"), used }
        })
        .collect();
    if !rest.is_empty() {
        let name = format!("and {} more", rest.len());
        let used = rest.into_iter().fold(Use::default(), |sum, (_, used)| sum.and(&used));
        rows.push(Row { name, class: "part-more".to_owned(), used });
    }
    rows.extend(others);
    rows
}

impl Use {
    /// The sum of what is known.
    fn and(&self, other: &Self) -> Self {
        let sum =
            |one: Option<f64>, other: Option<f64>| [one, other].into_iter().flatten().reduce(|one, other| one + other);
        Self {
            now: sum(self.now, other.now),
            busy: sum(self.busy, other.busy),
            memory: [self.memory, other.memory].into_iter().flatten().reduce(|one, other| one + other),
        }
    }
}

/// The users of the GPU in the window, and those of its memory now. Holders of MIG devices are shown with those.
fn uses(page: &NodePage<'_>, gpu: &Gpu, division: Option<&WindowShares>) -> BTreeMap<User, Use> {
    let mut uses: BTreeMap<User, Use> = BTreeMap::new();
    let is_partitioned = !gpu.mig_devices.is_empty();
    for account in page.holders(gpu).filter(|_| !is_partitioned) {
        let used = uses.entry(User::Holder(account.container.clone())).or_default();
        let here = Use { now: account.gpu_utilization_ratio, busy: None, memory: account.memory_used_bytes };
        *used = used.and(&here);
    }
    let known = division.filter(|division| division.uncovered < 1.0);
    let busy = known.into_iter().flat_map(|division| division.busy.clone());
    for (part, ratio) in busy {
        let user = match part {
            ShareOwner::Container(_) if is_partitioned => continue,
            ShareOwner::Container(container) => {
                Some(User::Holder(container)).filter(|user| uses.contains_key(user)).unwrap_or(User::FormerHolders)
            }
            ShareOwner::Unattributed(reason) => User::Unattributed(reason),
        };
        *uses.entry(user).or_default().busy.get_or_insert(0.0) += ratio;
    }
    let unattributed = page.snapshot.unattributed.iter().find(|unattributed| unattributed.gpu == gpu.uuid);
    for (reason, bytes) in unattributed.into_iter().flat_map(|unattributed| &unattributed.memory_bytes) {
        uses.entry(User::Unattributed(*reason)).or_default().memory = Some(*bytes);
    }
    uses.retain(|user, used| {
        let is_used = used.busy.is_some_and(|ratio| ratio >= 0.005) || used.memory > Some(1 << 20);
        matches!(user, User::Holder(_)) || is_used
    });
    uses
}

fn name(reason: UnattributedReason) -> &'static str {
    match reason {
        UnattributedReason::Driver => "driver",
        UnattributedReason::Ended => "of an allocation that has just ended",
        UnattributedReason::Host => "processes outside of pods",
        UnattributedReason::Idle => "idle power",
        UnattributedReason::NotAllocated => "pods that do not hold it",
        UnattributedReason::TerminatedPod => "processes of ended pods",
        UnattributedReason::Unknown => "owner unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::history::NodeHistory;
    use crate::domain::model::Snapshot;
    use crate::serve::web::page::View;
    use crate::serve::web::page::filter::Filter;

    /// The names and classes in the list of 20 holders, of which the first use `now`.
    fn listed(filter: &str, now: &[f64]) -> Vec<(String, String)> {
        let uses = (0..20).map(|number| {
            let used = Use {
                now: Some(now.get(number).copied().unwrap_or(0.0)),
                busy: Some(0.01),
                memory: Some(number as u64),
            };
            (User::Holder(ContainerRef::new("ml", &format!("pod-{number:02}"), "main")), used)
        });
        let (snapshot, history) = (Snapshot::default(), NodeHistory::default());
        let view = View { filter: Filter::new(filter).unwrap(), ..View::default() };
        let page = NodePage { snapshot: &snapshot, history: &history, now: snapshot.at, not_ready: None, view };
        rows(&page, &"GPU-1".into(), uses.collect()).into_iter().map(|row| (row.name, row.class)).collect()
    }

    #[test]
    fn idle_holders_do_not_hide_the_one_that_works() {
        let names = |filter, now| listed(filter, now).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let rows = names("", &[0.0, 0.004, 0.0, 0.5]);
        assert_eq!(rows[..3], ["ml/pod-03", "ml/pod-19", "ml/pod-18"], "by use now, then memory");
        assert_eq!((rows.len(), &*rows[8]), (9, "and 12 more"));
        assert_eq!(
            names("pod:pod-02 gpu-1", &[0.9])[..2],
            ["ml/pod-02", "ml/pod-00"],
            "what the filter matches is first"
        );
    }

    #[test]
    fn a_holder_keeps_its_colour_while_the_same_are_shown() {
        let colours = |now: &[f64]| listed("", now).into_iter().take(SHOWN).collect::<BTreeMap<_, _>>();
        let busy = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2];
        let mut later = busy;
        later.reverse();
        assert_eq!(colours(&busy), colours(&later));
        assert_ne!(listed("", &busy), listed("", &later));
    }
}
