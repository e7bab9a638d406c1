//! Timestamps of 96 bits, as Spark and Hive wrote them: a day, and nanoseconds within it.
//!
//! The parquet crate makes nanoseconds of them, which reach from 1677 to 2262, and wraps what lies beyond.
//! Read once more in seconds, which always fit, the two tell what was written.

use crate::parquet::footer::Footer;
use arrow::array::{Array, ArrayData, ArrayRef, make_array};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::{DataType, FieldRef, Schema, TimeUnit};
use arrow::error::ArrowError;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::Type as Physical;
use parquet::errors::ParquetError;
use std::sync::Arc;

const NANOS: i64 = 1_000_000_000;

/// What reads the 96-bit timestamps of a column in seconds; `None` if it has none.
pub(super) fn in_seconds(
    footer: &Footer,
    column: usize,
) -> Result<Option<ArrowReaderMetadata>, ParquetError> {
    let (schema, leaves) = (footer.arrow.parquet_schema(), footer.leaves.get(column).cloned());
    let leaves = leaves.unwrap_or_default();
    let mut kinds = leaves.map(|leaf| schema.column(leaf).physical_type());
    if !kinds.clone().any(|kind| kind == Physical::INT96) {
        return Ok(None);
    }
    let mut fields: Vec<FieldRef> = footer.schema.fields().to_vec();
    let data_type = of_seconds(fields[column].data_type(), &mut kinds);
    fields[column] = Arc::new(fields[column].as_ref().clone().with_data_type(data_type));
    let options = ArrowReaderOptions::new().with_schema(Arc::new(Schema::new(fields)));
    ArrowReaderMetadata::try_new(footer.arrow.metadata().clone(), options).map(Some)
}

/// The type with 96-bit timestamps in seconds. `kinds` are those of its leaves, one after the other.
fn of_seconds(data_type: &DataType, kinds: &mut dyn Iterator<Item = Physical>) -> DataType {
    let mut field = |field: &FieldRef| {
        Arc::new(field.as_ref().clone().with_data_type(of_seconds(field.data_type(), kinds)))
    };
    match data_type {
        DataType::List(f) => DataType::List(field(f)),
        DataType::LargeList(f) => DataType::LargeList(field(f)),
        DataType::FixedSizeList(f, n) => DataType::FixedSizeList(field(f), *n),
        DataType::Map(f, sorted) => DataType::Map(field(f), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(field).collect()),
        leaf => match kinds.next() {
            Some(Physical::INT96) => DataType::Timestamp(TimeUnit::Second, None),
            _ => leaf.clone(),
        },
    }
}

/// The column that was read in nanoseconds and in seconds, its 96-bit timestamps in the units that `wanted`
/// has at their places. `None` if one does not fit them.
pub(super) fn joined(
    nanos: &ArrayRef,
    seconds: &ArrayRef,
    wanted: &DataType,
) -> Result<Option<ArrayRef>, ArrowError> {
    Ok(join(&nanos.to_data(), &seconds.to_data(), Some(wanted), None)?.map(make_array))
}

/// The same of what lies within a column. `hidden` are the nulls of the structs around it.
fn join(
    nanos: &ArrayData,
    seconds: &ArrayData,
    wanted: Option<&DataType>,
    hidden: Option<&NullBuffer>,
) -> Result<Option<ArrayData>, ArrowError> {
    if nanos.len() != seconds.len() || nanos.child_data().len() != seconds.child_data().len() {
        return Err(ArrowError::ComputeError("two readings of a column differ".into()));
    }
    let nulls = NullBuffer::union(nanos.nulls(), hidden);
    if matches!(seconds.data_type(), DataType::Timestamp(TimeUnit::Second, _))
        && matches!(nanos.data_type(), DataType::Timestamp(TimeUnit::Nanosecond, _))
    {
        let unit = match wanted {
            Some(DataType::Timestamp(unit, _)) => *unit,
            _ => TimeUnit::Nanosecond,
        };
        return moments(nanos, seconds, unit, nulls.as_ref());
    }
    let types = wanted.map(within).unwrap_or_default();
    let hidden = nulls.filter(|_| matches!(nanos.data_type(), DataType::Struct(_)));
    let mut children = Vec::with_capacity(nanos.child_data().len());
    for (i, (nanos, seconds)) in nanos.child_data().iter().zip(seconds.child_data()).enumerate() {
        match join(nanos, seconds, types.get(i).copied(), hidden.as_ref())? {
            Some(child) => children.push(child),
            None => return Ok(None),
        }
    }
    let data_type = of_children(nanos.data_type(), &children);
    nanos.clone().into_builder().data_type(data_type).child_data(children).build().map(Some)
}

/// The timestamps themselves, in a unit; those that are null may be anything.
fn moments(
    nanos: &ArrayData,
    seconds: &ArrayData,
    unit: TimeUnit,
    nulls: Option<&NullBuffer>,
) -> Result<Option<ArrayData>, ArrowError> {
    let both = nanos.buffer::<i64>(0).iter().zip(seconds.buffer::<i64>(0)).take(nanos.len()).enumerate();
    let value = |(i, (nanos, seconds)): (usize, (&i64, &i64))| match nulls.is_some_and(|n| n.is_null(i)) {
        true => Some(0),
        false => moment(*nanos, *seconds, unit),
    };
    let Some(values) = both.map(value).collect::<Option<Vec<i64>>>() else { return Ok(None) };
    let DataType::Timestamp(_, zone) = nanos.data_type() else {
        return Err(ArrowError::ComputeError("a column of timestamps has others".into()));
    };
    let found = ArrayData::builder(DataType::Timestamp(unit, zone.clone())).len(nanos.len());
    found.nulls(nanos.nulls().cloned()).add_buffer(Buffer::from_vec(values)).build().map(Some)
}

/// One timestamp in a unit, if it has a value there. Its nanoseconds may have wrapped around.
fn moment(nanos: i64, seconds: i64, unit: TimeUnit) -> Option<i64> {
    let within = nanos.wrapping_sub(seconds.wrapping_mul(NANOS));
    let all = i128::from(seconds) * i128::from(NANOS) + i128::from(within);
    let divisor = match unit {
        TimeUnit::Second => i128::from(NANOS),
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    };
    i64::try_from(all / divisor).ok().filter(|_| all % divisor == 0)
}

/// The types that a type is made of.
fn within(data_type: &DataType) -> Vec<&DataType> {
    match data_type {
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) | DataType::Map(f, _) => {
            vec![f.data_type()]
        }
        DataType::Struct(fields) => fields.iter().map(|field| field.data_type()).collect(),
        _ => Vec::new(),
    }
}

/// The type of a column that has `children` now.
fn of_children(data_type: &DataType, children: &[ArrayData]) -> DataType {
    let field = |(field, child): (&FieldRef, &ArrayData)| {
        Arc::new(field.as_ref().clone().with_data_type(child.data_type().clone()))
    };
    match (data_type, children) {
        (DataType::List(f), [child]) => DataType::List(field((f, child))),
        (DataType::LargeList(f), [child]) => DataType::LargeList(field((f, child))),
        (DataType::FixedSizeList(f, n), [child]) => DataType::FixedSizeList(field((f, child)), *n),
        (DataType::Map(f, sorted), [child]) => DataType::Map(field((f, child)), *sorted),
        (DataType::Struct(fields), _) => DataType::Struct(fields.iter().zip(children).map(field).collect()),
        (other, _) => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{TimestampNanosecondArray, TimestampSecondArray};

    /// As the parquet crate reads nanoseconds.
    fn wrapped(seconds: i64, within: i64) -> i64 {
        seconds.wrapping_mul(NANOS).wrapping_add(within)
    }

    #[test]
    fn a_zone_that_the_writer_keeps_stays() {
        let nanos = TimestampNanosecondArray::from(vec![wrapped(-1, 5), 0]).with_timezone("UTC");
        let (nanos, seconds): (ArrayRef, ArrayRef) =
            (Arc::new(nanos), Arc::new(TimestampSecondArray::from(vec![-1, 0])));
        let found = joined(&nanos, &seconds, nanos.data_type()).unwrap().unwrap();
        assert_eq!(&found, &nanos);
    }

    #[test]
    fn what_wrapped_around_is_known_again() {
        use TimeUnit::*;
        // 9999-12-31T23:59:59.999999, 0001-01-01, and the ends of what nanoseconds reach.
        let (last, first) = (253_402_300_799, -62_135_596_800);
        for (seconds, within, unit, want) in [
            (last, 999_999_000, Microsecond, Some(253_402_300_799_999_999)),
            (last, 999_999_000, Millisecond, None),
            (last, 999_999_000, Nanosecond, None),
            (last, 0, Second, Some(last)),
            (first, 0, Microsecond, Some(-62_135_596_800_000_000)),
            (first, 0, Nanosecond, None),
            (0, 1, Nanosecond, Some(1)),
            (0, 1, Microsecond, None),
            (-1, 999_999_999, Nanosecond, Some(-1)),
            (9_223_372_036, 854_775_807, Nanosecond, Some(i64::MAX)),
            (9_223_372_036, 854_775_808, Nanosecond, None),
            (-9_223_372_037, 145_224_192, Nanosecond, Some(i64::MIN)),
            (-9_223_372_037, 145_224_191, Nanosecond, None),
        ] {
            let found = moment(wrapped(seconds, within), seconds, unit);
            assert_eq!(found, want, "{seconds}, {within}, {unit:?}");
        }
    }
}
