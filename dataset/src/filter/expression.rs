//! What a filter says, before it is known which columns there are.

use super::literal::Literal;

/// Where something is wrong, in characters from 1, and why.
pub(super) type Fault = (usize, String);

/// How a column is compared with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// A part of a filter.
#[derive(Debug, Clone)]
pub(super) enum Expression {
    Compare {
        column: Name,
        op: Op,
        literal: Literal,
    },
    IsNull(Name),
    StartsWith {
        column: Name,
        prefix: String,
    },
    /// A column of booleans by itself.
    IsTrue(Name),
    And(Vec<Expression>),
    Or(Vec<Expression>),
    Not(Box<Expression>),
}

/// A column, as a filter names it.
#[derive(Debug, Clone)]
pub(super) struct Name {
    pub text: String,
    /// In backticks: no other column is meant.
    pub quoted: bool,
    /// Where it stands, in characters from 1.
    pub at: usize,
}
