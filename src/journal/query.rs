//! Queries of the journal and their responses.
//!
//! In: the query string of `/api/v1/allocations`. Out: a page of holdings, from the disk and from what is not written yet.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};

use super::allocation_record::AllocationRecord;
use super::recording;
use super::store::{FILE, Query, Store, StoreError};
use super::writer::JournalReader;
use crate::domain::model::{Snapshot, UnixSeconds};
use crate::input::suggestion;

/// The holdings in one response, by default and at most.
const PAGE: usize = 500;

/// The characters to encode in a query string: all but the unreserved ones of RFC 3986, section 2.3.
const NOT_UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A page of holdings.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AllocationsResponse {
    pub node: String,
    /// The Unix time of the response.
    pub at: f64,
    pub since: f64,
    pub until: f64,
    /// Whether there is a journal: without one, only current holdings are listed.
    pub journal: bool,
    /// The problem of the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The holdings by ID, in the order in which they began.
    pub allocations: Vec<AllocationRecord>,
    /// The `after` of the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct QueryError(String);

impl Query {
    /// A query that selects everything.
    pub fn all() -> Self {
        Self { since: 0.0, until: f64::MAX, namespace: None, pod: None, after: 0, limit: PAGE }
    }

    /// Parses `since=24h&until=2026-01-31T12:00:00Z&namespace=…&pod=…&after=…&limit=…`, each optional.
    pub fn parse(text: &str, now: UnixSeconds) -> Result<Self, QueryError> {
        let mut query = Self::all();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value);
            let wrong = |problem: String| QueryError(format!("{key}={value}: {problem}"));
            match key {
                "since" => query.since = parse_time(&value, now).map_err(wrong)?,
                "until" => query.until = parse_time(&value, now).map_err(wrong)?,
                "namespace" => query.namespace = Some(value),
                "pod" => query.pod = Some(value),
                "after" => query.after = value.parse().map_err(|_| wrong("take it from \"next\"".into()))?,
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=PAGE).contains(limit));
                    query.limit = limit.ok_or_else(|| wrong(format!("must be 1 to {PAGE}")))?;
                }
                _ => {
                    let meant = suggestion(key, &["since", "until", "namespace", "pod", "after", "limit"]);
                    return Err(QueryError(format!("unknown parameter `{key}`{meant}")));
                }
            }
        }
        Ok(query)
    }

    /// The query string, for `parse`.
    pub fn text(&self) -> String {
        let mut text = format!("since={}&limit={}", self.since, self.limit);
        if self.until < f64::MAX {
            let _ = write!(text, "&until={}", self.until);
        }
        for (key, value) in [("namespace", &self.namespace), ("pod", &self.pod)] {
            if let Some(value) = value {
                let _ = write!(text, "&{key}={}", utf8_percent_encode(value, NOT_UNRESERVED));
            }
        }
        if self.after > 0 {
            let _ = write!(text, "&after={}", self.after);
        }
        text
    }

    fn wants(&self, record: &AllocationRecord) -> bool {
        record.began <= self.until
            && record.ended.is_none_or(|ended| ended >= self.since)
            && self.namespace.as_deref().is_none_or(|namespace| *namespace == *record.namespace)
            && self.pod.as_deref().is_none_or(|pod| *pod == *record.pod)
    }

    /// A page of stored records, which are the first that match, and of newer versions of any.
    fn response(
        &self,
        node: &str,
        at: f64,
        mut stored: Vec<AllocationRecord>,
        newer: BTreeMap<u64, AllocationRecord>,
    ) -> AllocationsResponse {
        // More records may be stored after the last one of a full page.
        let end = stored.last().filter(|_| stored.len() >= self.limit).map(|last| last.id);
        stored.retain(|record| !record.is_in(&newer));
        let is_here = |record: &AllocationRecord| self.after < record.id && end.is_none_or(|end| record.id <= end);
        stored.extend(newer.into_values().filter(|record| is_here(record) && self.wants(record)));
        stored.sort_by_key(|record| record.id);
        let is_long = stored.len() > self.limit;
        stored.truncate(self.limit);
        AllocationsResponse {
            node: node.to_owned(),
            at,
            since: self.since,
            until: self.until.min(at),
            next: if is_long { stored.last().map(|last| last.id) } else { end },
            allocations: stored,
            ..AllocationsResponse::default()
        }
    }
}

/// The Unix time of an age (`24h`), a time (`2026-01-31T12:00:00Z`, `2026-01-31`), or Unix seconds.
pub fn parse_time(text: &str, now: UnixSeconds) -> Result<f64, String> {
    if let Ok(unix) = text.parse::<f64>()
        && unix.is_finite()
    {
        return Ok(unix);
    }
    if let Ok(ago) = humantime::parse_duration(text) {
        return Ok(now.0 - ago.as_secs_f64());
    }
    let day = if text.len() == 10 { format!("{text}T00:00:00Z") } else { text.to_owned() };
    let time = humantime::parse_rfc3339_weak(&day)
        .map_err(|_| "write how long ago (24h), or a time in UTC (2026-01-31T12:00:00Z)".to_owned())?;
    Ok(time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64())
}

impl JournalReader {
    /// Answers a query. It reads the disk: for blocking threads only.
    pub fn respond(&self, query: &Query, node: &str, now: UnixSeconds) -> AllocationsResponse {
        let file = self.0.file();
        // Memory is read before the file: a record written meanwhile is in both, and none is in neither.
        let live = self.0.tracker.lock().live();
        let (stored, problem) = match Store::open_to_read(&file).and_then(|store| store.records(query)) {
            Ok(stored) => (stored, None),
            Err(error) => (vec![], Some(format!("{}: {error}", file.display()))),
        };
        let problem = self.state().problem.map(|problem| problem.to_string()).or(problem);
        AllocationsResponse { journal: true, problem, ..query.response(node, now.0, stored, live) }
    }
}

/// Answers a query from the file, while no agent runs.
pub fn read_directory(directory: &Path, query: &Query, now: UnixSeconds) -> Result<AllocationsResponse, StoreError> {
    let stored = Store::open_to_read(&directory.join(FILE))?.records(query)?;
    Ok(AllocationsResponse { journal: true, ..query.response("", now.0, stored, BTreeMap::new()) })
}

/// Answers a query without a journal: current holdings, with their counters since the start of this agent.
pub fn current(snapshot: &Snapshot, query: &Query) -> AllocationsResponse {
    let held = snapshot.accounts.iter().filter(|account| account.holding.is_some());
    let record = |(number, account)| {
        let mut record = recording::record(account, snapshot, account.created, number);
        record.counters = account.counters;
        record.xids = recording::xids(account, snapshot);
        (number, record)
    };
    query.response(&snapshot.node_name, snapshot.at.unix.0, vec![], (1..).zip(held).map(record).collect())
}

/// The text with `%2F` and `+` decoded; invalid sequences stay as they are.
fn decoded(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixSeconds = UnixSeconds(1_000_000.0);

    #[test]
    fn a_query_has_a_time_range_and_a_pod() {
        let query = Query::parse("since=1h&namespace=team%2Da&pod=train+0&limit=7&after=12", NOW).unwrap();
        assert_eq!((query.since, query.namespace.as_deref()), (1_000_000.0 - 3600.0, Some("team-a")));
        assert_eq!((query.pod.as_deref(), query.limit, query.after), (Some("train 0"), 7, 12));
        // Text that is not percent-encoded stays unchanged.
        assert_eq!(Query::parse("pod=%+1%1", NOW).unwrap().pod.as_deref(), Some("% 1%1"));
        for (text, part) in [
            ("since=soon", "24h"),
            ("limit=0", "1 to 500"),
            ("limit=501", "1 to 500"),
            ("after=x", "next"),
            ("sinze=1h", "`sinze`: did you mean `since`?"),
        ] {
            let error = Query::parse(text, NOW).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn pages_of_stored_and_newer_records_have_each_once() {
        let record = |id| AllocationRecord { id, began: id as f64, ..AllocationRecord::default() };
        let with_other_id = |id| AllocationRecord { replaces: (id == 5).then_some(7), ..record(id) };
        let newer: BTreeMap<u64, AllocationRecord> = [2, 4, 5, 9, 11].map(|id| (id, with_other_id(id))).into();
        for limit in 1..12 {
            let (mut query, mut ids) = (Query { limit, ..Query::all() }, vec![]);
            loop {
                let stored = [1, 2, 3, 5, 7, 8].into_iter().filter(|id| *id > query.after).take(limit).map(record);
                let page = query.response("", 0.0, stored.collect(), newer.clone());
                assert!(page.allocations.len() <= limit);
                ids.extend(page.allocations.iter().map(|record| record.id));
                let Some(next) = page.next else { break };
                assert!(next > query.after);
                query.after = next;
            }
            assert_eq!(ids, [1, 2, 3, 4, 5, 8, 9, 11], "limit {limit}");
        }
    }

    #[test]
    fn times_are_ages_dates_or_seconds() {
        assert_eq!(parse_time("90m", NOW), Ok(1_000_000.0 - 5400.0));
        assert_eq!(parse_time("1970-01-02", NOW), Ok(86_400.0));
        assert_eq!(parse_time("1970-01-01T00:00:10Z", NOW), Ok(10.0));
        assert_eq!(parse_time("12.5", NOW), Ok(12.5));
        assert!(parse_time("yesterday", NOW).is_err());
    }
}
