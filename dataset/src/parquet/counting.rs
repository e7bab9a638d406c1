//! Counting the rows that a filter leaves: by statistics of row groups and of pages where they decide, else
//! by the filter's columns.

use crate::filter::Predicate;
use crate::off_thread::blocking;
use crate::parquet::column_origin::ColumnOrigin;
use crate::parquet::cost::{Cost, DecodeLimit};
use crate::parquet::decode::{DecodeTask, decode};
use crate::parquet::fetch::{PIECE_BYTES, chunk_ranges, fetch};
use crate::parquet::filtered::{ObjectColumns, Passing};
use crate::parquet::footer::{Footer, RowGroups};
use crate::parquet::footers::Footers;
use crate::parquet::pages::{FilteredObject, OpenPages};
use crate::parquet::statistics::facts;
use crate::priority::PrioritySemaphore;
use crate::source::{Source, SourceObject};
use crate::urgency::Urgency;
use arrow::datatypes::Schema;
use forebay_proto::manifest::Shape;
use forebay_proto::{Error, Kind, Result};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use parquet::arrow::arrow_reader::RowSelection;
use parquet::file::metadata::RowGroupMetaData;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A row group is read so often before its object is called corrupt.
const READINGS: u32 = 3;

/// Bytes of the page indexes of an object that are read at most. Row groups beyond are read whole.
const INDEXES_BYTES_MAX: u64 = 8 << 20;

/// What reads objects while a dataset is frozen.
#[derive(Clone, Copy)]
pub(crate) struct Tools<'a> {
    pub source: &'a Source,
    pub footers: &'a Footers,
    pub decoders: &'a Arc<PrioritySemaphore>,
    /// Bytes of memory for columns of filters.
    pub filtering: &'a Arc<PrioritySemaphore>,
}

/// A table whose rows are filtered.
#[derive(Clone, Copy)]
pub(crate) struct FilteredTable<'a> {
    pub schema: &'a Schema,
    pub shape: Option<&'a Shape>,
    /// None where only rows that a table deleted are left out.
    pub predicate: Option<&'a Arc<Predicate>>,
}

impl FilteredTable<'_> {
    /// How many rows of each row group of an object, which has this number in the dataset, pass.
    pub(crate) async fn passing_rows(
        self,
        tools: Tools<'_>,
        (number, object): (u32, &SourceObject),
        footer: &Arc<Footer>,
    ) -> Result<Vec<u32>> {
        let uri = &object.place.uri;
        let Self { schema, shape, predicate } = self;
        let (is_file, number) = (object.place.is_file(), number as usize);
        let memory_bytes = tools.source.settings().segment_memory_bytes;
        let of = ObjectColumns { schema, shape, footer, object: number, uri, is_file, memory_bytes };
        let columns = predicate.map_or(&[][..], |predicate| &predicate.columns);
        let origins: Vec<ColumnOrigin> = of.origins(columns)?.ok_or_else(|| changed(uri))?;
        let outcomes = |group: &RowGroupMetaData| {
            let known = columns.iter().zip(&origins);
            let known = known.map(|(column, origin)| facts(footer, group, origin, schema.field(*column)));
            let outcomes = predicate.map(|predicate| predicate.outcomes(&known.collect::<Vec<_>>()));
            outcomes.map_or((true, false), |found| (found.is_true, found.is_false || found.is_null))
        };
        let decided: Vec<(bool, bool)> = footer.row_groups().iter().map(outcomes).collect();
        let mut pages = match predicate {
            Some(predicate) => {
                let open = |group: &usize| decided[*group] == (true, true);
                let groups: Vec<usize> = (0..decided.len()).filter(open).collect();
                let (footer, schema, predicate) = (footer.clone(), schema.clone(), predicate.clone());
                let filtered = FilteredObject { footer, schema, predicate, origins };
                open_pages(tools, object, filtered, groups).await?
            }
            None => HashMap::new(),
        };
        let mut counts: Vec<BoxFuture<'_, Result<u64>>> = Vec::new();
        for (group, metadata) in footer.row_groups().iter().enumerate() {
            let passing = of.passing(group, predicate.cloned());
            counts.push(match decided[group] {
                _ if metadata.num_rows() == 0 => async { Ok(0) }.boxed(),
                (false, _) => async { Ok(0) }.boxed(),
                (true, false) => async move { Ok(passing.not_deleted()) }.boxed(),
                (true, true) => {
                    let passing = Arc::new(passing);
                    OpenGroup { of, group, columns, passing }
                        .count(tools, object, pages.remove(&group))
                        .boxed()
                }
            });
        }
        let counts = stream::iter(counts).buffered(tools.source.settings().s3_max_requests);
        let too_many = |_| Error::invalid(format!("{uri}: a row group has more than {} rows", u32::MAX));
        let narrow = |rows: u64| u32::try_from(rows).map_err(too_many);
        counts.and_then(|rows| std::future::ready(narrow(rows))).try_collect().await
    }
}

/// What the page indexes of row groups of an object leave to be read, where that is less than all.
async fn open_pages(
    tools: Tools<'_>,
    object: &SourceObject,
    filtered: FilteredObject,
    groups: Vec<usize>,
) -> Result<HashMap<usize, OpenPages>> {
    let max = INDEXES_BYTES_MAX.min(tools.source.settings().segment_memory_bytes);
    let (mut asked, mut ranges, mut bytes) = (Vec::new(), Vec::new(), 0u64);
    for group in groups {
        let Some(own) = filtered.index_ranges(group, object.size) else { continue };
        bytes += own.iter().map(|range| range.end - range.start).sum::<u64>();
        if bytes > max {
            break;
        }
        ranges.extend(own);
        asked.push(group);
    }
    if asked.is_empty() {
        return Ok(HashMap::new());
    }
    let demand = Urgency::demand();
    let _memory = tools.filtering.acquire(bytes, &demand).await;
    let chunks = fetch(tools.source, object, ranges, PIECE_BYTES, &demand).await?;
    let permit = tools.decoders.acquire(1, &demand).await;
    blocking(move || {
        let _permit = permit;
        let left = asked.into_iter().filter_map(|group| Some((group, filtered.open_pages(group, &chunks)?)));
        Ok(left.collect())
    })
    .await
}

/// A row group whose rows have to be looked at.
struct OpenGroup<'a> {
    of: ObjectColumns<'a>,
    group: usize,
    /// The filter's.
    columns: &'a [usize],
    passing: Arc<Passing>,
}

/// A row group's part that is read to count the rows that pass.
struct CountTask {
    task: DecodeTask,
    cost: Cost,
    ranges: Vec<Range<u64>>,
    /// Of the rows that are read.
    passing: Arc<Passing>,
    /// Rows that pass whatever is read.
    known: u64,
}

impl OpenGroup<'_> {
    /// Reads the filter's columns, of `pages` alone if they are given, and counts what passes.
    async fn count(
        self,
        tools: Tools<'_>,
        object: &SourceObject,
        mut pages: Option<OpenPages>,
    ) -> Result<u64> {
        let (max, demand) = (tools.source.settings().segment_memory_bytes, Urgency::demand());
        let (uri, group) = (&object.place.uri, self.group);
        for reading in 1.. {
            let (chosen, is_part) = match pages.take() {
                Some(pages) if pages.open.is_empty() => {
                    return Ok(self.passing.of(&pages.passing).not_deleted());
                }
                Some(pages) => (self.part(pages)?, true),
                None => (self.whole()?, false),
            };
            let CountTask { task, cost, ranges, passing, known } = chosen;
            if cost.certain() > max {
                return Err(Error::invalid(format!(
                    "{uri}: the filter's columns of row group {group} take {} bytes of memory, segment_memory_bytes (and \
                     on a cache node --memory-bytes) allows {max}: write it with smaller row groups, or allow more",
                    cost.certain()
                )));
            }
            let _memory = tools.filtering.acquire(cost.within(max).total(), &demand).await;
            let chunks = fetch(tools.source, object, ranges, PIECE_BYTES, &demand).await?;
            let (batch, _) = match decode(task, chunks, tools.decoders, &demand).await {
                // An index may be wrong: the whole of the columns tells.
                Err(e) if is_part || e.kind == Kind::Corrupt && reading < READINGS => {
                    tracing::info!(error = %e, "a column of a filter does not decode: it is fetched again");
                    continue;
                }
                decoded => decoded?,
            };
            let (uri, permit) = (uri.clone(), tools.decoders.acquire(1, &demand).await);
            return blocking(move || {
                let _permit = permit;
                let passes = passing.evaluate(batch.columns());
                let passes = passes.map_err(|e| Error::invalid(format!("{uri}: row group {group}: {e}")))?;
                Ok(known + passes.true_count() as u64)
            })
            .await;
        }
        unreachable!("the last reading returns")
    }

    /// The task that decodes all rows of the row group.
    fn whole(&self) -> Result<CountTask> {
        let Self { of, group, columns, passing } = self;
        let found = of.task(*group..group + 1, passing.rows, columns)?;
        let (task, cost) = found.ok_or_else(|| changed(of.uri))?;
        let ranges = chunk_ranges(&task.part, task.columns.iter().filter_map(ColumnOrigin::own));
        Ok(CountTask { task, cost, ranges, passing: passing.clone(), known: 0 })
    }

    /// The rows that the pages' index leaves open.
    fn part(&self, pages: OpenPages) -> Result<CountTask> {
        let OpenPages { passing, open, ranges, index } = pages;
        let CountTask { task, cost, .. } = self.whole()?;
        let footer = self.of.footer.of_group(self.group, index);
        let footer = footer.map_err(|e| Error::corrupt(format!("{}: {e}", self.of.uri)))?;
        let looked_at = self.passing.of(&open);
        let (rows, all) = (looked_at.rows, self.passing.rows);
        let cost = cost.of_rows(rows, all, ranges.iter().map(|range| range.end - range.start).sum());
        let open = open.iter().map(|range| range.start as usize..range.end as usize);
        let limit = match task.limit {
            DecodeLimit::Announced(_) => DecodeLimit::Announced(cost.announced()),
            limit @ DecodeLimit::Memory(_) => limit,
        };
        let task = DecodeTask {
            part: RowGroups { footer: Arc::new(footer), range: 0..1, rows },
            selection: Some(RowSelection::from_consecutive_ranges(open, all as usize)),
            limit,
            ..task
        };
        let cost = if self.of.is_file { cost.of_file() } else { cost };
        let known = self.passing.of(&passing).not_deleted();
        Ok(CountTask { task, cost, ranges, passing: Arc::new(looked_at), known })
    }
}

fn changed(uri: &str) -> Error {
    Error::changed(format!("{uri}: it changed while its rows were counted: try again"))
}
