//! What becomes of a metric name: one row of podmeter's table, read for a target.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use podmeter::metrics::dcgm::{Agreement, Equivalent, Name, Native, names};

use super::factor::Factor;
use super::{Context, Target, UtilizationRatio};

/// The name that means percent in DCGM 4.6 and 0 to 1 in DCGM 4.7.
const AMBIGUOUS: &str = "DCGM_FI_DEV_GPU_UTIL_RATIO";

static BY_NAME: LazyLock<BTreeMap<&'static str, &'static Name>> = LazyLock::new(|| {
    let both = |row: &'static Name| [row.new, row.old].into_iter().flatten().map(move |name| (name, row));
    names().flat_map(both).collect()
});

/// What becomes of a name.
pub enum Plan {
    /// The target has it.
    Keep,
    Replace(Replacement),
    Left {
        reason: String,
        suggestion: Option<String>,
    },
}

pub struct Replacement {
    pub metric: &'static str,
    /// Matchers to add.
    pub labels: &'static [(&'static str, &'static str)],
    pub sum_over: &'static [&'static str],
    /// The value before is the value after times this.
    pub factor: Factor,
    /// podmeter's metric by container, and its difference.
    pub container: Option<(&'static str, &'static str)>,
    /// podmeter counts what the name has as a rate.
    pub is_counter: bool,
    pub reason: String,
    pub difference: Option<&'static str>,
}

/// Whether the name claims to be dcgm-exporter's. Names of recording rules contain a colon.
pub fn is_dcgm(name: &str) -> bool {
    (name.starts_with("DCGM_") || name.starts_with("dcgm_")) && !name.contains(':')
}

/// The names of the table, in order.
pub fn known() -> impl Iterator<Item = &'static str> {
    BY_NAME.keys().copied()
}

/// What becomes of `name` under the context's target.
pub fn plan(name: &str, context: &Context) -> Plan {
    let left = |reason: &str, suggestion| Plan::Left { reason: reason.to_owned(), suggestion };
    let Some(row) = BY_NAME.get(name) else {
        return left("it is not in the table of dcgm-exporter's names", None);
    };
    let is_old = row.old == Some(name);
    let (there, missing) = match context.target {
        Target::Old => (row.old, "dcgm-exporter up to 4.8 does not have it"),
        Target::New => (row.new, "dcgm-exporter 4.9 does not have it"),
        Target::Podmeter => (None, ""),
    };
    if there == Some(name) {
        return if name == AMBIGUOUS && context.utilization_ratio == Some(UtilizationRatio::Percent) {
            left("it is 0 to 1 with dcgm-exporter 4.9", Some(format!("{name} * 100")))
        } else {
            Plan::Keep
        };
    }
    let Some(mut per_new) = Factor::from_number(row.scale()) else {
        return left("its unit has no factor", None);
    };
    if name == AMBIGUOUS {
        match context.utilization_ratio {
            None => {
                return left(
                    "it is percent in DCGM 4.6 and 0 to 1 in DCGM 4.7; state which with --gpu-util-ratio",
                    None,
                );
            }
            Some(UtilizationRatio::Percent) => per_new = Factor::ONE,
            Some(UtilizationRatio::Ratio) => {}
        }
    }
    if context.target != Target::Podmeter {
        let Some(metric) = there else { return left(missing, None) };
        let factor = if is_old { per_new.inverse() } else { per_new };
        let version = if is_old { "4.9" } else { "4.8" };
        let unit = if factor.is_one() {
            String::new()
        } else {
            let (before, after) = (row.unit.as_str(), row.unit.base());
            let (before, after) = if is_old { (before, after) } else { (after, before) };
            format!(", in {after} instead of {before}")
        };
        let reason = format!("the name in dcgm-exporter {version}{unit}");
        return Plan::Replace(Replacement {
            metric,
            labels: &[],
            sum_over: &[],
            factor,
            container: None,
            is_counter: false,
            reason,
            difference: None,
        });
    }
    let equivalent = match &row.native {
        Native::Query(equivalent) => equivalent,
        Native::None(reason) => return left(&format!("podmeter's metrics do not have it: {reason}"), None),
    };
    let of_old = Factor::from_number(equivalent.scale);
    let factor = of_old.and_then(|factor| if is_old { Some(factor) } else { factor.times(per_new) });
    let Some(factor) = factor else {
        return left("its unit has no factor", None);
    };
    let difference = match equivalent.agreement {
        Agreement::Same => None,
        Agreement::Named(difference) => Some(difference),
        Agreement::Unproven(reason) if equivalent.is_counter_of_rate && context.rate_interval.is_some() => Some(reason),
        Agreement::Unproven(reason) => {
            let accept = if equivalent.is_counter_of_rate { "; give --rate-interval to accept it" } else { "" };
            let reason = format!("podmeter has another quantity: {reason}{accept}");
            return left(&reason, Some(suggestion(equivalent, factor)));
        }
    };
    let unit = if factor.is_one() { String::new() } else { format!(", in {}", row.unit.base()) };
    Plan::Replace(Replacement {
        metric: equivalent.metric,
        labels: equivalent.labels,
        sum_over: equivalent.sum_over,
        factor,
        container: equivalent.container,
        is_counter: equivalent.is_counter_of_rate,
        reason: format!("podmeter's metric of the same quantity{unit}"),
        difference,
    })
}

/// A query to compare with a name that has no proven equivalent.
fn suggestion(equivalent: &Equivalent, factor: Factor) -> String {
    let query = equivalent.query("5m");
    if factor.is_one() { query } else { format!("{query} {factor}") }
}
