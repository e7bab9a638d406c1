//! What stands for a null, and for a number that is NaN.

use std::str::FromStr;

use anyhow::{Result, anyhow};
use arrow::array::Float32Array;
use arrow::buffer::{Buffer, NullBuffer};

/// One of `--fill`: whose nulls, and the number in their place.
#[derive(Debug, Clone, PartialEq)]
pub struct FillRule {
    /// The column; `None` for all features that have no rule of their own.
    pub column: Option<String>,
    pub fill: Fill,
}

/// A number in place of nulls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fill {
    Value(f64),
    /// The mean of the column's numbers in the training dataset.
    Mean,
}

impl FromStr for FillRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A column's name may have the sign too.
        let (column, fill) = match text.rsplit_once('=') {
            Some((column, fill)) => (Some(column.to_owned()), fill),
            None => (None, text),
        };
        let fill = match fill {
            "mean" => Fill::Mean,
            number => match number.parse::<f64>() {
                Ok(value) if value.is_finite() => Fill::Value(value),
                _ => return Err(format!("a number or `mean`, as in price=0 or age=mean, not `{number}`")),
            },
        };
        if column.as_deref() == Some("") {
            return Err("a column's name before the `=`, as in price=0".to_owned());
        }
        Ok(Self { column, fill })
    }
}

/// The numbers of `rows` rows with `fill` in place of nulls and NaNs; without one, nulls are an error.
/// `nulls` are those of each number.
pub(super) fn filled(
    name: &str,
    values: &Float32Array,
    nulls: Option<&NullBuffer>,
    (fill, rows): (Option<f64>, usize),
) -> Result<Buffer> {
    let nulls = nulls.filter(|nulls| nulls.null_count() > 0);
    let Some(fill) = fill else {
        let first = nulls.and_then(|nulls| (0..nulls.len()).find(|index| nulls.is_null(*index)));
        return match first {
            Some(index) => Err(anyhow!(unfilled(name, index * rows / values.len().max(1)))),
            None => Ok(values.values().inner().clone()),
        };
    };
    if nulls.is_none() && !values.values().iter().any(|value| value.is_nan()) {
        return Ok(values.values().inner().clone());
    }
    let is_missing = |index: usize| values.value(index).is_nan() || nulls.is_some_and(|n| n.is_null(index));
    let value = |index: usize| if is_missing(index) { fill as f32 } else { values.value(index) };
    Ok(Buffer::from_iter((0..values.len()).map(value)))
}

/// The error of a null that a rule could fill.
pub(super) fn unfilled(name: &str, row: usize) -> String {
    format!("{}: say what stands for them, as in --fill {name}=0", null_error(name, row))
}

/// The error of a null, the first of them in a row of the batch.
pub(super) fn null_error(name: &str, row: usize) -> String {
    format!("column `{name}` has nulls, the first in row {row} of the batch, which have no place in a tensor")
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::Array;

    #[test]
    fn rules() {
        let rule = |text: &str| text.parse::<FillRule>();
        let named = |column: &str, fill| FillRule { column: Some(column.to_owned()), fill };
        assert_eq!(rule("price=-1.5"), Ok(named("price", Fill::Value(-1.5))));
        assert_eq!(rule("a=b=mean"), Ok(named("a=b", Fill::Mean)));
        assert_eq!(rule("0"), Ok(FillRule { column: None, fill: Fill::Value(0.0) }));
        for wrong in ["price=", "price=median", "=3", "nan", "price=inf"] {
            assert!(rule(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn nulls_and_nans_are_filled_and_nothing_else() {
        let values = Float32Array::from(vec![Some(1.0), None, Some(f32::NAN), Some(f32::INFINITY)]);
        let fill = |values: &Float32Array, fill| filled("x", values, values.nulls(), (fill, values.len()));
        let numbers = fill(&values, Some(7.0)).unwrap();
        assert_eq!(numbers.typed_data::<f32>(), [1.0, 7.0, 7.0, f32::INFINITY]);
        assert!(fill(&values, None).unwrap_err().to_string().contains("--fill x=0"));
        // What needs nothing is not copied.
        let whole = values.slice(3, 1);
        assert_eq!(fill(&whole, Some(7.0)).unwrap().as_ptr(), whole.values().inner().as_ptr());
    }
}
