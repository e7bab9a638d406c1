//! A worker: one stream's share of an epoch, from the segments it covers to the batches, through any failure.
//!
//! A worker asks its node for the rows of its segments from the first that is not [`Committed`] on. A stream
//! that breaks, falls silent (`routing::silence`) or brings damaged bytes is opened again there, skipping
//! what was committed: nothing is lost or taken twice. Other workers go on meanwhile. What happens after a
//! failure is decided by `routing::policy`. Where the segments have other nodes by then (`assignment`), the
//! worker ends in favour of successors, one for each node. `receiver` turns what a stream brings into rows of
//! batches, `steps_message` what a node on this host leaves to the reader; `hedge` asks another node when
//! rows are late.

mod assignment;
mod feed;
mod hedge;
mod receiver;
mod steps_message;

use super::position::{Committed, Scope};
use super::reorder::ReorderBuffer;
use super::sampler::Epoch;
use crate::dataset::Dataset;
use crate::node::Node;
use crate::routing::Cluster;
use crate::routing::policy::{Failure, FailureKind, History, Next, RetryPolicy, Situation, SourceKind};
use crate::routing::silence::owed;
use crate::stream::StreamEvent;
use assignment::Assignment;
#[cfg(test)]
pub(super) use assignment::CALM;
use feed::Feed;
pub(crate) use feed::Wire;
use forebay_proto::{Error, Kind, Result, v1};
use hedge::{Hedge, HedgedStream};
use receiver::Receiver;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::time::{Instant, sleep};

/// What all workers of a loader share.
#[derive(Debug)]
pub(crate) struct ReadContext {
    pub dataset: Dataset,
    pub buffer: ReorderBuffer,
    /// The cache; `None` where the object store is read without one.
    pub cluster: Option<Cluster>,
    pub policy: RetryPolicy,
    pub wire: Wire,
}

/// One stream's share of an epoch.
#[derive(Debug)]
pub(crate) struct StreamWorker {
    context: Arc<ReadContext>,
    epoch: Arc<Epoch>,
    /// The node that the segments belong to; `None` without a cache, and while no node answers.
    owner: Option<Node>,
    /// No node takes the segments yet, and it is too early to read them from the object store.
    waits: bool,
    /// Another node, which was faster and is read from instead, as far as it holds the segments.
    hedge: Option<Node>,
    assignment: Assignment,
    committed: Committed,
    history: History,
}

impl StreamWorker {
    /// The workers of an epoch. While no node takes segments it is one, which waits as all do in mid-epoch.
    pub async fn all(context: &Arc<ReadContext>, epoch: &Arc<Epoch>) -> Result<Vec<Self>> {
        let manifest = &context.dataset.manifest;
        let whole = Self {
            context: context.clone(),
            epoch: epoch.clone(),
            owner: None,
            waits: false,
            hedge: None,
            assignment: Assignment::all(manifest),
            committed: Committed::default(),
            history: History::default(),
        };
        let Some(cluster) = &context.cluster else { return Ok(vec![whole]) };
        match whole.assignment.divide(cluster, manifest).await {
            Err(e) if e.kind == Kind::Retry => Ok(vec![Self { waits: true, ..whole }]),
            parts => Ok(whole.successors(parts?)),
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
        if self.committed.step >= self.epoch.count {
            return Ok(Vec::new());
        }
        let mut receiver = Receiver::new(self.committed.step);
        let mut feed = self.owed(self.open()).await?;
        loop {
            let event = match receiver.is_between_messages() {
                false => self.owed(feed.next()).await,
                true => self.next_or_hedge(&mut feed, &mut receiver).await,
            };
            // A node whose stream runs knows the dataset; but what another one lacks the owner may hold.
            let is_hedged = self.hedge.is_some();
            let event = event.map_err(|failure| if is_hedged { failure } else { failure.of_an_object() });
            let Some(event) = event? else { break };
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
        let began = Instant::now();
        let taken = receiver.take(event, self.scope(), &mut committed).await;
        // It may have waited for room, which is the reader's time and not the node's.
        self.history.leave_out(began.elapsed());
        self.committed = committed;
        if committed > before {
            self.history = History::default();
        }
        taken
    }

    /// Waits for what comes first: the next event of the worker's stream, or one of another node that is
    /// faster, which is read from then on.
    async fn next_or_hedge(
        &mut self,
        feed: &mut Feed,
        receiver: &mut Receiver,
    ) -> Result<Option<StreamEvent>, Failure> {
        let Some(cluster) = &self.context.cluster else { return self.owed(feed.next()).await };
        let began = Instant::now();
        let event = async {
            let event = self.owed(feed.next()).await;
            cluster.throughput.note(began.elapsed());
            event
        };
        let (Some(node), None) = (&self.owner, &self.hedge) else { return event.await };
        let hedge = Hedge {
            cluster,
            node,
            scope: self.scope(),
            committed: self.committed,
            dataset: &self.context.dataset,
            wire: self.context.wire,
        };
        let HedgedStream { node, feed: faster, head } = tokio::select! {
            biased;
            event = event => return event,
            hedged = hedge.run() => hedged,
        };
        self.hedge = Some(node);
        (*feed, *receiver) = (faster, Receiver::new(self.committed.step));
        Ok(Some(StreamEvent::Head(head)))
    }

    /// After a failure: the successors that take over, or `None` when this worker is to try again.
    async fn recover(&mut self, mut failure: Failure) -> Result<Option<Vec<Self>>> {
        loop {
            self.history.add(&failure);
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
                    (self.owner, self.hedge, self.waits) = (None, None, false);
                }
                Next::GiveUp(error) => {
                    let (manifest, epoch) = (&self.context.dataset.manifest, self.epoch.number());
                    return Err(error.context(format!("{}: epoch {epoch}", manifest.uri())));
                }
            }
            return Ok(None);
        }
    }

    /// The facts that decide what to do after a failure.
    async fn situation(&mut self, failure: &Failure) -> Situation {
        let (source, node) = (self.source(), self.node().cloned());
        let Some(cluster) = &self.context.cluster else { return Situation::of(source) };
        let has_fallback = self.context.dataset.access.direct_source().is_some();
        cluster.situation(failure, &mut self.history, (source, node.as_ref()), has_fallback).await
    }

    /// The workers at the nodes that can be asked now; `None` where those are the one that failed, or none.
    async fn divide(&mut self) -> Option<Vec<Self>> {
        let Some(cluster) = &self.context.cluster else { return None };
        let parts = self.assignment.divide(cluster, &self.context.dataset.manifest).await.ok();
        let is_same =
            |parts: &Vec<(Node, Assignment)>| matches!(&parts[..], [(only, _)] if Some(only) == self.node());
        let parts = parts.filter(|parts| !is_same(parts));
        if parts.is_none() {
            self.hedge = None;
        }
        Some(self.successors(parts?))
    }

    /// The workers that are to go on if the segments have other nodes now.
    async fn follow(&mut self) -> Option<Vec<Self>> {
        let (Some(cluster), Some(owner)) = (&self.context.cluster, &self.owner) else { return None };
        let (manifest, streams) = (&self.context.dataset.manifest, self.epoch.workers.load(Relaxed));
        let parts = self.assignment.redivide(cluster, manifest, owner, streams).await?;
        tracing::debug!(step = self.committed.step, nodes = parts.len(), "segments have other nodes");
        // Whatever went wrong before is over: a message came.
        self.history = History::default();
        Some(self.successors(parts))
    }

    fn successors(&self, parts: Vec<(Node, Assignment)>) -> Vec<Self> {
        let successor = |(node, assignment)| Self {
            context: self.context.clone(),
            epoch: self.epoch.clone(),
            owner: Some(node),
            waits: false,
            hedge: None,
            assignment,
            committed: self.committed,
            history: History { probed: false, ..self.history.clone() },
        };
        parts.into_iter().map(successor).collect()
    }

    /// Tells the node of the dataset again; `Changed` if this version of it cannot be read any more.
    async fn reopen(&self, why: &Error) -> Result<(), Failure> {
        let Some(node) = self.node() else { return Err(Failure::from(why.clone())) };
        self.owed(self.context.dataset.tell(node)).await.map_err(|failure| {
            let may_help = failure.error.kind == Kind::Retry;
            if may_help { failure } else { Failure { kind: FailureKind::Final, ..failure } }
        })
    }

    /// After a message: notes that the node works. `Retry` if this was the fallback and a node is back.
    fn note_progress(&self) -> Result<()> {
        let Some(cluster) = &self.context.cluster else { return Ok(()) };
        match self.node() {
            Some(node) => cluster.works(node),
            None if cluster.has_nodes() => return Err(Error::retry("a node of the cache is back")),
            None => {}
        }
        Ok(())
    }

    /// Goes on to the next step if nothing more of this one is owed: a step that lacks nothing may be gone.
    fn settle(&mut self) -> Result<()> {
        let Committed { step, row } = self.committed;
        if row == 0 || step >= self.epoch.count {
            return Ok(());
        }
        let (pieces, segments) = (self.epoch.pieces(step)?, self.assignment.segments());
        if !pieces.iter().any(|p| segments.contains(p.segment) && p.first + p.rows > row) {
            self.committed = Committed { step: step + 1, row: 0 };
        }
        Ok(())
    }

    async fn open(&self) -> Result<Feed> {
        let (dataset, ticket) = (&self.context.dataset, self.ticket());
        match (self.node(), dataset.access.direct_source()) {
            (Some(node), _) => Feed::stream(node, &dataset.manifest, ticket, self.context.wire).await,
            (None, Some(direct)) if !self.waits => Feed::direct(direct, dataset, &ticket),
            (None, _) => Err(Error::retry("no node of the cache takes segments")),
        }
    }

    /// The node that is read from: the hedge before the owner. `None`: rows come from the object store, if
    /// from anywhere.
    fn node(&self) -> Option<&Node> {
        self.hedge.as_ref().or(self.owner.as_ref())
    }

    fn source(&self) -> SourceKind {
        match (&self.context.cluster, &self.hedge, &self.owner) {
            (None, ..) => SourceKind::Direct,
            (_, Some(_), _) => SourceKind::Hedge,
            (_, None, Some(_)) => SourceKind::Owner,
            // The node that will take the segments.
            (_, None, None) if self.waits => SourceKind::Owner,
            (_, None, None) => SourceKind::Fallback,
        }
    }

    /// Asks for the worker's rows from the first that is not committed.
    fn ticket(&self) -> v1::PlanTicket {
        let columns = self.context.dataset.ticket_columns();
        self.epoch.ticket(self.committed.step, columns, self.assignment.segments())
    }

    fn scope(&self) -> Scope<'_> {
        Scope { epoch: &self.epoch, buffer: &self.context.buffer, segments: self.assignment.segments() }
    }

    /// Waits for what the worker's node owes.
    async fn owed<T>(&self, what: impl Future<Output = Result<T>>) -> Result<T, Failure> {
        owed(self.node(), self.context.policy.patience, what).await
    }
}
