//! The cache nodes under test: each keeps its address, name and disk through all its lives.

use crate::harness::process::{Server, ServerOptions};
use anyhow::Context;
use forebay_client::Node;
use forebay_proto::v1;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Nodes of a cluster, at most.
pub const NODES_MAX: usize = 20;

/// How long a node may take to be a member, and the cluster to agree. Generous: nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a node runs, and its special arguments.
#[derive(Debug, Clone)]
pub struct Seat {
    address: String,
    arguments: Vec<String>,
    wrapper: Vec<String>,
}

impl Seat {
    /// At `host:port`.
    pub fn at(address: String) -> Self {
        Self { address, arguments: Vec::new(), wrapper: Vec::new() }
    }

    /// With further arguments.
    pub fn args<S: AsRef<str>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Run by a command, see [`ServerOptions::within`].
    pub fn within<S: AsRef<str>>(mut self, command: impl IntoIterator<Item = S>) -> Self {
        self.wrapper = command.into_iter().map(|word| word.as_ref().to_owned()).collect();
        self
    }
}

/// Some nodes; one that is down is `None`.
pub struct Nodes {
    base: ServerOptions,
    options: Vec<ServerOptions>,
    running: Vec<Option<Server>>,
    urls: Vec<String>,
    folder: tempfile::TempDir,
}

impl Nodes {
    /// Starts a node in each seat, and waits until they know each other.
    pub fn start(runtime: &Runtime, base: ServerOptions, seats: Vec<Seat>) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut nodes = Self { base, options: Vec::new(), running: Vec::new(), urls: Vec::new(), folder };
        for seat in seats {
            nodes.add(seat)?;
        }
        nodes.wait_until_agreed(runtime)?;
        Ok(nodes)
    }

    /// Starts one more, and returns its number.
    pub fn add(&mut self, seat: Seat) -> anyhow::Result<usize> {
        let node = self.options.len();
        let options = self.base.clone().args(["--listen", &seat.address, "--node", &name(node)]);
        let options = options.env("AWS_ACCESS_KEY_ID", &name(node));
        // Some have an address of their own.
        let options =
            options.args(&seat.arguments).arg("--insecure").allow_log("--insecure").within(&seat.wrapper);
        self.options.push(options.folder(self.folder.path().join(name(node))));
        self.urls.push(format!("http://{}", seat.address));
        self.running.push(None);
        self.up(node)?;
        Ok(node)
    }

    /// How many there are, running or not.
    pub fn count(&self) -> usize {
        self.urls.len()
    }

    /// How many run.
    pub fn running(&self) -> usize {
        self.running.iter().flatten().count()
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
                Err(e) if format!("{e:#}").contains("in use") && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(e) => return Err(e),
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
        self.running[node].take().context("this node is down")?.try_stop()
    }

    /// A node's status.
    pub fn status(&self, runtime: &Runtime, node: usize) -> anyhow::Result<v1::StatusReply> {
        Ok(runtime.block_on(Node::new(&self.urls[node])?.status())?)
    }

    /// A node's counters since its start; zeros if it does not answer.
    pub fn counters(&self, runtime: &Runtime, node: usize) -> v1::Counters {
        self.status(runtime, node).ok().and_then(|status| status.counters).unwrap_or_default()
    }

    /// How many segments each node had to fetch from the object store since its start although another one,
    /// which did not answer in time, may have had them (docs/runbook.md). 0 of a node that is down.
    pub fn missed(&self) -> anyhow::Result<Vec<f64>> {
        let of = |server: &Option<Server>| match server {
            Some(server) => server.metric("forebay_peer_missed_total"),
            None => Ok(0.0),
        };
        self.running.iter().map(of).collect()
    }

    /// Tells a node to drain, or to come back.
    pub fn drain(&self, runtime: &Runtime, node: usize, undo: bool) -> anyhow::Result<v1::DrainReply> {
        let node = Node::new(&self.urls[node])?;
        let reply = runtime.block_on(async { node.client().drain(v1::DrainRequest { undo }).await })?;
        Ok(reply.into_inner())
    }

    /// Waits until every running node is a member and sees all running nodes. Returns how long that took.
    pub fn wait_until_agreed(&mut self, runtime: &Runtime) -> anyhow::Result<Duration> {
        let began = Instant::now();
        while let Some(dissent) = self.dissent(runtime)? {
            anyhow::ensure!(
                began.elapsed() < PATIENCE,
                "the nodes do not agree after {PATIENCE:?}: {dissent}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(began.elapsed())
    }

    /// Why the running nodes do not agree yet. An error if one of them has ended by itself.
    fn dissent(&mut self, runtime: &Runtime) -> anyhow::Result<Option<String>> {
        let running = self.running() as u64;
        for node in 0..self.count() {
            let Some(server) = &mut self.running[node] else { continue };
            if let Some(status) = server.ended() {
                anyhow::bail!("{} ended by itself with {status}; its log:\n{}", name(node), server.log());
            }
            let m = match self.status(runtime, node) {
                Ok(status) => status.membership.unwrap_or_default(),
                Err(error) => return Ok(Some(format!("{}: {error:#}", name(node)))),
            };
            if !(m.connected && m.registered && m.revision > 0 && m.nodes == running) {
                return Ok(Some(format!("{} of {running} nodes says {m:?}", name(node))));
            }
        }
        Ok(None)
    }

    /// Stops all, with an error if one has logged what it should not.
    pub fn end(mut self) -> anyhow::Result<()> {
        let running: Vec<_> = (0..self.count()).filter(|&node| self.running[node].is_some()).collect();
        running.into_iter().try_for_each(|node| self.stop(node))
    }
}

/// A node's name.
pub fn name(node: usize) -> String {
    format!("node-{node}")
}
