//! Gather: chosen rows of segments, in the chosen order, as one batch.
//!
//! Columns of fixed width without nulls are copied row by row into one buffer; every other column goes
//! through Arrow's `interleave`.

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, make_array};
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::compute::interleave;
use arrow::datatypes::{ArrowNativeType, DataType, SchemaRef};
use arrow::error::ArrowError;
use forebay_proto::{Error, Result};

/// A chosen row: index into the sources, row in that source.
pub type Pick = (usize, usize);

/// The picked rows of `sources`, which all have `schema`. `Invalid` if a pick lies outside.
#[tracing::instrument(level = "trace", skip_all)]
pub fn gather(schema: &SchemaRef, sources: &[&RecordBatch], picks: &[Pick]) -> Result<RecordBatch> {
    if let Some(bad) = picks.iter().find(|p| sources.get(p.0).is_none_or(|s| p.1 >= s.num_rows())) {
        return Err(Error::invalid(format!("gather: there is no row {} in source {}", bad.1, bad.0)));
    }
    let columns = (0..schema.fields().len())
        .map(|c| {
            let arrays: Vec<&dyn Array> = sources.iter().map(|s| s.column(c).as_ref()).collect();
            column(schema.field(c).data_type(), &arrays, picks)
        })
        .collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(picks.len()));
    RecordBatch::try_new_with_options(schema.clone(), columns, &options)
        .map_err(|e| Error::invalid(format!("gather: {e}")))
}

fn column(data_type: &DataType, arrays: &[&dyn Array], picks: &[Pick]) -> Result<ArrayRef> {
    let plain: Option<Vec<&[u8]>> = arrays.iter().map(|a| plain_bytes(*a)).collect();
    let bad = |e: ArrowError| Error::invalid(format!("gather a column of {data_type}: {e}"));
    match (plain, plain_width(data_type)) {
        (Some(sources), Some(width)) => plain_array(data_type, picks.len(), rows(&sources, width, picks)),
        _ => interleave(arrays, picks).map_err(bad),
    }
}

/// Bytes of one value of a type whose values lie side by side in whole bytes; `None` for every other type.
pub fn plain_width(data_type: &DataType) -> Option<usize> {
    let width = match data_type {
        DataType::FixedSizeBinary(n) => usize::try_from(*n).ok()?,
        DataType::FixedSizeList(item, n) => {
            plain_width(item.data_type())?.checked_mul(usize::try_from(*n).ok()?)?
        }
        other => other.primitive_width()?,
    };
    (width > 0).then_some(width)
}

/// The values of a plain column without nulls at any level, one after the other.
fn plain_bytes(array: &dyn Array) -> Option<&[u8]> {
    if array.null_count() > 0 {
        return None;
    }
    match array.data_type() {
        DataType::FixedSizeList(item, n) => {
            let bytes = plain_width(item.data_type())? * usize::try_from(*n).ok()? * array.len();
            plain_bytes(array.as_fixed_size_list().values().as_ref())?.get(..bytes)
        }
        DataType::FixedSizeBinary(n) => {
            array.as_fixed_size_binary().value_data().get(..array.len() * usize::try_from(*n).ok()?)
        }
        t if t.is_primitive() => {
            let width = t.primitive_width()?;
            arrow::downcast_primitive_array!(
                array => {
                    let bytes = array.values().inner().as_slice();
                    bytes.get(..array.len() * width)
                }
                _ => None
            )
        }
        _ => None,
    }
}

/// A plain column of `rows` values over their bytes, without nulls.
pub fn plain_array(data_type: &DataType, rows: usize, values: Buffer) -> Result<ArrayRef> {
    fn data(t: &DataType, rows: usize, values: Buffer) -> Result<ArrayData, ArrowError> {
        let builder = ArrayData::builder(t.clone()).len(rows);
        match t {
            DataType::FixedSizeList(item, n) => {
                builder.add_child_data(data(item.data_type(), rows * *n as usize, values)?).build()
            }
            _ => builder.add_buffer(values).build(),
        }
    }
    data(data_type, rows, values)
        .map(make_array)
        .map_err(|e| Error::corrupt(format!("a column of {data_type} cannot be put together: {e}")))
}

fn rows(sources: &[&[u8]], width: usize, picks: &[Pick]) -> Buffer {
    match width {
        1 => narrow(sources, picks, u8::from_ne_bytes),
        2 => narrow(sources, picks, u16::from_ne_bytes),
        4 => narrow(sources, picks, u32::from_ne_bytes),
        8 => narrow(sources, picks, u64::from_ne_bytes),
        16 => narrow(sources, picks, i128::from_ne_bytes),
        _ => {
            let mut out = MutableBuffer::with_capacity(picks.len() * width);
            picks.iter().for_each(|&(s, r)| out.extend_from_slice(&sources[s][r * width..][..width]));
            out.into()
        }
    }
}

/// Values that fit a register: written once, each after one look at its source.
fn narrow<const W: usize, T: ArrowNativeType>(
    sources: &[&[u8]],
    picks: &[Pick],
    value: impl Fn([u8; W]) -> T,
) -> Buffer {
    let sources: Vec<&[[u8; W]]> = sources.iter().map(|bytes| bytes.as_chunks().0).collect();
    Buffer::from_vec(picks.iter().map(|&(s, r)| value(sources[s][r])).collect::<Vec<T>>())
}

#[cfg(test)]
mod tests;
