//! Recorded series: which labels their readers use, and which readers are affected by a renamed label.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::Draft;
use super::{Left, Work};
use crate::queries::labels::{OF_DCGM_SERIES, words};
use crate::queries::{Found, Query};

/// For each recorded series, the labels that its readers use, also through other recorded series.
pub fn recorded_labels_read(found: &[Found<'_>]) -> BTreeMap<String, BTreeSet<String>> {
    let queries = || found.iter().flat_map(|found| &found.queries);
    let mut read: BTreeMap<String, BTreeSet<String>> =
        queries().filter_map(|query| Some((query.records?.to_owned(), BTreeSet::new()))).collect();
    if read.is_empty() {
        return read;
    }
    let readers: Vec<(BTreeSet<&str>, &Query<'_>)> = queries()
        .map(|query| (words(query.text).filter(|word| read.contains_key(*word)).collect(), query))
        .filter(|(series, _): &(BTreeSet<&str>, _)| !series.is_empty())
        .collect();
    loop {
        let mut grown = false;
        for (series, query) in &readers {
            let through = query.records.and_then(|name| read.get(name)).cloned().unwrap_or_default();
            let labels: BTreeSet<String> = labels_used(query).into_iter().chain(through).collect();
            for name in series {
                if let Some(known) = read.get_mut(*name) {
                    let before = known.len();
                    known.extend(labels.iter().cloned());
                    grown |= known.len() > before;
                }
            }
        }
        if !grown {
            return read;
        }
    }
}

/// Labels that a query or what reads its result names.
fn labels_used(query: &Query<'_>) -> BTreeSet<String> {
    let own = words(query.text).filter(|word| OF_DCGM_SERIES.contains(word)).map(str::to_owned);
    own.chain(query.read()).collect()
}

/// A recorded series with renamed labels.
pub struct Chain {
    /// `file:line` of its rule.
    rule: String,
    labels: BTreeMap<String, String>,
}

pub fn renamed_recordings(work: &[Work<'_>]) -> BTreeMap<String, Chain> {
    let mut chains = BTreeMap::new();
    for work in work {
        for (query, draft) in work.found.queries.iter().zip(&work.drafts) {
            if let Some(name) = query.records
                && let Draft::Rewritten(parts) = draft
                && !parts.rewritten.labels.is_empty()
            {
                let rule = format!("{}:{}", work.file.name, work.file.line(query.place, 0));
                chains.insert(name.to_owned(), Chain { rule, labels: parts.rewritten.labels.clone() });
            }
        }
    }
    chains
}

impl Work<'_> {
    /// Lists the readers of recorded series whose labels are renamed, where they name one of these.
    pub fn check_recordings(&mut self, chains: &BTreeMap<String, Chain>) {
        if chains.is_empty() {
            return;
        }
        for query in &self.found.queries {
            let used = labels_used(query);
            for name in words(query.text).collect::<BTreeSet<_>>() {
                let Some(chain) = chains.get(name) else { continue };
                for (before, after) in chain.labels.iter().filter(|(before, _)| used.contains(*before)) {
                    let reason = format!(
                        "it reads a series recorded at {}, whose label `{before}` becomes `{after}`: rename it here too",
                        chain.rule
                    );
                    let line = self.file.line(query.place, query.text.find(name).unwrap_or(0));
                    self.left.push(Left { line, name: name.to_owned(), reason, suggestion: None });
                }
            }
        }
    }
}
