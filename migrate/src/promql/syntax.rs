//! The tokens of an expression with their places: selectors, lists of labels, and calls. The parser's tree has no positions, so
//! that these are read from its tokens, after it has accepted the text.

use std::ops::Range;

use lrpar::{Lexeme, Lexer};
use promql_parser::parser::token::*;
use promql_parser::parser::value::ValueType;
use promql_parser::parser::{Expr, Function, lexer, parse, register_extra_functions};
use promql_parser::util::parse_str_radix;

use crate::variables::{Filled, fill};

/// Longer expressions are refused.
const MAX_BYTES: usize = 64 << 10;
/// Parentheses in parentheses, and operators: the parser walks and drops its tree by recursion.
const MAX_DEPTH: usize = 100;
const MAX_OPERATORS: usize = 400;

/// The expression is no PromQL.
#[derive(Debug)]
pub struct ParseError {
    /// Byte of the expression, as near to the error as is known.
    pub offset: usize,
    pub message: String,
}

#[derive(Clone, Copy, Debug)]
struct Token {
    kind: TokenId,
    start: usize,
    end: usize,
}

/// A selector: ranges of its tokens, and of its names in bytes.
#[derive(Debug)]
pub struct Selector {
    pub tokens: Range<usize>,
    /// Where one metric is named.
    pub name: Option<Range<usize>>,
    /// Another matcher of names.
    pub pattern: Option<Range<usize>>,
    /// The labels of its matchers.
    pub labels: Vec<Range<usize>>,
    pub is_range: bool,
}

/// Parentheses with what is before them.
#[derive(Debug)]
pub struct Call {
    /// The function or aggregation, in lower case; empty for parentheses alone.
    pub name: String,
    pub tokens: Range<usize>,
    open: usize,
    close: usize,
}

#[derive(Debug)]
pub struct Syntax {
    pub filled: Filled,
    tokens: Vec<Token>,
    pub selectors: Vec<Selector>,
    /// Labels in lists such as `by (…)` and in functions that take their names.
    pub labels: Vec<Range<usize>>,
    pub calls: Vec<Call>,
}

impl Syntax {
    pub fn parse(expression: &str) -> Result<Self, ParseError> {
        let filled = fill(expression);
        let text = filled.text.as_str();
        let fail = |offset: usize, message: String| Err(ParseError { offset, message });
        if text.len() > MAX_BYTES {
            return fail(MAX_BYTES, format!("the expression has more than {MAX_BYTES} bytes"));
        }
        let tokens = match tokens(text) {
            Ok(tokens) => tokens,
            Err(message) => return fail(offset_of(text, &message), message),
        };
        check_limits(text, &tokens)?;
        register_older_functions();
        if let Err(message) = parse(text) {
            let offset = offset_of(text, &message);
            let hint = if filled.variables.is_empty() { "" } else { "; a Grafana variable may stand for a part of it" };
            return fail(offset, format!("{message}{hint}"));
        }
        let mut syntax = Self { filled, tokens, selectors: vec![], labels: vec![], calls: vec![] };
        match syntax.read() {
            Some(()) => Ok(syntax),
            None => fail(0, "its parts could not be located".into()),
        }
    }

    pub fn kind(&self, token: usize) -> Option<TokenId> {
        self.tokens.get(token).map(|token| token.kind)
    }

    pub fn start(&self, token: usize) -> usize {
        self.tokens[token].start
    }

    pub fn end(&self, token: usize) -> usize {
        self.tokens[token].end
    }

    /// The value of a literal.
    pub fn number(&self, token: usize) -> Option<f64> {
        let token = self.tokens.get(token).filter(|token| token.kind == T_NUMBER)?;
        let is_variable = self.filled.is_variable(&(token.start..token.end));
        parse_str_radix(&self.filled.text[token.start..token.end]).ok().filter(|_| !is_variable)
    }

    /// The operands of the comparisons and set operators outside of parentheses.
    pub fn parts(&self) -> Vec<Range<usize>> {
        let (mut parts, mut start, mut depth) = (vec![], 0, 0_usize);
        for (at, token) in self.tokens.iter().enumerate() {
            match token.kind {
                T_LEFT_PAREN | T_LEFT_BRACE => depth += 1,
                T_RIGHT_PAREN | T_RIGHT_BRACE => depth = depth.saturating_sub(1),
                T_LAND | T_LOR | T_LUNLESS | T_EQLC | T_NEQ | T_GTR | T_LSS | T_GTE | T_LTE if depth == 0 => {
                    parts.push(start..at);
                    start = at + 1;
                }
                _ => {}
            }
        }
        parts.push(start..self.tokens.len());
        parts
    }

    /// The tree of some tokens that are an expression.
    pub fn expression(&self, tokens: &Range<usize>) -> Option<Expr> {
        let last = tokens.end.checked_sub(1).filter(|last| *last >= tokens.start)?;
        parse(&self.filled.text[self.start(tokens.start)..self.end(last)]).ok()
    }

    /// The call of which these tokens are one argument.
    pub fn call_of(&self, argument: &Range<usize>) -> Option<&Call> {
        let begins = [T_LEFT_PAREN, T_COMMA].contains(&self.kind(argument.start.checked_sub(1)?)?);
        let ends = [T_RIGHT_PAREN, T_COMMA].contains(&self.kind(argument.end)?);
        let around = self.calls.iter().filter(|call| call.open < argument.start && argument.end <= call.close);
        around.max_by_key(|call| call.open).filter(|_| begins && ends)
    }

    /// After the range, or the subquery, that begins with this bracket, and what modifies it.
    pub fn after_range(&self, open: usize) -> usize {
        let close = self.tokens[open..].iter().position(|token| token.kind == T_RIGHT_BRACKET);
        self.after_modifiers(close.map_or(self.tokens.len(), |close| open + close + 1))
    }

    /// After `offset` and `@`.
    fn after_modifiers(&self, mut at: usize) -> usize {
        loop {
            at = match (self.kind(at), self.kind(at + 1)) {
                (Some(T_OFFSET), Some(T_SUB | T_ADD)) | (Some(T_AT), Some(T_SUB | T_ADD)) => at + 3,
                // `start()` and `end()`
                (Some(T_AT), Some(T_START | T_END)) => at + 4,
                (Some(T_OFFSET | T_AT), _) => at + 2,
                _ => return at.min(self.tokens.len()),
            };
        }
    }

    fn read(&mut self) -> Option<()> {
        // Of each open parenthesis: the call's name and first token, and the number of the argument.
        let mut open: Vec<(String, usize, usize, usize)> = vec![];
        let mut named: Option<(String, usize)> = None;
        let mut at = 0;
        while let Some(Token { kind, start, end }) = self.tokens.get(at).copied() {
            match kind {
                T_BY | T_WITHOUT | T_ON | T_IGNORING | T_GROUP_LEFT | T_GROUP_RIGHT => {
                    if self.kind(at + 1) == Some(T_LEFT_PAREN) {
                        at = self.list(at + 1)?;
                        continue;
                    }
                }
                T_LEFT_PAREN => {
                    let (name, first) = named.take().unwrap_or((String::new(), at));
                    open.push((name, first, at, 0));
                }
                T_RIGHT_PAREN => {
                    let (name, first, opened, _) = open.pop()?;
                    let mut after = at + 1;
                    if matches!(self.kind(after), Some(T_BY | T_WITHOUT)) && !name.is_empty() {
                        after = self.list(after + 1)?;
                    }
                    self.calls.push(Call { name, tokens: first..after, open: opened, close: at });
                    at = after;
                    continue;
                }
                T_COMMA => open.last_mut()?.3 += 1,
                T_STRING => {
                    let (name, .., argument) = open.last()?;
                    let is_label = match name.as_str() {
                        "label_replace" => [1, 3].contains(argument),
                        "label_join" => *argument == 1 || *argument > 2,
                        "sort_by_label" | "sort_by_label_desc" => *argument > 0,
                        "count_values" => *argument == 0,
                        _ => false,
                    };
                    self.labels.extend(is_label.then_some(start + 1..end - 1));
                }
                T_LEFT_BRACE | T_METRIC_IDENTIFIER => {
                    at = self.selector(at)?;
                    continue;
                }
                T_IDENTIFIER if self.kind(at + 1) != Some(T_LEFT_PAREN) => {
                    at = self.selector(at)?;
                    continue;
                }
                _ => {
                    let word = self.filled.text[start..end].to_ascii_lowercase();
                    if kind == T_IDENTIFIER || TokenType::new(kind).is_aggregator() {
                        named = Some((word, at));
                    }
                }
            }
            at += 1;
        }
        open.is_empty().then_some(())
    }

    /// Reads labels in parentheses, and gives the token after.
    fn list(&mut self, open: usize) -> Option<usize> {
        let mut at = open + 1;
        while self.kind(at)? != T_RIGHT_PAREN {
            let Token { kind, start, end } = self.tokens[at];
            match kind {
                T_COMMA => {}
                T_STRING => self.labels.push(start + 1..end - 1),
                _ => self.labels.push(start..end),
            }
            at += 1;
        }
        Some(at + 1)
    }

    /// Reads a selector, and gives the token after.
    fn selector(&mut self, first: usize) -> Option<usize> {
        let mut selector =
            Selector { tokens: first..first, name: None, pattern: None, labels: vec![], is_range: false };
        let mut at = first;
        if self.kind(at)? != T_LEFT_BRACE {
            selector.name = Some(self.start(at)..self.end(at));
            at += 1;
        }
        if self.kind(at) == Some(T_LEFT_BRACE) {
            at += 1;
            while self.kind(at)? != T_RIGHT_BRACE {
                let label = self.tokens[at];
                match (label.kind, self.kind(at + 1)) {
                    (T_COMMA | T_LOR, _) => at += 1,
                    (_, Some(operation @ (T_EQL | T_NEQ | T_EQL_REGEX | T_NEQ_REGEX))) => {
                        let value = self.tokens.get(at + 2)?;
                        let value = value.start + 1..value.end - 1;
                        let quote = usize::from(label.kind == T_STRING);
                        let label = label.start + quote..label.end - quote;
                        match &self.filled.text[label.clone()] {
                            "__name__" if operation == T_EQL => selector.name = Some(value),
                            "__name__" => selector.pattern = Some(value),
                            _ => selector.labels.push(label),
                        }
                        at += 3;
                    }
                    _ => {
                        // A metric in quotes.
                        selector.pattern = Some(label.start..label.end);
                        at += 1;
                    }
                }
            }
            at += 1;
        }
        if self.kind(at) == Some(T_LEFT_BRACKET) {
            // A subquery's is after the selector.
            let inside = self.tokens[at..].iter().take_while(|token| token.kind != T_RIGHT_BRACKET);
            if !inside.clone().any(|token| token.kind == T_COLON) {
                selector.is_range = true;
                at = self.after_range(at);
            }
        }
        at = self.after_modifiers(at);
        selector.tokens.end = at;
        self.selectors.push(selector);
        Some(at)
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let lexer = lexer(text)?;
    let tokens = lexer.iter().filter_map(Result::ok).map(|lexeme| {
        let span = lexeme.span();
        Token { kind: lexeme.tok_id(), start: span.start(), end: span.end() }
    });
    Ok(tokens.filter(|token| token.kind != T_EOF).collect())
}

fn check_limits(text: &str, tokens: &[Token]) -> Result<(), ParseError> {
    let (mut depth, mut operators) = (0_usize, 0_usize);
    let mut previous = [T_EOF; 2];
    for Token { kind, start, end } in tokens {
        let fail = |message: String| Err(ParseError { offset: *start, message });
        match *kind {
            T_LEFT_PAREN => depth += 1,
            T_RIGHT_PAREN => depth = depth.saturating_sub(1),
            T_ADD | T_SUB | T_MUL | T_DIV | T_MOD | T_POW | T_ATAN2 | T_LAND | T_LOR | T_LUNLESS | T_EQLC | T_NEQ
            | T_GTR | T_LSS | T_GTE | T_LTE | T_LEFT_BRACKET => operators += 1,
            // The parser panics for a duration that it cannot hold.
            T_NUMBER
                if [T_LEFT_BRACKET, T_COLON, T_OFFSET].contains(&previous[1])
                    || previous[0] == T_OFFSET && [T_ADD, T_SUB].contains(&previous[1]) =>
            {
                let seconds = parse_str_radix(&text[*start..*end]).unwrap_or(f64::NAN);
                if !(0.0..1e12).contains(&seconds) {
                    return fail(format!("{} is no duration", &text[*start..*end]));
                }
            }
            _ => {}
        }
        if depth > MAX_DEPTH {
            return fail(format!("more than {MAX_DEPTH} parentheses are open"));
        }
        if operators > MAX_OPERATORS {
            return fail(format!("the expression has more than {MAX_OPERATORS} operators"));
        }
        previous = [previous[1], *kind];
    }
    Ok(())
}

/// Prometheus 3 renamed it.
fn register_older_functions() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let arguments = vec![ValueType::Matrix, ValueType::Scalar, ValueType::Scalar];
        // It fails only for names that the parser has by then.
        let _ = register_extra_functions(vec![Function::new("holt_winters", arguments, 0, ValueType::Vector, false)]);
    });
}

/// The position of a name that the parser's message quotes; 0 where there is none.
fn offset_of(text: &str, message: &str) -> usize {
    let quoted = message.split('\'').nth(1).filter(|quoted| quoted.len() > 1);
    quoted.and_then(|quoted| text.find(quoted)).unwrap_or(0)
}
