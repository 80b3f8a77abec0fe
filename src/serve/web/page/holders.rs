//! The use of a whole GPU: its busy time in the window and its memory now, as bars of holders and unattributed use.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::NodePage;
use super::chart::{Segment, bar};
use super::text::{gibibytes, or_unknown, percent};
use super::view::window_words;
use crate::domain::history::{ShareOwner, WindowShares};
use crate::domain::model::{ContainerRef, Gpu, UnattributedReason};

/// Per device; the table of containers has all of these.
const SHOWN: usize = 8;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum User {
    Holder(ContainerRef),
    /// All that held it in the window and no longer do.
    FormerHolders,
    Unattributed(UnattributedReason),
}

#[derive(Default)]
struct Use {
    /// Part of the whole window.
    busy: Option<f64>,
    /// Bytes, now.
    memory: Option<u64>,
}

pub(super) fn of_gpu(page: &NodePage<'_>, gpu: &Gpu, capacity: Option<u64>) -> Markup {
    let division = page.history.division(&gpu.uuid, page.view.window);
    let unknown = division.as_ref().map_or(1.0, |division| division.uncovered);
    // Bars show `busy` as part of the whole window, text as part of its known time.
    let of_known = |ratio: Option<f64>| division.as_ref()?.known_ratio(ratio?).map(percent);
    let uses = uses(page, gpu, division.as_ref());
    let is_partitioned = !gpu.mig_devices.is_empty();
    let is_memory_known = capacity.is_some() && uses.values().any(|used| used.memory.is_some());
    let segments = |of: &dyn Fn(&Use) -> Option<f64>| -> Vec<Segment> {
        let segment = |(index, (user, used)): (usize, (&User, &Use))| {
            Some(Segment { class: class(user, index), ratio: of(used)? })
        };
        uses.iter().enumerate().filter_map(segment).collect()
    };
    let words = |what: &str, show: &dyn Fn(&Use) -> Option<String>| {
        let parts = uses.iter().filter_map(|(user, used)| Some(format!("{} {}", name(user), show(used)?)));
        format!("{what}: {}", parts.collect::<Vec<_>>().join(", "))
    };
    let memory_ratio = |used: &Use| Some(used.memory? as f64 / capacity.filter(|capacity| *capacity > 0)? as f64);
    let busy_words = format!("busy, {}", window_words(page.view.window));
    html! {
        @if !uses.is_empty() && !is_partitioned {
            div.bars {
                "busy"
                (bar(&words(&busy_words, &|used| of_known(used.busy)), segments(&|used| used.busy), unknown))
                "memory"
                (bar(&words("memory now", &|used| used.memory.map(gibibytes)), segments(&memory_ratio),
                    if is_memory_known { 0.0 } else { 1.0 }))
            }
        }
        @if !uses.is_empty() {
            ul.parts {
                @for (index, (user, used)) in uses.iter().enumerate().take(SHOWN) {
                    li {
                        svg.swatch viewBox="0 0 1 1" aria-hidden="true" { rect class=(class(user, index)) width="1" height="1" {} }
                        span.part { (name(user)) }
                        span.number { (or_unknown(of_known(used.busy))) }
                        span.number { (or_unknown(used.memory.map(gibibytes))) }
                    }
                }
                @if uses.len() > SHOWN { li.muted { "and " (uses.len() - SHOWN) " more" } }
            }
        }
    }
}

/// Who used the GPU in the window, or holds memory of it now. Holders of MIG devices are shown with those.
fn uses(page: &NodePage<'_>, gpu: &Gpu, division: Option<&WindowShares>) -> BTreeMap<User, Use> {
    let mut uses: BTreeMap<User, Use> = BTreeMap::new();
    let is_partitioned = !gpu.mig_devices.is_empty();
    for account in page.holders(gpu).filter(|_| !is_partitioned) {
        let used = uses.entry(User::Holder(account.container.clone())).or_default();
        if let Some(bytes) = account.memory_used_bytes {
            used.memory = Some(used.memory.unwrap_or(0) + bytes);
        }
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

/// Unattributed use, and that of former holders, is grey; use without an allocation has the warning colour.
fn class(user: &User, index: usize) -> String {
    match user {
        User::Holder(_) => return format!("part-{}", index % 8),
        User::Unattributed(UnattributedReason::NotAllocated) => "part-taken",
        User::FormerHolders => "part-ended",
        User::Unattributed(_) => "part-rest",
    }
    .to_owned()
}

fn name(user: &User) -> String {
    match user {
        User::Holder(container) => return format!("{}/{}", container.namespace, container.pod),
        User::FormerHolders => "ended containers",
        User::Unattributed(UnattributedReason::Driver) => "driver",
        User::Unattributed(UnattributedReason::Ended) => "of an allocation that has just ended",
        User::Unattributed(UnattributedReason::Host) => "processes outside of pods",
        User::Unattributed(UnattributedReason::Idle) => "idle power",
        User::Unattributed(UnattributedReason::NotAllocated) => "pods that do not hold it",
        User::Unattributed(UnattributedReason::TerminatedPod) => "processes of ended pods",
        User::Unattributed(UnattributedReason::Unknown) => "owner unknown",
    }
    .to_owned()
}
