//! Query results as tables and comma-separated values.

use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use serde_json::Value;

use super::allocation_record::{AllocationRecord, Ending};
use super::prices::Prices;
use super::usage::{By, Usage, UsageRow, UsageTotals};
use crate::domain::model::{Cost, HoldingCounters};
use crate::terminal::{aligned, harmless};

const HOUR: f64 = 3600.0;
const KILOWATT_HOUR: f64 = 3.6e6;

/// The titles of the columns with hours. As in `HoldingCounters`, GPU + borrowed = busy + idle + unknown where the fraction is known.
const TITLES: [&str; 6] = ["HELD HOURS", "GPU HOURS", "BUSY HOURS", "BORROWED", "IDLE HOURS", "UNKNOWN"];

/// The sums as a table, in hours and kilowatt-hours.
pub fn usage_table(usage: &Usage, by: By) -> String {
    let mut table = vec![];
    let names: &[&str] = match by {
        By::Namespace => &["NAMESPACE"],
        By::Pod => &["NAMESPACE", "POD"],
        By::Device => &["DEVICE", "MODEL"],
    };
    let titles =
        names.iter().chain(&["HOLDINGS"]).chain(&TITLES).chain(&["HELD %", "BUSY %", "KWH", "XIDS", "UNHEALTHY"]);
    table.push(titles.map(|&title| title.to_owned()).chain(cost_titles(&usage.prices)).collect());
    let cells = |totals: &UsageTotals| shown(totals).into_iter().chain(shown_cost(&totals.cost, &usage.prices));
    for row in &usage.rows {
        table.push(row_names(row, by).into_iter().chain(cells(&row.totals)).collect());
    }
    let mut total = vec!["total".to_owned()];
    total.resize(names.len(), String::new());
    total.extend(cells(&usage.total));
    table.push(total);
    let mut window = format!("{} to {}", time(usage.since), time(usage.until));
    if let Some(first) = usage.first_began.filter(|first| *first > usage.since) {
        window += &format!("; the first recorded holding began at {}", time(first));
    }
    window + "\n" + &aligned(&table, names.len())
}

/// The sums as CSV, in seconds and joules; empty where unknown.
pub fn usage_csv(usage: &Usage, by: By) -> String {
    let names = match by {
        By::Namespace => "namespace",
        By::Pod => "namespace,pod",
        By::Device => "gpu_uuid,mig_uuid,model",
    };
    let columns = format!("{names},holdings,{COUNTERS},utilization_ratio,xids,unhealthy");
    let row = |row| {
        let mut row = json(row);
        row["currency"] = usage.prices.currency.as_deref().into();
        row
    };
    csv(&(columns + cost_columns(&usage.prices)), usage.rows.iter().map(row))
}

const COUNTERS: &str =
    "held_seconds,allocated_seconds,busy_seconds,borrowed_seconds,idle_seconds,uncovered_seconds,energy_joules";

fn cost_columns(prices: &Prices) -> &'static str {
    if prices.is_empty() { "" } else { ",cost,used_cost,idle_cost,uncovered_cost,currency" }
}

/// The titles of the columns of `shown_cost`, with the currency.
fn cost_titles(prices: &Prices) -> Vec<String> {
    let currency = prices.currency.as_ref().map_or(String::new(), |currency| format!(" {}", harmless(currency)));
    let titles = ["COST", "USED COST", "IDLE COST", "UNKNOWN COST"].iter().filter(|_| !prices.is_empty());
    titles.map(|title| format!("{title}{currency}")).collect()
}

fn shown_cost(cost: &Cost, prices: &Prices) -> Vec<String> {
    let costs = [cost.cost, cost.used_cost, cost.idle_cost, cost.uncovered_cost];
    costs.into_iter().filter(|_| !prices.is_empty()).map(|cost| number(cost, 1.0)).collect()
}

fn csv(columns: &str, rows: impl Iterator<Item = Value>) -> String {
    let mut text = format!("{columns}\n");
    for row in rows {
        let field = |column| match &row[column] {
            Value::Null => String::new(),
            Value::String(text) => quoted(&harmless(text)),
            other => other.to_string(),
        };
        text.push_str(&columns.split(',').map(field).collect::<Vec<_>>().join(","));
        text.push('\n');
    }
    text
}

fn json(row: &impl Serialize) -> Value {
    serde_json::to_value(row).expect("a row is strings and numbers")
}

/// The holdings as a table, with their hardware and events.
pub fn holdings_table(records: &[AllocationRecord], prices: &Prices) -> String {
    let heads = ["POD", "CONTAINER", "DEVICE", "MODEL", "PROFILE", "DRIVER", "FROM", "TO"];
    let titles = heads.iter().chain(&TITLES).chain(&["KWH", "EVENTS"]);
    let mut table: Vec<Vec<String>> = vec![titles.map(|&title| title.to_owned()).chain(cost_titles(prices)).collect()];
    for record in records {
        let device = &record.device;
        let text = |text: &Option<std::sync::Arc<str>>| text.as_deref().unwrap_or("-").to_owned();
        let until = match (record.ended, record.ending) {
            (Some(ended), Some(Ending::Unseen)) => format!("{} or later", time(ended)),
            (Some(ended), _) => time(ended),
            (None, _) => "now".to_owned(),
        };
        let mut row = vec![
            format!("{}/{}", record.namespace, record.pod),
            record.container.to_string(),
            device.mig_uuid.as_deref().unwrap_or(&device.gpu_uuid).to_owned(),
            text(&device.model),
            text(&device.mig_profile),
            text(&device.driver_version),
            time(record.began),
            until,
        ];
        row.extend(shown_counters(&record.counters));
        row.extend([number(record.counters.energy_joules, KILOWATT_HOUR), events(record)]);
        row.extend(shown_cost(&prices.priced(record).cost, prices));
        table.push(row);
    }
    aligned(&table, 8)
}

pub fn holdings_csv(records: &[AllocationRecord], prices: &Prices) -> String {
    const COLUMNS: &str = "namespace,pod,container,pod_uid,gpu_uuid,mig_uuid,mig_profile,model,driver_version,resource,\
                           began,seen,ended,ending,unseen_seconds";
    let row = |record: &AllocationRecord| {
        let mut row = json(&prices.priced(record));
        row["unseen_seconds"] = record.unseen_seconds.into();
        row["events"] = events(record).into();
        row
    };
    csv(&format!("{COLUMNS},{COUNTERS},events{}", cost_columns(prices)), records.iter().map(row))
}

fn events(record: &AllocationRecord) -> String {
    let xids = record.xids.iter().map(|xid| format!("XID {} x{}", xid.code, xid.count));
    let transitions = record.health.iter().map(|event| {
        let state = if event.healthy { "healthy" } else { "unhealthy" };
        format!("{state} {} ({})", time(event.at), event.reason)
    });
    let all: Vec<String> = xids.chain(transitions).collect();
    if all.is_empty() { "-".to_owned() } else { all.join("; ") }
}

fn row_names(row: &UsageRow, by: By) -> Vec<String> {
    let name = |column| row.names.get(column).map_or("-".to_owned(), ToString::to_string);
    match by {
        By::Namespace => vec![name("namespace")],
        By::Pod => vec![name("namespace"), name("pod")],
        By::Device if row.names.contains_key("mig_uuid") => vec![name("mig_uuid"), name("model")],
        By::Device => vec![name("gpu_uuid"), name("model")],
    }
}

fn shown(totals: &UsageTotals) -> Vec<String> {
    let mut cells = vec![totals.holdings.to_string()];
    cells.extend(shown_counters(&totals.counters));
    cells.extend([
        percent(totals.counters.held_ratio()),
        percent(totals.utilization_ratio),
        number(totals.counters.energy_joules, KILOWATT_HOUR),
        totals.xids.map_or("-".to_owned(), |xids| xids.to_string()),
        totals.unhealthy.to_string(),
    ]);
    cells
}

/// The counters in the columns `TITLES`.
fn shown_counters(counters: &HoldingCounters) -> [String; 6] {
    [
        counters.held_seconds,
        counters.allocated_seconds,
        counters.busy_seconds,
        counters.borrowed_seconds,
        counters.idle_seconds,
        counters.uncovered_seconds,
    ]
    .map(|seconds| number(seconds, HOUR))
}

/// A percentage of the GPU.
fn percent(ratio: Option<f64>) -> String {
    ratio.map_or("-".to_owned(), |ratio| format!("{:.1}", ratio * 100.0))
}

fn number(value: Option<f64>, unit: f64) -> String {
    value.map_or("-".to_owned(), |value| format!("{:.3}", value / unit))
}

fn time(unix: f64) -> String {
    // RFC 3339 has no year after 9999.
    let since = Duration::from_secs_f64(unix.clamp(0.0, 2.5e11));
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string()
}

/// A field of CSV (RFC 4180).
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usage_names_the_first_holding_and_its_percentages_are_of_the_gpu() {
        let mut record =
            AllocationRecord { began: 100.0, seen: 200.0, ended: Some(200.0), ..AllocationRecord::default() };
        record.counters.held_seconds = Some(100.0);
        (record.counters.allocated_seconds, record.counters.busy_seconds) = (Some(25.0), Some(20.0));
        (record.counters.idle_seconds, record.counters.uncovered_seconds) = (Some(5.0), Some(0.0));
        let table = |since| {
            usage_table(&Usage::sum([&record], By::Namespace, (since, 1000.0), &Prices::default()), By::Namespace)
        };
        let young = table(0.0);
        assert!(young.contains("; the first recorded holding began at 1970-01-01T00:01:40Z\n"), "{young}");
        assert!(young.contains(" 25.0 ") && young.contains(" 20.0 "), "a quarter is held: {young}");
        assert!(!table(100.0).contains("first recorded"), "it covers the window");
    }

    #[test]
    fn names_that_hold_commas_and_quotes_stay_one_field() {
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("plain"), "plain");
    }

    #[test]
    fn names_are_escaped_for_terminals() {
        let record = AllocationRecord { pod: "a\u{1b}[2J\nb,c".into(), ..AllocationRecord::default() };
        let text = holdings_csv(&[record], &Prices::default());
        assert!(text.contains("\"a\u{fffd}[2J\u{fffd}b,c\"") && text.lines().count() == 2, "{text}");
    }
}
