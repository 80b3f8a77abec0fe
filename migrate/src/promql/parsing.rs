//! Parsing within limits. The parser walks and drops its tree by recursion; what is deeper than the stack is refused here.

use promql_parser::parser::token::*;
use promql_parser::parser::{Expr, Function, parse, register_extra_functions, value::ValueType};
use promql_parser::util::parse_str_radix;

use super::ParseError;
use super::locate::{Token, tokens};
use super::template::Filled;

/// Longer expressions are refused.
pub const MAX_BYTES: usize = 64 << 10;
/// Parentheses in parentheses, and operators: the parser's tree is as deep as there are operators.
pub const MAX_DEPTH: usize = 100;
pub const MAX_OPERATORS: usize = 200;
/// A result may have as many more, for its factors.
pub const MAX_OPERATORS_OF_RESULT: usize = 2 * MAX_OPERATORS;

/// The parser's tree and the tokens.
pub fn parsed(filled: &Filled, max_operators: usize) -> Result<(Expr, Vec<Token>), ParseError> {
    let text = filled.text.as_str();
    let error = |offset: usize, message: String| ParseError { offset, message };
    if text.len() > MAX_BYTES {
        return Err(error(MAX_BYTES, format!("the expression has more than {MAX_BYTES} bytes")));
    }
    let tokens = tokens(text).map_err(|message| error(offset_of(text, &message), message))?;
    check_limits(text, &tokens, max_operators)?;
    register_older_functions();
    match parse(text) {
        Ok(tree) => Ok((tree, tokens)),
        Err(message) => {
            let at = offset_of(text, &message);
            let message = match filled.variables.first() {
                Some(_) => format!("{message}; a Grafana variable may stand for a part that the parser needs to know"),
                None => message,
            };
            Err(error(at, message))
        }
    }
}

fn check_limits(text: &str, tokens: &[Token], max_operators: usize) -> Result<(), ParseError> {
    let (mut depth, mut operators) = (0usize, 0usize);
    let mut previous = [T_EOF; 2];
    for Token { kind, range } in tokens {
        let fail = |message: String| Err(ParseError { offset: range.start, message });
        match *kind {
            T_LEFT_PAREN => depth += 1,
            T_RIGHT_PAREN => depth = depth.saturating_sub(1),
            T_ADD | T_SUB | T_MUL | T_DIV | T_MOD | T_POW | T_ATAN2 | T_LAND | T_LOR | T_LUNLESS | T_EQLC | T_NEQ
            | T_GTR | T_LSS | T_GTE | T_LTE | T_LEFT_BRACKET => operators += 1,
            // The parser cannot hold such a duration.
            T_NUMBER
                if [T_LEFT_BRACKET, T_COLON, T_OFFSET].contains(&previous[1])
                    || previous[0] == T_OFFSET && [T_ADD, T_SUB].contains(&previous[1]) =>
            {
                let seconds = parse_str_radix(&text[range.clone()]).unwrap_or(f64::NAN);
                if !(0.0..1e12).contains(&seconds) {
                    return fail(format!("{} is no duration", &text[range.clone()]));
                }
            }
            _ => {}
        }
        if depth > MAX_DEPTH {
            return fail(format!("more than {MAX_DEPTH} parentheses are open"));
        }
        if operators > max_operators {
            return fail(format!("the expression has more than {max_operators} operators"));
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
