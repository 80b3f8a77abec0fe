//! Where each part of an expression is in its text. Input: the text and the parser's tree, which has no positions. Output: a tree
//! with byte ranges, made by walking the tree along the tokens. `None` where the two do not fit each other.

use std::ops::Range;

use lrpar::{Lexeme, Lexer};
use promql_parser::label::{Matcher, Matchers};
use promql_parser::parser::token::*;
use promql_parser::parser::{
    AtModifier, Call, Expr, LabelModifier, NumberLiteral, Offset, VectorMatchCardinality, VectorSelector, lexer,
};
use promql_parser::util::{parse_duration, parse_str_radix, unquote_string};

use super::tree::{Binary, Group, Kind, Label, LabelList, LocatedMatcher, Node, Selector};

/// A token without its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub kind: TokenId,
    pub range: Range<usize>,
}

/// The tokens of `text`, without the end of input.
pub fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let lexer = lexer(text)?;
    let tokens = lexer.iter().filter_map(Result::ok).map(|lexeme| {
        let span = lexeme.span();
        Token { kind: lexeme.tok_id(), range: span.start()..span.end() }
    });
    Ok(tokens.filter(|token| token.kind != T_EOF).collect())
}

/// The tree of `expression`, as parsed from `text`.
pub fn locate(text: &str, tokens: &[Token], expression: &Expr) -> Option<Node> {
    let mut locator = Locator { text, tokens, at: 0 };
    let node = locator.node(expression)?;
    (locator.at == tokens.len()).then_some(node)
}

struct Locator<'a> {
    text: &'a str,
    tokens: &'a [Token],
    at: usize,
}

impl Locator<'_> {
    fn peek(&self) -> Option<TokenId> {
        self.tokens.get(self.at).map(|token| token.kind)
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at)?.clone();
        self.at += 1;
        Some(token)
    }

    fn expect(&mut self, kind: TokenId) -> Option<Range<usize>> {
        self.next().filter(|token| token.kind == kind).map(|token| token.range)
    }

    fn accept(&mut self, kind: TokenId) -> bool {
        let is_next = self.peek() == Some(kind);
        self.at += usize::from(is_next);
        is_next
    }

    /// The end of the last token taken.
    fn end(&self) -> usize {
        self.tokens[..self.at].last().map_or(0, |token| token.range.end)
    }

    fn node(&mut self, expression: &Expr) -> Option<Node> {
        if let Expr::NumberLiteral(number) = expression {
            return self.number(number);
        }
        while self.accept(T_ADD) {}
        let start = self.tokens.get(self.at)?.range.start;
        let kind = match expression {
            Expr::VectorSelector(selector) => Kind::Selector(self.selector(selector, false)?),
            Expr::MatrixSelector(matrix) => Kind::Selector(self.selector(&matrix.vs, true)?),
            Expr::StringLiteral(literal) => {
                let range = self.expect(T_STRING)?;
                let text = unquote_string(&self.text[range]).ok().filter(|text| *text == literal.val)?;
                Kind::Text(text)
            }
            Expr::Paren(paren) => {
                self.expect(T_LEFT_PAREN)?;
                let inner = self.node(&paren.expr)?;
                self.expect(T_RIGHT_PAREN)?;
                Kind::Paren(Box::new(inner))
            }
            Expr::Unary(unary) => {
                self.expect(T_SUB)?;
                Kind::Unary(Box::new(self.node(&unary.expr)?))
            }
            Expr::Call(call) => self.call(call)?,
            Expr::Aggregate(aggregate) => self.aggregate(aggregate)?,
            Expr::Binary(binary) => Kind::Binary(Box::new(self.binary(binary)?)),
            Expr::Subquery(subquery) => {
                let inner = self.node(&subquery.expr)?;
                self.expect(T_LEFT_BRACKET)?;
                self.duration()?;
                self.expect(T_COLON)?;
                if subquery.step.is_some() {
                    self.duration()?;
                }
                self.expect(T_RIGHT_BRACKET)?;
                self.modifiers(subquery.offset.as_ref(), subquery.at.as_ref())?;
                Kind::Subquery(Box::new(inner))
            }
            Expr::NumberLiteral(_) | Expr::Extension(_) => return None,
        };
        // A binary expression starts with its left side, whose plus signs are already taken.
        Some(Node { range: start..self.end(), kind })
    }

    fn number(&mut self, literal: &NumberLiteral) -> Option<Node> {
        let start = self.tokens.get(self.at)?.range.start;
        let mut sign = 1.0;
        loop {
            let token = self.next()?;
            let text = &self.text[token.range.clone()];
            let value = match token.kind {
                T_ADD => continue,
                T_SUB => {
                    sign = -sign;
                    continue;
                }
                T_NUMBER => parse_str_radix(text).ok()?,
                T_DURATION => parse_duration(text).ok()?.as_secs_f64(),
                _ => return None,
            };
            let fits = sign * value == literal.val || value.is_nan() && literal.val.is_nan();
            return fits.then(|| Node { range: start..token.range.end, kind: Kind::Number(literal.val) });
        }
    }

    fn selector(&mut self, selector: &VectorSelector, is_range: bool) -> Option<Selector> {
        let mut name = None;
        if self.peek()? != T_LEFT_BRACE {
            let token = self.next()?;
            let text = self.text[token.range.clone()].to_owned();
            if selector.name.as_ref() != Some(&text) {
                return None;
            }
            name = Some(Label { range: token.range, name: text });
        }
        let mut located = Selector { name, braces: None, matchers: vec![], has_or: false, is_range };
        if self.peek() == Some(T_LEFT_BRACE) {
            let start = self.expect(T_LEFT_BRACE)?.start;
            let mut expected = all(&selector.matchers);
            while !self.accept(T_RIGHT_BRACE) {
                if self.accept(T_COMMA) {
                    continue;
                }
                if self.accept(T_LOR) {
                    located.has_or = true;
                    continue;
                }
                located.matchers.push(self.matcher(expected.next()?)?);
            }
            if expected.next().is_some() {
                return None;
            }
            located.braces = Some(start..self.end());
        }
        if is_range {
            self.expect(T_LEFT_BRACKET)?;
            self.duration()?;
            self.expect(T_RIGHT_BRACKET)?;
        }
        self.modifiers(selector.offset.as_ref(), selector.at.as_ref())?;
        Some(located)
    }

    fn matcher(&mut self, expected: &Matcher) -> Option<LocatedMatcher> {
        let label = self.next()?;
        let name = self.label_text(&label)?;
        let value = if [T_EQL, T_NEQ, T_EQL_REGEX, T_NEQ_REGEX].contains(&self.peek()?) {
            self.at += 1;
            self.expect(T_STRING)?
        } else {
            label.range.clone()
        };
        let is_name_alone = value == label.range;
        let text = unquote_string(&self.text[value.clone()]).ok()?;
        let expected_label = if is_name_alone { "__name__" } else { name.as_str() };
        (expected.name == expected_label && expected.value == text).then(|| LocatedMatcher {
            range: label.range.start..value.end,
            label: label.range,
            value,
            matcher: expected.clone(),
        })
    }

    fn label_text(&self, token: &Token) -> Option<String> {
        let text = &self.text[token.range.clone()];
        if token.kind == T_STRING { unquote_string(text).ok() } else { Some(text.to_owned()) }
    }

    fn duration(&mut self) -> Option<()> {
        self.next().filter(|token| [T_DURATION, T_NUMBER].contains(&token.kind)).map(|_| ())
    }

    /// `offset` and `@`, in either order.
    fn modifiers(&mut self, offset: Option<&Offset>, at: Option<&AtModifier>) -> Option<()> {
        for _ in 0..usize::from(offset.is_some()) + usize::from(at.is_some()) {
            let is_at = self.next()?.kind == T_AT;
            if is_at && [T_START, T_END].contains(&self.peek()?) {
                self.at += 1;
                self.expect(T_LEFT_PAREN)?;
                self.expect(T_RIGHT_PAREN)?;
                continue;
            }
            if [T_ADD, T_SUB].contains(&self.peek()?) {
                self.at += 1;
            }
            self.duration()?;
        }
        Some(())
    }

    fn call(&mut self, call: &Call) -> Option<Kind> {
        let name = self.next()?;
        if self.text[name.range] != *call.func.name {
            return None;
        }
        let arguments = self.arguments(call.args.args.iter().map(Box::as_ref))?;
        Some(Kind::Call { name: call.func.name.to_owned(), arguments })
    }

    fn arguments<'e>(&mut self, expected: impl Iterator<Item = &'e Expr>) -> Option<Vec<Node>> {
        self.expect(T_LEFT_PAREN)?;
        let mut arguments = vec![];
        for argument in expected {
            if !arguments.is_empty() {
                self.expect(T_COMMA)?;
            }
            arguments.push(self.node(argument)?);
        }
        self.expect(T_RIGHT_PAREN)?;
        Some(arguments)
    }

    fn aggregate(&mut self, aggregate: &promql_parser::parser::AggregateExpr) -> Option<Kind> {
        self.expect(aggregate.op.id())?;
        let mut grouping = self.optional_list(&[T_BY, T_WITHOUT])?;
        let expected = aggregate.param.iter().chain([&aggregate.expr]).map(Box::as_ref);
        let mut arguments = self.arguments(expected)?;
        if grouping.is_none() && aggregate.modifier.is_some() {
            grouping = self.optional_list(&[T_BY, T_WITHOUT])?;
        }
        fits(grouping.as_ref(), aggregate.modifier.as_ref()).then_some(())?;
        let operand = Box::new(arguments.pop()?);
        let parameter = arguments.pop().map(Box::new);
        Some(Kind::Aggregate { operation: aggregate.op.id(), grouping, parameter, operand })
    }

    fn binary(&mut self, binary: &promql_parser::parser::BinaryExpr) -> Option<Binary> {
        let left = self.node(&binary.lhs)?;
        let start = self.expect(binary.op.id())?.start;
        let returns_bool = self.accept(T_BOOL);
        let operator = start..self.end();
        let matching = self.optional_list(&[T_ON, T_IGNORING])?;
        let group = match self.peek()? {
            kind @ (T_GROUP_LEFT | T_GROUP_RIGHT) => {
                let has_list = self.tokens.get(self.at + 1).is_some_and(|token| token.kind == T_LEFT_PAREN);
                let labels = if has_list {
                    self.optional_list(&[kind])?
                } else {
                    self.at += 1;
                    None
                };
                Some(Group { left: kind == T_GROUP_LEFT, labels })
            }
            _ => None,
        };
        while [T_FILL, T_FILL_LEFT, T_FILL_RIGHT].contains(&self.peek()?)
            && self.tokens.get(self.at + 1).is_some_and(|token| token.kind == T_LEFT_PAREN)
        {
            while self.next()?.kind != T_RIGHT_PAREN {}
        }
        let modifier = binary.modifier.as_ref();
        fits(matching.as_ref(), modifier.and_then(|modifier| modifier.matching.as_ref())).then_some(())?;
        let expected_group = match modifier.map(|modifier| &modifier.card) {
            Some(VectorMatchCardinality::ManyToOne(labels)) => Some((true, &labels.labels)),
            Some(VectorMatchCardinality::OneToMany(labels)) => Some((false, &labels.labels)),
            _ => None,
        };
        let found_labels =
            |group: &Group| group.labels.iter().flat_map(|list| &list.labels).map(|label| label.name.clone()).collect();
        let found_group: Option<(bool, Vec<String>)> = group.as_ref().map(|group| (group.left, found_labels(group)));
        if found_group != expected_group.map(|(left, labels)| (left, labels.clone()))
            || returns_bool != binary.return_bool()
        {
            return None;
        }
        let right = self.node(&binary.rhs)?;
        Some(Binary { operation: binary.op.id(), operator, returns_bool, matching, group, left, right })
    }

    /// The list that starts with one of `keywords`; `Some(None)` where there is none.
    fn optional_list(&mut self, keywords: &[TokenId]) -> Option<Option<LabelList>> {
        if !self.peek().is_some_and(|kind| keywords.contains(&kind)) {
            return Some(None);
        }
        let keyword = self.next()?;
        self.expect(T_LEFT_PAREN)?;
        let mut labels = vec![];
        loop {
            let token = self.next()?;
            match token.kind {
                T_RIGHT_PAREN => break,
                T_COMMA => {}
                _ => labels.push(Label { name: self.label_text(&token)?, range: token.range }),
            }
        }
        let keeps = [T_BY, T_ON].contains(&keyword.kind);
        Some(Some(LabelList { keeps, range: keyword.range.start..self.end(), labels }))
    }
}

fn all(matchers: &Matchers) -> impl Iterator<Item = &Matcher> {
    matchers.or_matchers.iter().flatten().chain(&matchers.matchers)
}

fn fits(found: Option<&LabelList>, expected: Option<&LabelModifier>) -> bool {
    match (found, expected) {
        (None, None) => true,
        (Some(found), Some(expected)) => {
            found.keeps == expected.is_include()
                && found.labels.iter().map(|label| &label.name).eq(&expected.labels().labels)
        }
        _ => false,
    }
}
