//! Messages made of rows: the segments that they need are held, the rows gathered, the message sent.

use super::{Budget, Reading, Segments};
use crate::ready::{ReadySegment, drop_aside};
use crate::stream::gather::{Pick, gather};
use crate::stream::wire::Message;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use forebay_proto::digest::OrderDigest;
use forebay_proto::manifest::{Manifest, Segment};
use forebay_proto::plan::Sample;
use forebay_proto::{Error, Kind, Result, v1};
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::sync::mpsc;

/// Rows that no message exceeds, so that narrow rows do not make huge indices.
pub(super) const MESSAGE_ROWS: usize = 64 << 10;

/// Segments that one answer gets at once, for a message and for its prefetch each.
pub(super) const CONCURRENCY: usize = 8;

/// Times that a message is made at most, where segments are damaged in between.
const ATTEMPTS: usize = 5;

/// Makes messages of rows and hands them to the reader.
pub(super) struct Maker {
    pub segments: Arc<dyn Segments>,
    pub reading: Reading,
    pub budget: Budget,
    pub sender: mpsc::Sender<Result<Message>>,
    /// Segments that the last message used.
    pub held: HashMap<u32, ReadySegment>,
    /// Body bytes for each byte that the manifest estimates, as in the last message; 1 before it.
    pub share: f64,
}

/// The rows of the message being collected.
#[derive(Default)]
pub(super) struct Collected {
    pub meta: v1::MessageMeta,
    pub samples: Vec<Sample>,
    pub digest: OrderDigest,
    /// What the manifest estimates the rows at, all columns.
    bytes: f64,
}

impl Collected {
    pub fn push(&mut self, step: u64, sample: Sample, of: &Segment) {
        self.bytes += of.decoded_bytes as f64 / of.total_rows as f64;
        if self.samples.is_empty() {
            self.meta.first_step = step;
        }
        let step = (step - self.meta.first_step) as u32;
        match self.meta.runs.as_mut_slice() {
            [.., s, segment, rows] if *s == step && *segment == sample.segment => *rows += 1,
            _ => self.meta.runs.extend([step, sample.segment, 1]),
        }
        self.samples.push(sample);
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        drop_aside(std::mem::take(&mut self.held).into_values());
    }
}

impl Maker {
    /// Whether the collected rows are a message's worth. Each row counts as its own segment's rows do, so that small rows
    /// before large ones do not make a message of gigabytes.
    pub fn is_full(&self, collected: &Collected) -> bool {
        collected.samples.len() >= MESSAGE_ROWS
            || collected.bytes * self.share >= self.budget.message_bytes as f64
    }

    /// Holds wanted segments, at least one, and no others; those that are not held yet are got several at once. Answers
    /// with those for which there is no memory while it holds the rest.
    ///
    /// Nobody can be waiting for each other here: one segment is held whatever memory there is, and for a second one no
    /// room is waited for, the answer goes on with what it holds and lets go of that before it gets the next.
    pub async fn hold(&mut self, wanted: &HashSet<u32>) -> Result<HashSet<u32>> {
        let gone: Vec<_> = self.held.extract_if(|segment, _| !wanted.contains(segment)).collect();
        let missing: Vec<u32> = wanted.iter().filter(|s| !self.held.contains_key(s)).copied().collect();
        let (most, mut bytes) =
            (self.segments.held_bytes(), self.held.values().map(ReadySegment::own_bytes).sum::<usize>());
        let at_once = self.at_once(&missing, most.saturating_sub(bytes))?;
        let gone: Vec<ReadySegment> = gone.into_iter().map(|(_, ready)| ready).collect();
        if at_once == 1 && !gone.is_empty() {
            // Only what is freed makes room.
            blocking(move || {
                drop(gone);
                Ok(())
            })
            .await?;
        } else {
            drop_aside(gone);
        }
        let full = AtomicBool::new(bytes > most);
        let gets = missing.into_iter().take_while(|_| !full.load(Relaxed)).map(|segment| {
            let (segments, reading) = (self.segments.clone(), self.reading.clone());
            async move {
                let ready = segments.get(&reading, segment).await?;
                let rows = reading.manifest.segment(segment)?.total_rows;
                if ready.batch.num_rows() as u64 != rows {
                    return Err(Error::corrupt(format!(
                        "{}: segment {segment} has {} rows, the manifest says {rows}",
                        reading.manifest.uri(),
                        ready.batch.num_rows()
                    )));
                }
                Ok((segment, ready))
            }
        });
        let mut got = stream::iter(gets).buffer_unordered(at_once);
        while let Some((segment, ready)) = got.try_next().await? {
            bytes += ready.own_bytes();
            // Others use the same memory.
            full.fetch_or(bytes > self.segments.held_bytes(), Relaxed);
            self.held.insert(segment, ready);
        }
        Ok(wanted.iter().filter(|s| !self.held.contains_key(s)).copied().collect())
    }

    /// How many segments may be got at once so that they fit into `bytes`, if none of them lies in a file.
    fn at_once(&self, segments: &[u32], bytes: usize) -> Result<usize> {
        let mut largest = 1;
        for segment in segments {
            let said = self.reading.manifest.segment(*segment)?.decoded_bytes;
            largest = largest.max((said as f64 * self.share) as usize);
        }
        Ok((bytes / largest).clamp(1, CONCURRENCY))
    }

    /// Gathers and sends the collected rows.
    pub async fn send(&mut self, collected: Collected) -> Result<()> {
        let collected = Arc::new(collected);
        for _ in 0..ATTEMPTS {
            let Some(message) = self.message(&collected).await? else {
                drop_aside(std::mem::take(&mut self.held).into_values());
                continue;
            };
            if collected.bytes > 0.0 {
                self.share = message.body_bytes() as f64 / collected.bytes;
            }
            return self.deliver(message).await;
        }
        Err(unsound(&self.reading.manifest))
    }

    /// A message of the collected rows; `None` if a segment was damaged meanwhile. Where memory cannot hold all its segments
    /// at once, their rows are gathered a few segments at a time, and put in order at the end.
    async fn message(&mut self, collected: &Arc<Collected>) -> Result<Option<Message>> {
        let mut left = self.hold(&collected.samples.iter().map(|s| s.segment).collect()).await?;
        let room = self.segments.room((collected.bytes * self.share) as usize).await;
        let schema = self.reading.projected.clone();
        let message = |batch: RecordBatch, of: &Collected| {
            let digest = of.digest.to_bytes().to_vec().into();
            Message::new(&batch, v1::MessageMeta { digest, ..of.meta.clone() })
        };
        if left.is_empty() {
            let (sources, picks) = self.picks(collected)?;
            let (rows, places) =
                (collected.clone(), picks.into_iter().map(|(_, pick)| pick).collect::<Vec<_>>());
            let make = move |sources: &[ReadySegment]| message(gathered(&schema, sources, &places)?, &rows);
            return Ok(self.made_of(sources, make).await?.map(|m| m.guarded(room)));
        }
        let (mut parts, mut order) = (Vec::new(), vec![(0, 0); collected.samples.len()]);
        loop {
            let (sources, picks) = self.picks(collected)?;
            for (row, (sample, _)) in picks.iter().enumerate() {
                order[*sample] = (parts.len(), row);
            }
            let (schema, places) =
                (schema.clone(), picks.into_iter().map(|(_, pick)| pick).collect::<Vec<_>>());
            let make = move |sources: &[ReadySegment]| gathered(&schema, sources, &places);
            let Some(part) = self.made_of(sources, make).await? else { return Ok(None) };
            parts.push(part);
            if left.is_empty() {
                break;
            }
            left = self.hold(&left).await?;
        }
        let rows = collected.clone();
        let join = move || message(gather(&schema, &parts.iter().collect::<Vec<_>>(), &order)?, &rows);
        Ok(Some(blocking(join).await?.guarded(room)))
    }

    /// The segments that are held, and of the collected rows those that lie in them: which each is, and where.
    #[expect(clippy::type_complexity, reason = "two lists, taken apart where they are made")]
    fn picks(&self, collected: &Collected) -> Result<(Vec<ReadySegment>, Vec<(usize, Pick)>)> {
        let mut places = HashMap::with_capacity(self.held.len());
        let mut sources: Vec<ReadySegment> = Vec::with_capacity(self.held.len());
        for (segment, ready) in &self.held {
            let skip = self.reading.manifest.segment(*segment)?.skip as usize;
            places.insert(*segment, (sources.len(), skip));
            sources.push(ready.clone());
        }
        let pick = |(i, sample): (usize, &Sample)| {
            let (source, skip) = places.get(&sample.segment)?;
            Some((i, (*source, skip + sample.row as usize)))
        };
        Ok((sources, collected.samples.iter().enumerate().filter_map(pick).collect()))
    }

    /// Something made of segments; `None` if one of them was damaged meanwhile, whatever came of it.
    async fn made_of<T: Send + 'static>(
        &self,
        sources: Vec<ReadySegment>,
        make: impl FnOnce(&[ReadySegment]) -> Result<T> + Send + 'static,
    ) -> Result<Option<T>> {
        blocking(move || {
            // Damaged offsets may make it panic.
            let made = std::panic::catch_unwind(AssertUnwindSafe(|| make(&sources)));
            if !sources.iter().all(ReadySegment::verify) {
                return Ok(None);
            }
            made.unwrap_or_else(|_| Err(Error::corrupt("gathering rows failed: the log says why"))).map(Some)
        })
        .await
    }

    /// A message of consecutive rows of a segment.
    pub async fn stretch(
        &mut self,
        segment: u32,
        first: usize,
        rows: usize,
        bytes: usize,
    ) -> Result<Message> {
        for _ in 0..ATTEMPTS {
            self.hold(&HashSet::from([segment])).await?;
            let sources: Vec<_> = self.held.values().cloned().collect();
            let room = self.segments.room(bytes).await;
            let meta = v1::MessageMeta { runs: vec![0, segment, rows as u32], ..Default::default() };
            let made = self.made_of(sources, move |sources| {
                let mut message = Message::new(&sources[0].batch.slice(first, rows), meta)?;
                if sources[0].guard.is_none() {
                    // It may lie in a file, whose pages may have gone when an async thread sends the message.
                    message.body.iter_mut().for_each(|part| *part = Bytes::copy_from_slice(part));
                }
                Ok(message.guarded(sources[0].guard.clone()).guarded(room))
            });
            match made.await? {
                Some(message) => return Ok(message),
                None => drop_aside(std::mem::take(&mut self.held).into_values()),
            }
        }
        Err(unsound(&self.reading.manifest))
    }

    pub async fn deliver(&self, message: Message) -> Result<()> {
        let sent = self.sender.send(Ok(message)).await;
        sent.map_err(|_| Error::closed("the reader of the stream has gone"))
    }
}

fn gathered(schema: &SchemaRef, sources: &[ReadySegment], picks: &[Pick]) -> Result<RecordBatch> {
    gather(schema, &sources.iter().map(|r| r.batch.as_ref()).collect::<Vec<_>>(), picks)
}

fn unsound(manifest: &Manifest) -> Error {
    let uri = manifest.uri();
    Error::retry(format!(
        "{uri}: its segments are damaged again and again while they are read: the cache's log says more"
    ))
}

/// Runs `work` off the async threads: it touches mapped pages and copies megabytes.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|e| Err(Error::new(Kind::Corrupt, format!("gathering rows failed: {e}"))))
}
