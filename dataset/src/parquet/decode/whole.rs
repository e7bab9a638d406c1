//! Columns without nulls, read without expanding their levels: numbers, full lists of numbers, and binaries
//! and strings whose bytes lie side by side.
//!
//! The parquet crate's reader handles levels one by one, and a list of 784 bytes has 1,568 of them a row. It
//! also lets the bytes of strings grow as they come, and copies them each time. Here memory is taken once.

use super::leaf::{FlatPages, Leaf, lacks, more, named};
use crate::parquet::chunks::Chunks;
use crate::parquet::cost::is_full_list;
use crate::parquet::footer::RowGroups;
use arrow::array::{
    ArrayRef, ArrowPrimitiveType, FixedSizeListArray, GenericByteArray, OffsetSizeTrait, PrimitiveArray,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{
    BinaryType, ByteArrayType, DataType, Field, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, LargeBinaryType, LargeUtf8Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type, Utf8Type,
};
use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageReader};
use parquet::data_type as physical;
use parquet::errors::ParquetError;
use std::sync::Arc;

/// Column number `column` of the object, which becomes `field`, if it can be read this way.
pub(super) fn read(
    part: &RowGroups,
    chunks: &Chunks,
    column: usize,
    field: &Field,
) -> Result<Option<ArrayRef>, ParquetError> {
    match field.data_type() {
        DataType::FixedSizeList(element, length) => list(part, chunks, column, (element, *length)),
        data_type => {
            let leaf = Leaf::new(part, chunks, column, None).filter(Leaf::is_said_to_be_whole);
            let Some(leaf) = leaf else { return Ok(None) };
            match data_type {
                DataType::Binary => strings::<BinaryType>(&leaf),
                DataType::LargeBinary => strings::<LargeBinaryType>(&leaf),
                DataType::Utf8 => strings::<Utf8Type>(&leaf),
                DataType::LargeUtf8 => strings::<LargeUtf8Type>(&leaf),
                number => numbers(&leaf, number),
            }
        }
    }
}

fn list(
    part: &RowGroups,
    chunks: &Chunks,
    column: usize,
    (element, length): (&Arc<Field>, i32),
) -> Result<Option<ArrayRef>, ParquetError> {
    let Some(values) = u64::try_from(length).ok().filter(|n| *n > 0) else { return Ok(None) };
    let is_full = part.metadata().iter().all(|g| is_full_list(&part.footer, g, column));
    let Some(leaf) = Leaf::new(part, chunks, column, Some(values)).filter(|_| is_full) else {
        return Ok(None);
    };
    let Some(values) = numbers(&leaf, element.data_type())? else { return Ok(None) };
    Ok(Some(Arc::new(FixedSizeListArray::try_new(element.clone(), length, values, None)?)))
}

/// All values of a column of numbers.
fn numbers(leaf: &Leaf<'_>, data_type: &DataType) -> Result<Option<ArrayRef>, ParquetError> {
    use physical as p;
    match data_type {
        DataType::Int8 => of::<Int8Type>(leaf.numbers::<p::Int32Type, _>(|v| v as i8)?),
        DataType::Int16 => of::<Int16Type>(leaf.numbers::<p::Int32Type, _>(|v| v as i16)?),
        DataType::Int32 => of::<Int32Type>(leaf.numbers::<p::Int32Type, _>(|v| v)?),
        DataType::UInt8 => of::<UInt8Type>(leaf.numbers::<p::Int32Type, _>(|v| v as u8)?),
        DataType::UInt16 => of::<UInt16Type>(leaf.numbers::<p::Int32Type, _>(|v| v as u16)?),
        DataType::UInt32 => of::<UInt32Type>(leaf.numbers::<p::Int32Type, _>(|v| v as u32)?),
        DataType::Int64 => of::<Int64Type>(leaf.numbers::<p::Int64Type, _>(|v| v)?),
        DataType::UInt64 => of::<UInt64Type>(leaf.numbers::<p::Int64Type, _>(|v| v as u64)?),
        DataType::Float32 => of::<Float32Type>(leaf.numbers::<p::FloatType, _>(|v| v)?),
        DataType::Float64 => of::<Float64Type>(leaf.numbers::<p::DoubleType, _>(|v| v)?),
        _ => Ok(None),
    }
}

fn of<A: ArrowPrimitiveType>(values: Option<Vec<A::Native>>) -> Result<Option<ArrayRef>, ParquetError> {
    let array = |values| Arc::new(PrimitiveArray::<A>::new(ScalarBuffer::from(values), None)) as ArrayRef;
    Ok(values.map(array))
}

/// All values of a column of binaries or strings that has no dictionary: their bytes are known beforehand.
fn strings<T: ByteArrayType>(leaf: &Leaf<'_>) -> Result<Option<ArrayRef>, ParquetError> {
    let is_plain =
        |chunk| Leaf::has_only(chunk, &[Encoding::PLAIN]) && chunk.column_type() == Type::BYTE_ARRAY;
    if !leaf.chunks().all(|(chunk, _)| is_plain(chunk)) {
        return Ok(None);
    }
    // With their lengths, of 4 bytes each, and the pages' levels: hardly more than the values alone. A footer
    // that lies costs no more memory than was taken for what it says.
    let bytes = leaf.chunks().map(|(chunk, _)| usize::try_from(chunk.uncompressed_size()).unwrap_or(0));
    let mut values: Vec<u8> = Vec::with_capacity(bytes.fold(0, usize::saturating_add));
    let mut offsets: Vec<T::Offset> = Vec::with_capacity(leaf.count().saturating_add(1));
    offsets.push(T::Offset::default());
    for (chunk, count) in leaf.chunks() {
        let mut pages = leaf.pages(chunk, count)?;
        match bytes_of(&mut pages, count, &mut values, &mut offsets) {
            Err(_) if pages.are_others() => return Ok(None),
            read => read.map_err(|e| named(&e, chunk))?,
        }
    }
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    // Bytes that are no text: the general reader names the mistake.
    let array = GenericByteArray::<T>::try_new(offsets, values.into(), None);
    Ok(array.ok().map(|array| Arc::new(array) as ArrayRef))
}

fn bytes_of<O: OffsetSizeTrait>(
    pages: &mut FlatPages,
    mut missing: usize,
    values: &mut Vec<u8>,
    offsets: &mut Vec<O>,
) -> Result<(), ParquetError> {
    while missing > 0 {
        let page = pages.get_next_page()?.ok_or_else(|| lacks(missing))?;
        let Page::DataPage { buf, num_values, encoding: Encoding::PLAIN, .. } = page else {
            return Err(pages.give_up());
        };
        let now = num_values as usize;
        missing = missing.checked_sub(now).ok_or_else(more)?;
        let mut rest = &buf[..];
        for _ in 0..now {
            let (length, after) = rest.split_first_chunk().ok_or_else(|| lacks(now))?;
            let length = u32::from_le_bytes(*length) as usize;
            let (value, after) = after.split_at_checked(length).ok_or_else(|| lacks(now))?;
            values.extend_from_slice(value);
            let end = O::from_usize(values.len());
            offsets.push(end.ok_or_else(|| ParquetError::General("the offsets overflow".into()))?);
            rest = after;
        }
    }
    Ok(())
}
