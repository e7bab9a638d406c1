//! Segments of filtered datasets: of each row group the rows that pass.
//!
//! Row groups of which all rows pass are not evaluated, so that the filter's columns need not be read for
//! them. Of the others each is decoded by itself, so that a segment of few rows out of many takes the memory
//! of one row group and of what passes.

use crate::filter::{Filter, Predicate};
use crate::parquet::chunks::Chunks;
use crate::parquet::column_origin::{ColumnOrigin, origin};
use crate::parquet::cost::{Cost, column_bytes, cost, fixed_bits, packed_bytes};
use crate::parquet::decode::{DecodeTask, decode};
use crate::parquet::fetch::chunk_ranges;
use crate::parquet::footer::{Footer, RowGroups};
use crate::priority::PrioritySemaphore;
use crate::source::blocking;
use crate::urgency::Urgency;
use arrow::array::RecordBatch;
use arrow::compute::{concat_batches, filter_record_batch};
use arrow::datatypes::{Schema, SchemaRef};
use forebay_proto::manifest::Shape;
use forebay_proto::{Error, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

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
        predicate: Arc<Predicate>,
        places: Vec<usize>,
        wanted: Vec<usize>,
        count: u64,
    },
}

/// The columns of a dataset in one of its objects.
#[derive(Clone, Copy)]
pub(crate) struct ObjectColumns<'a> {
    pub schema: &'a Schema,
    pub shape: Option<&'a Shape>,
    pub footer: &'a Arc<Footer>,
    pub uri: &'a str,
    pub is_file: bool,
}

impl ObjectColumns<'_> {
    /// Where columns come from, ascending indices into the schema; `None` if it is not the object that the
    /// dataset was made of.
    pub(crate) fn origins(&self, columns: &[usize]) -> Result<Option<Vec<ColumnOrigin>>> {
        let fields = columns.iter().map(|index| (*index, self.schema.field(*index)));
        fields.map(|field| origin(self.shape, self.footer, self.uri, field)).collect()
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
        let (uri, schema, limit) = (self.uri.to_owned(), Arc::new(schema), cost.limit());
        let task = DecodeTask { uri, part, columns: origins, schema, limit, decoded: AtomicU64::new(0) };
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
        let predicate = Arc::new(Filter::parse(predicate)?.bind(self.schema)?);
        let mut both = [columns, &predicate.columns].concat();
        both.sort_unstable();
        both.dedup();
        let places = |of: &[usize]| of.iter().filter_map(|c| both.binary_search(c).ok()).collect::<Vec<_>>();
        let (mut tasks, mut sum) = (Vec::new(), Cost { fetched: 0, decoded: 0, working: 0 });
        let (mut largest, mut rows_left) = (0, 0u64);
        for i in (0..counts.len()).filter(|i| counts[*i] > 0) {
            let read = if is_all(i) { columns } else { &both };
            let group = first + i;
            let Some((task, cost)) = self.task(group..group + 1, all_rows(i), read)? else { return Ok(None) };
            sum.fetched = sum.fetched.saturating_add(cost.fetched);
            sum.decoded =
                sum.decoded.saturating_add(self.passing_bytes(group, u64::from(counts[i]), columns));
            rows_left += u64::from(counts[i]);
            largest = largest.max(cost.decoded.saturating_add(cost.working));
            let (places, wanted, predicate) =
                (places(&predicate.columns), places(columns), predicate.clone());
            let rows = match is_all(i) {
                true => GroupRows::All,
                false => GroupRows::Passing { predicate, places, wanted, count: u64::from(counts[i]) },
            };
            tasks.push(GroupTask { task, rows });
        }
        // One row group after the other is decoded; then all that passes is joined, if it is of several, and
        // packed.
        let joined = if tasks.len() > 1 { sum.decoded } else { 0 };
        let read = self.schema.project(columns).map_err(|e| Error::invalid(format!("{}: {e}", self.uri)))?;
        let packed = packed_bytes(rows_left, &read);
        sum.working = largest.max(joined).max(packed);
        Ok(Some((tasks, if self.is_file { sum.of_file() } else { sum })))
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
                    let own = self.footer.schema.column_with_name(field.name());
                    let all = own.map_or(0, |(own, _)| column_bytes(self.footer, metadata, own));
                    let share = u128::from(all) * u128::from(rows) / u128::from(all_rows.max(1));
                    let twice = u64::try_from(share.saturating_mul(2)).unwrap_or(u64::MAX);
                    all.min(twice).saturating_add(rows.saturating_mul(16))
                }
            }
        };
        columns.iter().map(bytes).fold(0, u64::saturating_add)
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

    /// The rows that are read.
    pub(super) async fn read(
        self,
        chunks: Chunks,
        decoders: &Arc<PrioritySemaphore>,
        urgency: &Urgency,
    ) -> Result<RecordBatch> {
        let Self { task, rows } = self;
        let (uri, group) = (task.uri.clone(), task.part.range.start);
        let batch = decode(task, chunks, decoders, urgency).await?;
        let GroupRows::Passing { predicate, places, wanted, count } = rows else { return Ok(batch) };
        let permit = decoders.acquire(1, urgency).await;
        blocking(move || {
            let _permit = permit;
            let fault = |e| Error::invalid(format!("{uri}: row group {group}: {e}"));
            let columns: Vec<_> = places.iter().map(|place| batch.column(*place).clone()).collect();
            let passes = predicate.evaluate(&columns).map_err(fault)?;
            let passing = passes.true_count() as u64;
            if passing != count {
                return Err(Error::corrupt(format!(
                    "{uri}: the filter leaves {passing} rows of row group {group}, where the dataset has {count}"
                )));
            }
            filter_record_batch(&batch.project(&wanted).map_err(fault)?, &passes).map_err(fault)
        })
        .await
    }
}

/// All row groups of a segment, one after the other.
pub(super) async fn read(
    tasks: Vec<GroupTask>,
    schema: SchemaRef,
    chunks: Chunks,
    decoders: &Arc<PrioritySemaphore>,
    urgency: &Urgency,
) -> Result<RecordBatch> {
    let uri = tasks.first().map(|task| task.task.uri.clone()).unwrap_or_default();
    let mut batches = Vec::with_capacity(tasks.len());
    for task in tasks {
        batches.push(task.read(chunks.clone(), decoders, urgency).await?);
    }
    drop(chunks);
    if batches.len() == 1
        && let Some(only) = batches.pop()
    {
        return Ok(only);
    }
    blocking(move || {
        let joined = concat_batches(&schema, &batches);
        joined.map_err(|e| Error::invalid(format!("{uri}: the rows that the filter leaves: {e}")))
    })
    .await
}
