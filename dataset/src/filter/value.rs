//! Values as columns of some type compare with them: exactly, whatever the type holds.

use super::expression::Op;
use super::literal::{Literal, Units, cut, date, floor, timestamp};
use super::predicate::Value;
use arrow::array::{
    ArrayRef, BooleanArray, Decimal32Array, Decimal64Array, Decimal128Array, Decimal256Array, Int32Array,
    Int64Array, StringArray, UInt64Array,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit, i256};
use chrono::{NaiveDate, NaiveDateTime};
use std::sync::Arc;

/// What a comparison with a value comes to.
pub(super) enum Compared {
    With(Op, Value),
    /// For all values of the type.
    Always(bool),
}

/// `op` and `literal` for a column of a type, and the literal in normal form; else why they do not fit.
pub(super) fn value(data_type: &DataType, op: Op, literal: &Literal) -> Result<(Compared, String), String> {
    use DataType::*;
    let unfit = || Err(format!("is {data_type} and cannot be compared with {}", literal.kind()));
    match (data_type, literal) {
        // All of it is null, and so is the comparison.
        (Null, _) => Ok((Compared::Always(false), literal.text())),
        (Float16 | Float32 | Float64, Literal::Number(number)) => {
            Ok((Compared::With(op, Value::Float(number.float())), number.to_string()))
        }
        (Utf8 | LargeUtf8, Literal::Text(text)) => {
            let scalar = cast(&StringArray::from(vec![text.as_str()]), data_type);
            let value = Value::Scalar(scalar.map_err(|e| e.to_string())?);
            Ok((Compared::With(op, value), literal.text()))
        }
        (Boolean, Literal::Bool(wanted)) if matches!(op, Op::Eq | Op::Ne) => {
            let value = Value::Scalar(Arc::new(BooleanArray::from(vec![*wanted])));
            Ok((Compared::With(op, value), literal.text()))
        }
        (Boolean, Literal::Bool(_)) => Err("is Boolean, which has no order: use = or !=".into()),
        (Date32 | Date64, Literal::Text(_) | Literal::Date(_)) => {
            let day = match literal {
                Literal::Text(text) => date(text)?,
                Literal::Date(day) => *day,
                _ => return unfit(),
            };
            let days =
                i256::from_i128(i128::from(day.signed_duration_since(NaiveDate::default()).num_days()));
            let per_day = if data_type == &Date32 { i256::ONE } else { i256::from_i128(86_400_000) };
            let compared = compared(data_type, op, Units::Floor(days * per_day, true))?;
            Ok((compared, Literal::Date(day).text()))
        }
        (Timestamp(unit, zone), Literal::Text(_) | Literal::Date(_) | Literal::Timestamp { .. }) => {
            let (at, text) = instant(literal, zone.is_some())?;
            Ok((compared(data_type, op, in_unit(at, *unit))?, text))
        }
        (_, Literal::Number(number)) => match scale(data_type) {
            Some(scale) => Ok((compared(data_type, op, number.units(scale))?, number.to_string())),
            None => unfit(),
        },
        _ => unfit(),
    }
}

/// Digits behind the point, of a type of whole units.
fn scale(data_type: &DataType) -> Option<i8> {
    use DataType::*;
    match data_type {
        Decimal32(_, scale) | Decimal64(_, scale) | Decimal128(_, scale) | Decimal256(_, scale) => {
            Some(*scale)
        }
        other => other.is_integer().then_some(0),
    }
}

/// The instant that a literal means for timestamps with or without a zone, and its normal form.
fn instant(literal: &Literal, is_zoned: bool) -> Result<(NaiveDateTime, String), String> {
    let read;
    let literal = match literal {
        Literal::Text(text) => {
            read = timestamp(text)?;
            &read
        }
        literal => literal,
    };
    let at = match literal {
        Literal::Date(day) => day.and_hms_opt(0, 0, 0).unwrap_or_default(),
        Literal::Timestamp { zoned: true, .. } if !is_zoned => {
            return Err("has no time zone: leave the offset out of the timestamp".into());
        }
        Literal::Timestamp { at, .. } => *at,
        _ => return Err(format!("is a timestamp and cannot be compared with {}", literal.kind())),
    };
    Ok((at, Literal::Timestamp { at, zoned: is_zoned }.text()))
}

fn in_unit(at: NaiveDateTime, unit: TimeUnit) -> Units {
    let at = at.and_utc();
    let nanos = i128::from(at.timestamp()) * 1_000_000_000 + i128::from(at.timestamp_subsec_nanos());
    let per = match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    };
    floor(i256::from_i128(nanos), i256::from_i128(per))
}

/// The comparison of whole units with a number that may lie between two of them, or beyond all.
fn compared(data_type: &DataType, op: Op, units: Units) -> Result<Compared, String> {
    let (least, most) = limits(data_type);
    let beyond = |negative: bool| match op {
        Op::Eq => false,
        Op::Ne => true,
        Op::Lt | Op::Le => !negative,
        Op::Gt | Op::Ge => negative,
    };
    let (units, is_exact) = match units {
        Units::Beyond { negative } => return Ok(Compared::Always(beyond(negative))),
        Units::Floor(units, _) if units > most => return Ok(Compared::Always(beyond(false))),
        // Between the least and what would be below it lies no value.
        Units::Floor(units, _) if units < least => return Ok(Compared::Always(beyond(true))),
        Units::Floor(units, is_exact) => (units, is_exact),
    };
    let op = match (is_exact, op) {
        (true, op) => op,
        (false, Op::Eq) => return Ok(Compared::Always(false)),
        (false, Op::Ne) => return Ok(Compared::Always(true)),
        (false, Op::Lt | Op::Le) => Op::Le,
        (false, Op::Gt | Op::Ge) => Op::Gt,
    };
    let scalar =
        scalar(data_type, units).ok_or_else(|| format!("is {data_type}, which has no order here"))?;
    Ok(Compared::With(op, Value::Scalar(scalar)))
}

/// The least and the largest of the units that a type holds.
fn limits(data_type: &DataType) -> (i256, i256) {
    use DataType::*;
    let signed = |bits: u32| {
        let most = i128::MAX >> (128 - bits);
        (i256::from_i128(-most - 1), i256::from_i128(most))
    };
    let unsigned = |bits: u32| (i256::ZERO, i256::from_i128((1 << bits) - 1));
    match data_type {
        Int8 => signed(8),
        Int16 => signed(16),
        Int32 | Date32 | Decimal32(..) => signed(32),
        UInt8 => unsigned(8),
        UInt16 => unsigned(16),
        UInt32 => unsigned(32),
        UInt64 => unsigned(64),
        Decimal128(..) => signed(128),
        Decimal256(..) => (i256::MIN, i256::MAX),
        _ => signed(64),
    }
}

/// One value of a type of whole units, which holds it.
fn scalar(data_type: &DataType, units: i256) -> Option<ArrayRef> {
    use DataType::*;
    let small = units.to_i128();
    let long = small.and_then(|units| i64::try_from(units).ok());
    Some(match data_type {
        Decimal32(p, s) => {
            let value = Decimal32Array::from(vec![i32::try_from(small?).ok()?]);
            Arc::new(value.with_precision_and_scale(*p, *s).ok()?)
        }
        Decimal64(p, s) => Arc::new(Decimal64Array::from(vec![long?]).with_precision_and_scale(*p, *s).ok()?),
        Decimal128(p, s) => {
            Arc::new(Decimal128Array::from(vec![small?]).with_precision_and_scale(*p, *s).ok()?)
        }
        Decimal256(p, s) => {
            Arc::new(Decimal256Array::from(vec![units]).with_precision_and_scale(*p, *s).ok()?)
        }
        UInt64 => Arc::new(UInt64Array::from(vec![u64::try_from(small?).ok()?])),
        Date32 => cast(&Int32Array::from(vec![i32::try_from(small?).ok()?]), data_type).ok()?,
        integer => cast(&Int64Array::from(vec![long?]), integer).ok()?,
    })
}

impl Literal {
    /// In normal form.
    fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => format!("'{}'", text.replace('\'', "''")),
            Self::Bool(value) => value.to_string(),
            Self::Date(day) => format!("date '{}'", day.format("%Y-%m-%d")),
            Self::Timestamp { at, zoned } => {
                let zone = if *zoned { "Z" } else { "" };
                format!("timestamp '{}{zone}'", at.format("%Y-%m-%dT%H:%M:%S%.f"))
            }
        }
    }

    /// For errors.
    fn kind(&self) -> String {
        match self {
            Self::Number(number) => format!("the number {number}: put it in quotes if it is a text"),
            Self::Text(text) => format!("the text '{}'", cut(text)),
            Self::Bool(value) => format!("the boolean {value}"),
            Self::Date(_) => format!("the {}", self.text()),
            Self::Timestamp { .. } => format!("the {}", self.text()),
        }
    }
}
