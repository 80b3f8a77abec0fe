//! One tree for YAML and JSON: what the walkers of rules and dashboards read. Each scalar has its bytes in the text.

use std::ops::Range;

/// A value with the bytes of the text that it takes; those of a YAML block scalar begin after its header.
#[derive(Debug)]
pub struct Node {
    pub span: Range<usize>,
    /// Inside a YAML anchor that some alias uses, so that a change would be one of other places too.
    pub shared: bool,
    pub value: Value,
}

#[derive(Debug)]
pub enum Value {
    Scalar(Scalar),
    Sequence(Vec<Node>),
    /// Keys are scalars, each once.
    Mapping(Vec<(Node, Node)>),
    /// A YAML alias; its target stands elsewhere in the text.
    Alias,
}

#[derive(Debug, PartialEq)]
pub struct Scalar {
    /// Without quotes, escapes and indentation.
    pub text: String,
    pub style: Style,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Plain {
        /// Inside `[…]` or `{…}`.
        flow: bool,
    },
    SingleQuoted,
    DoubleQuoted,
    Literal,
    Folded,
    JsonString,
    /// A number, `true`, `false` or `null` of JSON.
    JsonToken,
    /// A paragraph of a file of queries.
    Query,
}

impl Node {
    pub fn scalar(&self) -> Option<&Scalar> {
        match &self.value {
            Value::Scalar(scalar) => Some(scalar),
            _ => None,
        }
    }

    /// The text of a scalar, which YAML may have as a number too.
    pub fn text(&self) -> Option<&str> {
        self.scalar().map(|scalar| scalar.text.as_str())
    }

    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|(name, _)| name.text() == Some(key)).map(|(_, value)| value)
    }

    /// The value at the end of a path of keys.
    pub fn at(&self, path: &[&str]) -> Option<&Node> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    pub fn text_of(&self, key: &str) -> Option<&str> {
        self.get(key)?.text()
    }

    /// The entries of a mapping; none for another node.
    pub fn entries(&self) -> &[(Node, Node)] {
        match &self.value {
            Value::Mapping(entries) => entries,
            _ => &[],
        }
    }

    /// The items of a sequence; none for another node.
    pub fn items(&self) -> &[Node] {
        match &self.value {
            Value::Sequence(items) => items,
            _ => &[],
        }
    }

    /// The items of the sequence at a key; none where there is no such sequence.
    pub fn items_of(&self, key: &str) -> &[Node] {
        self.get(key).map_or(&[], Node::items)
    }

    pub fn is_mapping(&self) -> bool {
        matches!(self.value, Value::Mapping(_))
    }

    pub fn is_sequence(&self) -> bool {
        matches!(self.value, Value::Sequence(_))
    }

    /// Calls `visit` with each scalar, keys included, in the order of the text.
    pub fn scalars<'n>(&'n self, visit: &mut impl FnMut(&'n Node, &'n Scalar)) {
        match &self.value {
            Value::Scalar(scalar) => visit(self, scalar),
            Value::Sequence(items) => items.iter().for_each(|item| item.scalars(visit)),
            Value::Mapping(entries) => entries.iter().for_each(|(key, value)| {
                key.scalars(visit);
                value.scalars(visit);
            }),
            Value::Alias => {}
        }
    }
}
