//! Columns that lie in an object's directories, as Hive and Spark write them: `year=2024/country=ch/x.pq`.
//!
//! A partition has one value for all rows of an object. Names and values are URL-decoded. The type is what
//! pyarrow infers: `Int32` if all values are such numbers, else `Utf8`. Where a table has a log, that says
//! which types and values there are.

use crate::filter::{Facts, Nulls};
use arrow::array::{ArrayRef, Int32Array, StringArray, UInt32Array, new_null_array};
use arrow::compute::{CastOptions, cast_with_options, take};
use arrow::datatypes::DataType;
use forebay_proto::{Error, Result};
use percent_encoding::percent_decode_str;
use std::sync::Arc;

/// What Hive writes for null.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// How many there may be: names of directories with a `=` in them that are no partitions must not become one
/// column each.
const NAMES_MAX: usize = 100;

/// The names of all partitions in keys below a dataset's URI, in order of first sight. `Invalid` for one that
/// does not decode, or for very many.
pub(crate) fn names<'a>(keys: impl Iterator<Item = &'a str>) -> Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for key in keys {
        for (name, _) in pairs(key) {
            let name = decoded(key, name)?;
            if !names.contains(&name) {
                names.push(name);
            }
            if names.len() > NAMES_MAX {
                return Err(Error::invalid(format!(
                    "{key}: more than {NAMES_MAX} names of partitions, as directories of other objects have: if they are \
                     none, use --no-partitions"
                )));
            }
        }
    }
    Ok(names)
}

/// The value of a partition for the object at `uri`: the last one there, `None` if there is none or it is
/// null.
pub(crate) fn value(uri: &str, name: &str) -> Result<Option<String>> {
    Ok(directory(uri, name)?.flatten())
}

/// The same, but `Some(None)` if it is null and `None` if the object lies in no such directory.
pub(crate) fn directory(uri: &str, name: &str) -> Result<Option<Option<String>>> {
    for (found, value) in pairs(uri).rev() {
        if decoded(uri, found)? == name {
            let value = decoded(uri, value)?;
            return Ok(Some(Some(value).filter(|value| value != NULL)));
        }
    }
    Ok(None)
}

/// The type that holds all values.
pub(crate) fn infer<'a>(values: impl Iterator<Item = &'a str>) -> DataType {
    let mut values = values.peekable();
    match values.peek().is_some() && values.all(|value| number(value).is_some()) {
        true => DataType::Int32,
        false => DataType::Utf8,
    }
}

/// A column of one value. `Invalid` if `data_type` is not that of a partition, or cannot hold so much.
pub(crate) fn constant(value: Option<&str>, data_type: &DataType, rows: usize) -> Result<ArrayRef> {
    let Some(value) = value else { return Ok(new_null_array(data_type, rows)) };
    let unfit = || Error::invalid(format!("the directory's value '{value}' is no {data_type}"));
    Ok(match data_type {
        DataType::Int32 => Arc::new(Int32Array::from_value(number(value).ok_or_else(unfit)?, rows)),
        DataType::Utf8 if value.len().saturating_mul(rows) <= i32::MAX as usize => {
            Arc::new(StringArray::new_repeated(value, rows))
        }
        DataType::Utf8 => return Err(unfit()),
        // Of a table's log, which writes all values as texts.
        other => {
            let options = CastOptions { safe: false, ..CastOptions::default() };
            let one: ArrayRef = Arc::new(StringArray::from(vec![value]));
            let one = cast_with_options(&one, other, &options).map_err(|_| unfit())?;
            let first = UInt32Array::from_value(0, rows);
            take(&one, &first, None).map_err(|e| Error::invalid(e.to_string()))?
        }
    })
}

/// All that is known of a column of one value.
pub(crate) fn facts(value: Option<&str>, data_type: &DataType) -> Facts {
    let bound = value.and_then(|value| constant(Some(value), data_type, 1).ok());
    let nulls = if value.is_some() { Nulls::None } else { Nulls::All };
    Facts { nulls, bounds: bound.map(|bound| (bound.clone(), bound)) }
}

/// The `NAME=VALUE` directories of a key or URI.
fn pairs(key: &str) -> impl DoubleEndedIterator<Item = (&str, &str)> {
    let directories = key.rsplit_once('/').map_or("", |(directories, _)| directories);
    directories.split('/').filter_map(|part| part.split_once('=')).filter(|(name, _)| !name.is_empty())
}

fn decoded(key: &str, text: &str) -> Result<String> {
    let text = percent_decode_str(text).decode_utf8().map_err(|_| {
        Error::invalid(format!("{key}: '{text}' is not UTF-8 when its % are decoded: use --no-partitions"))
    })?;
    Ok(text.into_owned())
}

/// As pyarrow reads it: digits, and maybe a minus.
fn number(value: &str) -> Option<i32> {
    if value.starts_with('+') { None } else { value.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Array, Date32Array, Float32Array, TimestampMicrosecondArray};
    use arrow::datatypes::TimeUnit;

    #[test]
    fn directories_are_columns() {
        let keys = ["year=2024/city=Z%C3%BCrich/a.parquet", "year=2025/b.parquet", "c.parquet", "x=1"];
        assert_eq!(names(keys.into_iter()).unwrap(), ["year", "city"]);
        let at = |name| value("s3://b/year=1/t/year=02/city=Z%C3%BCrich/a%20b=1.parquet", name).unwrap();
        assert_eq!((at("year").as_deref(), at("city").as_deref()), (Some("02"), Some("Zürich")));
        assert_eq!((at("a b"), at("nothing")), (None, None));
        assert_eq!(value(&format!("s3://b/k={NULL}/x"), "k").unwrap(), None);
        assert_eq!(directory(&format!("s3://b/k={NULL}/x"), "k").unwrap(), Some(None));
        assert_eq!(directory("s3://b/k=1/x", "l").unwrap(), None);
        let many: Vec<_> = (0..=NAMES_MAX).map(|n| format!("key{n}=/x")).collect();
        assert_eq!(names(many[1..].iter().map(String::as_str)).unwrap().len(), NAMES_MAX);
        let refused = names(many.iter().map(String::as_str)).unwrap_err();
        assert!(refused.message.contains("--no-partitions"), "{refused}");
        assert!(names(["k=%FF/x"].into_iter()).is_ok() && value("s3://b/k=%FF/x", "k").is_err());
    }

    #[test]
    fn types_are_those_of_all_values() {
        let of = |values: &[&'static str]| infer(values.iter().copied());
        assert_eq!(of(&["01", "-7", "2147483647"]), DataType::Int32);
        for other in [&["1", "x"][..], &["2147483648"], &["+1"], &[""], &[]] {
            assert_eq!(of(other), DataType::Utf8, "{other:?}");
        }
    }

    #[test]
    fn a_column_repeats_its_value() {
        let int = constant(Some("03"), &DataType::Int32, 3).unwrap();
        assert_eq!(int.to_data(), Int32Array::from(vec![3; 3]).into());
        let text = constant(Some("ch"), &DataType::Utf8, 2).unwrap();
        assert_eq!(text.to_data(), StringArray::from(vec!["ch"; 2]).into());
        assert_eq!(constant(None, &DataType::Utf8, 2).unwrap().null_count(), 2);
        assert!(constant(Some("x"), &DataType::Int32, 1).is_err());
        let float = constant(Some("1.5"), &DataType::Float32, 2).unwrap();
        assert_eq!(float.to_data(), Float32Array::from(vec![1.5; 2]).to_data());
        let day = constant(Some("2024-02-29"), &DataType::Date32, 1).unwrap();
        assert_eq!(day.to_data(), Date32Array::from(vec![19_782]).to_data());
        for text in ["2024-01-01 00:00:00", "2024-01-01T00:00:00Z", "2024-01-01 01:00:00+01:00"] {
            let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
            let moment = constant(Some(text), &utc, 1).unwrap();
            let wanted = TimestampMicrosecondArray::from(vec![1_704_067_200_000_000]).with_timezone("UTC");
            assert_eq!(moment.to_data(), wanted.to_data(), "{text}");
        }
        for (text, other) in [("x", DataType::Float32), ("31.2.2024", DataType::Date32)] {
            assert!(constant(Some(text), &other, 1).is_err());
        }
    }
}
