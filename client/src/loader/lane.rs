//! A lane: one stream's work within an epoch, from the segments it covers to the batches, through any failure.
//!
//! A lane asks its node for the rows of its segments from its [`Mark`] on, and moves the mark as rows are committed.
//! A stream that breaks, falls silent or brings damaged bytes is opened again from the mark's step, skipping what
//! was committed of it: nothing is lost or taken twice. Other lanes go on meanwhile. When the node does not answer any
//! more, its segments are divided anew among the nodes that do, and the lane ends in favour of [`Lane`]s for those. The
//! same happens when the topology gives segments to other nodes (`follow`).
//!
//! Whoever waits here is owed rows: the reader asks for the next only when there is room for it. So silence is a reason
//! to ask the node whether it lives: one that says so is slow (it may be fetching from the store) and gets all the
//! time it needs, one that does not is dead to this lane. Without any node, and with the fallback, rows come from the
//! store until a node is back.

pub(super) mod follow;
mod hedge;

use super::cursor::{Cursor, Mark, Passed, Place, Room, Run, Segments};
use super::feed::Feed;
use super::landing::Landing;
use super::merge::Window;
use super::sampler::Epoch;
use super::shape;
use crate::access::Access;
use crate::dataset::Dataset;
use crate::direct::Direct;
use crate::node::Node;
use crate::routing::{Cluster, Group, News};
use crate::stream::{Event, Head, StreamSettings};
use forebay_proto::digest::OrderDigest;
use forebay_proto::{Error, Kind, Result, v1};
use prost::Message as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// The first pause before a stream is opened again, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Silence after which a node is asked whether it lives; and again after that each time.
const SUSPICION: Duration = Duration::from_millis(300);

/// How long it may take to say so. Together with the suspicion this bounds the stall that a silent node causes.
const PROBE: Duration = Duration::from_millis(700);

/// What all lanes of a loader share.
#[derive(Debug)]
pub(crate) struct Work {
    pub dataset: Dataset,
    pub window: Window,
    pub supply: Supply,
    pub patience: Duration,
    /// How long no node may answer before the fallback is used: not the same in all readers of a cache that dies.
    pub fallback_after: Duration,
    pub stream: StreamSettings,
}

/// Where rows come from.
#[derive(Debug)]
pub(crate) enum Supply {
    Cluster(Cluster),
    Direct(Direct),
}

/// One stream's work within an epoch.
#[derive(Debug)]
pub(crate) struct Lane {
    work: Arc<Work>,
    epoch: Arc<Epoch>,
    /// The node to ask; `None` reads the store, for good or as the fallback.
    node: Option<Node>,
    /// Whose segments they are, by the topology that the lane knows.
    home: Option<Node>,
    /// What the lane does not know yet.
    news: Option<News>,
    /// When the work was divided last in mid-epoch.
    divided: Option<Instant>,
    list: Arc<[u32]>,
    segments: Segments,
    done: Mark,
    /// The node is not its own: it was faster than that, and brings only what it holds.
    guest: bool,
    /// Rows were committed since the last failure.
    moved: bool,
    trouble: Trouble,
}

/// What a lane remembers of the failures since rows last moved.
#[derive(Debug, Clone, Copy)]
struct Trouble {
    since: Option<Instant>,
    /// Before the next attempt.
    pause: Duration,
    /// The dataset was opened anew at the node.
    reopened: bool,
    /// The node was asked again.
    again: bool,
}

impl Default for Trouble {
    fn default() -> Self {
        Self { since: None, pause: PAUSES.0, reopened: false, again: false }
    }
}

/// Why an attempt ended.
#[derive(Debug)]
struct Failure {
    error: Error,
    /// Another attempt may succeed.
    again: bool,
    /// The node was asked whether it lives, and did not answer.
    dead: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let again = matches!(error.kind, Kind::Retry | Kind::Closed | Kind::Full);
        Self { error, again, dead: false }
    }
}

/// What came is not what was sent: it may come whole the next time.
fn damaged(error: Error) -> Failure {
    Failure { error, again: true, dead: false }
}

/// What came first.
enum Next {
    Event(Option<Event>),
    Rival(Box<hedge::Rival>),
}

/// A message being received.
struct Receiving {
    landing: Landing,
    runs: Vec<Run>,
    meta: v1::MessageMeta,
    /// Where its rows go and the place after it; `None` if it is held until there is room.
    ready: Option<(Passed, Cursor)>,
}

impl Lane {
    /// The lanes of an epoch.
    pub fn all(work: &Arc<Work>, epoch: &Arc<Epoch>) -> Result<Vec<Lane>> {
        let list: Arc<[u32]> = (0..work.dataset.manifest().segments().len() as u32).collect();
        let whole = Lane {
            work: work.clone(),
            epoch: epoch.clone(),
            node: None,
            home: None,
            news: None,
            divided: None,
            segments: Segments::default(),
            list,
            done: Mark::default(),
            guest: false,
            moved: false,
            trouble: Trouble::default(),
        };
        match &work.supply {
            Supply::Direct(_) => Ok(vec![whole]),
            Supply::Cluster(_) => whole.divided(),
        }
    }

    /// The same work, some of the segments, at another node or at the store.
    fn at(&self, node: Option<Node>, list: &[u32]) -> Lane {
        Lane {
            work: self.work.clone(),
            epoch: self.epoch.clone(),
            home: node.clone(),
            node,
            news: None,
            divided: self.divided,
            list: list.into(),
            segments: Segments::of(list, self.work.dataset.manifest().segments().len()),
            done: self.done,
            guest: false,
            moved: false,
            trouble: Trouble { again: false, ..self.trouble },
        }
    }

    /// The lanes that do this one's work at the nodes that can be asked.
    fn divided(&self) -> Result<Vec<Lane>> {
        let Supply::Cluster(cluster) = &self.work.supply else {
            return Err(Error::invalid("a direct read has no nodes"));
        };
        let news = cluster.news();
        let lane = |Group { node, segments }: Group| Lane {
            news: Some(news.clone()),
            ..self.at(Some(node), &segments)
        };
        let groups = cluster.groups(self.work.dataset.manifest(), &self.list)?;
        Ok(groups.into_iter().map(lane).collect())
    }

    /// Brings all rows. Ends early with the lanes that take over when the segments were divided anew.
    pub async fn run(mut self) -> Result<Vec<Lane>> {
        loop {
            let mut failure = match self.attempt().await {
                Ok(lanes) => return Ok(lanes),
                Err(failure) => failure,
            };
            if std::mem::take(&mut self.moved) {
                self.trouble = Trouble::default();
            }
            if std::mem::take(&mut self.guest) && failure.again {
                tracing::debug!(error = %failure.error, "back to the segments' own nodes");
                // Without any node that takes segments, this lane waits like any other.
                if let Ok(lanes) = self.divided() {
                    return Ok(lanes);
                }
            }
            let since = *self.trouble.since.get_or_insert_with(Instant::now);
            self.trouble.again |= failure.dead;
            if failure.error.kind == Kind::NotFound {
                // The node may have started anew since the dataset was opened there, or was told to forget it.
                match self.reopen(&failure.error).await {
                    Ok(()) if !std::mem::replace(&mut self.trouble.reopened, true) => continue,
                    // Once more, before any row came: that may go on, but not at once.
                    Ok(()) => {}
                    Err(e) if e.kind != Kind::Retry => return Err(self.explain(e)),
                    Err(e) => failure.error = e,
                }
            } else if !failure.again {
                return Err(self.explain(failure.error));
            }
            if since.elapsed() >= self.work.patience {
                let patience = self.work.patience.as_secs_f32();
                return Err(self.explain(failure.error.context(format!("gave up after {patience} s"))));
            }
            tracing::debug!(error = %failure.error, step = self.done.step, "a batch stream failed, trying again");
            // Who says that it does not know a dataset lives, and is no worse than others.
            let lives = failure.error.kind == Kind::NotFound;
            if !lives && let Some(lanes) = self.divide_anew(since).await? {
                return Ok(lanes);
            }
            sleep(self.trouble.pause).await;
            self.trouble.pause = (self.trouble.pause * 2).min(PAUSES.1);
        }
    }

    /// After a failure: lanes at other nodes, if there are any that can take over, or at the store as the last resort.
    async fn divide_anew(&mut self, since: Instant) -> Result<Option<Vec<Lane>>> {
        let Supply::Cluster(cluster) = &self.work.supply else { return Ok(None) };
        cluster.may_try_again().await;
        if let Some(node) = &self.node {
            // A stream may break without the node's doing: then it is asked again before others are burdened.
            let asked = std::mem::replace(&mut self.trouble.again, true);
            if !asked && node.is_serving(SUSPICION).await {
                return Ok(None);
            }
            cluster.failed(node);
        }
        if !cluster.has_nodes() && cluster.fallback().is_some() && since.elapsed() >= self.work.fallback_after
        {
            if self.node.is_none() {
                return Ok(None);
            }
            tracing::warn!("no node of the cache answers: reading from the store until one does");
            return Ok(Some(vec![self.at(None, &self.list)]));
        }
        // Without any node that takes segments, the old one is as good as any.
        let Ok(lanes) = self.divided() else { return Ok(None) };
        let url = |lane: &Lane| lane.node.as_ref().map(|n| n.url().to_owned());
        let same = matches!(&lanes[..], [only] if url(only) == url(self));
        Ok((!same).then_some(lanes))
    }

    /// Opens the dataset on the lane's node again; `Changed` if it is another version by now.
    async fn reopen(&self, why: &Error) -> Result<()> {
        let Some(node) = &self.node else { return Err(why.clone()) };
        let manifest = self.work.dataset.manifest();
        let access = Access::Endpoint(node.clone().into());
        let now = self.owed(Dataset::open(&access, self.work.dataset.spec())).await.map_err(|f| f.error)?;
        let (old, new) = (manifest.digest(), now.manifest().digest());
        match old == new {
            true => Ok(()),
            false => Err(Error::changed(format!(
                "{} was overwritten during the run: its version was {old}, now it is {new}: start anew from it",
                manifest.uri()
            ))),
        }
    }

    fn explain(&self, e: Error) -> Error {
        e.context(format!("{}: epoch {}", self.work.dataset.manifest().uri(), self.epoch.number()))
    }

    /// One stream, from the mark to the epoch's end, or until other lanes are to take over.
    async fn attempt(&mut self) -> Result<Vec<Lane>, Failure> {
        self.settle()?;
        let mut start = self.done.step;
        if start >= self.epoch.count {
            return Ok(Vec::new());
        }
        let mut cursor = Cursor::at(start);
        let mut feed = self.owed(self.open(start)).await?;
        let mut receiving: Option<Receiving> = None;
        loop {
            let event = match receiving.is_some() {
                true => self.owed(feed.next()).await?,
                false => match self.next(&mut feed).await? {
                    Next::Event(event) => event,
                    Next::Rival(rival) => {
                        (self.node, self.guest, start) = (Some(rival.node), true, self.done.step);
                        (feed, cursor) = (rival.feed, Cursor::at(start));
                        Some(Event::Head(rival.head))
                    }
                },
            };
            match event {
                Some(Event::Head(head)) => receiving = self.begin(&head, start, &cursor).await?,
                Some(Event::Body(bytes)) => {
                    if let Some(r) = &mut receiving {
                        r.landing.put(&bytes);
                    }
                }
                Some(Event::End) => {
                    if let Some(r) = receiving.take() {
                        self.end(r, &mut cursor).await?;
                        self.brought()?;
                        if let Some(lanes) = self.follow() {
                            return Ok(lanes);
                        }
                    }
                }
                None => break,
            }
        }
        cursor.finish(&self.place()).await?;
        Ok(Vec::new())
    }

    /// Waits for what comes first: the next event of the node's stream, or another node that is faster.
    async fn next(&self, feed: &mut Feed) -> Result<Next, Failure> {
        let began = Instant::now();
        tokio::select! {
            biased;
            event = self.owed(feed.next()) => {
                if let Supply::Cluster(cluster) = &self.work.supply {
                    cluster.pace().note(began.elapsed());
                }
                Ok(Next::Event(event?))
            }
            rival = self.rival() => Ok(Next::Rival(Box::new(rival))),
        }
    }

    /// Waits for what the node owes: as long as it answers when asked, and the patience at most.
    async fn owed<T>(&self, what: impl Future<Output = Result<T>>) -> Result<T, Failure> {
        tokio::pin!(what);
        let since = Instant::now();
        while since.elapsed() < self.work.patience {
            let left = self.work.patience.saturating_sub(since.elapsed());
            if let Ok(done) = timeout(SUSPICION.min(left), &mut what).await {
                return Ok(done?);
            }
            let Some(node) = &self.node else { continue };
            let serves = tokio::select! {
                biased;
                done = &mut what => return Ok(done?),
                serves = node.is_serving(PROBE.min(left)) => serves,
            };
            if !serves {
                let ms = since.elapsed().as_millis();
                let error =
                    Error::retry(format!("{} has been silent for {ms} ms and does not answer", node.url()));
                return Err(Failure { error, again: true, dead: true });
            }
        }
        Err(Error::retry(format!("no data for {} s", self.work.patience.as_secs_f32())).into())
    }

    /// After a message: notes that the node works. `Retry` if this was the fallback and a node is back.
    fn brought(&self) -> Result<()> {
        match (&self.work.supply, &self.node) {
            (Supply::Cluster(cluster), Some(node)) => cluster.works(node),
            (Supply::Cluster(cluster), None) if cluster.has_nodes() => {
                return Err(Error::retry("a node of the cache is back"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Moves the mark past its step if the lane owes nothing more of it: a step that lacks nothing may be gone.
    fn settle(&mut self) -> Result<()> {
        let Mark { step, row } = self.done;
        if row == 0 || step >= self.epoch.count {
            return Ok(());
        }
        let pieces = self.epoch.pieces(step)?;
        if !pieces.iter().any(|p| self.segments.has(p.segment) && p.first + p.rows > row) {
            self.done = Mark { step: step + 1, row: 0 };
        }
        Ok(())
    }

    async fn open(&self, step: u64) -> Result<Feed> {
        let dataset = &self.work.dataset;
        let ticket = self.epoch.ticket(step, dataset.ticket_columns(), &self.segments.0);
        match (&self.work.supply, &self.node) {
            (Supply::Direct(direct), _) => Feed::direct(direct, dataset, &ticket),
            (Supply::Cluster(_), Some(node)) => Feed::stream(node.url(), ticket, &self.work.stream).await,
            (Supply::Cluster(cluster), None) => match cluster.fallback() {
                Some(direct) => Feed::direct(direct, dataset, &ticket),
                None => Err(Error::retry("no node of the cache answers")),
            },
        }
    }

    fn place(&self) -> Place<'_> {
        Place { epoch: &self.epoch, window: &self.work.window, segments: &self.segments, done: self.done }
    }

    /// A message begins: finds out where its rows go. `None` for the stream's schema.
    async fn begin(&self, head: &Head, start: u64, cursor: &Cursor) -> Result<Option<Receiving>, Failure> {
        let schema = self.work.window.schema();
        if shape::is_schema(&head.header, schema).map_err(damaged)? {
            return Ok(None);
        }
        let meta = v1::MessageMeta::decode(head.meta.clone())
            .map_err(|e| damaged(Error::corrupt(format!("a message's metadata cannot be read: {e}"))))?;
        let mut landing = Landing::new(head, schema).map_err(damaged)?;
        let runs = runs(&meta, start, landing.rows()).map_err(damaged)?;
        let (mut passed, mut after, mut row) = (Passed::default(), cursor.clone(), 0);
        let mut room = Room::Wait;
        for run in &runs {
            match after.pass(*run, row, &self.place(), room).await? {
                Some(next) => passed.append(next),
                None => {
                    landing.hold(self.work.window.pool());
                    return Ok(Some(Receiving { landing, runs, meta, ready: None }));
                }
            }
            row += run.rows;
            room = Room::Now;
        }
        landing.scatter(&passed.parts, self.work.window.pool());
        Ok(Some(Receiving { landing, runs, meta, ready: Some((passed, after)) }))
    }

    /// A message is complete: commits its rows.
    async fn end(&mut self, message: Receiving, cursor: &mut Cursor) -> Result<(), Failure> {
        let Receiving { landing, runs, meta, ready } = message;
        let work = self.work.clone();
        let landed =
            landing.complete(meta.hash, work.window.schema(), work.window.pool()).map_err(damaged)?;
        let digest = OrderDigest::from_bytes(&meta.digest)?;
        if let Some((passed, after)) = ready {
            same_digest(passed.digest, digest)?;
            for part in &passed.parts {
                landed.commit(part, &work.window)?;
            }
            *cursor = after;
            self.advance(cursor);
            return Ok(());
        }
        let (mut planned, mut row) = (OrderDigest::default(), 0);
        for run in runs {
            let passed = cursor.pass(run, row, &self.place(), Room::Wait).await?;
            let passed = passed.ok_or_else(|| Error::corrupt("waiting for room ended without any"))?;
            for part in &passed.parts {
                landed.commit(part, &work.window)?;
            }
            self.advance(cursor);
            planned.merge(passed.digest);
            row += run.rows;
        }
        Ok(same_digest(planned, digest)?)
    }

    fn advance(&mut self, cursor: &mut Cursor) {
        let mark = cursor.mark(&self.segments);
        if mark > self.done {
            self.done = mark;
            self.moved = true;
        }
    }
}

/// The runs of a message, with steps counted in the epoch; `Corrupt` if they do not make up its rows.
fn runs(meta: &v1::MessageMeta, start: u64, rows: u32) -> Result<Vec<Run>> {
    let bad = |why: &str| Error::corrupt(format!("a message's runs make no sense: {why}"));
    let (triples, rest) = meta.runs.as_chunks::<3>();
    if !rest.is_empty() {
        return Err(bad("they are not triples"));
    }
    let mut runs = Vec::with_capacity(triples.len());
    let mut total = 0u64;
    for &[step, segment, n] in triples {
        let step = start.checked_add(meta.first_step).and_then(|s| s.checked_add(u64::from(step)));
        let step = step.ok_or_else(|| bad("a step is out of range"))?;
        if n == 0 {
            return Err(bad("one is empty"));
        }
        total += u64::from(n);
        runs.push(Run { step, segment, rows: n });
    }
    match total == u64::from(rows) {
        true => Ok(runs),
        false => Err(bad(&format!("they have {total} rows, the message {rows}"))),
    }
}

fn same_digest(planned: OrderDigest, sent: OrderDigest) -> Result<()> {
    match planned == sent {
        true => Ok(()),
        false => Err(Error::corrupt(format!(
            "a message holds other samples than planned: its digest is {sent}, the plan's {planned}"
        ))),
    }
}
