//! `podmeter usage`: past use, from the agent or from its journal.
//!
//! In: a window, a grouping and prices. Out: a table, CSV or JSON.

use std::io::Write as _;
use std::path::Path;

use super::arguments::{UsageArguments, UsageBy, UsageFormat};
use super::{FAILED, Failed, block_on, misused, print};
use crate::clock::Clock;
use crate::commands::client;
use crate::domain::model::{Timestamp, UnixSeconds};
use crate::journal::{AllocationsResponse, By, Prices, Query, Usage, parse_time, read_directory, report};

pub fn run(arguments: UsageArguments) -> Result<(), Failed> {
    let arguments = &arguments;
    let now = Clock::start().now().unix;
    let query = query(arguments, now).map_err(misused)?;
    let prices = Prices::new(arguments.price.clone(), arguments.currency.clone()).map_err(misused)?;
    let answer = collect(arguments, &query, now)?;
    if let Some(problem) = &answer.problem {
        warn(problem);
    }
    if !answer.journal {
        warn("this agent has no journal (--state-dir): only current holdings since the agent's start are counted");
    }
    let records = &answer.allocations;
    for model in prices.unpriced(records) {
        warn(&format!("no --price matches {model}: sums with it have no cost"));
    }
    let (since, until) = (query.since, query.until.min(answer.at));
    if let Some(pod) = &arguments.pod {
        print(&match arguments.output {
            UsageFormat::Table if records.is_empty() => String::new(),
            UsageFormat::Table => report::holdings_table(records, &prices),
            UsageFormat::Csv => report::holdings_csv(records, &prices),
            UsageFormat::Json => pretty(&serde_json::json!({
                "node": answer.node, "since": since, "until": until,
                "allocations": records.iter().map(|record| prices.priced(record)).collect::<Vec<_>>(),
            })),
        })?;
        let [since, until] = [since, until].map(|at| Timestamp(UnixSeconds(at)));
        let missing = || Failed(FAILED, format!("no holding of pod {pod} from {since} to {until}"));
        return if records.is_empty() { Err(missing()) } else { Ok(()) };
    }
    let by = match arguments.by {
        UsageBy::Namespace => By::Namespace,
        UsageBy::Pod => By::Pod,
        UsageBy::Device => By::Device,
    };
    let usage = Usage::sum(records, by, (since, until), &prices);
    print(&match arguments.output {
        UsageFormat::Table => report::usage_table(&usage, by),
        UsageFormat::Csv => report::usage_csv(&usage, by),
        UsageFormat::Json => pretty(&usage),
    })
}

fn query(arguments: &UsageArguments, now: UnixSeconds) -> Result<Query, String> {
    for text in [Some(&arguments.since), arguments.until.as_ref()].into_iter().flatten() {
        // As a Unix time it would be in 1970.
        if text.parse().is_ok_and(|number: f64| number < 1e8) {
            return Err(format!(
                "{text} has no unit; write how long ago (24h), or a time in UTC (2026-01-31T12:00:00Z)"
            ));
        }
    }
    let since = parse_time(&arguments.since, now).map_err(|error| format!("--since {}: {error}", arguments.since))?;
    let until = arguments
        .until
        .as_deref()
        .map(|text| parse_time(text, now).map_err(|error| format!("--until {text}: {error}")));
    let until = until.transpose()?.unwrap_or(f64::MAX);
    if until < since {
        return Err("--until is before --since".to_owned());
    }
    let mut query = Query { since, until, ..Query::all() };
    if let Some(pod) = &arguments.pod {
        let (namespace, name) = pod.split_once('/').ok_or_else(|| format!("--pod {pod}: write NAMESPACE/NAME"))?;
        (query.namespace, query.pod) = (Some(namespace.to_owned()), Some(name.to_owned()));
    }
    Ok(query)
}

/// From the agent; where none answers, from the journal.
fn collect(arguments: &UsageArguments, query: &Query, now: UnixSeconds) -> Result<AllocationsResponse, Failed> {
    let target = arguments.agent.clone().target()?;
    let ask = async |query: &Query| client::json(&target, &format!("/api/v1/allocations?{}", query.text())).await;
    let error = match block_on(all_pages(query, ask))? {
        Ok(all) => return Ok(all),
        Err(error) => error,
    };
    match &arguments.state_dir {
        _ if !error.is_no_agent() || arguments.agent.remote.url.is_some() => Err(Failed(FAILED, error.to_string())),
        Some(directory) => block_on(all_pages(query, async |query| read(directory, query, now)))?,
        None => Err(Failed(FAILED, format!("{error}; give a journal with --state-dir, or an agent with --url"))),
    }
}

fn read(directory: &Path, query: &Query, now: UnixSeconds) -> Result<AllocationsResponse, Failed> {
    read_directory(directory, query, now)
        .map_err(|error| Failed(FAILED, format!("{}: {error}; give the agent's --state-dir", directory.display())))
}

/// All pages of an answer as one.
async fn all_pages<E>(
    query: &Query,
    page: impl AsyncFn(&Query) -> Result<AllocationsResponse, E>,
) -> Result<AllocationsResponse, E> {
    let (mut query, mut earlier) = (query.clone(), vec![]);
    loop {
        let mut answer = page(&query).await?;
        earlier.append(&mut answer.allocations);
        match answer.next.filter(|next| *next > query.after) {
            Some(next) => query.after = next,
            None => return Ok(AllocationsResponse { allocations: earlier, ..answer }),
        }
    }
}

fn pretty(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string_pretty(value).expect("strings and numbers");
    text + "\n"
}

fn warn(text: &str) {
    let _ = writeln!(std::io::stderr(), "podmeter: {text}");
}
