//! Marks: one number for the values of each row, and one for an epoch. Epochs have equal marks if each sample
//! came once, with its own values, in whatever order.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int64Type, UInt8Type};

/// An odd number without a pattern.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// What stands for a null: the bits of no double that there is.
const NULL: u64 = u64::MAX;

/// The mark of each row.
pub fn row_marks(columns: &RecordBatch) -> anyhow::Result<Vec<u64>> {
    let mut marks = vec![0; columns.num_rows()];
    columns.columns().iter().try_for_each(|column| add_column(&mut marks, column))?;
    Ok(marks)
}

/// What a sample adds to the mark of its epoch.
pub fn sample_mark(sample: u64, row_mark: u64) -> u64 {
    add(add(FACTOR, sample), row_mark)
}

/// A wrapping sum: of samples in any order, and of ranks.
pub fn sum(marks: impl IntoIterator<Item = u64>) -> u64 {
    marks.into_iter().fold(0, u64::wrapping_add)
}

fn add_column(marks: &mut [u64], column: &ArrayRef) -> anyhow::Result<()> {
    let may_have_nulls = matches!(column.data_type(), DataType::Float64 | DataType::Utf8);
    anyhow::ensure!(may_have_nulls || column.null_count() == 0, "a column has nulls");
    match column.data_type() {
        DataType::Float32 => {
            let values = column.as_primitive::<Float32Type>().values();
            add_all(marks, values.iter().map(|value| u64::from(value.to_bits())));
        }
        DataType::Float64 => {
            let values = column.as_primitive::<Float64Type>().iter();
            add_all(marks, values.map(|value| value.map_or(NULL, f64::to_bits)));
        }
        DataType::Int64 => {
            let values = column.as_primitive::<Int64Type>().values();
            add_all(marks, values.iter().map(|value| *value as u64));
        }
        DataType::FixedSizeList(..) => {
            let list = column.as_fixed_size_list();
            let (first, width) = (list.value_offset_at(0), list.value_length() as usize);
            let bytes = &list.values().as_primitive::<UInt8Type>().values()[first..];
            add_all(marks, bytes.chunks_exact(width).map(of_bytes));
        }
        DataType::Binary => {
            let values = column.as_binary::<i32>();
            add_all(marks, (0..values.len()).map(|row| of_bytes(values.value(row))));
        }
        DataType::Utf8 => {
            let values = column.as_string::<i32>().iter();
            add_all(marks, values.map(|value| value.map_or(NULL, |text| of_bytes(text.as_bytes()))));
        }
        other => anyhow::bail!("a column is {other}"),
    }
    Ok(())
}

fn add_all(marks: &mut [u64], words: impl Iterator<Item = u64>) {
    marks.iter_mut().zip(words).for_each(|(mark, word)| *mark = add(*mark, word));
}

fn of_bytes(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mark = words.iter().fold(bytes.len() as u64, |mark, word| add(mark, u64::from_le_bytes(*word)));
    rest.iter().fold(mark, |mark, byte| add(mark, u64::from(*byte)))
}

fn add(mark: u64, word: u64) -> u64 {
    (mark.rotate_left(23) ^ word).wrapping_mul(FACTOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::warm::shape::Shape;
    use arrow::array::{Float64Array, StringArray};
    use fastrand::Rng;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    #[test]
    fn a_slice_has_the_marks_of_its_rows_and_no_two_rows_are_alike() {
        for shape in Shape::ALL {
            let batch = shape.batch(8, 0, &mut Rng::with_seed(1)).expect("a batch");
            let marks = row_marks(&batch).expect("marks");
            assert_eq!(row_marks(&batch.slice(3, 4)).expect("marks"), marks[3..7]);
            assert_eq!(marks.iter().collect::<BTreeSet<_>>().len(), 8, "{shape:?}");
        }
        assert_ne!(
            sum([sample_mark(0, 7), sample_mark(1, 8)]),
            sum([sample_mark(0, 8), sample_mark(1, 7)]),
            "values that changed places"
        );
    }

    #[test]
    fn a_null_is_neither_zero_nor_empty() {
        let mark = |value: Option<f64>, text: Option<&str>| {
            let value = Arc::new(Float64Array::from(vec![value])) as ArrayRef;
            let text = Arc::new(StringArray::from(vec![text])) as ArrayRef;
            let columns = [("value", value, true), ("text", text, true)];
            row_marks(&RecordBatch::try_from_iter_with_nullable(columns).expect("a batch")).expect("marks")
        };
        let texts = [None, Some("")];
        let marks = [None, Some(0.0)].into_iter().flat_map(|value| texts.map(|text| mark(value, text)));
        assert_eq!(marks.collect::<BTreeSet<_>>().len(), 4);
    }
}
