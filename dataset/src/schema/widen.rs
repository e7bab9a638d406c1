//! Types that hold the values of two others, and casts that lose none.

use super::merge::Merge;
use arrow::array::{Array, ArrayRef};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType, TimeUnit};
use arrow::error::ArrowError;

/// Types of one form that hold the values of both.
pub(super) const WIDENED: Merge = Merge { leaf: join, widens: true };

/// The narrowest type that holds the values of both: wider integers and floats, finer units of time, large
/// strings, decimals of more digits; anything where the other is the type of nulls. Integers become floats,
/// as far as their values allow it ([`exact`]).
fn join(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::*;
    if a == b || b == &Null {
        return Some(a.clone());
    }
    Some(match (a, b) {
        (Null, b) => b.clone(),
        (Utf8, LargeUtf8) | (LargeUtf8, Utf8) => LargeUtf8,
        (Binary, LargeBinary) | (LargeBinary, Binary) => LargeBinary,
        (List(x), LargeList(y)) | (LargeList(x), List(y)) => LargeList(WIDENED.field(x, y)?),
        (Date32, Date64) | (Date64, Date32) => Date64,
        (Time32(x) | Time64(x), Time32(y) | Time64(y)) => match finer(*x, *y) {
            unit @ (TimeUnit::Second | TimeUnit::Millisecond) => Time32(unit),
            unit => Time64(unit),
        },
        (Duration(x), Duration(y)) => Duration(finer(*x, *y)),
        // Zones are labels: the instants are the same.
        (Timestamp(x, Some(p)), Timestamp(y, Some(q))) => {
            Timestamp(finer(*x, *y), Some(if p == q { p.clone() } else { "UTC".into() }))
        }
        (Timestamp(x, None), Timestamp(y, None)) => Timestamp(finer(*x, *y), None),
        _ => match (decimal(a), decimal(b)) {
            (Some(a), Some(b)) => wider_decimal(a, b)?,
            _ => number(a, b)?,
        },
    })
}

/// `array` as `wanted`, each value unchanged: an error names the types if `wanted` cannot hold one.
pub(crate) fn exact(array: &ArrayRef, wanted: &DataType) -> Result<ArrayRef, ArrowError> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let cast = cast_with_options(array, wanted, &options)?;
    if is_always_exact(array.data_type(), wanted) {
        return Ok(cast);
    }
    let back = cast_with_options(&cast, array.data_type(), &options)?;
    match back.to_data() == array.to_data() {
        true => Ok(cast),
        false => {
            Err(ArrowError::CastError(format!("a value of {} does not fit {wanted}", array.data_type())))
        }
    }
}

/// Whether a schema that was asked for may have `wanted` where an object has `found`: a wider type, or a
/// narrower one that its values may fit nevertheless. Also what Delta tables widen beyond that: integers to
/// decimals, dates to midnights.
pub(super) fn is_readable_as(found: &DataType, wanted: &DataType) -> bool {
    READABLE.data_type(found, wanted).is_some()
}

const READABLE: Merge = Merge { leaf: readable, widens: true };

fn readable(found: &DataType, wanted: &DataType) -> Option<DataType> {
    use DataType::*;
    match (found, wanted) {
        (Date32, Timestamp(_, None)) => Some(wanted.clone()),
        (found, Decimal128(..) | Decimal256(..)) if integer(found).is_some() => Some(wanted.clone()),
        _ => join(found, wanted),
    }
}

/// Whether no value can change: these need no second look, as an overflow is an error in any case.
fn is_always_exact(from: &DataType, to: &DataType) -> bool {
    use DataType::*;
    match (from, to) {
        (Null, _) | (Float16 | Float32, Float64) | (Float16, Float32) => true,
        (Utf8, LargeUtf8) | (Binary, LargeBinary) | (Date32, Date64) => true,
        (Timestamp(x, _), Timestamp(y, _)) | (Duration(x), Duration(y)) => finer(*x, *y) == *y,
        (List(x) | LargeList(x) | FixedSizeList(x, _), List(y) | LargeList(y) | FixedSizeList(y, _)) => {
            x.data_type() == y.data_type() || is_always_exact(x.data_type(), y.data_type())
        }
        _ => integer(from).is_some() && integer(to).is_some(),
    }
}

fn number(a: &DataType, b: &DataType) -> Option<DataType> {
    match (integer(a), integer(b)) {
        (Some((signed_a, bits_a)), Some((signed_b, bits_b))) => {
            let signed = signed_a || signed_b;
            // A signed type needs one bit more for what an unsigned one holds.
            let needs = |is_signed: bool, bits: u32| if signed && !is_signed { bits + 1 } else { bits };
            whole(signed, needs(signed_a, bits_a).max(needs(signed_b, bits_b)))
        }
        (Some((_, bits)), None) => real(real_bits(b)?.max(if bits <= 16 { 32 } else { 64 })),
        (None, Some(_)) => number(b, a),
        (None, None) => real(real_bits(a)?.max(real_bits(b)?)),
    }
}

/// Signed, and how many bits.
fn integer(data_type: &DataType) -> Option<(bool, u32)> {
    use DataType::*;
    let bits = 8 * data_type.primitive_width()? as u32;
    match data_type {
        Int8 | Int16 | Int32 | Int64 => Some((true, bits)),
        UInt8 | UInt16 | UInt32 | UInt64 => Some((false, bits)),
        _ => None,
    }
}

fn whole(signed: bool, bits: u32) -> Option<DataType> {
    use DataType::*;
    Some(match (signed, bits) {
        (true, ..=8) => Int8,
        (true, ..=16) => Int16,
        (true, ..=32) => Int32,
        (true, ..=64) => Int64,
        (false, ..=8) => UInt8,
        (false, ..=16) => UInt16,
        (false, ..=32) => UInt32,
        (false, ..=64) => UInt64,
        _ => return None,
    })
}

fn real_bits(data_type: &DataType) -> Option<u32> {
    match data_type {
        DataType::Float16 => Some(16),
        DataType::Float32 => Some(32),
        DataType::Float64 => Some(64),
        _ => None,
    }
}

fn real(bits: u32) -> Option<DataType> {
    match bits {
        16 => Some(DataType::Float16),
        32 => Some(DataType::Float32),
        64 => Some(DataType::Float64),
        _ => None,
    }
}

/// Units are ordered from seconds on.
fn finer(a: TimeUnit, b: TimeUnit) -> TimeUnit {
    a.max(b)
}

/// Digits before the point, and after it.
fn decimal(data_type: &DataType) -> Option<(i16, i16)> {
    use DataType::*;
    match data_type {
        Decimal32(p, s) | Decimal64(p, s) | Decimal128(p, s) | Decimal256(p, s) => {
            Some((i16::from(*p) - i16::from(*s), i16::from(*s)))
        }
        _ => None,
    }
}

fn wider_decimal(a: (i16, i16), b: (i16, i16)) -> Option<DataType> {
    let (whole, scale) = (a.0.max(b.0), a.1.max(b.1));
    let (digits, scale) = (u8::try_from(whole + scale).ok()?, i8::try_from(scale).ok()?);
    if digits <= DECIMAL128_MAX_PRECISION {
        return Some(DataType::Decimal128(digits, scale));
    }
    (digits <= DECIMAL256_MAX_PRECISION).then_some(DataType::Decimal256(digits, scale))
}

#[cfg(test)]
mod tests {
    use super::*;
    use DataType::*;
    use arrow::array::*;
    use arrow::datatypes::Field;
    use std::sync::Arc;

    #[test]
    fn the_wider_type_holds_both() {
        let utc = |unit, zone: &str| Timestamp(unit, Some(zone.into()));
        let (seconds, micros) = (TimeUnit::Second, TimeUnit::Microsecond);
        let large = DataType::new_large_list(Int64, true);
        for (a, b, both) in [
            (Int8, Int64, Int64),
            (UInt8, Int8, Int16),
            (UInt32, Int32, Int64),
            (UInt8, UInt16, UInt16),
            (Float32, Float64, Float64),
            (Int16, Float32, Float32),
            (Int32, Float32, Float64),
            (Int64, Float64, Float64),
            (Null, Utf8, Utf8),
            (Utf8, LargeUtf8, LargeUtf8),
            (Date32, Date64, Date64),
            (Time32(seconds), Time64(micros), Time64(micros)),
            (utc(seconds, "UTC"), utc(micros, "UTC"), utc(micros, "UTC")),
            (utc(seconds, "UTC"), utc(seconds, "Europe/Zurich"), utc(seconds, "UTC")),
            (Decimal128(10, 2), Decimal128(8, 4), Decimal128(12, 4)),
            (Decimal128(38, 0), Decimal128(38, 10), Decimal256(48, 10)),
            (DataType::new_list(Int32, true), large.clone(), large),
        ] {
            assert_eq!(join(&a, &b).as_ref(), Some(&both), "{a} and {b}");
        }
        for (a, b) in [
            (Int64, UInt64),
            (Int64, Utf8),
            (Boolean, Int8),
            (Utf8, Binary),
            (Timestamp(seconds, None), utc(seconds, "UTC")),
            (Decimal256(76, 0), Decimal256(76, 1)),
        ] {
            assert_eq!((join(&a, &b), join(&b, &a)), (None, None), "{a} and {b}");
        }
    }

    #[test]
    fn casts_lose_nothing_or_fail() {
        let ints: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(1 << 53)]));
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![Some(1.0), None, Some((1u64 << 53) as f64)]));
        assert_eq!(&exact(&ints, &Float64).unwrap(), &floats);
        assert_eq!(&exact(&floats, &Int64).unwrap(), &ints);
        let odd: ArrayRef = Arc::new(Int64Array::from(vec![(1 << 53) + 1]));
        assert!(exact(&odd, &Float64).unwrap_err().to_string().contains("does not fit"));
        assert!(exact(&odd, &Int32).is_err());
        let fraction: ArrayRef = Arc::new(Float64Array::from(vec![0.1]));
        assert!(exact(&fraction, &Float32).is_err() && exact(&fraction, &Int64).is_err());
        let half: ArrayRef = Arc::new(Float64Array::from(vec![0.5]));
        assert_eq!(exact(&half, &Float32).unwrap().to_data(), Float32Array::from(vec![0.5]).to_data());
        let small: ArrayRef = Arc::new(Int64Array::from(vec![-7]));
        assert_eq!(exact(&small, &Int32).unwrap().to_data(), Int32Array::from(vec![-7]).to_data());
        let empty: ArrayRef = Arc::new(ListArray::new_null(Arc::new(Field::new("x", Null, true)), 2));
        assert_eq!(exact(&empty, &DataType::new_list(Utf8, true)).unwrap().null_count(), 2);
        let far: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![i64::MAX / 1000]));
        assert!(exact(&far, &Timestamp(TimeUnit::Nanosecond, None)).is_err());
    }
}
