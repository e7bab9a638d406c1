//! The cache nodes that are tormented: each keeps its address, name and disk through all its lives.

use crate::process::{Server, ServerOptions, free_addresses};
use anyhow::Context;
use forebay_client::access::Node;
use forebay_proto::v1;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How long a node may take to be a member, and the cluster to agree. Generous: nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Some nodes; one that is down is `None`.
pub struct Nodes {
    options: Vec<ServerOptions>,
    running: Vec<Option<Server>>,
    urls: Vec<String>,
    _folder: tempfile::TempDir,
}

impl Nodes {
    /// Starts so many nodes with `base` and these arguments each, and waits until they know each other.
    pub fn start(
        runtime: &Runtime,
        base: &ServerOptions,
        count: usize,
        arguments: &[String],
    ) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let addresses = free_addresses(count)?;
        let options = addresses.iter().enumerate().map(|(i, address)| {
            let named =
                base.clone().args(["--listen", address, "--node", &format!("node-{i}")]).args(arguments);
            named.folder(folder.path().join(format!("node-{i}"))).allow_log("etcd does not answer")
        });
        let options: Vec<ServerOptions> = options.collect();
        let urls = addresses.iter().map(|address| format!("http://{address}")).collect();
        let mut nodes = Self { options, running: Vec::new(), urls, _folder: folder };
        nodes.running.resize_with(count, || None);
        for node in 0..count {
            nodes.up(node)?;
        }
        nodes.wait_until_agreed(runtime)?;
        Ok(nodes)
    }

    /// How many there are, running or not.
    pub fn count(&self) -> usize {
        self.urls.len()
    }

    /// All URLs, as `--endpoint` takes them.
    pub fn endpoints(&self) -> String {
        self.urls.join(",")
    }

    /// A node that runs.
    pub fn server(&mut self, node: usize) -> anyhow::Result<&mut Server> {
        self.running[node].as_mut().context("this node is down")
    }

    /// Starts a node that is down.
    pub fn up(&mut self, node: usize) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.options[node].clone().try_start() {
                Ok(server) => {
                    self.running[node] = Some(server);
                    return Ok(());
                }
                // Its old socket may linger for a moment.
                Err(e) if e.contains("in use") && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(e) => anyhow::bail!(e),
            }
        }
    }

    /// kill -9.
    pub fn kill(&mut self, node: usize) -> anyhow::Result<()> {
        self.running[node].take().context("this node is down")?.kill();
        Ok(())
    }

    /// SIGTERM, until it has ended.
    pub fn stop(&mut self, node: usize) -> anyhow::Result<()> {
        self.running[node].take().context("this node is down")?.try_stop().map_err(anyhow::Error::msg)
    }

    /// What a node says of its place in the cluster.
    pub fn status(&self, runtime: &Runtime, node: usize) -> anyhow::Result<v1::StatusReply> {
        Ok(runtime.block_on(Node::new(&self.urls[node])?.status())?)
    }

    /// Tells a node to drain, or to come back.
    pub fn drain(&self, runtime: &Runtime, node: usize, undo: bool) -> anyhow::Result<v1::DrainReply> {
        let node = Node::new(&self.urls[node])?;
        let reply = runtime.block_on(async { node.client().drain(v1::DrainRequest { undo }).await })?;
        Ok(reply.into_inner())
    }

    /// Waits until every running node is a member and tells of all running ones; answers how long that took.
    pub fn wait_until_agreed(&self, runtime: &Runtime) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let running = self.running.iter().filter(|server| server.is_some()).count() as u64;
        loop {
            let agrees = |node: usize| {
                let m = self.status(runtime, node).ok().and_then(|status| status.membership);
                m.is_some_and(|m| m.connected && m.registered && m.revision > 0 && m.nodes == running)
            };
            let up = (0..self.count()).filter(|&node| self.running[node].is_some());
            if up.into_iter().all(agrees) {
                return Ok(began.elapsed());
            }
            anyhow::ensure!(began.elapsed() < PATIENCE, "the nodes do not agree after {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Column bytes that the other nodes have read from the store since each was started.
    pub fn s3_bytes_but(&self, runtime: &Runtime, except: usize) -> u64 {
        let of = |node| self.status(runtime, node).ok()?.counters.map(|c| c.s3_bytes);
        (0..self.count()).filter(|&node| node != except).filter_map(of).sum()
    }

    /// Stops all, with an error if one has logged what it should not.
    pub fn end(mut self) -> anyhow::Result<()> {
        (0..self.count())
            .filter(|&node| self.running[node].is_some())
            .collect::<Vec<_>>()
            .into_iter()
            .try_for_each(|node| self.stop(node))
    }
}
