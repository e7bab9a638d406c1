//! A worker: one stream's share of an epoch, from the segments it covers to the batches, through any failure.
//!
//! A worker asks its node for the rows of its segments from the first that is not [`Committed`] on. A stream
//! that breaks, falls silent (`silence`) or brings damaged bytes is opened again there, skipping what was
//! committed: nothing is lost or taken twice. Other workers go on meanwhile. What happens after a failure is
//! decided by `policy`. Where the segments have other nodes by then (`assignment`), the worker ends in favour
//! of successors, one for each node. `receiver` turns what a stream brings into rows of batches; `hedge` asks
//! another node when rows are late.

mod assignment;
mod feed;
mod hedge;
mod policy;
mod receiver;
mod silence;

use super::position::{Committed, Scope};
use super::reorder::ReorderBuffer;
use super::sampler::Epoch;
use crate::access::Access;
use crate::dataset::Dataset;
use crate::direct::Direct;
use crate::node::Node;
use crate::routing::Cluster;
use crate::stream::{StreamEvent, StreamSettings};
use assignment::Assignment;
#[cfg(test)]
pub(super) use assignment::CALM;
use feed::Feed;
use forebay_proto::{Error, Kind, Result, v1};
use hedge::{Hedge, HedgedStream};
pub(crate) use policy::RetryPolicy;
use policy::{Failure, FailureKind, History, Next, Situation, SourceKind};
use receiver::Receiver;
use silence::{SUSPICION, owed};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::time::{Instant, sleep};

/// What all workers of a loader share.
#[derive(Debug)]
pub(crate) struct ReadContext {
    pub dataset: Dataset,
    pub buffer: ReorderBuffer,
    pub supply: Supply,
    pub policy: RetryPolicy,
    pub stream: StreamSettings,
}

/// Where rows come from.
#[derive(Debug)]
pub(crate) enum Supply {
    Cluster(Cluster),
    Direct(Direct),
}

/// What all workers of an epoch share.
#[derive(Debug)]
pub(crate) struct EpochRun {
    pub epoch: Epoch,
    /// How many workers the epoch has at the moment.
    pub workers: AtomicUsize,
}

/// One stream's share of an epoch.
#[derive(Debug)]
pub(crate) struct StreamWorker {
    context: Arc<ReadContext>,
    run: Arc<EpochRun>,
    source: RowSource,
    assignment: Assignment,
    committed: Committed,
    history: History,
}

/// Where a worker's rows come from.
#[derive(Debug, Clone)]
enum RowSource {
    /// The object store, without any cache.
    Direct,
    /// The node that the segments belong to.
    Owner(Node),
    /// Another node, which was faster and brings only the segments that it holds.
    Hedge { node: Node, owner: Node },
    /// The object store, while no node answers.
    Fallback,
}

/// What came first.
enum First {
    Event(Option<StreamEvent>),
    Hedge(Box<HedgedStream>),
}

impl RowSource {
    fn kind(&self) -> SourceKind {
        match self {
            Self::Direct => SourceKind::Direct,
            Self::Owner(_) => SourceKind::Owner,
            Self::Hedge { .. } => SourceKind::Hedge,
            Self::Fallback => SourceKind::Fallback,
        }
    }

    /// The node that is read from.
    fn node(&self) -> Option<&Node> {
        match self {
            Self::Owner(node) | Self::Hedge { node, .. } => Some(node),
            Self::Direct | Self::Fallback => None,
        }
    }

    /// The node that the segments belong to.
    fn owner(&self) -> Option<&Node> {
        match self {
            Self::Owner(owner) | Self::Hedge { owner, .. } => Some(owner),
            Self::Direct | Self::Fallback => None,
        }
    }
}

impl StreamWorker {
    /// The workers of an epoch.
    pub async fn all(context: &Arc<ReadContext>, run: &Arc<EpochRun>) -> Result<Vec<Self>> {
        let manifest = context.dataset.manifest();
        let whole = Self {
            context: context.clone(),
            run: run.clone(),
            source: RowSource::Direct,
            assignment: Assignment::all(manifest),
            committed: Committed::default(),
            history: History::default(),
        };
        match &context.supply {
            Supply::Direct(_) => Ok(vec![whole]),
            Supply::Cluster(cluster) => {
                Ok(whole.successors(whole.assignment.divide(cluster, manifest).await?))
            }
        }
    }

    /// Brings all rows. Ends early with the workers that take over when the segments have other nodes.
    pub async fn run(mut self) -> Result<Vec<Self>> {
        loop {
            match self.attempt().await {
                Ok(successors) => return Ok(successors),
                Err(failure) => {
                    if let Some(successors) = self.recover(failure).await? {
                        return Ok(successors);
                    }
                }
            }
        }
    }

    /// One stream, from the first row that is not committed to the epoch's end, or until others are to take
    /// over.
    async fn attempt(&mut self) -> Result<Vec<Self>, Failure> {
        self.settle()?;
        if self.committed.step >= self.run.epoch.count {
            return Ok(Vec::new());
        }
        let mut receiver = Receiver::new(self.committed.step);
        let mut feed = self.owed(self.open()).await?;
        loop {
            let event = match receiver.is_between_messages() {
                false => self.owed(feed.next()).await?,
                true => match self.next_or_hedge(&mut feed).await? {
                    First::Event(event) => event,
                    First::Hedge(hedged) => {
                        let HedgedStream { node, feed: faster, head } = *hedged;
                        if let Some(owner) = self.source.owner().cloned() {
                            self.source = RowSource::Hedge { node, owner };
                        }
                        (feed, receiver) = (faster, Receiver::new(self.committed.step));
                        Some(StreamEvent::Head(head))
                    }
                },
            };
            let Some(event) = event else { break };
            if self.receive(&mut receiver, event).await? {
                self.note_progress()?;
                if let Some(successors) = self.follow().await {
                    return Ok(successors);
                }
            }
        }
        receiver.finish(self.scope()).await?;
        Ok(Vec::new())
    }

    /// Hands an event to the receiver. True if it completed a message.
    async fn receive(&mut self, receiver: &mut Receiver, event: StreamEvent) -> Result<bool, Failure> {
        let (before, mut committed) = (self.committed, self.committed);
        let taken = receiver.take(event, self.scope(), &mut committed).await;
        self.committed = committed;
        if committed > before {
            self.history = History::default();
        }
        taken
    }

    /// Waits for what comes first: the next event of the worker's stream, or another node that is faster.
    async fn next_or_hedge(&self, feed: &mut Feed) -> Result<First, Failure> {
        let Supply::Cluster(cluster) = &self.context.supply else {
            return Ok(First::Event(self.owed(feed.next()).await?));
        };
        let began = Instant::now();
        let event = async {
            let event = self.owed(feed.next()).await;
            cluster.throughput().note(began.elapsed());
            event
        };
        let RowSource::Owner(node) = &self.source else { return Ok(First::Event(event.await?)) };
        let hedge = Hedge {
            cluster,
            node,
            scope: self.scope(),
            committed: self.committed,
            dataset: &self.context.dataset,
            stream: &self.context.stream,
        };
        tokio::select! {
            biased;
            event = event => Ok(First::Event(event?)),
            hedged = hedge.run() => Ok(First::Hedge(Box::new(hedged))),
        }
    }

    /// After a failure: the successors that take over, or `None` when this worker is to try again.
    async fn recover(&mut self, mut failure: Failure) -> Result<Option<Vec<Self>>> {
        loop {
            self.history.failing_since.get_or_insert_with(Instant::now);
            let situation = self.situation(&failure).await;
            let next = self.context.policy.on(&failure, &mut self.history, situation, Instant::now());
            tracing::debug!(error = %failure.error, step = self.committed.step, ?next, "a batch stream failed");
            match next {
                Next::Retry(after) => sleep(after).await,
                Next::Reopen(after) => match self.reopen(&failure.error).await {
                    Ok(()) => sleep(after).await,
                    Err(e) => {
                        failure = e;
                        continue;
                    }
                },
                Next::Divide => match self.divide().await {
                    Some(successors) => return Ok(Some(successors)),
                    None => sleep(self.history.backoff.next()).await,
                },
                Next::Fallback => {
                    tracing::warn!(
                        "no node of the cache answers: reading from the object store until one does"
                    );
                    self.source = RowSource::Fallback;
                }
                Next::GiveUp(error) => return Err(self.explain(error)),
            }
            return Ok(None);
        }
    }

    /// The facts that decide what to do after a failure. A node that failed is probed the first time; if it
    /// does not serve, it is out for all workers until it does.
    async fn situation(&mut self, failure: &Failure) -> Situation {
        let source = self.source.kind();
        let mut situation = Situation { source, node_serves: false, nodes_left: true, has_fallback: false };
        let is_nodes_fault = matches!(failure.kind, FailureKind::Broken | FailureKind::NodeDead);
        let Supply::Cluster(cluster) = &self.context.supply else { return situation };
        if !is_nodes_fault || source == SourceKind::Hedge {
            return situation;
        }
        cluster.may_try_again().await;
        if let Some(node) = self.source.node() {
            let is_first = !std::mem::replace(&mut self.history.probed, true);
            let may_serve = is_first && failure.kind == FailureKind::Broken;
            situation.node_serves = may_serve && node.is_serving(SUSPICION).await;
            if !situation.node_serves {
                cluster.failed(node);
            }
        }
        (situation.nodes_left, situation.has_fallback) = (cluster.has_nodes(), cluster.fallback().is_some());
        situation
    }

    /// The workers at the nodes that can be asked now; `None` where those are the one that failed, or none.
    async fn divide(&mut self) -> Option<Vec<Self>> {
        let Supply::Cluster(cluster) = &self.context.supply else { return None };
        let parts = self.assignment.divide(cluster, self.context.dataset.manifest()).await.ok();
        let is_same = |parts: &Vec<(Node, Assignment)>| matches!(&parts[..], [(only, _)] if Some(only) == self.source.node());
        match parts.filter(|parts| !is_same(parts)) {
            Some(parts) => Some(self.successors(parts)),
            None => {
                if let RowSource::Hedge { owner, .. } = &self.source {
                    self.source = RowSource::Owner(owner.clone());
                }
                None
            }
        }
    }

    /// The workers that are to go on if the segments have other nodes now.
    async fn follow(&mut self) -> Option<Vec<Self>> {
        let (Supply::Cluster(cluster), Some(owner)) = (&self.context.supply, self.source.owner()) else {
            return None;
        };
        let (manifest, streams) = (self.context.dataset.manifest(), self.run.workers.load(Relaxed));
        let parts = self.assignment.redivide(cluster, manifest, owner, streams).await?;
        tracing::debug!(step = self.committed.step, nodes = parts.len(), "segments have other nodes");
        // Whatever went wrong before is over: a message came.
        self.history = History::default();
        Some(self.successors(parts))
    }

    fn successors(&self, parts: Vec<(Node, Assignment)>) -> Vec<Self> {
        let successor = |(node, assignment)| Self {
            context: self.context.clone(),
            run: self.run.clone(),
            source: RowSource::Owner(node),
            assignment,
            committed: self.committed,
            history: History { probed: false, ..self.history.clone() },
        };
        parts.into_iter().map(successor).collect()
    }

    /// Tells the node of the dataset again; `Changed` if the dataset has another version now.
    async fn reopen(&self, why: &Error) -> Result<(), Failure> {
        let Some(node) = self.source.node() else { return Err(Failure::from(why.clone())) };
        let manifest = self.context.dataset.manifest();
        let access = Access::Endpoint(node.clone().into());
        let opened =
            self.owed(Dataset::open(&access, self.context.dataset.spec())).await.map_err(|failure| {
                let may_help = failure.error.kind == Kind::Retry;
                if may_help { failure } else { Failure { kind: FailureKind::Final, ..failure } }
            })?;
        let (old, new) = (manifest.digest(), opened.manifest().digest());
        match old == new {
            true => Ok(()),
            false => Err(Failure::from(Error::changed(format!(
                "{} was overwritten during the run: its version was {old}, now it is {new}: start a new run from it",
                manifest.uri()
            )))),
        }
    }

    /// After a message: notes that the node works. `Retry` if this was the fallback and a node is back.
    fn note_progress(&self) -> Result<()> {
        match (&self.context.supply, &self.source) {
            (Supply::Cluster(cluster), RowSource::Fallback) if cluster.has_nodes() => {
                return Err(Error::retry("a node of the cache is back"));
            }
            (Supply::Cluster(cluster), source) => {
                source.node().into_iter().for_each(|node| cluster.works(node))
            }
            (Supply::Direct(_), _) => {}
        }
        Ok(())
    }

    /// Goes on to the next step if nothing more of this one is owed: a step that lacks nothing may be gone.
    fn settle(&mut self) -> Result<()> {
        let Committed { step, row } = self.committed;
        if row == 0 || step >= self.run.epoch.count {
            return Ok(());
        }
        let (pieces, segments) = (self.run.epoch.pieces(step)?, self.assignment.segments());
        if !pieces.iter().any(|p| segments.contains(p.segment) && p.first + p.rows > row) {
            self.committed = Committed { step: step + 1, row: 0 };
        }
        Ok(())
    }

    async fn open(&self) -> Result<Feed> {
        let dataset = &self.context.dataset;
        match (&self.context.supply, self.source.node()) {
            (Supply::Direct(direct), _) => Feed::direct(direct, dataset, &self.ticket()),
            (Supply::Cluster(_), Some(node)) => {
                Feed::stream(node.url(), dataset.manifest(), self.ticket(), &self.context.stream).await
            }
            (Supply::Cluster(cluster), None) => match cluster.fallback() {
                Some(direct) => Feed::direct(direct, dataset, &self.ticket()),
                None => Err(Error::retry("no node of the cache answers")),
            },
        }
    }

    /// Asks for the worker's rows from the first that is not committed.
    fn ticket(&self) -> v1::PlanTicket {
        let columns = self.context.dataset.ticket_columns();
        self.run.epoch.ticket(self.committed.step, columns, self.assignment.segments())
    }

    fn scope(&self) -> Scope<'_> {
        Scope { epoch: &self.run.epoch, buffer: &self.context.buffer, segments: self.assignment.segments() }
    }

    /// Waits for what the worker's node owes.
    async fn owed<T>(&self, what: impl Future<Output = Result<T>>) -> Result<T, Failure> {
        owed(self.source.node(), self.context.policy.patience, what).await
    }

    fn explain(&self, e: Error) -> Error {
        e.context(format!("{}: epoch {}", self.context.dataset.manifest().uri(), self.run.epoch.number()))
    }
}
