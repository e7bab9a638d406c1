//! What a footer tells of the values of a row group, as far as it can be trusted.
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
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
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
            Facts { nulls: Nulls::Some, bounds: None }
        }
        ColumnOrigin::Own(column) | ColumnOrigin::Adapted(column) => {
            let mut chunks = footer.chunks(group, *column);
            let (Some(chunk), None) = (chunks.next(), chunks.next()) else {
                return Facts { nulls: Nulls::Some, bounds: None };
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
    let own = footer.schema.field(column);
    let leaf = footer.leaves.get(column)?.start;
    let file = footer.arrow.metadata().file_metadata();
    if !is_sound(chunk, own.data_type(), file.column_order(leaf)) {
        return None;
    }
    let statistics = StatisticsConverter::try_new(own.name(), &footer.schema, file.schema_descr());
    let statistics = statistics.ok().filter(|found| found.parquet_column_index() == Some(leaf))?;
    let of_dataset = |bound: ArrayRef| {
        let bound = match bound.data_type() == field.data_type() {
            true => bound,
            false => widen::exact(&bound, field.data_type()).ok()?,
        };
        (bound.len() == 1 && bound.is_valid(0)).then_some(bound)
    };
    let least = of_dataset(statistics.row_group_mins([group]).ok()?)?;
    Some((least, of_dataset(statistics.row_group_maxes([group]).ok()?)?))
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
