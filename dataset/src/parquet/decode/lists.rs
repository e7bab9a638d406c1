//! Fixed-size lists of numbers, read without expanding their levels.
//!
//! The parquet crate's reader handles levels one by one, and a list of 784 bytes has 1,568 of them a row.
//! Where the levels say that nothing is null and every list is full, they tell nothing else: here they are
//! checked run by run, cut off, and the values are read like those of a flat column. Whatever does not fit is
//! left to the general reader.

use super::levels::{all_defined, all_of_length};
use crate::parquet::chunks::Chunks;
use crate::parquet::cost::is_full_list;
use crate::parquet::footer::RowGroups;
use arrow::array::{ArrayRef, ArrowPrimitiveType, FixedSizeListArray, PrimitiveArray};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::{
    DataType, Field, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReaderImpl, get_column_reader, get_typed_column_reader};
use parquet::data_type as physical;
use parquet::errors::ParquetError;
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::schema::types::ColumnDescriptor;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Values decoded at a time: they stay in the processor's cache until they are narrowed.
const STEP: usize = 16 << 10;

/// Column number `column` of the object, which becomes `field`, if it can be read this way.
pub(super) fn read(
    part: &RowGroups,
    chunks: &Chunks,
    column: usize,
    field: &Field,
) -> Result<Option<ArrayRef>, ParquetError> {
    let DataType::FixedSizeList(element, length) = field.data_type() else { return Ok(None) };
    let Some(lists) = Lists::new(part, chunks, column, *length) else { return Ok(None) };
    use physical as p;
    let values = match element.data_type() {
        DataType::Int8 => lists.values::<p::Int32Type, Int8Type>(|v| v as i8)?,
        DataType::Int16 => lists.values::<p::Int32Type, Int16Type>(|v| v as i16)?,
        DataType::Int32 => lists.values::<p::Int32Type, Int32Type>(|v| v)?,
        DataType::UInt8 => lists.values::<p::Int32Type, UInt8Type>(|v| v as u8)?,
        DataType::UInt16 => lists.values::<p::Int32Type, UInt16Type>(|v| v as u16)?,
        DataType::UInt32 => lists.values::<p::Int32Type, UInt32Type>(|v| v as u32)?,
        DataType::Int64 => lists.values::<p::Int64Type, Int64Type>(|v| v)?,
        DataType::UInt64 => lists.values::<p::Int64Type, UInt64Type>(|v| v as u64)?,
        DataType::Float32 => lists.values::<p::FloatType, Float32Type>(|v| v)?,
        DataType::Float64 => lists.values::<p::DoubleType, Float64Type>(|v| v)?,
        _ => None,
    };
    let Some(values) = values else { return Ok(None) };
    Ok(Some(Arc::new(FixedSizeListArray::try_new(element.clone(), *length, values, None)?)))
}

/// A column of lists that may be full.
struct Lists<'a> {
    part: &'a RowGroups,
    chunks: &'a Chunks,
    leaf: usize,
    length: u64,
    /// The leaf as if it were a column without levels.
    flat: Arc<ColumnDescriptor>,
}

impl<'a> Lists<'a> {
    fn new(part: &'a RowGroups, chunks: &'a Chunks, column: usize, length: i32) -> Option<Self> {
        let leaves = part.footer.leaves.get(column).filter(|l| l.len() == 1)?;
        let leaf = leaves.start;
        let length = u64::try_from(length).ok().filter(|n| *n > 0)?;
        let descriptor = part.footer.arrow.parquet_schema().column(leaf);
        let is_full = part.metadata().iter().all(|g| is_full_list(&part.footer, g, column));
        if descriptor.max_rep_level() != 1 || !is_full {
            return None;
        }
        let flat = ColumnDescriptor::new(descriptor.self_type_ptr(), 0, 0, descriptor.path().clone());
        Some(Self { part, chunks, leaf, length, flat: Arc::new(flat) })
    }

    /// All values; none if a list turns out not to be full. `narrow` is a type of its own each time: called
    /// by address, it costs as much as all the rest.
    fn values<P, A>(&self, narrow: impl Fn(P::T) -> A::Native) -> Result<Option<ArrayRef>, ParquetError>
    where
        P: physical::DataType,
        A: ArrowPrimitiveType,
    {
        if self.flat.physical_type() != P::get_physical_type() {
            return Ok(None);
        }
        let mut values: Vec<A::Native> = Vec::with_capacity((self.part.rows * self.length) as usize);
        let mut step: Vec<P::T> = Vec::with_capacity(STEP);
        for group in self.part.metadata() {
            let (chunk, rows) = (group.column(self.leaf), group.num_rows() as u64);
            if rows == 0 {
                continue;
            }
            let reader = Arc::new(self.chunks.clone());
            let pages = SerializedPageReader::new(reader, chunk, rows as usize, None)?;
            let ragged = Arc::new(AtomicBool::new(false));
            let flat = FlatPages {
                pages: Box::new(pages),
                length: self.length,
                max_definition: self.part.footer.arrow.parquet_schema().column(self.leaf).max_def_level(),
                before: 0,
                ragged: ragged.clone(),
            };
            let mut column: ColumnReaderImpl<P> =
                get_typed_column_reader(get_column_reader(self.flat.clone(), Box::new(flat)));
            let mut missing = (rows * self.length) as usize;
            while missing > 0 {
                step.clear();
                let read = match column.read_records(missing.min(STEP), None, None, &mut step) {
                    Ok((records, ..)) => records,
                    Err(_) if ragged.load(Relaxed) => return Ok(None),
                    Err(e) => return Err(e),
                };
                if read == 0 {
                    let name = chunk.column_path();
                    return Err(ParquetError::EOF(format!("column '{name}' lacks {missing} values")));
                }
                values.extend(step.iter().map(|v| narrow(v.clone())));
                missing = missing.saturating_sub(read);
            }
        }
        Ok(Some(Arc::new(PrimitiveArray::<A>::new(ScalarBuffer::from(values), None))))
    }
}

/// The pages of a column of full lists, their levels checked and cut off.
struct FlatPages {
    pages: Box<dyn PageReader>,
    length: u64,
    max_definition: i16,
    /// Values of the pages so far.
    before: u64,
    /// Set when levels say that a list is not full.
    ragged: Arc<AtomicBool>,
}

impl FlatPages {
    fn flatten(&mut self, page: Page) -> Result<Page, ParquetError> {
        let (values, encoding, count) = match page {
            Page::DictionaryPage { .. } => return Ok(page),
            Page::DataPage { buf, num_values, encoding, def_level_encoding, rep_level_encoding, .. } => {
                let rle = def_level_encoding == Encoding::RLE && rep_level_encoding == Encoding::RLE;
                let (repetition, rest) = prefixed(&buf).filter(|_| rle).ok_or_else(|| self.give_up())?;
                let (definition, rest) = match self.max_definition {
                    0 => (Bytes::new(), rest),
                    _ => prefixed(&rest).ok_or_else(|| self.give_up())?,
                };
                self.check(&repetition, &definition, num_values)?;
                (rest, encoding, num_values)
            }
            Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                num_nulls,
                def_levels_byte_len,
                rep_levels_byte_len,
                ..
            } => {
                let (repetition, definition) = (rep_levels_byte_len as usize, def_levels_byte_len as usize);
                if num_nulls > 0 || repetition + definition > buf.len() {
                    return Err(self.give_up());
                }
                let levels = (buf.slice(..repetition), buf.slice(repetition..repetition + definition));
                self.check(&levels.0, &levels.1, num_values)?;
                (buf.slice(repetition + definition..), encoding, num_values)
            }
        };
        self.before += u64::from(count);
        Ok(Page::DataPage {
            buf: values,
            num_values: count,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        })
    }

    fn check(&self, repetition: &[u8], definition: &[u8], count: u32) -> Result<(), ParquetError> {
        let count = u64::from(count);
        let full = all_defined(definition, self.max_definition, count)
            && all_of_length(repetition, self.length, self.before, count);
        if full { Ok(()) } else { Err(self.give_up()) }
    }

    fn give_up(&self) -> ParquetError {
        self.ragged.store(true, Relaxed);
        ParquetError::General("a list is not full".into())
    }
}

/// Bytes preceded by their length, and what follows them.
fn prefixed(buf: &Bytes) -> Option<(Bytes, Bytes)> {
    let length = u32::from_le_bytes(*buf.first_chunk()?) as usize;
    let end = length.checked_add(4).filter(|end| *end <= buf.len())?;
    Some((buf.slice(4..end), buf.slice(end..)))
}

impl Iterator for FlatPages {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for FlatPages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        match self.pages.get_next_page()? {
            Some(page) => self.flatten(page).map(Some),
            None => Ok(None),
        }
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.pages.skip_next_page()
    }
}
