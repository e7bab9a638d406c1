//! Counting the rows that a filter leaves: by statistics where they decide, else by the filter's columns.

use crate::filter::Predicate;
use crate::parquet::column_origin::ColumnOrigin;
use crate::parquet::cost::Cost;
use crate::parquet::decode::{DecodeTask, decode};
use crate::parquet::fetch::{PIECE_BYTES, chunk_ranges, fetch};
use crate::parquet::filtered::{ObjectColumns, Passing};
use crate::parquet::footer::Footer;
use crate::parquet::footers::Footers;
use crate::parquet::statistics::facts;
use crate::priority::PrioritySemaphore;
use crate::source::{Source, SourceObject, blocking};
use crate::urgency::Urgency;
use arrow::datatypes::Schema;
use forebay_proto::manifest::Shape;
use forebay_proto::{Error, Kind, Result};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use std::sync::Arc;

/// A row group is read so often before its object is called corrupt.
const READINGS: u32 = 3;

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
        let of = ObjectColumns { schema, shape, footer, object: number, uri, is_file };
        let changed = || Error::changed(format!("{uri}: it changed while its rows were counted: try again"));
        let columns = predicate.map_or(&[][..], |predicate| &predicate.columns);
        let origins: Vec<ColumnOrigin> = of.origins(columns)?.ok_or_else(changed)?;
        let mut counts: Vec<BoxFuture<'_, Result<u64>>> = Vec::new();
        for (i, group) in footer.row_groups().iter().enumerate() {
            let rows = group.num_rows() as u64;
            let known = columns.iter().zip(&origins);
            let known = known.map(|(column, origin)| facts(footer, group, origin, schema.field(*column)));
            let outcomes = predicate.map(|predicate| {
                let outcomes = predicate.outcomes(&known.collect::<Vec<_>>());
                (outcomes.is_true, outcomes.is_false || outcomes.is_null)
            });
            let passing = of.passing(i, predicate.cloned());
            counts.push(match outcomes.unwrap_or((true, false)) {
                _ if rows == 0 => async { Ok(0) }.boxed(),
                (false, _) => async { Ok(0) }.boxed(),
                (true, false) => async move { Ok(passing.not_deleted()) }.boxed(),
                (true, true) => {
                    let task = move || of.task(i..i + 1, rows, columns)?.ok_or_else(changed);
                    count(tools, object, Arc::new(passing), task).boxed()
                }
            });
        }
        let counts = stream::iter(counts).buffered(tools.source.settings().s3_max_requests);
        let too_many = |_| Error::invalid(format!("{uri}: a row group has more than {} rows", u32::MAX));
        let narrow = |rows: u64| u32::try_from(rows).map_err(too_many);
        counts.and_then(|rows| std::future::ready(narrow(rows))).try_collect().await
    }
}

/// Reads the filter's columns of a row group, whose task is made for each reading, and counts what passes.
async fn count(
    tools: Tools<'_>,
    object: &SourceObject,
    passing: Arc<Passing>,
    task: impl Fn() -> Result<(DecodeTask, Cost)>,
) -> Result<u64> {
    let (max, demand) = (tools.source.settings().segment_memory_bytes, Urgency::demand());
    for reading in 1.. {
        let (task, cost) = task()?;
        if cost.total() > max {
            return Err(Error::invalid(format!(
                "{}: the filter's columns of row group {} take {} bytes of memory, segment_memory_bytes (and on a cache \
                 node --memory-bytes) allows {max}: write it with smaller row groups, or allow more",
                object.place.uri,
                task.part.range.start,
                cost.total()
            )));
        }
        let _memory = tools.filtering.acquire(cost.total(), &demand).await;
        let ranges = chunk_ranges(&task.part, task.columns.iter().filter_map(ColumnOrigin::own));
        let chunks = fetch(tools.source, object, ranges, PIECE_BYTES, &demand).await?;
        let (uri, group) = (task.uri.clone(), task.part.range.start);
        let batch = match decode(task, chunks, tools.decoders, &demand).await {
            Err(e) if e.kind == Kind::Corrupt && reading < READINGS => {
                tracing::info!(error = %e, "a column of a filter does not decode: it is fetched again");
                continue;
            }
            decoded => decoded?,
        };
        let (passing, permit) = (passing.clone(), tools.decoders.acquire(1, &demand).await);
        return blocking(move || {
            let _permit = permit;
            let passes = passing.evaluate(batch.columns());
            let passes = passes.map_err(|e| Error::invalid(format!("{uri}: row group {group}: {e}")))?;
            Ok(passes.true_count() as u64)
        })
        .await;
    }
    unreachable!("the last reading returns")
}
