//! Fetching: the bytes of a segment's projected column chunks, in few ranged reads, and from there the segment.
//!
//! Chunks that lie close together are read in one request, long runs in several at once. Every request names the
//! object's version.

use crate::Urgency;
use crate::parquet::cost::cost;
use crate::parquet::decode::{Chunks, Task, assemble, columns};
use crate::parquet::footer::Footer;
use crate::schema::from_ipc;
use crate::source::{Place, Purpose, Source, Version, aside};
use arrow::array::RecordBatch;
use bytes::Bytes;
use forebay_proto::{Error, Kind, Manifest, Result};
use futures::{StreamExt, TryStreamExt, stream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A gap up to this is read along: cheaper than one more request.
pub(crate) const GAP_BYTES: u64 = 4 << 10;

/// A run longer than this is read in pieces at once: a store's streams are slow one by one.
const PIECE_BYTES: u64 = 8 << 20;

/// A segment that does not decode is fetched this often before its object is called corrupt: what came may have been
/// damaged on its way.
const READINGS: u32 = 3;

/// Consecutive bytes of an object.
pub(crate) struct Run {
    pub start: u64,
    pub bytes: Bytes,
}

/// What a segment is read from.
pub(crate) struct Origin {
    pub place: Place,
    pub version: Version,
    pub footer: Arc<Footer>,
    pub groups: Range<usize>,
}

impl Source {
    /// What a segment is read from: nothing but what lies in its dataset. Reads the footer if it is not held.
    pub(crate) async fn origin(
        &self,
        manifest: &Manifest,
        segment: u32,
        urgency: &Urgency,
    ) -> Result<Origin> {
        let part = manifest.segment(segment)?;
        let object = manifest
            .objects()
            .get(part.object as usize)
            .ok_or_else(|| Error::invalid(format!("{}: malformed manifest", manifest.uri())))?;
        let place = self.place(&manifest.object_uri(object))?;
        let dataset = manifest.parts().iter().find(|p| p.segments.contains(&segment));
        if place.is_file() {
            let (place, dataset) = (place.clone(), dataset.map_or(manifest.uri(), |p| &p.uri).to_owned());
            aside(move || place.stays_under(&dataset)).await?;
        }
        let version = Version { etag: object.etag.clone(), size: object.size };
        let footer = self.footer(&place, &version, urgency).await?;
        let first = part.first_row_group as usize;
        Ok(Origin { place, version, footer, groups: first..first + part.row_groups as usize })
    }

    /// Reads one segment: all its rows in file order, the columns of `projection` (indices into the manifest's
    /// schema) in ascending order of index.
    ///
    /// The footer is read again if it is no longer held, so a manifest is all that is needed. `Changed` if the object
    /// was overwritten, `Corrupt` if it does not decode however often it is fetched. What `urgency` says decides who goes
    /// first when the store's limits are reached.
    pub async fn read_segment(
        &self,
        manifest: &Manifest,
        segment: u32,
        projection: &[usize],
        urgency: &Urgency,
    ) -> Result<RecordBatch> {
        for _ in 1..READINGS {
            match self.read_once(manifest, segment, projection, urgency).await {
                Err(e) if e.kind == Kind::Corrupt => {
                    tracing::info!(error = %e, "a segment does not decode: it is fetched anew");
                    self.counters().damaged.fetch_add(1, Relaxed);
                    self.forget_footer(manifest, segment)?;
                }
                done => return done,
            }
        }
        self.read_once(manifest, segment, projection, urgency).await
    }

    async fn read_once(
        &self,
        manifest: &Manifest,
        segment: u32,
        projection: &[usize],
        urgency: &Urgency,
    ) -> Result<RecordBatch> {
        let part = manifest.segment(segment)?;
        let Origin { place, version, footer, groups } = self.origin(manifest, segment, urgency).await?;
        let schema = from_ipc(manifest.schema())?;
        let mut columns = projection.to_vec();
        columns.sort_unstable();
        columns.dedup();
        let schema =
            Arc::new(schema.project(&columns).map_err(|_| {
                Error::invalid(format!("{}: no column {:?}", manifest.uri(), columns.last()))
            })?);
        let found =
            footer.row_groups().get(groups.clone()).map(|g| g.iter().map(|g| g.num_rows() as u64).sum());
        if found != Some(part.total_rows)
            || footer.schema.fields().len() <= columns.last().copied().unwrap_or(0)
        {
            return Err(Error::changed(format!(
                "{}: its footer does not fit the manifest: open the dataset anew",
                place.uri()
            )));
        }
        let cost = cost(&footer, groups.clone(), &columns, place.is_file());
        let most = self.settings().segment_memory_bytes;
        if cost.total() > most {
            return Err(Error::invalid(format!(
                "{}: row groups {groups:?} take {} bytes of memory to read, segment_memory_bytes (and on a cache node \
                 --memory-bytes) allows {most}: write it with smaller row groups, or allow more",
                place.uri(),
                cost.total()
            )));
        }
        let ranges = chunk_ranges(&footer, groups.clone(), &columns);
        let compressed: u64 = ranges.iter().map(|r| r.end - r.start).sum();
        let runs = self.fetch(&place, &version, ranges, urgency).await?;
        let task = Task {
            uri: place.uri().to_owned(),
            size: version.size,
            footer,
            groups,
            columns,
            rows: part.total_rows,
            schema,
            lists: true,
            limit: cost.limit(),
            decoded: AtomicU64::new(0),
        };
        let batch = self.decode(task, runs, urgency).await?;
        let c = self.counters();
        c.parquet_bytes_decoded.fetch_add(compressed, Relaxed);
        c.arrow_bytes_decoded.fetch_add(batch.get_array_memory_size() as u64, Relaxed);
        Ok(batch)
    }

    /// The bytes of `ranges`, as few runs in ascending order.
    async fn fetch(
        &self,
        place: &Place,
        version: &Version,
        ranges: Vec<Range<u64>>,
        urgency: &Urgency,
    ) -> Result<Vec<Run>> {
        let runs = coalesce(ranges);
        let mut fetched: Vec<Vec<u8>> = runs.iter().map(|r| vec![0; (r.end - r.start) as usize]).collect();
        let mut pieces = Vec::new();
        for (run, mut rest) in runs.iter().zip(fetched.iter_mut().map(Vec::as_mut_slice)) {
            for piece in split(run) {
                let (part, after) = rest.split_at_mut((piece.end - piece.start) as usize);
                pieces.push(self.get_into(place, version, piece.start, part, Purpose::Data, urgency));
                rest = after;
            }
        }
        // Their number is the gate's business.
        stream::iter(pieces).buffer_unordered(self.settings().s3_max_requests).try_collect::<()>().await?;
        let runs = runs.iter().zip(fetched);
        Ok(runs.map(|(run, bytes)| Run { start: run.start, bytes: bytes.into() }).collect())
    }

    /// Decodes on the blocking pool, one thread per core at most, columns at once where cores are free. A turn goes with
    /// the work, which goes on to its end even if the caller has gone.
    async fn decode(&self, task: Task, runs: Vec<Run>, urgency: &Urgency) -> Result<RecordBatch> {
        let task = Arc::new(task);
        let chunks = Arc::new(Chunks { size: task.size, runs });
        let hands = task.deal(self.cores());
        let work = hands.iter().map(|hand| async {
            let turn = self.decoder(urgency).await;
            let (task, chunks, hand) = (task.clone(), chunks.clone(), hand.clone());
            let uri = task.uri.clone();
            let work = move || {
                let _turn = turn;
                columns(&task, &chunks, &hand)
            };
            let done = tokio::task::spawn_blocking(work).await;
            done.unwrap_or_else(|e| Err(Error::closed(format!("{uri}: decoding: {e}"))))
        });
        let decoded = futures::future::try_join_all(work).await?;
        let mut placed: Vec<_> = hands.into_iter().flatten().zip(decoded.into_iter().flatten()).collect();
        placed.sort_unstable_by_key(|(place, _)| *place);
        assemble(&task, placed.into_iter().map(|(_, column)| column).collect())
    }
}

/// The chunks of `columns` in `groups`.
fn chunk_ranges(footer: &Footer, groups: Range<usize>, columns: &[usize]) -> Vec<Range<u64>> {
    let groups = footer.row_groups().get(groups).unwrap_or_default();
    let chunks = groups.iter().flat_map(|g| columns.iter().flat_map(|c| footer.chunks(g, *c)));
    chunks.filter(|r| !r.is_empty()).collect()
}

/// Sorted, and joined where they touch or nearly do.
fn coalesce(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|r| (r.start, r.end));
    let mut runs: Vec<Range<u64>> = Vec::new();
    for r in ranges {
        match runs.last_mut() {
            Some(last) if r.start <= last.end.saturating_add(GAP_BYTES) => last.end = last.end.max(r.end),
            _ => runs.push(r),
        }
    }
    runs
}

/// Equal pieces of at most [`PIECE_BYTES`].
fn split(run: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let (start, len) = (run.start, run.end - run.start);
    let count = len.div_ceil(PIECE_BYTES).max(1);
    (0..count).map(move |i| start + len * i / count..start + len * (i + 1) / count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "lists of ranges are what is tested")]
    fn near_ranges_join() {
        assert_eq!(coalesce(vec![10..20, 0..10, 20..30]), [0..30]);
        assert_eq!(coalesce(vec![0..10, 4106..4110, 9000..9001]), [0..4110, 9000..9001]);
        assert!(coalesce(vec![]).is_empty());
    }

    #[test]
    fn pieces_cover_a_run() {
        for len in [1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES + 7] {
            let run = 13..13 + len;
            let pieces: Vec<_> = split(&run).collect();
            assert_eq!((pieces[0].start, pieces[pieces.len() - 1].end), (run.start, run.end));
            assert!(pieces.windows(2).all(|w| w[0].end == w[1].start));
            assert!(pieces.iter().all(|p| p.end - p.start <= PIECE_BYTES && !p.is_empty()));
            assert_eq!(pieces.len() as u64, len.div_ceil(PIECE_BYTES));
        }
    }
}
