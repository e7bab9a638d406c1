//! What a predicate is for each row, by three-valued logic.

use super::expression::Op;
use super::predicate::{Node, Predicate, Value};
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, BooleanBufferBuilder, Scalar, StringArray};
use arrow::buffer::NullBuffer;
use arrow::compute::kernels::cmp;
use arrow::compute::kernels::comparison::starts_with;
use arrow::compute::{and_kleene, cast, is_null, not, or_kleene};
use arrow::datatypes::{DataType, Float64Type};
use arrow::error::ArrowError;

impl Predicate {
    /// For each row whether the predicate is true, false or null. `columns` are those of
    /// [`Predicate::columns`], in that order, with the types of the schema that it was bound to.
    pub(crate) fn evaluate(&self, columns: &[ArrayRef]) -> Result<BooleanArray, ArrowError> {
        self.root.evaluate(columns)
    }
}

impl Node {
    fn evaluate(&self, columns: &[ArrayRef]) -> Result<BooleanArray, ArrowError> {
        let column = |column: &usize| {
            let missing = || ArrowError::InvalidArgumentError("a filter lacks a column".into());
            columns.get(*column).ok_or_else(missing)
        };
        match self {
            Self::Compare { column: c, op, value } => compare(column(c)?, *op, value),
            Self::Always { column: c, outcome } => Ok(always(column(c)?, *outcome)),
            Self::IsNull { column: c } => is_null(column(c)?),
            Self::StartsWith { column: c, prefix } => {
                let (column, prefix) = (column(c)?, StringArray::from(vec![prefix.as_str()]));
                starts_with(column, &Scalar::new(cast(&prefix, column.data_type())?))
            }
            Self::Unknown => Err(ArrowError::InvalidArgumentError("a filter lacks its columns".into())),
            Self::Not(part) => not(&part.evaluate(columns)?),
            Self::And(parts) => joined(parts, columns, and_kleene),
            Self::Or(parts) => joined(parts, columns, or_kleene),
        }
    }
}

type Join = fn(&BooleanArray, &BooleanArray) -> Result<BooleanArray, ArrowError>;

fn joined(parts: &[Node], columns: &[ArrayRef], join: Join) -> Result<BooleanArray, ArrowError> {
    let (first, others) =
        parts.split_first().ok_or_else(|| ArrowError::InvalidArgumentError("an empty filter".into()))?;
    let mut all = first.evaluate(columns)?;
    for part in others {
        all = join(&all, &part.evaluate(columns)?)?;
    }
    Ok(all)
}

/// Compares a column with a value. Arrow's kernels put floats into a total order, in which NaN equals itself
/// and 0 is more than -0: here floats compare as in every language and in pyarrow.
pub(super) fn compare(column: &ArrayRef, op: Op, value: &Value) -> Result<BooleanArray, ArrowError> {
    match value {
        Value::Float(value) => {
            let floats = cast(column, &DataType::Float64)?;
            let (floats, value) = (floats.as_primitive::<Float64Type>(), *value);
            Ok(match op {
                Op::Eq => BooleanArray::from_unary(floats, |v| v == value),
                Op::Ne => BooleanArray::from_unary(floats, |v| v != value),
                Op::Lt => BooleanArray::from_unary(floats, |v| v < value),
                Op::Le => BooleanArray::from_unary(floats, |v| v <= value),
                Op::Gt => BooleanArray::from_unary(floats, |v| v > value),
                Op::Ge => BooleanArray::from_unary(floats, |v| v >= value),
            })
        }
        Value::Scalar(value) => {
            let value = Scalar::new(value.clone());
            match op {
                Op::Eq => cmp::eq(column, &value),
                Op::Ne => cmp::neq(column, &value),
                Op::Lt => cmp::lt(column, &value),
                Op::Le => cmp::lt_eq(column, &value),
                Op::Gt => cmp::gt(column, &value),
                Op::Ge => cmp::gt_eq(column, &value),
            }
        }
    }
}

fn always(column: &ArrayRef, outcome: bool) -> BooleanArray {
    let mut values = BooleanBufferBuilder::new(column.len());
    values.append_n(column.len(), outcome);
    let nulls: Option<NullBuffer> = column.logical_nulls();
    BooleanArray::new(values.finish(), nulls)
}
