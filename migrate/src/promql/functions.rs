//! What functions and aggregations do to a factor of their argument.

use promql_parser::parser::token::*;

/// The result of a function whose vector or range argument is multiplied by a positive factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// Is multiplied by the factor.
    Same,
    /// Does not depend on the factor.
    None,
    /// Is multiplied by the square of the factor.
    Square,
    /// Is not proportional.
    Other,
}

/// A function: how it scales, and whether the function of a sum of series is the sum over the function of each.
pub struct Behaviour {
    pub scaling: Scaling,
    pub is_linear: bool,
}

/// The behaviour of the function `name` in its first vector or range argument.
pub fn function(name: &str) -> Behaviour {
    let (scaling, is_linear) = match name {
        "rate" | "irate" | "increase" | "delta" | "idelta" | "deriv" | "predict_linear" | "avg_over_time"
        | "sum_over_time" | "last_over_time" | "first_over_time" => (Scaling::Same, true),
        "min_over_time"
        | "max_over_time"
        | "quantile_over_time"
        | "stddev_over_time"
        | "mad_over_time"
        | "holt_winters"
        | "double_exponential_smoothing"
        | "abs"
        | "sort"
        | "sort_desc"
        | "sort_by_label"
        | "sort_by_label_desc"
        | "label_replace"
        | "label_join"
        | "scalar"
        | "vector" => (Scaling::Same, false),
        "count_over_time"
        | "present_over_time"
        | "absent"
        | "absent_over_time"
        | "changes"
        | "resets"
        | "timestamp"
        | "sgn"
        | "ts_of_min_over_time"
        | "ts_of_max_over_time"
        | "ts_of_first_over_time"
        | "ts_of_last_over_time" => (Scaling::None, false),
        "stdvar_over_time" => (Scaling::Square, false),
        _ => (Scaling::Other, false),
    };
    Behaviour { scaling, is_linear }
}

/// Whether the position of the vector or range argument is known; of other functions, each argument is taken for one.
pub fn argument(name: &str) -> usize {
    match name {
        "quantile_over_time" | "histogram_quantile" => 1,
        "histogram_fraction" => 2,
        _ => 0,
    }
}

/// The behaviour of an aggregation in its operand.
pub fn aggregation(operation: u16) -> Behaviour {
    let (scaling, is_linear) = match operation {
        T_SUM => (Scaling::Same, true),
        T_AVG | T_MIN | T_MAX | T_STDDEV | T_QUANTILE | T_TOPK | T_BOTTOMK | T_LIMITK | T_LIMIT_RATIO => {
            (Scaling::Same, false)
        }
        T_COUNT | T_GROUP => (Scaling::None, false),
        T_STDVAR => (Scaling::Square, false),
        _ => (Scaling::Other, false),
    };
    Behaviour { scaling, is_linear }
}

/// Whether the results of an aggregation have the labels of their inputs.
pub fn keeps_labels(operation: u16) -> bool {
    [T_TOPK, T_BOTTOMK, T_LIMITK, T_LIMIT_RATIO].contains(&operation)
}
