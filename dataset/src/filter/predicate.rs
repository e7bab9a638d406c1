//! A filter of the columns of a schema.

use super::expression::Op;
use arrow::array::ArrayRef;

/// A filter of the columns of a schema.
#[derive(Debug, Clone)]
pub(crate) struct Predicate {
    /// The normal form.
    pub text: String,
    /// The columns that it looks at, ascending indices into the schema.
    pub columns: Vec<usize>,
    pub(super) root: Node,
}

/// A part of a predicate. Columns are numbers of [`Predicate::columns`].
#[derive(Debug, Clone)]
pub(super) enum Node {
    /// With a value of the column's type.
    Compare {
        column: usize,
        op: Op,
        value: Value,
    },
    /// The same for all values of the column, and null for nulls.
    Always {
        column: usize,
        outcome: bool,
    },
    IsNull {
        column: usize,
    },
    StartsWith {
        column: usize,
        prefix: String,
    },
    And(Vec<Node>),
    Or(Vec<Node>),
    Not(Box<Node>),
    /// Of a column that is not known.
    Unknown,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    /// One value of the column's type.
    Scalar(ArrayRef),
    /// For floats of any width.
    Float(f64),
}
