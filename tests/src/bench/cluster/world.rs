//! Shared by all stages: the object store, made remote, its datasets, and etcd.

use super::nodes::{NODES_MAX, Nodes, Seat, name};
use crate::bench::stages::runtime;
use crate::harness::background::{BackgroundReader, EpochsRead};
use crate::harness::check::Findings;
use crate::harness::etcd::Etcd;
use crate::harness::ports::free_addresses;
use crate::harness::process::ServerOptions;
use crate::harness::reader::Job;
use crate::harness::s3::S3Server;
use crate::harness::slow::{SlowProxy, Slowness};
use crate::harness::table::Table;
use crate::harness::wait::try_until;
use anyhow::Context;
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How long a cache may take to be warm. Generous: nothing is measured by it.
const WARM: Duration = Duration::from_secs(300);

/// The surroundings of the clusters.
pub struct World {
    pub runtime: Runtime,
    pub s3: S3Server,
    pub proxy: SlowProxy,
    pub etcd: RefCell<Etcd>,
    /// Clusters so far: each has its own prefix in etcd.
    clusters: Cell<u32>,
}

impl World {
    /// Starts everything.
    pub fn start() -> anyhow::Result<Self> {
        let s3 = S3Server::start();
        // Each node has its own, so that the log says who sent a request.
        for node in 0..NODES_MAX {
            s3.keys().add(&name(node), &s3.secret_key, None);
        }
        let proxy = SlowProxy::start(&s3.endpoint, Slowness::remote_s3());
        let etcd = RefCell::new(Etcd::try_start(3)?);
        Ok(Self { runtime: runtime()?, s3, proxy, etcd, clusters: Cell::new(0) })
    }

    /// A dataset of `segments` segments of `segment_rows` rows of 1 KiB.
    pub fn table(&self, name: &str, segments: u64, segment_rows: u64) -> anyhow::Result<Table> {
        Table::upload(&self.s3, name, segments, segment_rows)
    }

    /// The options of nodes: object store and etcd on the loopback, and this many replicas.
    pub fn options(&self, replicas: u32) -> ServerOptions {
        let base = ServerOptions::for_endpoint(&self.s3, &self.proxy.endpoint);
        self.clustered(base, &self.etcd.borrow().arguments(), replicas)
    }

    /// The same with another way to the object store and to etcd.
    pub fn clustered(&self, base: ServerOptions, etcd: &[String], replicas: u32) -> ServerOptions {
        self.clusters.set(self.clusters.get() + 1);
        let prefix = format!("/bench-{}", self.clusters.get());
        let replicas = (replicas > 1).then(|| ["--replicas".to_owned(), replicas.to_string()]);
        let base = base.args(etcd).args(["--etcd-prefix", &prefix]).args(replicas.iter().flatten());
        base.allow_log("etcd does not answer")
    }

    /// Seats for `count` nodes on the loopback.
    pub fn seats(&self, count: usize) -> anyhow::Result<Vec<Seat>> {
        Ok(free_addresses(count)?.into_iter().map(Seat::at).collect())
    }

    /// `count` nodes on the loopback that know each other.
    pub fn nodes(&self, count: usize, replicas: u32) -> anyhow::Result<Nodes> {
        Nodes::start(&self.runtime, self.options(replicas), self.seats(count)?)
    }

    /// Bytes of a dataset's columns that have left the object store since the last call.
    pub fn s3_bytes(&self, table: &Table) -> u64 {
        table.data_bytes(&self.s3.take_log())
    }

    /// Starts a job, and waits until it has read an epoch and the nodes hold all copies.
    pub fn warm(
        &self,
        nodes: &Nodes,
        table: &Table,
        job: Job,
        replicas: u32,
    ) -> anyhow::Result<BackgroundReader> {
        let reader = BackgroundReader::start(&self.runtime, &nodes.endpoints(), table, job)?;
        try_until("an epoch is read", WARM, || {
            anyhow::ensure!(reader.errors().is_empty(), "a rank ended: {:?}", reader.errors());
            Ok(reader.epochs() > 0)
        })?;
        self.wait_for_copies(nodes, table, replicas)?;
        Ok(reader)
    }

    /// Waits until the running nodes hold `replicas` copies of each segment.
    pub fn wait_for_copies(&self, nodes: &Nodes, table: &Table, replicas: u32) -> anyhow::Result<()> {
        let began = Instant::now();
        let wanted = table.segments * u64::from(replicas).min(nodes.running() as u64);
        loop {
            let held = self.held(nodes, table).iter().sum::<u64>();
            if held >= wanted {
                return Ok(());
            }
            let text = || format!("{held} copies of segments instead of {wanted} after {WARM:?}");
            anyhow::ensure!(began.elapsed() < WARM, text());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Segments of a dataset that each node holds.
    pub fn held(&self, nodes: &Nodes, table: &Table) -> Vec<u64> {
        let held = |node| {
            let status = nodes.status(&self.runtime, node).ok()?;
            Some(status.datasets.iter().find(|d| d.uri == table.uri)?.segments_held)
        };
        (0..nodes.count()).map(|node| held(node).unwrap_or_default()).collect()
    }

    /// Ends a job and its nodes, and notes errors and wrong values.
    pub fn end(
        &self,
        what: &str,
        reader: BackgroundReader,
        nodes: Nodes,
        found: &mut Findings,
    ) -> anyhow::Result<()> {
        verdict(what, vec![reader], found)?;
        nodes.end().with_context(|| format!("the nodes of {what}"))
    }
}

/// Ends some jobs, and notes errors and wrong values.
pub fn verdict(what: &str, readers: Vec<BackgroundReader>, found: &mut Findings) -> anyhow::Result<()> {
    let errors: Vec<String> = readers.iter().flat_map(BackgroundReader::errors).collect();
    let (mut all, mut idle) = (EpochsRead::default(), 0);
    for reader in &readers {
        let read = reader.compare()?;
        idle += usize::from(read.epochs == 0);
        all.add(read);
    }
    let EpochsRead { epochs, wrong_digests, wrong_values } = all;
    found.value(format!("{what}_reader_errors"), "errors", errors.len() as f64);
    found.value(format!("{what}_epochs_with_wrong_digest"), "epochs", wrong_digests as f64);
    found.value(format!("{what}_wrong_values"), "values", wrong_values as f64);
    let text = format!(
        "{what}: {epochs} epochs, {wrong_digests} with a wrong digest, {wrong_values} wrong values, errors {errors:?}"
    );
    found.check(errors.is_empty() && wrong_digests == 0 && wrong_values == 0 && idle == 0, text);
    Ok(())
}
