//! Columns of numbers, and of what counts as numbers, as 32-bit floats.
//!
//! Dates and timestamps are days since the beginning of the year 2000 in UTC, times of day and durations are
//! days: a float knows a timestamp of our days to a minute, and a model sees no numbers in the billions.

use anyhow::{Context, Result, bail};
use arrow::array::{Array, ArrayRef, AsArray, Float32Array};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float32Type, Int64Type, TimeUnit};

/// Days from the beginning of 1970 to that of 2000.
const DAYS_TO_2000: f64 = 10_957.0;

/// All numbers of a column, its lists one after the other, and which of them are null.
pub(crate) fn floats(name: &str, column: &dyn Array) -> Result<(Float32Array, Option<NullBuffer>)> {
    let (values, nulls) = match column.as_fixed_size_list_opt() {
        Some(list) => {
            let nulls = list.nulls().map(|nulls| nulls.expand(list.value_length() as usize));
            (list.values().clone(), nulls)
        }
        None => (column.slice(0, column.len()), None),
    };
    let values = numbers(&values).with_context(|| format!("the numbers in `{name}`"))?;
    let nulls = NullBuffer::union(nulls.as_ref(), values.nulls());
    Ok((values, nulls))
}

fn numbers(values: &ArrayRef) -> Result<Float32Array> {
    let per_day = match values.data_type() {
        kind if kind.is_temporal() => ticks_per_day(kind)?,
        kind => {
            // Decimals become 64-bit floats first, so that they are rounded once.
            let values = match kind.is_decimal() {
                true => cast(values, &DataType::Float64)?,
                false => values.clone(),
            };
            return Ok(cast(&values, &DataType::Float32)?.as_primitive::<Float32Type>().clone());
        }
    };
    let since = match values.data_type() {
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => DAYS_TO_2000,
        _ => 0.0,
    };
    let ticks = match values.data_type() {
        DataType::Date32 | DataType::Time32(_) => cast(&cast(values, &DataType::Int32)?, &DataType::Int64)?,
        _ => cast(values, &DataType::Int64)?,
    };
    let days = |ticks: i64| (ticks as f64 / per_day - since) as f32;
    Ok(ticks.as_primitive::<Int64Type>().unary::<_, Float32Type>(days))
}

fn ticks_per_day(kind: &DataType) -> Result<f64> {
    Ok(match kind {
        DataType::Date32 => 1.0,
        DataType::Date64 => 86_400e3,
        DataType::Timestamp(unit, _)
        | DataType::Time32(unit)
        | DataType::Time64(unit)
        | DataType::Duration(unit) => match unit {
            TimeUnit::Second => 86_400.0,
            TimeUnit::Millisecond => 86_400e3,
            TimeUnit::Microsecond => 86_400e6,
            TimeUnit::Nanosecond => 86_400e9,
        },
        other => bail!("{other} is no number"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow::array::{
        BooleanArray, Date32Array, Decimal128Array, DurationSecondArray, FixedSizeListArray,
        Time32SecondArray, TimestampMicrosecondArray,
    };
    use arrow::datatypes::Field;

    #[test]
    fn times_are_days_and_decimals_numbers() {
        let floats = |column: &dyn Array| floats("x", column).unwrap().0.values().to_vec();
        assert_eq!(floats(&Date32Array::from(vec![10_957, 10_950])), [0.0, -7.0]);
        let noon = TimestampMicrosecondArray::from(vec![(10_958 * 86_400 + 43_200) * 1_000_000])
            .with_timezone("Europe/Zurich");
        assert_eq!(floats(&noon), [1.5]);
        assert_eq!(floats(&Time32SecondArray::from(vec![21_600])), [0.25]);
        assert_eq!(floats(&DurationSecondArray::from(vec![-86_400])), [-1.0]);
        let price = Decimal128Array::from(vec![1234, -5]).with_precision_and_scale(10, 2).unwrap();
        assert_eq!(floats(&price), [12.34, -0.05]);
        assert_eq!(floats(&BooleanArray::from(vec![true, false])), [1.0, 0.0]);
    }

    #[test]
    fn the_numbers_of_a_null_list_are_null() {
        let item = Arc::new(Field::new("item", DataType::Float32, true));
        let values = Float32Array::from(vec![Some(1.0), None, Some(3.0), Some(4.0)]);
        let nulls = Some(vec![true, false].into());
        let lists = FixedSizeListArray::new(item, 2, Arc::new(values), nulls);
        let (_, nulls) = floats("x", &lists).unwrap();
        assert_eq!(nulls.unwrap().iter().collect::<Vec<_>>(), [true, false, false, false]);
    }
}
