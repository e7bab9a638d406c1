//! What a footer tells of the values of a row group, and its indexes of those of a page, as far as they can
//! be trusted.
//!
//! Left out are bounds by which nobody can tell what they mean: deprecated ones (their order was the writer's
//! choice), those without a known order, of 96-bit timestamps, and of decimals that may have been cut short.
//! Bounds of texts may be cut short: they are bounds nevertheless.

use crate::filter::{Facts, Nulls};
use crate::parquet::column_origin::ColumnOrigin;
use crate::parquet::footer::Footer;
use crate::partitions;
use crate::schema::widen;
use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType, Field};
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::basic::{ColumnOrder, SortOrder, Type as Physical};
use parquet::file::metadata::page_index::{PageIndex, PageIndexProvider};
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::statistics::Statistics;

/// All that is known of `field` of the dataset in a row group of an object in which it comes from `origin`.
pub(crate) fn facts(
    footer: &Footer,
    group: &RowGroupMetaData,
    origin: &ColumnOrigin,
    field: &Field,
) -> Facts {
    match origin {
        ColumnOrigin::Missing => partitions::facts(None, field.data_type()),
        ColumnOrigin::Partition(value) => partitions::facts(value.as_deref(), field.data_type()),
        // The nulls counted are not the list's or the struct's alone: empty lists and nulls within count too.
        ColumnOrigin::Own(column) | ColumnOrigin::Adapted(column)
            if footer.schema.field(*column).data_type().is_nested() =>
        {
            Facts::unknown()
        }
        ColumnOrigin::Own(column) | ColumnOrigin::Adapted(column) => {
            let mut chunks = footer.chunks(group, *column);
            let (Some(chunk), None) = (chunks.next(), chunks.next()) else {
                return Facts::unknown();
            };
            let nulls = nulls(chunk, group.num_rows());
            let bounds =
                if nulls == Nulls::All { None } else { bounds(footer, group, *column, chunk, field) };
            Facts { nulls, bounds }
        }
    }
}

fn nulls(chunk: &ColumnChunkMetaData, rows: i64) -> Nulls {
    if chunk.column_descr().max_def_level() == 0 {
        return Nulls::None;
    }
    match chunk.statistics().and_then(Statistics::null_count_opt) {
        Some(0) => Nulls::None,
        Some(nulls) if i64::try_from(nulls) == Ok(rows) => Nulls::All,
        _ => Nulls::Some,
    }
}

fn bounds(
    footer: &Footer,
    group: &RowGroupMetaData,
    column: usize,
    chunk: &ColumnChunkMetaData,
    field: &Field,
) -> Option<(ArrayRef, ArrayRef)> {
    let statistics = converter(footer, column, chunk)?;
    let of_dataset = |bound| of_dataset(bound, field).filter(|bound| bound.len() == 1 && bound.is_valid(0));
    let least = of_dataset(statistics.row_group_mins([group]).ok()?)?;
    Some((least, of_dataset(statistics.row_group_maxes([group]).ok()?)?))
}

/// What reads the bounds of a column, if they can be trusted.
fn converter<'a>(
    footer: &'a Footer,
    column: usize,
    chunk: &ColumnChunkMetaData,
) -> Option<StatisticsConverter<'a>> {
    let own = footer.schema.field(column);
    let leaf = footer.leaves.get(column)?.start;
    let file = footer.arrow.metadata().file_metadata();
    if !is_sound(chunk, own.data_type(), file.column_order(leaf)) {
        return None;
    }
    let statistics = StatisticsConverter::try_new(own.name(), &footer.schema, file.schema_descr());
    statistics.ok().filter(|found| found.parquet_column_index() == Some(leaf))
}

/// Bounds in the type that the column has in the dataset.
fn of_dataset(bounds: ArrayRef, field: &Field) -> Option<ArrayRef> {
    match bounds.data_type() == field.data_type() {
        true => Some(bounds),
        false => widen::exact(&bounds, field.data_type()).ok(),
    }
}

/// What `index`, that of a row group alone, tells of each page of a flat column that comes from `origin`.
pub(crate) fn facts_of_pages(
    footer: &Footer,
    group: &RowGroupMetaData,
    index: &PageIndex,
    origin: &ColumnOrigin,
    field: &Field,
) -> Vec<Facts> {
    let found = origin.own().and_then(|column| Some((column, footer.leaves.get(column)?.start)));
    let Some((column, leaf)) = found else { return Vec::new() };
    let (Some(chunk), Some(pages)) = (group.columns().get(leaf), index.page_locations(0, leaf)) else {
        return Vec::new();
    };
    let bounds = || {
        let own = index.column_index(0, leaf).filter(|own| is_whole(own, chunk))?;
        let statistics = converter(footer, column, chunk)?;
        let least = of_dataset(statistics.data_page_mins(index, [&0]).ok()?, field)?;
        let most = of_dataset(statistics.data_page_maxes(index, [&0]).ok()?, field)?;
        (own.num_pages() == least.len() as u64 && least.len() == most.len()).then_some((least, most))
    };
    let bounds = bounds();
    let ends = pages.iter().skip(1).map(|page| page.first_row_index).chain([group.num_rows()]);
    let facts = |(page, (location, end)): (usize, (&PageLocation, i64))| {
        let nulls = match index.column_index(0, leaf) {
            _ if chunk.column_descr().max_def_level() == 0 => Nulls::None,
            None => Nulls::Some,
            Some(own) => match own.null_count(page) {
                Some(0) => Nulls::None,
                Some(nulls) if nulls == end - location.first_row_index => Nulls::All,
                _ => Nulls::Some,
            },
        };
        let known = bounds
            .as_ref()
            .filter(|(least, most)| nulls != Nulls::All && least.is_valid(page) && most.is_valid(page));
        Facts { nulls, bounds: known.map(|(least, most)| (least.slice(page, 1), most.slice(page, 1))) }
    };
    pages.iter().zip(ends).enumerate().map(facts).collect()
}

/// Whether no bound of decimals in bytes was cut short.
fn is_whole(index: &ColumnIndexMetaData, chunk: &ColumnChunkMetaData) -> bool {
    let ColumnIndexMetaData::FIXED_LEN_BYTE_ARRAY(bounds) = index else { return true };
    let length = usize::try_from(chunk.column_descr().type_length()).ok();
    let mut all = bounds.min_values_iter().chain(bounds.max_values_iter()).flatten();
    all.all(|bound| Some(bound.len()) == length)
}

/// Whether the bounds of a chunk are those of its values.
fn is_sound(chunk: &ColumnChunkMetaData, data_type: &DataType, order: ColumnOrder) -> bool {
    use DataType::*;
    let Some(statistics) = chunk.statistics().filter(|statistics| !statistics.is_min_max_deprecated()) else {
        return false;
    };
    let is_ordered = match order {
        ColumnOrder::TYPE_DEFINED_ORDER(order) => order != SortOrder::UNDEFINED,
        order => order == ColumnOrder::IEEE_754_TOTAL_ORDER,
    };
    let physical = chunk.column_type();
    let is_whole = |bytes: Option<&[u8]>| {
        bytes.map(<[u8]>::len) == usize::try_from(chunk.column_descr().type_length()).ok()
    };
    is_ordered
        && match data_type {
            Boolean | Date32 | Date64 | Float32 | Float64 | Utf8 | LargeUtf8 => true,
            Timestamp(..) => physical == Physical::INT64,
            Decimal32(..) | Decimal64(..) | Decimal128(..) | Decimal256(..) => match physical {
                Physical::INT32 | Physical::INT64 => true,
                Physical::FIXED_LEN_BYTE_ARRAY => {
                    is_whole(statistics.min_bytes_opt()) && is_whole(statistics.max_bytes_opt())
                }
                _ => false,
            },
            other => other.is_integer(),
        }
}
