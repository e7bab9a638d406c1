//! Columns of tokens as the gpt takes them: rows of one length, cut and padded where they are not.

use anyhow::{Context, Result, anyhow, bail, ensure};
use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::Buffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int32Type, Int64Type};
use forebay_c10d::tensor_from_owner;
use std::ops::Range;
use tch::{Kind, Tensor};

/// `[rows, length]` of 32-bit or 64-bit integers, shared if they are that already.
pub(super) fn whole(name: &str, column: &dyn Array, length: i64, vocab: i64) -> Result<Tensor> {
    ensure!(column.null_count() == 0, "column `{name}` has nulls, which are no tokens");
    let list = column.as_fixed_size_list_opt().with_context(|| format!("column `{name}` is no list"))?;
    let values = list.values();
    ensure!(values.null_count() == 0, "column `{name}` has nulls inside, which are no tokens");
    let sizes = [list.len() as i64, length];
    if let Some(values) = values.as_primitive_opt::<Int32Type>() {
        check(name, values.values().iter().map(|value| i64::from(*value)), vocab)?;
        return Ok(tensor_from_owner(values.values().inner().clone(), &sizes, Kind::Int)?);
    }
    let values = integers(name, values)?;
    let values = values.as_primitive::<Int64Type>().values();
    check(name, values.iter().copied(), vocab)?;
    Ok(tensor_from_owner(values.inner().clone(), &sizes, Kind::Int64)?)
}

/// Rows of any length: `[rows, length]` of the first tokens of each with `pad` behind them, and `[rows]`
/// with the number of those that are the row's own. A null row has none.
pub(super) fn padded(
    name: &str,
    column: &dyn Array,
    length: i64,
    vocab: i64,
    pad: i64,
) -> Result<(Tensor, Tensor)> {
    let (rows, values) = rows_of(name, column, length as usize)?;
    let (from, to) = (rows.first().map_or(0, |row| row.start), rows.last().map_or(0, |row| row.end));
    let values = integers(name, &values.slice(from, to - from))?;
    let values = values.as_primitive::<Int64Type>().values();
    let mut tokens = vec![pad; rows.len() * length as usize];
    let mut lengths = Vec::with_capacity(rows.len());
    for (row, place) in rows.iter().zip(tokens.chunks_exact_mut(length as usize)) {
        let own = &values[row.start - from..row.end - from];
        check(name, own.iter().copied(), vocab)?;
        place[..own.len()].copy_from_slice(own);
        lengths.push(own.len() as i64);
    }
    let sizes = [rows.len() as i64, length];
    let tokens = tensor_from_owner(Buffer::from_vec(tokens), &sizes, Kind::Int64)?;
    Ok((tokens, tensor_from_owner(Buffer::from_vec(lengths), &sizes[..1], Kind::Int64)?))
}

/// How many tokens each row has; a null row has none.
pub fn lengths(name: &str, column: &dyn Array) -> Result<Vec<u32>> {
    let (rows, _) = rows_of(name, column, usize::MAX)?;
    let length = |row: Range<usize>| {
        u32::try_from(row.len()).with_context(|| format!("column `{name}` has a row of {} tokens", row.len()))
    };
    rows.into_iter().map(length).collect()
}

/// Where the first `length` tokens of each row lie among all values.
pub(super) fn rows_of(
    name: &str,
    column: &dyn Array,
    length: usize,
) -> Result<(Vec<Range<usize>>, ArrayRef)> {
    let row = |index: usize, start: usize, end: usize| match column.is_null(index) {
        true => start..start,
        false => start..end.min(start.saturating_add(length)),
    };
    if let Some(list) = column.as_list_opt::<i32>() {
        let ends = list.value_offsets().windows(2).enumerate();
        let rows = ends.map(|(index, pair)| row(index, pair[0] as usize, pair[1] as usize));
        return Ok((rows.collect(), list.values().clone()));
    }
    if let Some(list) = column.as_list_opt::<i64>() {
        let ends = list.value_offsets().windows(2).enumerate();
        let rows = ends.map(|(index, pair)| row(index, pair[0] as usize, pair[1] as usize));
        return Ok((rows.collect(), list.values().clone()));
    }
    bail!("column `{name}` is no list of varying length")
}

/// As 64-bit integers, without nulls.
pub(super) fn integers(name: &str, values: &ArrayRef) -> Result<ArrayRef> {
    ensure!(values.null_count() == 0, "column `{name}` has nulls inside, which are no tokens");
    let values = cast(values, &DataType::Int64).with_context(|| format!("the tokens in `{name}`"))?;
    ensure!(values.null_count() == 0, "column `{name}` holds a token beyond the range of Int64");
    Ok(values)
}

pub(super) fn check(name: &str, mut tokens: impl Iterator<Item = i64>, vocab: i64) -> Result<()> {
    match tokens.find(|token| !(0..vocab).contains(token)) {
        Some(bad) => {
            Err(anyhow!("column `{name}` holds the token {bad}, but --vocab {vocab} ends at {}", vocab - 1))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow::array::{FixedSizeListArray, Int32Array, Int64Array, LargeListArray, ListArray, UInt16Array};
    use arrow::datatypes::{Field, UInt16Type};

    #[test]
    fn tokens_of_any_integer_type_are_taken_and_checked() {
        let list = |values: ArrayRef| {
            let item = Arc::new(Field::new("item", values.data_type().clone(), true));
            FixedSizeListArray::new(item, 3, values, None)
        };
        let arrays: [ArrayRef; 3] = [
            Arc::new(UInt16Array::from(vec![1, 2, 3, 4, 5, 99])),
            Arc::new(Int32Array::from(vec![1, 2, 3, 4, 5, 99])),
            Arc::new(Int64Array::from(vec![1, 2, 3, 4, 5, 99])),
        ];
        for values in arrays {
            let tokens = whole("t", &list(values), 3, 100).unwrap().to_kind(Kind::Int64);
            assert_eq!(tokens.size(), [2, 3]);
            assert_eq!(Vec::<i64>::try_from(tokens.flatten(0, -1)).unwrap(), [1, 2, 3, 4, 5, 99]);
        }
        let wrong = "column `t` holds the token 100, but --vocab 100 ends at 99";
        for values in [
            Arc::new(UInt16Array::from(vec![1, 2, 100])) as ArrayRef,
            Arc::new(Int32Array::from(vec![1, 2, 100])),
        ] {
            assert_eq!(whole("t", &list(values), 3, 100).unwrap_err().to_string(), wrong);
        }
    }

    #[test]
    fn rows_of_any_length_are_cut_and_padded_also_of_a_slice() {
        let rows = [Some(vec![9, 9]), Some(vec![1, 2, 3, 4, 5]), None, Some(vec![]), Some(vec![6])];
        let rows = || rows.clone().map(|row| row.map(|row| row.into_iter().map(Some).collect::<Vec<_>>()));
        let small = ListArray::from_iter_primitive::<UInt16Type, _, _>(rows());
        let large = LargeListArray::from_iter_primitive::<UInt16Type, _, _>(rows());
        for column in [&small as &dyn Array, &large] {
            let (tokens, lengths) = padded("t", &column.slice(1, 4), 3, 10, 7).unwrap();
            assert_eq!(tokens.size(), [4, 3]);
            assert_eq!(super::lengths("t", column).unwrap(), [2, 5, 0, 0, 1]);
            let expected = [1, 2, 3, 7, 7, 7, 7, 7, 7, 6, 7, 7];
            assert_eq!(Vec::<i64>::try_from(tokens.flatten(0, -1)).unwrap(), expected);
            assert_eq!(Vec::<i64>::try_from(lengths).unwrap(), [3, 0, 0, 1]);
            // Tokens beyond the cut are not looked at.
            assert!(padded("t", &column.slice(1, 1), 3, 4, 0).is_ok());
            assert!(padded("t", column, 3, 9, 0).unwrap_err().to_string().contains("the token 9"));
        }
        let hole = ListArray::from_iter_primitive::<UInt16Type, _, _>([Some(vec![Some(1), None])]);
        assert!(padded("t", &hole, 3, 9, 0).unwrap_err().to_string().contains("nulls inside"));
    }
}
