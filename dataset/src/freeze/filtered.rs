//! Freezing with a filter: which objects and row groups have rows that pass, and how many.
//!
//! Directories (`country=ch/`) decide first: an object that they rule out is not opened, and has no say in
//! the schema. Statistics of row groups decide next. Of row groups that remain the filter's columns are read.

use super::directories::Directories;
use super::objects::{Found, Listed};
use crate::filter::{Facts, Filter};
use crate::parquet::cost::group_bytes;
use crate::parquet::counting::{FilteredTable, Tools};
use crate::parquet::footer::Footer;
use crate::partitions;
use crate::selection::Selection;
use crate::urgency::Urgency;
use arrow::datatypes::Schema;
use forebay_proto::Result;
use forebay_proto::manifest::{FilteredSegment, SegmentSize};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use std::sync::Arc;

/// A segment's row groups may be that much larger than what passes: all of them are fetched at once.
const SOURCE_FACTOR: u64 = 8;

/// The row groups that have rows which pass.
#[derive(Default)]
pub(super) struct PassingRowGroups {
    /// What they are joined into.
    pub segments: Vec<FilteredSegment>,
    /// Compressed bytes of each of the dataset's columns in them.
    pub column_bytes: Vec<u64>,
    /// How many they are.
    pub row_groups: u64,
}

/// An object's number, its footer, and how many rows of each row group pass.
type Counted = (u32, Arc<Footer>, Vec<u32>);

/// Which objects have to be opened, and the directories that decided it. At least one is.
pub(super) fn opened(
    filter: &Filter,
    selection: &Selection,
    found: &Found,
) -> Result<(Vec<bool>, Vec<String>)> {
    let objects = &found.objects;
    let mut opened = vec![true; objects.len()];
    let mut names = Directories::all(selection, found)?;
    names.retain(|name| filter.names().contains(&&**name));
    if names.is_empty() {
        return Ok((opened, names));
    }
    let directories = Directories::read(selection, found, names)?;
    let schema = Schema::new(directories.fields().collect::<Vec<_>>());
    let predicate = filter.bind_partly(&schema);
    for ((opened, (key, object)), values) in opened.iter_mut().zip(objects).zip(&directories.values) {
        let constant =
            |column: &usize| partitions::facts(values[*column].as_deref(), schema.field(*column).data_type());
        let facts: Vec<Facts> = predicate.columns.iter().map(constant).collect();
        let is_named = *key == selection.schema_of || object.place.uri == selection.schema_of;
        *opened = predicate.outcomes(&facts).is_true || is_named;
    }
    if !opened.contains(&true)
        && let Some(first) = opened.first_mut()
    {
        *first = true;
    }
    Ok((opened, directories.names))
}

/// Counts what passes, and makes segments that aim at `segment_bytes` decoded bytes.
pub(super) async fn passing(
    tools: Tools<'_>,
    objects: &[Listed],
    opened: &[bool],
    (table, segment_bytes): (FilteredTable<'_>, u64),
) -> Result<PassingRowGroups> {
    let column_bytes = vec![0; table.schema.fields().len()];
    let mut passing = PassingRowGroups { column_bytes, ..Default::default() };
    let all: Vec<BoxFuture<'_, Result<Counted>>> = objects
        .iter()
        .zip(0u32..)
        .zip(opened)
        .filter(|(_, opened)| **opened)
        .map(|(((_, object), i), _)| {
            async move {
                let footer = tools.footers.get(object, &Urgency::demand()).await?;
                let rows = table.passing_rows(tools, (i, object), &footer).await?;
                Ok((i, footer, rows))
            }
            .boxed()
        })
        .collect();
    let mut all = stream::iter(all).buffered(tools.source.settings().s3_max_requests);
    while let Some((object, footer, rows)) = all.try_next().await? {
        let groups = footer.row_groups();
        for (group, _) in groups.iter().zip(&rows).filter(|(_, rows)| **rows > 0) {
            passing.row_groups += 1;
            for (of, field) in table.schema.fields().iter().enumerate() {
                let name = table.shape.map_or(field.name().as_str(), |shape| shape.source_of(field.name()));
                if let Some((column, _)) = footer.schema.column_with_name(name) {
                    let bytes: u64 = footer.chunks(group, column).map(|chunk| chunk.byte_range().1).sum();
                    passing.column_bytes[of] += bytes;
                }
            }
        }
        let sizes = groups.iter().map(|group| (group.num_rows() as u64, group_bytes(&footer, group)));
        passing.segments.extend(cut(object, sizes.zip(rows), segment_bytes));
    }
    Ok(passing)
}

/// Row groups joined into segments: `groups` says of each how many rows and decoded bytes it has, and how
/// many rows pass.
fn cut(object: u32, groups: impl Iterator<Item = ((u64, u64), u32)>, aim: u64) -> Vec<FilteredSegment> {
    let mut segments: Vec<FilteredSegment> = Vec::new();
    let mut source = 0u64;
    for (group, ((all, bytes), rows)) in (0u32..).zip(groups).filter(|(_, (_, rows))| *rows > 0) {
        let passing = (u128::from(bytes) * u128::from(rows) / u128::from(all.max(1))) as u64;
        let fits = |open: &FilteredSegment| {
            open.size.decoded_bytes.saturating_add(passing) <= aim
                && source.saturating_add(bytes) <= aim.saturating_mul(SOURCE_FACTOR)
                && open.size.rows + u64::from(rows) <= u64::from(u32::MAX)
        };
        match segments.last_mut().filter(|open| fits(open)) {
            Some(open) => {
                open.rows.resize((group - open.first_row_group) as usize, 0);
                open.rows.push(rows);
                open.size.row_groups = open.rows.len() as u32;
                open.size.rows += u64::from(rows);
                open.size.decoded_bytes += passing;
                source = source.saturating_add(bytes);
            }
            None => {
                let size = SegmentSize { object, row_groups: 1, rows: rows.into(), decoded_bytes: passing };
                segments.push(FilteredSegment { size, first_row_group: group, rows: vec![rows] });
                source = bytes;
            }
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_groups_with_rows_that_pass_join_up_to_the_aim() {
        let run = |groups: &[(u64, u64, u32)]| {
            let groups = groups.iter().map(|(all, bytes, rows)| ((*all, *bytes), *rows));
            let segments = cut(7, groups, 100).into_iter();
            segments.map(|s| (s.first_row_group, s.rows, s.size.decoded_bytes)).collect::<Vec<_>>()
        };
        assert_eq!(run(&[(10, 100, 0), (0, 0, 0)]), []);
        assert_eq!(
            run(&[(10, 100, 0), (10, 100, 5), (10, 100, 0), (10, 100, 5), (10, 100, 1)]),
            [(1, vec![5, 0, 5], 100), (4, vec![1], 10)]
        );
        assert_eq!(run(&[(10, 1000, 10), (10, 1000, 1)]), [(0, vec![10], 1000), (1, vec![1], 100)]);
        // 800 bytes are read for a segment at most.
        assert_eq!(
            run(&[(1000, 400, 1), (1000, 400, 1), (1000, 400, 1)]),
            [(0, vec![1, 1], 0), (2, vec![1], 0)]
        );
    }
}
