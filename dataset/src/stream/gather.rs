//! Gather: chosen rows of segments, in the chosen order, as one batch.
//!
//! Packed rows are copied as they are. Columns of fixed width without nulls, strings and binaries are copied
//! value by value into one buffer; every other column goes through Arrow's `interleave`. Many rows that lie
//! side by side are not copied where the pool lends: the batch shares their buffer.

use crate::packed::{Form, PackedSchema, RowLayout, value_buffer};
use crate::pool::Pool;
use crate::prefetch::{prefetch, rows_ahead};
use crate::segment_batch::SegmentBatch;
use crate::shared::MessagePool;
use arrow::array::{Array, ArrayData, ArrayRef, AsArray, GenericByteArray, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer};
use arrow::compute::interleave;
use arrow::datatypes::{
    ArrowNativeType, BinaryType, ByteArrayType, DataType, LargeBinaryType, LargeUtf8Type, ToByteSlice,
    Utf8Type,
};
use arrow::error::ArrowError;
use forebay_proto::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// A chosen row: index into the sources, row in that source.
pub type Pick = (usize, usize);

/// Bytes that are worth sharing rather than copied: they become a part of the message by themselves.
pub(super) const LENT_BYTES: usize = 64 << 10;

/// The picked rows of `sources`, which all have the columns of `wanted`. Of narrow columns those are packed
/// that any source holds packed; with [`Form::Packed`] all. `Invalid` if a pick lies outside.
#[tracing::instrument(level = "trace", skip_all)]
pub fn gather(
    wanted: &PackedSchema,
    sources: &[&SegmentBatch],
    picks: &[Pick],
    form: Form,
    pool: &MessagePool,
) -> Result<SegmentBatch> {
    if let Some(bad) = picks.iter().find(|p| sources.get(p.0).is_none_or(|s| p.1 >= s.num_rows())) {
        return Err(Error::invalid(format!("gather: there is no row {} in source {}", bad.1, bad.0)));
    }
    let layout = match (form, &wanted.layout) {
        (Form::Packed, Some(layout)) => layout.clone(),
        _ => RowLayout::over(&wanted.schema, |c| sources.iter().any(|source| source.is_packed(c))),
    };
    let mut others = Vec::new();
    for c in (0..wanted.schema.fields().len()).filter(|c| !layout.has(*c)) {
        let arrays = sources.iter().map(|source| source.array(c)).collect::<Result<Vec<_>>>()?;
        let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
        others.push(column(wanted.schema.field(c).data_type(), &arrays, picks, pool)?);
    }
    let rows = packed_rows(&layout, sources, picks, form, pool)?;
    Ok(SegmentBatch::of_rows(&wanted.schema, &layout, rows, others, picks.len()))
}

fn packed_rows(
    layout: &RowLayout,
    sources: &[&SegmentBatch],
    picks: &[Pick],
    form: Form,
    pool: &MessagePool,
) -> Result<Buffer> {
    if layout.columns.is_empty() {
        return Ok(Buffer::default());
    }
    let bytes = picks.len() * layout.width;
    if let Some((source, row)) = lent(picks, bytes, pool)
        && let Some(rows) = sources[source].whole_rows(layout)
    {
        return Ok(rows.bytes.slice_with_length(row * layout.width, bytes));
    }
    if form == Form::Packed && pool.refers() {
        let blocks = sources.iter().map(|source| Some(&source.whole_rows(layout)?.bytes));
        let blocks: Option<Vec<&Buffer>> = blocks.collect();
        if let Some(rows) = blocks.and_then(|blocks| pool.refer(&blocks, layout.width, runs(picks))) {
            return Ok(rows);
        }
    }
    let sources = sources.iter().map(|source| source.source(layout)).collect::<Result<Vec<_>>>()?;
    let mut out = pool.take(bytes);
    let (mut rest, mut ahead) = (out.as_slice_mut(), runs(picks).skip(rows_ahead(layout.width)));
    for (source, row, count) in runs(picks) {
        if let Some(next) = ahead.next().and_then(|(source, row, _)| sources[source].row(row, layout)) {
            prefetch(next);
        }
        let (now, after) = rest.split_at_mut(count * layout.width);
        sources[source].copy(row, layout, now);
        rest = after;
    }
    Ok(pool.share(out, bytes))
}

/// Picks of consecutive rows together: source, first row, rows.
fn runs(picks: &[Pick]) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
    let continues = |a: &Pick, b: &Pick| a.0 == b.0 && a.1 + 1 == b.1;
    picks.chunk_by(continues).map(|run| (run[0].0, run[0].1, run.len()))
}

/// Source and first row of picks that need no copy: their rows, `bytes` long, lie side by side.
fn lent(picks: &[Pick], bytes: usize, pool: &MessagePool) -> Option<Pick> {
    let first = *picks.first().filter(|_| pool.lends() && bytes >= LENT_BYTES)?;
    (runs(picks).nth(1).is_none()).then_some(first)
}

fn column(
    data_type: &DataType,
    arrays: &[&dyn Array],
    picks: &[Pick],
    pool: &MessagePool,
) -> Result<ArrayRef> {
    let plain: Option<Vec<(&Buffer, usize)>> = arrays.iter().map(|a| plain_values(*a)).collect();
    let bad = |e: ArrowError| Error::invalid(format!("gather a column of {data_type}: {e}"));
    match (plain, plain_width(data_type)) {
        (Some(sources), Some(width)) => {
            plain_array(data_type, picks.len(), rows(&sources, width, picks, pool))
        }
        _ => match data_type {
            DataType::Binary => variable::<BinaryType>(arrays, picks, pool),
            DataType::Utf8 => variable::<Utf8Type>(arrays, picks, pool),
            DataType::LargeBinary => variable::<LargeBinaryType>(arrays, picks, pool),
            DataType::LargeUtf8 => variable::<LargeUtf8Type>(arrays, picks, pool),
            _ => interleave(arrays, picks),
        }
        .map_err(bad),
    }
}

/// Binaries or strings: their places first, so that the bytes go straight to theirs. Offsets lie anywhere in
/// memory, as the bytes do: each is looked at once.
fn variable<T: ByteArrayType>(
    arrays: &[&dyn Array],
    picks: &[Pick],
    pool: &MessagePool,
) -> Result<ArrayRef, ArrowError> {
    let arrays: Vec<&GenericByteArray<T>> = arrays.iter().map(|array| array.as_bytes::<T>()).collect();
    let place = |&(source, row): &Pick| {
        let offsets = &arrays[source].value_offsets()[row..row + 2];
        offsets[0].as_usize()..offsets[1].as_usize()
    };
    let mut ahead = picks.iter().skip(rows_ahead(2 * size_of::<T::Offset>()));
    let places = picks.iter().map(|pick| {
        if let Some(&(source, row)) = ahead.next() {
            prefetch(arrays[source].value_offsets()[row..row + 2].to_byte_slice());
        }
        place(pick)
    });
    let places: Vec<Range<usize>> = places.collect();
    let bytes: usize = places.iter().map(Range::len).sum();
    T::Offset::from_usize(bytes).ok_or(ArrowError::OffsetOverflowError(bytes))?;
    let buffers: Vec<&Buffer> = arrays.iter().map(|array| array.values()).collect();
    let mut at = 0;
    let stretches = runs(picks).map(|(source, _, count)| {
        at += count;
        (source, places[at - count].start..places[at - 1].end)
    });
    let stretches: Vec<(usize, Range<usize>)> = stretches.collect();
    // Bytes of strings are looked at when the message is put together.
    let referred = if matches!(T::DATA_TYPE, DataType::Binary | DataType::LargeBinary) {
        pool.refer(&buffers, 1, stretches.iter().map(|(source, place)| (*source, place.start, place.len())))
    } else {
        None
    };
    let values = match (lent(picks, bytes, pool), referred) {
        (Some((source, _)), _) => arrays[source].values().slice_with_length(places[0].start, bytes),
        (None, Some(referred)) => referred,
        (None, None) => {
            let mut values = pool.take(bytes);
            let mean = bytes / stretches.len().max(1);
            let all = stretches.iter().map(|(source, place)| &buffers[*source][place.clone()]);
            let (mut rest, mut ahead) = (values.as_slice_mut(), all.clone().skip(rows_ahead(mean)));
            for stretch in all {
                if let Some(next) = ahead.next() {
                    prefetch(next);
                }
                let (now, after) = rest.split_at_mut(stretch.len());
                now.copy_from_slice(stretch);
                rest = after;
            }
            pool.share(values, bytes)
        }
    };
    let nulls = picked_nulls(&arrays, picks);
    let offsets = OffsetBuffer::from_lengths(places.iter().map(Range::len));
    let array = GenericByteArray::<T>::try_new(offsets, values, nulls)?;
    Ok(Arc::new(array))
}

/// Which of the picked rows are null; `None` where no source has a null.
fn picked_nulls(arrays: &[impl Array], picks: &[Pick]) -> Option<NullBuffer> {
    let nulls: Vec<Option<&NullBuffer>> =
        arrays.iter().map(|array| array.nulls().filter(|nulls| nulls.null_count() > 0)).collect();
    let is_valid = |at: usize| {
        if let Some(&(source, row)) = picks.get(at + rows_ahead(1))
            && let Some(nulls) = nulls[source]
        {
            prefetch(&nulls.validity()[(nulls.offset() + row) / 8..][..1]);
        }
        nulls[picks[at].0].is_none_or(|nulls| nulls.is_valid(picks[at].1))
    };
    let has_nulls = nulls.iter().any(Option::is_some);
    has_nulls.then(|| NullBuffer::new(BooleanBuffer::collect_bool(picks.len(), is_valid)))
}

/// Arrays of one type, one after the other. The bytes of strings and binaries come to lie in a buffer of the
/// pool.
pub fn concat(arrays: &[&dyn Array], pool: &Pool) -> Result<ArrayRef, ArrowError> {
    match arrays.first().map(|array| array.data_type()) {
        Some(DataType::Binary) => concat_variable::<BinaryType>(arrays, pool),
        Some(DataType::Utf8) => concat_variable::<Utf8Type>(arrays, pool),
        Some(DataType::LargeBinary) => concat_variable::<LargeBinaryType>(arrays, pool),
        Some(DataType::LargeUtf8) => concat_variable::<LargeUtf8Type>(arrays, pool),
        _ => arrow::compute::concat(arrays),
    }
}

fn concat_variable<T: ByteArrayType>(arrays: &[&dyn Array], pool: &Pool) -> Result<ArrayRef, ArrowError> {
    let arrays: Vec<&GenericByteArray<T>> = arrays.iter().map(|array| array.as_bytes::<T>()).collect();
    let place = |array: &GenericByteArray<T>| {
        let offsets = array.value_offsets();
        offsets[0].as_usize()..offsets[array.len()].as_usize()
    };
    let bytes: usize = arrays.iter().map(|array| place(array).len()).sum();
    T::Offset::from_usize(bytes).ok_or(ArrowError::OffsetOverflowError(bytes))?;
    let mut values = pool.take(bytes);
    let mut rest = values.as_slice_mut();
    for array in &arrays {
        let (now, after) = rest.split_at_mut(place(array).len());
        now.copy_from_slice(&array.value_data()[place(array)]);
        rest = after;
    }
    let offsets = OffsetBuffer::from_lengths(arrays.iter().flat_map(|array| array.offsets().lengths()));
    let has_nulls = arrays.iter().any(|array| array.null_count() > 0);
    let valid =
        |array: &&GenericByteArray<T>| (0..array.len()).map(|row| array.is_valid(row)).collect::<Vec<_>>();
    let nulls = has_nulls.then(|| arrays.iter().flat_map(valid).collect());
    let array = GenericByteArray::<T>::try_new(offsets, pool.share(values, bytes), nulls)?;
    Ok(Arc::new(array))
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

/// The values of a plain column without nulls at any level, one after the other: the buffer that they begin
/// in, and their length.
fn plain_values(array: &dyn Array) -> Option<(&Buffer, usize)> {
    if array.null_count() > 0 {
        return None;
    }
    let (values, bytes) = match array.data_type() {
        DataType::FixedSizeList(item, n) => {
            let bytes = plain_width(item.data_type())? * usize::try_from(*n).ok()? * array.len();
            (plain_values(array.as_fixed_size_list().values().as_ref())?.0, bytes)
        }
        _ => value_buffer(array)?,
    };
    (bytes <= values.len()).then_some((values, bytes))
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

fn rows(sources: &[(&Buffer, usize)], width: usize, picks: &[Pick], pool: &MessagePool) -> Buffer {
    let bytes = picks.len() * width;
    if let Some((source, row)) = lent(picks, bytes, pool) {
        return sources[source].0.slice_with_length(row * width, bytes);
    }
    let buffers: Vec<&Buffer> = sources.iter().map(|(values, _)| *values).collect();
    if let Some(rows) = pool.refer(&buffers, width, runs(picks)) {
        return rows;
    }
    let sources: Vec<&[u8]> = sources.iter().map(|(values, bytes)| &values[..*bytes]).collect();
    let sources = &sources[..];
    match width {
        1 => narrow(sources, picks, u8::from_ne_bytes),
        2 => narrow(sources, picks, u16::from_ne_bytes),
        4 => narrow(sources, picks, u32::from_ne_bytes),
        8 => narrow(sources, picks, u64::from_ne_bytes),
        16 => narrow(sources, picks, i128::from_ne_bytes),
        _ => {
            let mut out = pool.take(bytes);
            let (mut rest, mut ahead) = (out.as_slice_mut(), runs(picks).skip(rows_ahead(width)));
            for (source, row, count) in runs(picks) {
                if let Some((source, row, _)) = ahead.next() {
                    prefetch(&sources[source][row * width..(row + 1) * width]);
                }
                let (now, after) = rest.split_at_mut(count * width);
                now.copy_from_slice(&sources[source][row * width..][..now.len()]);
                rest = after;
            }
            pool.share(out, bytes)
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
