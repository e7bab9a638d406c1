//! A column whose levels tell nothing: nothing is null, and lists are full. Its levels are checked run by run
//! and cut off, and its values are read like those of a flat column that is required.
//!
//! Whatever does not fit is left to the general reader.

use super::levels::{all_defined, all_of_length};
use super::page_values::{StoredNumber, indexed, plain};
use crate::parquet::chunks::Chunks;
use crate::parquet::footer::RowGroups;
use crate::parquet::page_bodies::prefixed;
use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReaderImpl, get_column_reader, get_typed_column_reader};
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::schema::types::ColumnDescriptor;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Values decoded at a time: they stay in the processor's cache until they are narrowed.
const STEP: usize = 16 << 10;

/// Such a column, as far as the footer tells.
pub(super) struct Leaf<'a> {
    part: &'a RowGroups,
    chunks: &'a Chunks,
    leaf: usize,
    /// Values of a list; `None` if it is no list.
    length: Option<u64>,
    max_definition: i16,
    /// As if it were a column without levels.
    flat: Arc<ColumnDescriptor>,
}

impl<'a> Leaf<'a> {
    /// Column number `column` of the object, of lists of `length` values or of no lists; `None` if it is
    /// another one.
    pub fn new(part: &'a RowGroups, chunks: &'a Chunks, column: usize, length: Option<u64>) -> Option<Self> {
        let leaf = part.footer.leaves.get(column).filter(|l| l.len() == 1)?.start;
        let descriptor = part.footer.arrow.parquet_schema().column(leaf);
        let max_definition = descriptor.max_def_level();
        if descriptor.max_rep_level() != i16::from(length.is_some()) {
            return None;
        }
        let flat = ColumnDescriptor::new(descriptor.self_type_ptr(), 0, 0, descriptor.path().clone());
        Some(Self { part, chunks, leaf, length, max_definition, flat: Arc::new(flat) })
    }

    /// Its column chunks that hold rows, each with how many values it has to have.
    pub fn chunks(&self) -> impl Iterator<Item = (&'a ColumnChunkMetaData, usize)> {
        let groups: &'a [RowGroupMetaData] = self.part.metadata();
        let (leaf, length) = (self.leaf, self.length.unwrap_or(1));
        let of = move |group: &'a RowGroupMetaData| {
            let values = u64::try_from(group.num_rows()).unwrap_or(0).saturating_mul(length);
            (group.column(leaf), usize::try_from(values).unwrap_or(usize::MAX))
        };
        groups.iter().filter(|group| group.num_rows() > 0).map(of)
    }

    /// How many values it has to have.
    pub fn count(&self) -> usize {
        self.chunks().fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// Whether its writer says that no value of it is null.
    pub fn is_said_to_be_whole(&self) -> bool {
        self.max_definition == 0
            || self.chunks().all(|(c, _)| c.statistics().and_then(|s| s.null_count_opt()) == Some(0))
    }

    /// Whether a column chunk has pages in these encodings alone.
    pub fn has_only(chunk: &ColumnChunkMetaData, encodings: &[Encoding]) -> bool {
        // Levels are in the list too.
        let of_levels = [Encoding::RLE];
        chunk.encodings().all(|encoding| encodings.contains(&encoding) || of_levels.contains(&encoding))
    }

    /// The pages of a column chunk.
    pub fn pages(&self, chunk: &ColumnChunkMetaData, rows: usize) -> Result<FlatPages, ParquetError> {
        let pages = SerializedPageReader::new(Arc::new(self.chunks.clone()), chunk, rows, None)?;
        Ok(FlatPages {
            pages: Box::new(pages),
            length: self.length,
            max_definition: self.max_definition,
            before: 0,
            is_other: Arc::default(),
        })
    }

    /// All its values; `None` if the levels tell something after all. `narrow` is a type of its own each
    /// time: called by address, it costs as much as all the rest.
    pub fn numbers<P, N>(&self, narrow: impl Fn(P::T) -> N) -> Result<Option<Vec<N>>, ParquetError>
    where
        P: DataType,
        P::T: StoredNumber,
        N: Copy,
    {
        if self.flat.physical_type() != P::get_physical_type() {
            return Ok(None);
        }
        let direct = [Encoding::PLAIN, Encoding::RLE_DICTIONARY, Encoding::PLAIN_DICTIONARY];
        let mut values: Vec<N> = Vec::with_capacity(self.count());
        for (chunk, count) in self.chunks() {
            let mut pages = self.pages(chunk, count / self.length.map_or(1, |n| n as usize))?;
            let is_other = pages.is_other.clone();
            let read = match Self::has_only(chunk, &direct) {
                true => page_by_page(&mut pages, count, &narrow, &mut values),
                false => self.by_steps::<P, N>(pages, count, &narrow, &mut values),
            };
            match read {
                Err(_) if is_other.load(Relaxed) => return Ok(None),
                read => read.map_err(|e| named(&e, chunk))?,
            }
        }
        Ok(Some(values))
    }

    /// By the parquet crate's reader of flat columns, whatever the encoding.
    fn by_steps<P: DataType, N>(
        &self,
        pages: FlatPages,
        mut missing: usize,
        narrow: impl Fn(P::T) -> N,
        values: &mut Vec<N>,
    ) -> Result<(), ParquetError> {
        let mut step: Vec<P::T> = Vec::with_capacity(STEP);
        let mut column: ColumnReaderImpl<P> =
            get_typed_column_reader(get_column_reader(self.flat.clone(), Box::new(pages)));
        while missing > 0 {
            step.clear();
            let (read, ..) = column.read_records(missing.min(STEP), None, None, &mut step)?;
            if read == 0 {
                return Err(lacks(missing));
            }
            values.extend(step.iter().map(|v| narrow(v.clone())));
            missing = missing.saturating_sub(read);
        }
        Ok(())
    }
}

/// `count` values out of pages whose values lie side by side or in a dictionary.
fn page_by_page<P: StoredNumber, N: Copy>(
    pages: &mut FlatPages,
    count: usize,
    narrow: impl Fn(P) -> N,
    values: &mut Vec<N>,
) -> Result<(), ParquetError> {
    let (mut dictionary, mut missing): (Vec<N>, _) = (Vec::new(), count);
    while missing > 0 {
        match pages.get_next_page()?.ok_or_else(|| lacks(missing))? {
            Page::DictionaryPage { buf, num_values, .. } => {
                dictionary.clear();
                plain(&buf, num_values as usize, &narrow, &mut dictionary)?;
            }
            Page::DataPage { buf, num_values, encoding, .. } => {
                let now = num_values as usize;
                missing = missing.checked_sub(now).ok_or_else(more)?;
                match encoding {
                    Encoding::PLAIN => plain(&buf, now, &narrow, values)?,
                    Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY => {
                        indexed(&buf, now, &dictionary, values)?;
                    }
                    _ => return Err(pages.give_up()),
                }
            }
            Page::DataPageV2 { .. } => return Err(pages.give_up()),
        }
    }
    Ok(())
}

/// A column chunk ends too early.
pub(super) fn lacks(missing: usize) -> ParquetError {
    ParquetError::EOF(format!("it lacks {missing} values"))
}

/// A page has more values than the column chunk still lacks.
pub(super) fn more() -> ParquetError {
    ParquetError::General("it has more values than its row group".into())
}

/// The same error, with the column's name.
pub(super) fn named(e: &ParquetError, chunk: &ColumnChunkMetaData) -> ParquetError {
    ParquetError::General(format!("column '{}': {e}", chunk.column_path()))
}

/// The pages of a column, their levels checked and cut off: all of them are version 1, without levels.
pub(super) struct FlatPages {
    pages: Box<dyn PageReader>,
    length: Option<u64>,
    max_definition: i16,
    /// Values of the pages so far.
    before: u64,
    /// Set when this is a column for the general reader.
    is_other: Arc<AtomicBool>,
}

impl FlatPages {
    /// Whether a page was for the general reader.
    pub fn are_others(&self) -> bool {
        self.is_other.load(Relaxed)
    }

    fn flatten(&mut self, page: Page) -> Result<Page, ParquetError> {
        let (values, encoding, count) = match page {
            Page::DictionaryPage { .. } => return Ok(page),
            Page::DataPage { buf, num_values, encoding, def_level_encoding, rep_level_encoding, .. } => {
                let rle = def_level_encoding == Encoding::RLE && rep_level_encoding == Encoding::RLE;
                let levels = |rest: Bytes, has_levels: bool| match has_levels {
                    false => Ok((Bytes::new(), rest)),
                    true => prefixed(&rest).filter(|_| rle).ok_or_else(|| self.give_up()),
                };
                let (repetition, rest) = levels(buf, self.length.is_some())?;
                let (definition, rest) = levels(rest, self.max_definition > 0)?;
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
                if num_nulls > 0 || repetition.saturating_add(definition) > buf.len() {
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
        let is_full = |length| all_of_length(repetition, length, self.before, count);
        match all_defined(definition, self.max_definition, count) && self.length.is_none_or(is_full) {
            true => Ok(()),
            false => Err(self.give_up()),
        }
    }

    /// The column is not one of these.
    pub fn give_up(&self) -> ParquetError {
        self.is_other.store(true, Relaxed);
        ParquetError::General("a value is null, a list is not full, or the encoding is a rare one".into())
    }
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
