//! The rewriting of one PromQL expression, possibly with Grafana variables: names and labels are replaced where they stand, and
//! a factor between units is written behind the selector or the function of its range.
//!
//! Equal or unchanged: an expression changes as a whole, or what keeps it from that is listed. Files, rules and dashboards are
//! not known here.

mod syntax;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use promql_parser::parser::Expr;
use promql_parser::parser::token::*;

use crate::names::{Factor, Naming, Plan, is_dcgm, mentions};
use syntax::{Call, Selector, Syntax};

/// Where the series of a name come from, which decides whether their labels are dcgm-exporter's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Recorded from dcgm-exporter's and other series.
    Mixed,
    Dcgm,
}

/// What the rewriting of an expression depends on besides the expression.
#[derive(Clone, Debug)]
pub struct Context<'c> {
    pub naming: Naming<'c>,
    /// Series that rewritten rules record.
    pub recorded: &'c BTreeMap<String, Origin>,
    /// Labels that legends, annotations and other readers take from the result.
    pub labels_read: BTreeSet<String>,
    /// Whether the values of the result matter, and not its labels alone.
    pub has_values: bool,
}

/// A change of the expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Bytes of the expression.
    pub range: Range<usize>,
    pub after: String,
    pub reason: String,
}

/// What keeps the expression from being rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Byte of the expression.
    pub offset: usize,
    /// A metric, a label or a function.
    pub name: String,
    pub reason: String,
    /// A query to compare with the expression, where there is one.
    pub suggestion: Option<String>,
}

/// The result of [`rewrite`].
#[derive(Clone, Debug, Default)]
pub struct Rewritten {
    /// In order; none where something is left.
    pub edits: Vec<Edit>,
    pub left: Vec<Left>,
    /// Where the labels of the result come from; `None` where no series of dcgm-exporter is selected.
    pub origin: Option<Origin>,
}

/// The text with the changes.
pub fn replaced<'e>(text: &str, edits: impl IntoIterator<Item = (&'e Range<usize>, &'e str)>) -> String {
    let mut result = String::with_capacity(text.len());
    let mut end = 0;
    for (range, after) in edits {
        result.push_str(&text[end..range.start]);
        result.push_str(after);
        end = range.end;
    }
    result.push_str(&text[end..]);
    result
}

impl Rewritten {
    fn text(&self, expression: &str) -> String {
        replaced(expression, self.edits.iter().map(|edit| (&edit.range, edit.after.as_str())))
    }
}

/// Rewrites `expression` to the names of the target, or leaves it whole.
pub fn rewrite(expression: &str, context: &Context<'_>) -> Rewritten {
    if !mentions(expression) && !context.recorded.keys().any(|name| expression.contains(name.as_str())) {
        return Rewritten::default();
    }
    let syntax = match Syntax::parse(expression) {
        Ok(syntax) => syntax,
        Err(_) if !mentions(expression) => return Rewritten::default(),
        Err(error) => {
            let name = expression.split(|part: char| !is_part(part)).find(|word| mentions(word)).unwrap_or(expression);
            let reason = format!("not PromQL: {}", error.message);
            let left = Left { offset: error.offset, name: name.to_owned(), reason, suggestion: None };
            return Rewritten { left: vec![left], ..Rewritten::default() };
        }
    };
    let mut rewriting =
        Rewriting { expression, context, syntax: &syntax, scaled: vec![], result: Rewritten::default() };
    rewriting.names();
    if rewriting.result.origin.is_none() {
        return Rewritten { edits: vec![], ..rewriting.result };
    }
    rewriting.labels();
    if context.has_values {
        rewriting.factors();
    }
    rewriting.finish()
}

/// Whether a text is an expression.
pub fn is_promql(text: &str) -> bool {
    Syntax::parse(text).is_ok()
}

fn is_part(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | ':')
}

struct Rewriting<'e> {
    expression: &'e str,
    context: &'e Context<'e>,
    syntax: &'e Syntax,
    /// Selectors whose unit changes.
    scaled: Vec<(&'e Selector, Factor)>,
    result: Rewritten,
}

impl<'e> Rewriting<'e> {
    fn edit(&mut self, range: Range<usize>, after: &str, reason: &str) {
        self.result.edits.push(Edit { range, after: after.to_owned(), reason: reason.to_owned() });
    }

    fn leave(&mut self, offset: usize, name: &str, reason: &str) {
        self.result.left.push(Left { offset, name: name.to_owned(), reason: reason.to_owned(), suggestion: None });
    }

    /// The names of metrics, and where the labels of the result come from.
    fn names(&mut self) {
        let (mut has_dcgm, mut has_others) = (false, false);
        for selector in &self.syntax.selectors {
            let Some(range) = selector.name.clone() else {
                match selector.pattern.clone() {
                    Some(pattern) if mentions(&self.expression[pattern.clone()]) => {
                        let reason = "a pattern of names, or one in quotes";
                        self.leave(pattern.start, &self.expression[pattern], reason);
                    }
                    _ => has_others = true,
                }
                continue;
            };
            let name = &self.expression[range.clone()];
            if self.syntax.filled.is_variable(&range) {
                self.leave(range.start, name, "the metric name contains a variable");
            } else if is_dcgm(name) {
                has_dcgm = true;
                match self.context.naming.plan(name) {
                    Plan::Keep => {}
                    Plan::Left(reason) => self.leave(range.start, name, reason),
                    Plan::Rename { name, factor, reason } => {
                        self.edit(range, name, &reason);
                        self.scaled.extend(factor.map(|factor| (selector, factor)));
                    }
                }
            } else {
                let origin = self.context.recorded.get(name);
                has_dcgm |= origin.is_some();
                has_others |= origin != Some(&Origin::Dcgm);
            }
        }
        self.result.origin = has_dcgm.then_some(if has_others { Origin::Mixed } else { Origin::Dcgm });
    }

    /// The names of labels: in matchers of dcgm-exporter's series, and in lists and functions where all series are its.
    fn labels(&mut self) {
        let naming = self.context.naming;
        let is_mixed = self.result.origin == Some(Origin::Mixed);
        let (mut named, mut unclear) = (BTreeSet::new(), BTreeSet::new());
        for selector in &self.syntax.selectors {
            let name = selector.name.clone().map_or("", |name| &self.expression[name]);
            let origin = if is_dcgm(name) { Some(Origin::Dcgm) } else { self.context.recorded.get(name).copied() };
            for range in &selector.labels {
                let label = &self.expression[range.clone()];
                named.insert(label);
                match (naming.label(label), origin) {
                    (Some(after), Some(Origin::Dcgm)) => self.edit(range.clone(), after, &label_reason(label, after)),
                    (Some(_), Some(Origin::Mixed)) => _ = unclear.insert((range.start, label)),
                    _ => {}
                }
            }
        }
        for range in &self.syntax.labels {
            let label = &self.expression[range.clone()];
            named.insert(label);
            if self.syntax.filled.is_variable(range) {
                self.leave(range.start, label, "the variable may stand for a label that is renamed");
            } else if let Some(after) = naming.label(label) {
                self.edit(range.clone(), after, &label_reason(label, after));
                unclear.extend(is_mixed.then_some((range.start, label)));
            }
        }
        let read = self.context.labels_read.iter().map(String::as_str);
        unclear.extend(read.clone().filter(|label| is_mixed && naming.label(label).is_some()).map(|label| (0, label)));
        for (offset, label) in unclear {
            let after = naming.label(label).unwrap_or_default();
            let reason = format!("on dcgm-exporter's series it becomes `{after}`; other series may have it too");
            self.leave(offset, label, &reason);
        }
        let named: BTreeSet<&str> = named.into_iter().chain(read).collect();
        let both = named.iter().filter_map(|label| Some((*label, naming.label(label)?)));
        if let Some((label, after)) = both.clone().find(|(_, after)| named.contains(after)) {
            self.leave(0, label, &format!("it becomes `{after}`, which is named beside it"));
        }
    }

    /// The factors between units, but for those that cancel each other.
    fn factors(&mut self) {
        let scaled = std::mem::take(&mut self.scaled);
        if let Some(call) = self.syntax.calls.iter().find(|call| call.name == "count_values" && !scaled.is_empty()) {
            let offset = self.syntax.start(call.tokens.start);
            return self.leave(offset, &call.name, "it makes labels of the values, whose unit changes");
        }
        for part in self.syntax.parts() {
            let inside: Vec<_> = scaled
                .iter()
                .filter(|(selector, _)| part.start <= selector.tokens.start && selector.tokens.end <= part.end)
                .collect();
            let [(_, first), ..] = inside[..] else { continue };
            let is_uniform = inside.iter().all(|(_, factor)| factor == first);
            if is_uniform && self.syntax.expression(&part).is_some_and(|tree| degree(&tree, self.context) == Some(0)) {
                continue;
            }
            for (selector, factor) in inside {
                self.factor(selector, *factor);
            }
        }
    }

    /// Writes one factor at the first place outwards that has one, or cancels it with literals further out.
    fn factor(&mut self, selector: &Selector, factor: Factor) {
        let syntax = self.syntax;
        let mut place = selector.tokens.clone();
        let mut is_range = selector.is_range;
        loop {
            if syntax.kind(place.end) == Some(T_LEFT_BRACKET) {
                place.end = syntax.after_range(place.end);
                is_range = true;
            }
            let call = syntax.call_of(&place);
            let scaling = call.map_or(Scaling::Other, Call::scaling);
            if scaling == Scaling::None {
                return;
            }
            match call {
                _ if !is_range => break,
                Some(call) if scaling == Scaling::Same => (place, is_range) = (call.tokens.clone(), false),
                Some(call) => {
                    let reason = "its result is not proportional to its argument, whose unit changes";
                    return self.leave(syntax.start(call.tokens.start), &call.name, reason);
                }
                None => {
                    let reason = "a range cannot be multiplied, and its unit changes";
                    return self.leave(syntax.start(place.start), self.name(selector), reason);
                }
            }
        }
        let mut outer = place.clone();
        loop {
            if let Some(removed) = self.cancelling(&outer, factor) {
                return self.edit(removed, "", "the factor between the units cancels it");
            }
            match syntax.call_of(&outer) {
                Some(call) if call.scaling() == Scaling::Same => outer = call.tokens.clone(),
                _ => break,
            }
        }
        let reason = "the value in the unit before";
        let end = syntax.end(place.end - 1);
        let before = place.start.checked_sub(1).and_then(|at| syntax.kind(at));
        let is_loose = before.is_none_or(|kind| kind == T_MUL || LOOSE.contains(&kind));
        if !is_loose || syntax.kind(place.end) == Some(T_POW) {
            let start = syntax.start(place.start);
            self.edit(start..start, "(", reason);
            self.edit(end..end, &format!(" {})", factor.operation()), reason);
        } else {
            self.edit(end..end, &format!(" {}", factor.operation()), reason);
        }
    }

    fn name(&self, selector: &Selector) -> &'e str {
        selector.name.clone().map_or("", |name| &self.expression[name])
    }

    /// The literals beside the operand that the factor cancels: `/ 100` behind it, or `1024 *` before it.
    fn cancelling(&self, operand: &Range<usize>, factor: Factor) -> Option<Range<usize>> {
        let syntax = self.syntax;
        let is_one = |product: f64| (product - 1.0).abs() < 1e-12;
        let before = operand.start.checked_sub(1).and_then(|at| syntax.kind(at));
        let is_loose = |kind: Option<TokenId>| kind.is_none_or(|kind| LOOSE.contains(&kind));
        let uncommented = |range: Range<usize>| (!self.expression[range.clone()].contains('#')).then_some(range);
        let mut product = factor.value();
        let mut at = operand.end;
        while is_loose(before) || before == Some(T_MUL) {
            let (Some(operator @ (T_MUL | T_DIV)), Some(number)) = (syntax.kind(at), syntax.number(at + 1)) else {
                break;
            };
            if syntax.kind(at + 2) == Some(T_POW) {
                break;
            }
            product = if operator == T_MUL { product * number } else { product / number };
            at += 2;
            if is_one(product) {
                return uncommented(syntax.end(operand.end - 1)..syntax.end(at - 1));
            }
        }
        let literal = operand.start.checked_sub(2).filter(|_| before == Some(T_MUL))?;
        let is_first = is_loose(literal.checked_sub(1).and_then(|at| syntax.kind(at)));
        let is_tight = [T_POW, T_MOD, T_ATAN2].map(Some).contains(&syntax.kind(operand.end));
        (is_first && !is_tight && is_one(factor.value() * syntax.number(literal)?))
            .then(|| uncommented(syntax.start(literal)..syntax.start(operand.start)))?
    }

    /// Nothing changes where something is left, or where the result is no PromQL.
    fn finish(mut self) -> Rewritten {
        let result = &mut self.result;
        result.edits.sort_by_key(|edit| (edit.range.start, edit.range.end));
        let text = result.text(self.expression);
        let stable = text == self.expression || is_promql(&text);
        if !stable && result.left.is_empty() {
            self.leave(0, "expression", "the rewritten expression could not be verified");
        }
        let mut result = self.result;
        if !result.left.is_empty() {
            let has_unclear_labels =
                result.left.iter().all(|left| left.reason.starts_with("on dcgm-exporter's series"));
            if has_unclear_labels && stable {
                result.left[0].suggestion = Some(text);
            }
            result.edits.clear();
        }
        result
    }
}

fn label_reason(before: &str, after: &str) -> String {
    format!("the label {before} is {after}")
}

/// Operators that bind less tightly than a multiplication, and what begins an operand.
const LOOSE: [TokenId; 13] =
    [T_LEFT_PAREN, T_COMMA, T_ADD, T_SUB, T_EQLC, T_NEQ, T_GTR, T_LSS, T_GTE, T_LTE, T_LAND, T_LOR, T_LUNLESS];

/// The result of a function whose argument is multiplied by a positive factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scaling {
    /// Is multiplied by the factor.
    Same,
    /// Does not depend on it.
    None,
    /// Neither.
    Other,
}

impl Call {
    fn scaling(&self) -> Scaling {
        scaling(&self.name)
    }
}

/// Functions and aggregations whose result is multiplied by the factor.
const PROPORTIONAL: &str = "\
    rate irate increase delta idelta deriv predict_linear avg_over_time sum_over_time last_over_time \
    first_over_time min_over_time max_over_time quantile_over_time stddev_over_time mad_over_time holt_winters \
    double_exponential_smoothing abs sort sort_desc sort_by_label sort_by_label_desc label_replace label_join \
    scalar vector sum avg min max stddev quantile topk bottomk limitk limit_ratio";
/// Those whose result does not depend on it.
const INDEPENDENT: &str = "\
    count_over_time present_over_time absent absent_over_time changes resets timestamp sgn ts_of_min_over_time \
    ts_of_max_over_time ts_of_first_over_time ts_of_last_over_time count group";

/// Of a function or an aggregation, in its vector or range; an empty name is that of parentheses alone.
fn scaling(name: &str) -> Scaling {
    let is_in = |names: &str| names.split(' ').any(|known| known == name);
    if name.is_empty() || is_in(PROPORTIONAL) {
        Scaling::Same
    } else if is_in(INDEPENDENT) {
        Scaling::None
    } else {
        Scaling::Other
    }
}

/// By which power of the factor the result is multiplied where every scaled metric is multiplied by it; `None` where it is no
/// power.
fn degree(tree: &Expr, context: &Context<'_>) -> Option<i32> {
    let of = |tree: &Expr| degree(tree, context);
    let of_function = |name: &str, argument: Option<i32>| match (scaling(name), argument?) {
        (Scaling::Same, degree) => Some(degree),
        (Scaling::None, _) | (Scaling::Other, 0) => Some(0),
        (Scaling::Other, _) => None,
    };
    match tree {
        Expr::VectorSelector(selector) => {
            let name = selector.name.as_deref()?;
            Some(i32::from(matches!(context.naming.plan(name), Plan::Rename { factor: Some(_), .. })))
        }
        Expr::MatrixSelector(range) => of(&Expr::VectorSelector(range.vs.clone())),
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) => Some(0),
        Expr::Paren(inner) => of(&inner.expr),
        Expr::Unary(inner) => of(&inner.expr),
        Expr::Subquery(inner) => of(&inner.expr),
        Expr::Aggregate(aggregate) => {
            let parameter = aggregate.param.as_ref().map_or(Some(0), |parameter| of(parameter));
            of_function(&aggregate.op.to_string(), of(&aggregate.expr).filter(|_| parameter == Some(0)))
        }
        Expr::Call(call) => {
            let degrees: Option<Vec<i32>> = call.args.args.iter().map(|argument| of(argument)).collect();
            let degrees = degrees?;
            // The vector or range is the only argument that a metric is in.
            let is_single = degrees.iter().filter(|degree| **degree != 0).count() <= 1;
            of_function(call.func.name, is_single.then(|| degrees.into_iter().find(|degree| *degree != 0).unwrap_or(0)))
        }
        Expr::Binary(binary) => {
            let (left, right) = (of(&binary.lhs), of(&binary.rhs));
            match binary.op.id() {
                T_MUL => Some(left? + right?),
                T_DIV => Some(left? - right?),
                T_LAND | T_LUNLESS => right.and(left),
                T_POW | T_ATAN2 => (left? == 0 && right? == 0).then_some(0),
                _ if left? != right? => None,
                _ if binary.return_bool() => Some(0),
                _ => left,
            }
        }
        Expr::Extension(_) => None,
    }
}

#[cfg(test)]
mod tests;
