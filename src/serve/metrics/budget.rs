//! The limit on the containers' series on the page.

use std::collections::{BTreeMap, BTreeSet};

use super::container;
use crate::domain::model::{Account, ContainerRef, GpuUuid, MigUuid};

const ENDED: &str = "ended";
const HELD: &str = "held";

/// Decides which series are kept when there are more than the limit. It removes complete accounts: first the ended, the
/// longest ended first; then those that hold a device, the youngest first; of equals the last by name. So a container
/// that holds a device keeps its series while others are added.
#[derive(Debug)]
pub struct SeriesBudget {
    over: BTreeSet<AccountKey>,
    dropped: BTreeMap<&'static str, u64>,
}

type AccountKey = (ContainerRef, GpuUuid, Option<MigUuid>);

impl Default for SeriesBudget {
    fn default() -> Self {
        Self { over: BTreeSet::new(), dropped: [(ENDED, 0), (HELD, 0)].into() }
    }
}

impl SeriesBudget {
    /// The series left off, by reason; each counts once, when it is removed.
    pub fn dropped(&self) -> &BTreeMap<&'static str, u64> {
        &self.dropped
    }

    /// Marks the accounts that are over the limit, and those that another pod of the same name has replaced.
    pub fn mark(&mut self, accounts: &mut [Account], limit: usize) {
        for index in replaced(accounts) {
            accounts[index].over_limit = true;
        }
        let series = accounts.iter().map(|account| if account.over_limit { 0 } else { container::series_of(account) });
        let mut over = BTreeSet::new();
        for (index, series) in over_limit(accounts, &series.collect::<Vec<_>>(), limit) {
            let account = &mut accounts[index];
            account.over_limit = true;
            let key = key(account);
            if !self.over.contains(&key) {
                let reason = if account.ended.is_some() { ENDED } else { HELD };
                *self.dropped.entry(reason).or_default() += series as u64;
            }
            over.insert(key);
        }
        self.over = over;
    }
}

/// The indices of the accounts to remove, with the number of series of each, so that those that are left have no more
/// than the limit. `series`: the number of series of each account.
pub(super) fn over_limit(accounts: &[Account], series: &[usize], limit: usize) -> Vec<(usize, usize)> {
    let mut left: usize = series.iter().sum();
    if left <= limit {
        return vec![];
    }
    let mut order: Vec<_> = series.iter().copied().enumerate().filter(|(_, series)| *series > 0).collect();
    order.sort_by(|(one, _), (other, _)| {
        let (one, other) = (&accounts[*one], &accounts[*other]);
        let ended = |account: &Account| (account.ended.is_none(), account.ended.map(|ended| ended.monotonic));
        let by_age = other.created.0.total_cmp(&one.created.0);
        ended(one).cmp(&ended(other)).then(by_age).then_with(|| names(other).cmp(&names(one)))
    });
    let is_over = |(_, series): &(usize, usize)| {
        let is_over = left > limit;
        left -= if is_over { *series } else { 0 };
        is_over
    };
    order.into_iter().take_while(is_over).collect()
}

/// The indices of the accounts that another pod of the same name has replaced. Labels have no UID: of the pods of one
/// name, the one that holds the device has the series, else the last one that did.
fn replaced(accounts: &[Account]) -> Vec<usize> {
    // Accounts are sorted by GPU and container: pods of one name follow each other.
    let are_of_one_name =
        |pair: &[Account]| pair[0].gpu == pair[1].gpu && pair[0].container.has_names_of(&pair[1].container);
    if !accounts.windows(2).any(are_of_one_name) {
        return vec![];
    }
    let mut shown = BTreeMap::new();
    let mut replaced = vec![];
    for (index, account) in accounts.iter().enumerate() {
        let ContainerRef { namespace, pod, container, .. } = &account.container;
        let names = (namespace, pod, container, &account.gpu, &account.mig);
        let Some(other) = shown.insert(names, index) else { continue };
        let rank = |index: usize| (accounts[index].holding.is_some(), accounts[index].created.0);
        if rank(other) > rank(index) {
            shown.insert(names, other);
            replaced.push(index);
        } else {
            replaced.push(other);
        }
    }
    replaced
}

fn key(account: &Account) -> AccountKey {
    (account.container.clone(), account.gpu.clone(), account.mig.clone())
}

/// The account's key, borrowed, for comparisons.
fn names(account: &Account) -> (&ContainerRef, &GpuUuid, Option<&MigUuid>) {
    (&account.container, &account.gpu, account.mig.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::{HoldingCounters, Moment, Monotonic, UnixSeconds};
    use crate::serve::metrics::tests::fixture;

    fn shown(accounts: &[Account]) -> Vec<&str> {
        accounts.iter().filter(|account| !account.over_limit).map(|account| &*account.container.pod).collect()
    }

    #[test]
    fn ended_accounts_are_removed_first_then_the_youngest_each_counted_once() {
        let holding = fixture::snapshot().accounts.remove(0);
        let series = container::series_of(&holding);
        let account = |pod: &str, created: f64, ended: Option<u64>| {
            let mut account = holding.clone();
            account.container.pod = pod.into();
            account.created = UnixSeconds(created);
            account.ended =
                ended.map(|seconds| Moment { monotonic: Monotonic::from_secs(seconds), ..Moment::default() });
            account
        };
        let all = [account("old", 1.0, None), account("young", 3.0, None), account("middle", 2.0, None)];
        let ended = [account("gone", 0.0, Some(5)), account("just-gone", 0.0, Some(9))];
        let mut budget = SeriesBudget::default();
        let mut check = |limit: usize, expected: &[&str], dropped: [usize; 2]| {
            let mut accounts: Vec<Account> = all.iter().chain(&ended).cloned().collect();
            budget.mark(&mut accounts, limit * series);
            assert_eq!(shown(&accounts), expected);
            let dropped = dropped.map(|accounts| (accounts * series) as u64);
            assert_eq!(budget.dropped().values().copied().collect::<Vec<_>>(), dropped);
        };
        check(5, &["old", "young", "middle", "gone", "just-gone"], [0, 0]);
        check(4, &["old", "young", "middle", "just-gone"], [1, 0]);
        check(4, &["old", "young", "middle", "just-gone"], [1, 0]);
        check(2, &["old", "middle"], [2, 1]);
        check(0, &[], [2, 3]);
    }

    #[test]
    fn of_two_pods_of_one_name_the_one_that_holds_has_the_series() {
        let account = |uid: &str, created: f64, held: bool| {
            let container = ContainerRef::new("team", "web-0", "main").with_uid(Some(uid.into()));
            let account = Account::new(container, "GPU-0".into(), None, crate::domain::model::UnixSeconds(created));
            Account {
                ended: (!held).then(Default::default),
                counters: HoldingCounters { allocated_seconds: Some(created), ..HoldingCounters::default() },
                ..account
            }
        };
        let mut accounts = [account("a", 30.0, false), account("b", 10.0, false), account("c", 20.0, false)];
        let mut budget = SeriesBudget::default();
        budget.mark(&mut accounts, 1000);
        assert_eq!(accounts.each_ref().map(|account| account.over_limit), [false, true, true]);
        assert_eq!(budget.dropped().values().sum::<u64>(), 0, "the series are there");
    }
}
