//! Segments of filtered datasets: of each row group the rows that pass, and that a table has not deleted.
//!
//! Row groups of which all rows pass are not evaluated, so that the filter's columns need not be read for
//! them. Of the others each is decoded by itself, so that a segment of few rows out of many takes the memory
//! of one row group and of what passes.

use crate::filter::{Filter, Predicate};
use crate::off_thread::blocking;
use crate::parquet::chunks::Chunks;
use crate::parquet::column_origin::{ColumnOrigin, origin};
use crate::parquet::cost::{Cost, column_bytes, cost, fixed_bits, limit, null_bytes, packed_bytes};
use crate::parquet::decode::{DecodeTask, decode};
use crate::parquet::fetch::chunk_ranges;
use crate::parquet::footer::{Footer, RowGroups};
use crate::priority::PrioritySemaphore;
use crate::urgency::Urgency;
use arrow::array::{ArrayRef, BooleanArray, BooleanBufferBuilder, RecordBatch};
use arrow::compute::{and, concat_batches, filter_record_batch};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use forebay_proto::manifest::Shape;
use forebay_proto::{Error, Result};
use parquet::file::metadata::RowGroupMetaData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Row groups of which some rows are read.
pub(super) struct GroupTask {
    task: DecodeTask,
    rows: GroupRows,
}

/// Which rows of a row group are read.
enum GroupRows {
    All,
    /// Those that pass, which must be `count`. `wanted` are the places of the columns that are read.
    Passing {
        passing: Passing,
        places: Vec<usize>,
        wanted: Vec<usize>,
        count: u64,
    },
}

/// Which rows of a row group belong to a dataset: those that pass its filter, if it has one, and that its
/// table has not deleted.
pub(crate) struct Passing {
    pub predicate: Option<Arc<Predicate>>,
    /// In ascending order.
    pub deleted: Vec<Range<u64>>,
    pub rows: u64,
}

/// The columns of a dataset in one of its objects.
#[derive(Clone, Copy)]
pub(crate) struct ObjectColumns<'a> {
    pub schema: &'a Schema,
    pub shape: Option<&'a Shape>,
    pub footer: &'a Arc<Footer>,
    /// Its number in the dataset.
    pub object: usize,
    pub uri: &'a str,
    pub is_file: bool,
    /// Memory that reading it may take.
    pub memory_bytes: u64,
}

impl ObjectColumns<'_> {
    /// Where columns come from, ascending indices into the schema; `None` if it is not the object that the
    /// dataset was made of.
    pub(crate) fn origins(&self, columns: &[usize]) -> Result<Option<Vec<ColumnOrigin>>> {
        let fields = columns.iter().map(|index| (*index, self.schema.field(*index)));
        fields.map(|field| origin(self.shape, self.footer, (self.object, self.uri), field)).collect()
    }

    /// Decodes `columns` of some row groups, and what that costs; `None` as in [`ObjectColumns::origins`].
    pub(crate) fn task(
        &self,
        range: Range<usize>,
        rows: u64,
        columns: &[usize],
    ) -> Result<Option<(DecodeTask, Cost)>> {
        let part = RowGroups { footer: self.footer.clone(), range, rows };
        let found: u64 = part.metadata().iter().map(|g| g.num_rows() as u64).sum();
        let Some(origins) = self.origins(columns)? else { return Ok(None) };
        if part.metadata().len() != part.range.len() || found != rows {
            return Ok(None);
        }
        let schema = self.schema.project(columns);
        let schema = schema.map_err(|_| Error::invalid(format!("no column {:?}", columns.last())))?;
        let cost = cost(&part, &origins, &schema);
        let cost = if self.is_file { cost.of_file() } else { cost };
        let limit = limit(&part, &origins, &cost, self.memory_bytes);
        let (uri, schema) = (self.uri.to_owned(), Arc::new(schema));
        let task = DecodeTask {
            uri,
            part,
            selection: None,
            columns: origins,
            schema,
            limit,
            decoded: AtomicU64::new(0),
        };
        Ok(Some((task, cost)))
    }

    /// Reads `columns` of the rows of row groups that pass: `counts[i]` of row group `first + i`.
    pub(super) fn filtered(
        &self,
        predicate: &str,
        (first, counts): (usize, &[u32]),
        columns: &[usize],
    ) -> Result<Option<(Vec<GroupTask>, Cost)>> {
        let Some(groups) = self.footer.row_groups().get(first..first + counts.len()) else { return Ok(None) };
        let all_rows = |i: usize| groups[i].num_rows() as u64;
        let is_all = |i: usize| u64::from(counts[i]) == all_rows(i);
        if (0..counts.len()).all(is_all) {
            let rows = (0..counts.len()).map(all_rows).sum();
            let task = self.task(first..first + counts.len(), rows, columns)?;
            return Ok(task.map(|(task, cost)| (vec![GroupTask { task, rows: GroupRows::All }], cost)));
        }
        let predicate = match predicate {
            "" => None,
            predicate => Some(Arc::new(Filter::parse(predicate)?.bind(self.schema)?)),
        };
        let filtered = predicate.as_ref().map_or(&[][..], |predicate| &predicate.columns);
        let mut both = [columns, filtered].concat();
        both.sort_unstable();
        both.dedup();
        let places = |of: &[usize]| of.iter().filter_map(|c| both.binary_search(c).ok()).collect::<Vec<_>>();
        let (mut tasks, mut sum) = (Vec::new(), Cost::default());
        let (mut largest, mut guessed, mut rows_left) = (0, 0, 0u64);
        for i in (0..counts.len()).filter(|i| counts[*i] > 0) {
            let read = if is_all(i) { columns } else { &both };
            let group = first + i;
            let Some((task, cost)) = self.task(group..group + 1, all_rows(i), read)? else { return Ok(None) };
            sum.fetched = sum.fetched.saturating_add(cost.fetched);
            sum.decoded =
                sum.decoded.saturating_add(self.passing_bytes(group, u64::from(counts[i]), columns));
            rows_left += u64::from(counts[i]);
            largest = largest.max(cost.decoded.saturating_add(cost.working));
            guessed = guessed.max(cost.guessed);
            let of_rows = cost.of_rows(u64::from(counts[i]), all_rows(i), 0);
            sum.guessed = sum.guessed.saturating_add(of_rows.guessed);
            let (places, wanted, count) = (places(filtered), places(columns), u64::from(counts[i]));
            let rows = match is_all(i) {
                true => GroupRows::All,
                false => {
                    let passing = self.passing(group, predicate.clone());
                    GroupRows::Passing { passing, places, wanted, count }
                }
            };
            tasks.push(GroupTask { task, rows });
        }
        // One row group after the other is decoded; then all that passes is joined, if it is of several, and
        // packed.
        let joined = if tasks.len() > 1 { sum.decoded } else { 0 };
        let read = self.schema.project(columns).map_err(|e| Error::invalid(format!("{}: {e}", self.uri)))?;
        let packed = packed_bytes(rows_left, &read);
        sum.working = largest.max(joined).max(packed);
        sum.guessed = sum.guessed.saturating_add(guessed);
        Ok(Some((tasks, if self.is_file { sum.of_file() } else { sum })))
    }

    /// Which rows of a row group belong to the dataset.
    pub(crate) fn passing(&self, group: usize, predicate: Option<Arc<Predicate>>) -> Passing {
        let groups = self.footer.row_groups();
        let rows = |group: &RowGroupMetaData| u64::try_from(group.num_rows()).unwrap_or(0);
        let first: u64 = groups[..group].iter().map(rows).sum();
        let rows = rows(&groups[group]);
        let deleted = self.shape.into_iter().flat_map(|s| s.deleted_of(self.object, first..first + rows));
        let deleted = deleted.map(|run| run.start - first..run.end - first).collect();
        Passing { predicate, deleted, rows }
    }

    /// Bytes of some rows of a row group. Where values are not all as long: twice their share, as those that
    /// pass may be the longer ones.
    fn passing_bytes(&self, group: usize, rows: u64, columns: &[usize]) -> u64 {
        let metadata = &self.footer.row_groups()[group];
        let all_rows = u64::try_from(metadata.num_rows()).unwrap_or(0);
        let bytes = |column: &usize| {
            let field = self.schema.field(*column);
            match fixed_bits(field.data_type()) {
                Some(bits) => rows.saturating_mul(bits).div_ceil(8),
                None => {
                    let name = self.shape.map_or(field.name().as_str(), |s| s.source_of(field.name()));
                    let own = self.footer.schema.column_with_name(name);
                    let values = match own {
                        Some((own, _)) => {
                            let all = column_bytes(self.footer, metadata, own);
                            let share = u128::from(all) * u128::from(rows) / u128::from(all_rows.max(1));
                            all.min(u64::try_from(share.saturating_mul(2)).unwrap_or(u64::MAX))
                        }
                        None => null_bytes(rows, field.data_type()),
                    };
                    values.saturating_add(rows.saturating_mul(16))
                }
            }
        };
        columns.iter().map(bytes).fold(0, u64::saturating_add)
    }
}

impl Passing {
    /// The same of some of the rows, one behind the other.
    pub(crate) fn of(&self, rows: &[Range<u64>]) -> Self {
        let (mut deleted, mut before) = (Vec::new(), 0);
        let mut runs = self.deleted.iter().peekable();
        for range in rows {
            while runs.next_if(|run| run.end <= range.start).is_some() {}
            let mut here = runs.clone();
            while let Some(run) = here.next_if(|run| run.start < range.end) {
                let (start, end) = (run.start.max(range.start), run.end.min(range.end));
                deleted.push(before + start - range.start..before + end - range.start);
            }
            before += range.end - range.start;
        }
        Self { predicate: self.predicate.clone(), deleted, rows: before }
    }

    /// How many rows the table has not deleted, whether they pass the filter or not.
    pub(crate) fn not_deleted(&self) -> u64 {
        self.rows - self.deleted.iter().map(|run| run.end - run.start).sum::<u64>()
    }

    /// Whether each row belongs to the dataset. `columns` are those of the predicate.
    pub(crate) fn evaluate(&self, columns: &[ArrayRef]) -> Result<BooleanArray, ArrowError> {
        let passes = match &self.predicate {
            Some(predicate) => Some(predicate.evaluate(columns)?),
            None => None,
        };
        if self.deleted.is_empty()
            && let Some(passes) = passes
        {
            return Ok(passes);
        }
        let mut left = BooleanBufferBuilder::new(self.rows as usize);
        let mut next = 0;
        for run in &self.deleted {
            left.append_n((run.start - next) as usize, true);
            left.append_n((run.end - run.start) as usize, false);
            next = run.end;
        }
        left.append_n((self.rows - next) as usize, true);
        let left = BooleanArray::new(left.finish(), None);
        match passes {
            Some(passes) => and(&passes, &left),
            None => Ok(left),
        }
    }
}

impl GroupTask {
    /// Of all rows of some row groups.
    pub(super) fn whole(task: DecodeTask) -> Self {
        Self { task, rows: GroupRows::All }
    }

    /// Where its column chunks lie in the object.
    pub(super) fn ranges(&self) -> Vec<Range<u64>> {
        chunk_ranges(&self.task.part, self.task.columns.iter().filter_map(ColumnOrigin::own))
    }

    /// Decodes the columns and leaves out rows that do not belong to the dataset; also the processor time of
    /// decoding.
    pub(super) async fn read(
        self,
        chunks: Chunks,
        decoders: &Arc<PrioritySemaphore>,
        urgency: &Urgency,
    ) -> Result<(RecordBatch, Duration)> {
        let Self { task, rows } = self;
        let (uri, group) = (task.uri.clone(), task.part.range.start);
        let (batch, time) = decode(task, chunks, decoders, urgency).await?;
        let GroupRows::Passing { passing, places, wanted, count } = rows else { return Ok((batch, time)) };
        let permit = decoders.acquire(1, urgency).await;
        let left = blocking(move || {
            let _permit = permit;
            let fault = |e| Error::invalid(format!("{uri}: row group {group}: {e}"));
            let columns: Vec<_> = places.iter().map(|place| batch.column(*place).clone()).collect();
            let passes = passing.evaluate(&columns).map_err(fault)?;
            let left = passes.true_count() as u64;
            if left != count {
                return Err(Error::corrupt(format!(
                    "{uri}: the filter leaves {left} rows of row group {group}, where the dataset has {count}"
                )));
            }
            filter_record_batch(&batch.project(&wanted).map_err(fault)?, &passes).map_err(fault)
        })
        .await?;
        Ok((left, time))
    }
}

/// All row groups of a segment, one after the other; and the processor time that decoding took.
pub(super) async fn read(
    tasks: Vec<GroupTask>,
    schema: SchemaRef,
    chunks: Chunks,
    decoders: &Arc<PrioritySemaphore>,
    urgency: &Urgency,
) -> Result<(RecordBatch, Duration)> {
    let uri = tasks.first().map(|task| task.task.uri.clone()).unwrap_or_default();
    let (mut batches, mut time) = (Vec::with_capacity(tasks.len()), Duration::ZERO);
    for task in tasks {
        let (batch, of_task) = task.read(chunks.clone(), decoders, urgency).await?;
        batches.push(batch);
        time += of_task;
    }
    drop(chunks);
    if batches.len() == 1
        && let Some(only) = batches.pop()
    {
        return Ok((only, time));
    }
    let joined = blocking(move || {
        let joined = concat_batches(&schema, &batches);
        joined.map_err(|e| Error::invalid(format!("{uri}: the rows that the filter leaves: {e}")))
    });
    Ok((joined.await?, time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deleted_rows_of_a_part_are_those_that_lie_in_it() {
        let all = Passing { predicate: None, deleted: vec![2..5, 7..8, 10..30, 40..41], rows: 50 };
        let of = |rows: &[Range<u64>]| {
            let part = all.of(rows);
            (part.deleted.clone(), part.rows, part.not_deleted())
        };
        assert_eq!(of(std::slice::from_ref(&(0..50))), (all.deleted.clone(), 50, 25));
        assert_eq!(of(&[3..12, 20..25, 29..41]), (vec![0..2, 4..5, 7..9, 9..14, 14..15, 25..26], 26, 14));
        assert_eq!(of(&[]), (vec![], 0, 0));
    }
}
