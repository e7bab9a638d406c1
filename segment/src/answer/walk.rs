//! The walks behind the answers: which rows come next, and how they become messages.

use super::{Budget, Segments};
use crate::gather::{Pick, gather};
use crate::wire::Message;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use forebay_proto::digest::OrderDigest;
use forebay_proto::manifest::Manifest;
use forebay_proto::plan::steps::{Cut, Slot, Steps};
use forebay_proto::plan::{Order, PlanKey, Sample, Shuffle};
use forebay_proto::{Error, Kind, Result, v1};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};

/// Rows that no message exceeds, so that narrow rows do not make huge indices.
const MESSAGE_ROWS: usize = 64 << 10;

/// Fills under way at once for one answer's prefetch.
const PREFETCH_CONCURRENCY: usize = 8;

/// Segments that a prefetch keeps ready at most, however wide the window: beyond that the store decides.
const PREFETCH_SEGMENTS: usize = 64;

/// Makes messages of rows and hands them to the reader.
pub(super) struct Maker {
    pub segments: Arc<dyn Segments>,
    pub manifest: Arc<Manifest>,
    pub projection: Arc<[usize]>,
    pub schema: SchemaRef,
    pub budget: Budget,
    pub sender: mpsc::Sender<Result<Message>>,
    /// Segments that the last message used.
    pub held: HashMap<u32, Arc<RecordBatch>>,
}

/// The rows of the message being collected.
#[derive(Default)]
struct Collected {
    meta: v1::MessageMeta,
    samples: Vec<Sample>,
    digest: OrderDigest,
}

impl Collected {
    fn push(&mut self, step: u64, sample: Sample) {
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

impl Maker {
    /// Rows that a message should hold, from the size of what the last one held.
    fn rows_per_message(&self, row_bytes: f64) -> usize {
        ((self.budget.message_bytes as f64 / row_bytes.max(1.0)) as usize).clamp(1, MESSAGE_ROWS)
    }

    /// Decoded bytes of a row, estimated from the manifest for all columns and scaled to the projected share.
    fn row_bytes(&self) -> f64 {
        let (bytes, rows) = (self.manifest.segments().iter().take(16))
            .fold((0u64, 0u64), |(b, r), s| (b + s.decoded_bytes, r + s.rows));
        bytes as f64 / rows.max(1) as f64
    }

    async fn hold(&mut self, wanted: impl Iterator<Item = u32>) -> Result<()> {
        let mut held = HashMap::new();
        for segment in wanted {
            if held.contains_key(&segment) {
                continue;
            }
            let batch = match self.held.remove(&segment) {
                Some(batch) => batch,
                None => self.segments.get(&self.manifest, segment, &self.projection).await?,
            };
            let rows = self.manifest.segment(segment)?.rows;
            if batch.num_rows() as u64 != rows {
                return Err(Error::corrupt(format!(
                    "{}: segment {segment} has {} rows, the manifest says {rows}",
                    self.manifest.uri(),
                    batch.num_rows()
                )));
            }
            held.insert(segment, batch);
        }
        self.held = held;
        Ok(())
    }

    /// Gathers and sends the collected rows; answers with the message's body bytes.
    async fn send(&mut self, collected: Collected) -> Result<usize> {
        let segments: HashSet<u32> = collected.samples.iter().map(|s| s.segment).collect();
        self.hold(segments.into_iter()).await?;
        let (numbers, sources): (Vec<u32>, Vec<Arc<RecordBatch>>) =
            self.held.iter().map(|(n, b)| (*n, b.clone())).unzip();
        let schema = self.schema.clone();
        let message = blocking(move || {
            let place: HashMap<u32, usize> = numbers.into_iter().zip(0..).collect();
            let picks: Vec<Pick> =
                collected.samples.iter().map(|s| (place[&s.segment], s.row as usize)).collect();
            let sources: Vec<&RecordBatch> = sources.iter().map(Arc::as_ref).collect();
            let batch = gather(&schema, &sources, &picks)?;
            let digest = collected.digest.to_bytes().to_vec().into();
            Message::new(&batch, v1::MessageMeta { digest, ..collected.meta })
        })
        .await?;
        self.deliver(message).await
    }

    async fn deliver(&self, message: Message) -> Result<usize> {
        let bytes = message.body_bytes();
        let sent = self.sender.send(Ok(message)).await;
        sent.map(|()| bytes).map_err(|_| Error::closed("the reader of the stream has gone"))
    }
}

/// Runs `work` off the async threads: it touches mapped pages and copies megabytes.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|e| Err(Error::new(Kind::Corrupt, format!("gathering rows failed: {e}"))))
}

/// A plan ticket, checked.
pub(super) struct PlanWalk {
    order: Arc<Order>,
    cut: Cut,
    rank: u32,
    /// Bit per segment; empty = all.
    segments: Vec<u8>,
}

impl PlanWalk {
    pub fn new(manifest: &Manifest, ticket: &v1::PlanTicket) -> Result<Self> {
        let plan = ticket.plan.clone().ok_or_else(|| Error::invalid("the ticket has no plan"))?;
        let key = PlanKey::try_from(plan)?;
        if key.manifest != manifest.digest() {
            return Err(Error::invalid(format!(
                "the plan is for dataset version {}, {} has {}",
                key.manifest,
                manifest.uri(),
                manifest.digest()
            )));
        }
        let unknown =
            |what| Error::invalid(format!("unknown {what} in the ticket: use equal versions of Forebay"));
        let cut = Cut {
            first_position: ticket.first_position,
            global_batch: ticket.global_batch,
            world: ticket.world,
            ending: v1::plan_ticket::Ending::try_from(ticket.ending).map_err(|_| unknown("ending"))?.into(),
            layout: v1::plan_ticket::Layout::try_from(ticket.layout).map_err(|_| unknown("layout"))?.into(),
        };
        cut.check()?;
        if ticket.rank >= ticket.world {
            return Err(Error::invalid(format!(
                "rank {} of {}: ranks count from 0",
                ticket.rank, ticket.world
            )));
        }
        let order = Arc::new(Order::new(manifest, key.seed, key.epoch, key.shuffle));
        Steps::new(&order, cut)?;
        Ok(Self { order, cut, rank: ticket.rank, segments: ticket.segments.to_vec() })
    }

    fn wants(segments: &[u8], segment: u32) -> bool {
        segments.is_empty()
            || segments.get(segment as usize / 8).is_some_and(|b| b & (1 << (segment % 8)) != 0)
    }

    pub async fn run(self, mut maker: Maker) -> Result<()> {
        let Self { order, cut, rank, segments } = self;
        let steps = Steps::new(&order, cut)?;
        let manifest = maker.manifest.clone();
        let mut ahead = Ahead::start(&maker, &order, cut.first_position, &segments);
        let mut rows = maker.rows_per_message(maker.row_bytes());
        let mut slots: Vec<Slot> = Vec::new();
        let mut collected = Collected::default();
        for step in 0..steps.count() {
            steps.batch(step, rank, &mut slots);
            for slot in slots.iter().filter(|s| Self::wants(&segments, s.sample.segment)) {
                ahead.reached(slot.sample.segment);
                if steps.is_real(slot) {
                    let id = manifest.segment(slot.sample.segment)?.first_row + u64::from(slot.sample.row);
                    collected.digest.add(slot.position, id);
                }
                collected.push(step, slot.sample);
                if collected.samples.len() >= rows {
                    let n = collected.samples.len();
                    let bytes = maker.send(std::mem::take(&mut collected)).await?;
                    rows = maker.rows_per_message(bytes as f64 / n as f64);
                }
            }
        }
        if !collected.samples.is_empty() {
            maker.send(collected).await?;
        }
        Ok(())
    }
}

/// Makes the plan's next segments ready ahead of the walk.
struct Ahead {
    room: Arc<Semaphore>,
    reached: HashSet<u32>,
    last: Option<u32>,
    task: tokio::task::JoinHandle<()>,
}

impl Ahead {
    fn start(maker: &Maker, order: &Arc<Order>, position: u64, wanted: &[u8]) -> Self {
        let window = match order.key().shuffle {
            Shuffle::None => 1,
            Shuffle::Window(w) => w as usize,
            Shuffle::Full => maker.manifest.segments().len(),
        };
        let ready = window.saturating_add(maker.budget.segments_ahead).min(PREFETCH_SEGMENTS);
        let room = Arc::new(Semaphore::new(ready));
        let (segments, manifest, projection) =
            (maker.segments.clone(), maker.manifest.clone(), maker.projection.clone());
        let next: Vec<u32> = order.segments_from(position).filter(|&s| PlanWalk::wants(wanted, s)).collect();
        let permits = room.clone();
        let task = tokio::spawn(async move {
            let mut under_way = tokio::task::JoinSet::new();
            for segment in next {
                match permits.acquire().await {
                    Ok(permit) => permit.forget(),
                    Err(_) => return,
                }
                while under_way.len() >= PREFETCH_CONCURRENCY {
                    under_way.join_next().await;
                }
                let (segments, manifest, projection) =
                    (segments.clone(), manifest.clone(), projection.clone());
                // What fails here fails again, and is reported, when the walk needs it.
                under_way.spawn(async move { segments.get(&manifest, segment, &projection).await.map(drop) });
            }
            while under_way.join_next().await.is_some() {}
        });
        Self { room, reached: HashSet::new(), last: None, task }
    }

    fn reached(&mut self, segment: u32) {
        // Rows come in runs of one segment: most calls end here.
        if self.last.replace(segment) != Some(segment) && self.reached.insert(segment) {
            self.room.add_permits(1);
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// All rows in file order, up to `limit`.
pub(super) async fn scan(mut maker: Maker, limit: u64) -> Result<()> {
    let mut left = limit;
    let count = maker.manifest.segments().len() as u32;
    for segment in 0..count {
        if left == 0 {
            break;
        }
        maker.hold(std::iter::once(segment)).await?;
        let Some(batch) = maker.held.get(&segment).cloned() else { continue };
        let rows = (batch.num_rows() as u64).min(left) as usize;
        let bytes = batch.get_array_memory_size() as f64 / batch.num_rows().max(1) as f64;
        let per_message = maker.rows_per_message(bytes);
        for first in (0..rows).step_by(per_message) {
            let n = per_message.min(rows - first);
            let stretch = batch.slice(first, n);
            let meta = v1::MessageMeta { runs: vec![0, segment, n as u32], ..Default::default() };
            let message = blocking(move || Message::new(&stretch, meta)).await?;
            maker.deliver(message).await?;
        }
        left -= rows as u64;
    }
    Ok(())
}

/// The rows of a rows ticket; `Invalid` names the first that does not exist.
pub(super) fn explicit_rows(manifest: &Manifest, ticket: &v1::RowsTicket) -> Result<Vec<Sample>> {
    if ticket.segment.len() != ticket.row.len() {
        return Err(Error::invalid(format!(
            "the ticket names {} segments but {} rows",
            ticket.segment.len(),
            ticket.row.len()
        )));
    }
    let sample = |(&segment, &row): (&u32, &u64)| {
        let rows = manifest.segment(segment)?.rows;
        match row < rows {
            true => Ok(Sample { segment, row: row as u32 }),
            false => Err(Error::invalid(format!(
                "{}: segment {segment} has {rows} rows, there is no row {row}",
                manifest.uri()
            ))),
        }
    };
    ticket.segment.iter().zip(&ticket.row).map(sample).collect()
}

/// Explicit rows in the order asked for.
pub(super) async fn rows(mut maker: Maker, samples: Vec<Sample>) -> Result<()> {
    let mut per_message = maker.rows_per_message(maker.row_bytes());
    let mut rest = samples.as_slice();
    while !rest.is_empty() {
        let (now, after) = rest.split_at(per_message.min(rest.len()));
        let mut collected = Collected::default();
        now.iter().for_each(|s| collected.push(0, *s));
        let bytes = maker.send(collected).await?;
        per_message = maker.rows_per_message(bytes as f64 / now.len() as f64);
        rest = after;
    }
    Ok(())
}
