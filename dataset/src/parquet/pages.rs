//! Page indexes: what an object says of the pages of its column chunks, so that counting a filter's rows
//! within a row group reads only the pages that the index does not decide.
//!
//! An index may be missing, may not parse and may contradict its chunk: then the whole chunk is read. Columns
//! that are nested are always read whole.

use crate::filter::{Facts, Outcomes, Predicate};
use crate::parquet::chunks::Chunks;
use crate::parquet::column_origin::ColumnOrigin;
use crate::parquet::fetch::coalesce;
use crate::parquet::footer::Footer;
use crate::parquet::footer_claims::has_its_pages;
use crate::parquet::page_bodies::has_deltas;
use crate::parquet::quiet::quietly;
use crate::parquet::statistics::{facts, facts_of_pages};
use arrow::datatypes::Schema;
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::metadata::page_index::{PageIndex, PageIndexBuilder, PageIndexProvider};
use parquet::file::page_index::index_reader::{decode_column_index, decode_offset_index};
use parquet::file::page_index::offset_index::PageLocation;
use std::ops::Range;
use std::sync::Arc;

/// Columns of a filter that take fewer bytes in a row group are read whole: it costs less than to ask.
const WORTH_BYTES: u64 = 16 << 10;

/// An index has at most one byte for this many bytes of its columns.
const INDEX_FACTOR: u64 = 8;

/// Pages nearer to each other than this are read in one, with what lies between: it costs less than one more
/// request.
const GAP_BYTES: u64 = 64 << 10;

/// The columns of a filter in an object.
pub(super) struct FilteredObject {
    pub footer: Arc<Footer>,
    /// Of the dataset.
    pub schema: Schema,
    pub predicate: Arc<Predicate>,
    /// Of the predicate's columns.
    pub origins: Vec<ColumnOrigin>,
}

/// What the index of a row group leaves to be read.
pub(super) struct OpenPages {
    /// Rows that pass whatever they are, but for those that are deleted.
    pub passing: Vec<Range<u64>>,
    /// Rows of which the filter's columns are to be read.
    pub open: Vec<Range<u64>>,
    /// Where the pages of these rows lie, dictionaries included.
    pub ranges: Vec<Range<u64>>,
    /// The pages of the filter's columns, for the one row group of [`Footer::of_group`].
    pub index: PageIndex,
}

impl FilteredObject {
    /// The columns that lie in the object, each once, with its leaf and its only chunk in a row group. None
    /// if one is nested.
    fn chunks(&self, group: usize) -> Option<Vec<(usize, usize, &ColumnChunkMetaData)>> {
        let group = self.footer.row_groups().get(group)?;
        let mut columns: Vec<usize> = self.origins.iter().filter_map(ColumnOrigin::own).collect();
        columns.sort_unstable();
        columns.dedup();
        let chunk = |column: usize| {
            let leaves = self.footer.leaves.get(column)?;
            let is_flat = !self.footer.schema.field(column).data_type().is_nested();
            let chunk = group.columns().get(leaves.start)?;
            (is_flat && leaves.len() == 1).then_some((column, leaves.start, chunk))
        };
        columns.into_iter().map(chunk).collect()
    }

    /// Where the indexes of a row group lie in the object, which has `size` bytes. None if there are none, or
    /// they are not worth reading.
    pub fn index_ranges(&self, group: usize, size: u64) -> Option<Vec<Range<u64>>> {
        let (mut ranges, mut column_bytes) = (Vec::new(), 0u64);
        for (_, _, chunk) in self.chunks(group)? {
            ranges.push(chunk.offset_index_range()?);
            ranges.extend(chunk.column_index_range());
            column_bytes = column_bytes.saturating_add(chunk.byte_range().1);
        }
        let is_sound = |range: &Range<u64>| range.start < range.end && range.end <= size;
        let index_bytes = ranges.iter().map(|range| range.end.saturating_sub(range.start));
        let index_bytes = index_bytes.fold(0, u64::saturating_add).saturating_mul(INDEX_FACTOR);
        let is_worth_it = column_bytes >= WORTH_BYTES && index_bytes <= column_bytes;
        (is_worth_it && ranges.iter().all(is_sound)).then_some(ranges)
    }

    /// The pages of a row group that are to be read. None if they are nearly all, or its indexes in `fetched`
    /// are not sound.
    pub fn open_pages(&self, group: usize, fetched: &Chunks) -> Option<OpenPages> {
        // What the parquet crate makes of damaged bytes may be a panic.
        quietly(|| self.left(group, fetched)).ok().flatten()
    }

    fn left(&self, group: usize, fetched: &Chunks) -> Option<OpenPages> {
        let index = self.parse(group, fetched).ok().flatten()?;
        let metadata = self.footer.row_groups().get(group)?;
        let rows = u64::try_from(metadata.num_rows()).ok()?;
        let mut starts = vec![0];
        let mut columns = Vec::new();
        for (column, origin) in self.predicate.columns.iter().zip(&self.origins) {
            let field = self.schema.field(*column);
            columns.push(match origin.own() {
                Some(own) => {
                    let leaf = self.footer.leaves.get(own)?.start;
                    let pages = index.page_locations(0, leaf)?;
                    let firsts: Vec<u64> = pages.iter().map(|page| page.first_row_index as u64).collect();
                    starts.extend(&firsts);
                    ColumnPages {
                        facts: facts_of_pages(&self.footer, metadata, &index, origin, field),
                        firsts,
                    }
                }
                None => {
                    ColumnPages { facts: vec![facts(&self.footer, metadata, origin, field)], firsts: vec![0] }
                }
            });
        }
        starts.sort_unstable();
        starts.dedup();
        let mut left = OpenPages { passing: Vec::new(), open: Vec::new(), ranges: Vec::new(), index };
        let ends = starts.iter().skip(1).copied().chain([rows]);
        for (start, end) in starts.iter().copied().zip(ends) {
            let known: Vec<Facts> = columns.iter().map(|column| column.at(start)).collect();
            let Outcomes { is_true, is_false, is_null } = self.predicate.outcomes(&known);
            match (is_true, is_false || is_null) {
                (false, _) => {}
                (true, false) => extend(&mut left.passing, start..end),
                (true, true) => extend(&mut left.open, start..end),
            }
        }
        left.ranges = self.page_ranges(group, &left)?;
        let bytes = |ranges: &[Range<u64>]| ranges.iter().map(|range| range.end - range.start).sum::<u64>();
        let whole: u64 = self.chunks(group)?.iter().map(|(_, _, chunk)| chunk.byte_range().1).sum();
        (bytes(&left.ranges) <= whole / 4 * 3).then_some(left)
    }

    /// The indexes of its columns, of the one row group that is looked at.
    fn parse(&self, group: usize, fetched: &Chunks) -> Result<Option<PageIndex>, ParquetError> {
        let Some(chunks) = self.chunks(group) else { return Ok(None) };
        let metadata = &self.footer.row_groups()[group];
        let mut index = PageIndexBuilder::new(1, metadata.columns().len());
        for (_, leaf, chunk) in chunks {
            let Some(range) = chunk.offset_index_range() else { return Ok(None) };
            let bytes = fetched.bytes(range)?;
            // Texts that begin with their lengths are checked where all pages of their chunk are here.
            if !has_its_pages(&bytes) || has_deltas(chunk) {
                return Ok(None);
            }
            let offsets = decode_offset_index(&bytes)?;
            if !is_sound(offsets.page_locations(), chunk, metadata.num_rows()) {
                return Ok(None);
            }
            let pages = offsets.page_locations().len() as u64;
            index.put_offset_index(offsets, 0, leaf);
            if let Some(range) = chunk.column_index_range() {
                let bounds = decode_column_index(&fetched.bytes(range)?, chunk.column_type())?;
                if bounds.num_pages() == pages {
                    index.put_column_index(bounds, 0, leaf);
                }
            }
        }
        Ok(Some(index.build()))
    }

    /// Where the pages of the open rows lie. Of a column that has some the dictionary too.
    fn page_ranges(&self, group: usize, left: &OpenPages) -> Option<Vec<Range<u64>>> {
        let rows = u64::try_from(self.footer.row_groups().get(group)?.num_rows()).ok()?;
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (_, leaf, chunk) in self.chunks(group)? {
            let pages = left.index.page_locations(0, leaf)?;
            let ends = pages.iter().skip(1).map(|page| page.first_row_index as u64).chain([rows]);
            let mut open = left.open.iter().peekable();
            let (start, mut is_read) = (chunk.byte_range().0, false);
            for (page, end) in pages.iter().zip(ends) {
                while open.next_if(|open| open.end <= page.first_row_index as u64).is_some() {}
                if open.peek().is_some_and(|open| open.start < end) {
                    let from = page.offset as u64;
                    if !is_read && from > start {
                        ranges.push(start..pages.first()?.offset as u64);
                    }
                    is_read = true;
                    ranges.push(from..from + page.compressed_page_size as u64);
                }
            }
        }
        ranges.retain(|range| !range.is_empty());
        Some(coalesce(ranges, GAP_BYTES))
    }
}

/// The pages of a column.
struct ColumnPages {
    facts: Vec<Facts>,
    /// The first row of each.
    firsts: Vec<u64>,
}

impl ColumnPages {
    /// The facts of the page in which a row lies.
    fn at(&self, row: u64) -> Facts {
        let page = self.firsts.partition_point(|first| *first <= row).saturating_sub(1);
        self.facts.get(page).cloned().unwrap_or_else(Facts::unknown)
    }
}

/// Whether pages follow each other within their chunk and have all its rows.
fn is_sound(pages: &[PageLocation], chunk: &ColumnChunkMetaData, rows: i64) -> bool {
    let (start, length) = chunk.byte_range();
    let end = start.saturating_add(length);
    let place = |page: &PageLocation| {
        let from = u64::try_from(page.offset).ok()?;
        let to = from.checked_add(u64::try_from(page.compressed_page_size).ok()?)?;
        (from < to && from >= start && to <= end).then_some(from..to)
    };
    let Some(places) = pages.iter().map(place).collect::<Option<Vec<_>>>() else { return false };
    pages.first().is_some_and(|page| page.first_row_index == 0)
        && pages.last().is_some_and(|page| page.first_row_index < rows)
        && pages.windows(2).all(|pair| pair[0].first_row_index < pair[1].first_row_index)
        && places.windows(2).all(|pair| pair[0].end <= pair[1].start)
}

/// Adds a stretch of rows behind the others.
fn extend(rows: &mut Vec<Range<u64>>, more: Range<u64>) {
    match rows.last_mut() {
        Some(last) if last.end == more.start => last.end = more.end,
        _ => rows.push(more),
    }
}
