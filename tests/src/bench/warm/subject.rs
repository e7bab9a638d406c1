//! The subjects: epochs of a shape, in an order, by a number of ranks, by TCP or through shared memory; and
//! the target of each.

use super::child::{ChildProcess, run_together};
use super::floor::FloorKind;
use super::rank::{RankOptions, RankRead};
use super::shape::{Shape, Stored};
use super::span::Span;
use crate::harness::process::Server;
use crate::harness::s3::S3Server;
use anyhow::Context;
use forebay_client::loader::Shuffle;
use forebay_proto::digest::{ContentDigest, OrderDigest};

/// The orders.
const SHUFFLES: [Shuffle; 2] = [Shuffle::None, Shuffle::Window(16)];

/// The numbers of ranks that read N: it asks what nulls and strings cost, not what ranks do.
const ALONE: &[u32] = &[1];

/// What several ranks together must at least reach of one rank's speed.
pub const OF_ONE_RANK: f64 = 0.9;

/// How batches come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Transport {
    /// By gRPC over TCP.
    Grpc,
    /// Through memory that the node shares.
    Fd,
}

/// Epochs that are measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Subject {
    pub shape: Shape,
    pub shuffle: Shuffle,
    pub ranks: u32,
    pub transport: Transport,
}

/// The bounds of a subject with one rank.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its speed over that of its floor, at least.
    pub ratio: f64,
    /// Processor time of node and client, at most.
    pub cpu_s_per_gb: Option<f64>,
    /// The wait for the first batch, at most.
    pub first_batch_ms: Option<f64>,
}

/// One measured epoch of all ranks together.
#[derive(Debug, Clone, Copy)]
pub struct SubjectRead {
    pub mb_per_s: f64,
    pub rows_per_s: f64,
    pub node_cpu_s_per_gb: f64,
    pub client_cpu_s_per_gb: f64,
    /// The wait of the rank that waited longest.
    pub first_batch_ms: f64,
    /// The content digest, if the loaders compute it.
    pub content: Option<ContentDigest>,
}

impl Transport {
    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Fd => "fd",
        }
    }

    /// What it is compared with.
    pub fn floor(self) -> FloorKind {
        match self {
            Self::Grpc => FloorKind::Tcp,
            Self::Fd => FloorKind::Memcpy,
        }
    }

    /// The unit of a speed over that of the floor, and what the floor's figure is called beside the
    /// subject's.
    pub fn units(self) -> (&'static str, &'static str) {
        match self {
            Self::Grpc => ("of floor.tcp", "floor.tcp beside it"),
            Self::Fd => ("of floor.memcpy", "floor.memcpy beside it"),
        }
    }
}

impl Subject {
    /// All by these numbers of ranks, N by one alone; those of one order one after the other.
    pub fn all(shapes: &[Shape], grpc_ranks: &[u32], fd_ranks: &[u32]) -> Vec<Self> {
        let orders = shapes.iter().flat_map(|shape| SHUFFLES.map(|shuffle| (*shape, shuffle)));
        let of_order = |(shape, shuffle): (Shape, Shuffle)| {
            let (grpc_ranks, fd_ranks) =
                if shape == Shape::N { (ALONE, ALONE) } else { (grpc_ranks, fd_ranks) };
            let subject = move |transport| move |&ranks: &u32| Self { shape, shuffle, ranks, transport };
            let grpc = grpc_ranks.iter().map(subject(Transport::Grpc));
            grpc.chain(fd_ranks.iter().map(subject(Transport::Fd)))
        };
        orders.flat_map(of_order).collect()
    }

    /// Its name in the report.
    pub fn name(self) -> String {
        let order = match self.shuffle {
            Shuffle::None => "sequential".to_owned(),
            Shuffle::Full => "full".to_owned(),
            Shuffle::Window(segments) => format!("window{segments}"),
        };
        let ranks = if self.ranks == 1 { String::new() } else { format!(".{}ranks", self.ranks) };
        format!("warm.{}.{:?}.{order}{ranks}", self.transport.name(), self.shape)
    }

    /// The same with loaders that compute the content digest, if that is measured.
    pub fn verified_name(self) -> Option<String> {
        let alone = self.transport == Transport::Fd && self.ranks == 1 && self.shape != Shape::N;
        (alone && self.shuffle == Shuffle::None).then(|| format!("{}.verify", self.name()))
    }

    /// The same with one rank.
    pub fn alone(self) -> Self {
        Self { ranks: 1, ..self }
    }

    /// Its bounds; those of several ranks are in [`OF_ONE_RANK`]. N has none.
    pub fn target(self) -> Option<Target> {
        let target = |ratio, cpu_s_per_gb| Target { ratio, cpu_s_per_gb, first_batch_ms: None };
        if self.ranks > 1 {
            return None;
        }
        if self.transport == Transport::Fd {
            return Some(match (self.shape, self.shuffle) {
                (Shape::X, Shuffle::None) => Target { first_batch_ms: Some(1.0), ..target(0.8, None) },
                (Shape::X, _) => target(0.6, None),
                (Shape::T, Shuffle::None) => return None,
                (Shape::T, _) => target(0.25, None),
                (Shape::B, Shuffle::None) => return None,
                (Shape::B, _) => target(0.8, None),
                (Shape::N, _) => return None,
            });
        }
        Some(match (self.shape, self.shuffle) {
            (Shape::X, Shuffle::None) => target(1.0, Some(0.5)),
            (Shape::X, _) => target(0.8, None),
            (Shape::T, Shuffle::None) => target(0.8, None),
            (Shape::T, _) => target(0.5, Some(1.2)),
            (Shape::B, _) => target(0.9, None),
            (Shape::N, _) => return None,
        })
    }

    /// One of its ranks.
    pub fn rank(self, rank: u32, node: &Server, data: &Stored) -> RankOptions {
        RankOptions {
            endpoint: node.endpoint.clone(),
            uri: data.uri.clone(),
            shuffle: self.shuffle,
            world: self.ranks,
            rank,
            global_batch: self.shape.batch_rows() as u64 * u64::from(self.ranks),
            same_host: self.transport == Transport::Fd,
            content_digest: false,
        }
    }

    /// Reads an epoch to warm everything, and one that is measured. An error if a value of the first one or
    /// the order of the second one is wrong, or if the second one read the object store.
    pub fn measure(
        self,
        s3: &S3Server,
        node: &Server,
        data: &Stored,
        planned: OrderDigest,
    ) -> anyhow::Result<SubjectRead> {
        self.measure_epoch(s3, node, data, planned, false)
    }

    /// The same, and the loaders compute the content digest of the measured epoch.
    pub fn measure_verified(
        self,
        s3: &S3Server,
        node: &Server,
        data: &Stored,
        planned: OrderDigest,
    ) -> anyhow::Result<SubjectRead> {
        let read = self.measure_epoch(s3, node, data, planned, true)?;
        anyhow::ensure!(read.content.is_some(), "the loaders told no content digest");
        Ok(read)
    }

    fn measure_epoch(
        self,
        s3: &S3Server,
        node: &Server,
        data: &Stored,
        planned: OrderDigest,
        content_digest: bool,
    ) -> anyhow::Result<SubjectRead> {
        let start = |rank| {
            let rank = RankOptions { content_digest, ..self.rank(rank, node, data) };
            ChildProcess::start(rank.arguments())
        };
        let mut ranks = (0..self.ranks).map(start).collect::<Result<Vec<_>, _>>()?;
        for rank in &ranks {
            rank.ready()?;
        }
        s3.take_log();
        let node_cpu = node.cpu_s()?;
        let reads: Vec<RankRead> = run_together(&mut ranks)?;
        let node_cpu = node.cpu_s()? - node_cpu;
        check(&reads, data, planned)?;
        let content = content(&reads)?;
        let requests = s3.take_log();
        anyhow::ensure!(requests.is_empty(), "a warm epoch sent requests to S3: {requests:?}");
        let span = Span::together(reads.iter().map(|read| read.span)).context("a job has ranks")?;
        let gigabytes = data.arrow_bytes as f64 / 1e9;
        Ok(SubjectRead {
            mb_per_s: 1e3 * gigabytes / span.seconds(),
            rows_per_s: data.rows as f64 / span.seconds(),
            node_cpu_s_per_gb: node_cpu / gigabytes,
            client_cpu_s_per_gb: span.cpu_s / gigabytes,
            first_batch_ms: reads.iter().map(|read| read.first_batch_ms).fold(0.0, f64::max),
            content,
        })
    }
}

impl SubjectRead {
    /// Of node and client.
    pub fn cpu_s_per_gb(&self) -> f64 {
        self.node_cpu_s_per_gb + self.client_cpu_s_per_gb
    }
}

/// Every sample came once with its own values, and those of the measured epoch in the plan's order.
fn check(reads: &[RankRead], data: &Stored, planned: OrderDigest) -> anyhow::Result<()> {
    let samples: u64 = reads.iter().map(|read| read.samples).sum();
    anyhow::ensure!(samples == data.rows, "{samples} samples were read of {}", data.rows);
    let marks = super::marks::sum(reads.iter().map(|read| read.mark));
    anyhow::ensure!(marks == data.mark, "the values of an epoch of {:?} are wrong", data.shape);
    let mut digest = OrderDigest::default();
    for read in reads {
        digest.merge(read.digest.parse()?);
    }
    anyhow::ensure!(digest == planned, "the order digest is {digest}, the plan's is {planned}");
    Ok(())
}

/// The content digest of all ranks together, if they computed it.
fn content(reads: &[RankRead]) -> anyhow::Result<Option<ContentDigest>> {
    let mut all = None;
    for content in reads.iter().filter_map(|read| read.content.as_ref()) {
        all.get_or_insert_with(ContentDigest::default).merge(content.parse()?);
    }
    Ok(all)
}
