//! The nodes by which a cache is entered: one node's URL or several, of which any that answers will do.
//!
//! The addresses that nodes tell of the others are kept: a run that was given one node's URL goes on when
//! that node dies.

use crate::certificates;
use crate::direct::Direct;
use crate::local_node::LocalNode;
use crate::node::{Node, NodeFault};
use forebay_proto::{Error, Kind, Result, v1};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// How long a node may take to say that it lives, where another could be asked instead.
const PROBE: Duration = Duration::from_secs(1);

/// Nodes by which a cache is entered. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Endpoints {
    known: Arc<KnownNodes>,
    /// The object store, as the last resort when no node answers.
    pub fallback: Option<Direct>,
    /// The reader's own zone, whose copies it prefers.
    pub zone: Option<String>,
    /// The node, if it is one that is started where it is missing.
    local: Option<LocalNode>,
}

#[derive(Debug)]
struct KnownNodes {
    nodes: Vec<Node>,
    /// Of those, the one that answered last.
    preferred: AtomicUsize,
    /// Nodes that the topology had beside them, when it was last heard.
    told: Mutex<Vec<Node>>,
    /// Of these, the one that answered last where no named one did: those are not asked again each time.
    instead: Mutex<Option<Node>>,
}

impl Endpoints {
    /// Of URLs separated by commas; `Invalid` if one is no address, or there is none, or files of TLS that
    /// one needs make no sense.
    pub fn parse(urls: &str) -> Result<Self> {
        let urls = urls.split(',').map(str::trim).filter(|url| !url.is_empty());
        let mut nodes = urls.map(Node::new).collect::<Result<Vec<_>>>()?;
        if nodes.iter().any(|node| certificates::is_tls(node.url())) {
            certificates::check()?;
        }
        if nodes.is_empty() {
            nodes.push(Node::new("")?);
        }
        Ok(Self::new(nodes))
    }

    /// A node of this machine, which is started when it is asked and does not run.
    pub fn local(node: LocalNode) -> Self {
        Self { local: Some(node.clone()), ..Self::new(vec![node.node().clone()]) }
    }

    /// Starts the node again if it is one of this machine's that does not run any more. For those that do not
    /// ask by [`Endpoints::answering`].
    pub(crate) async fn revive(&self) {
        if let Some(local) = &self.local
            && let Err(e) = local.start().await
        {
            tracing::warn!(error = %e, "the cache node of this machine cannot be started");
        }
    }

    /// The same, beginning at any of the nodes: where many readers are given one list, they do not all ask
    /// the first.
    pub fn spread(self) -> Self {
        self.known.preferred.store(fastrand::usize(..self.known.nodes.len()), Relaxed);
        self
    }

    /// Of nodes, one at least.
    pub(crate) fn new(nodes: Vec<Node>) -> Self {
        let (preferred, told, instead) = Default::default();
        Self {
            known: Arc::new(KnownNodes { nodes, preferred, told, instead }),
            fallback: None,
            zone: None,
            local: None,
        }
    }

    /// The named node that answered last; at first, the one that was named first.
    pub fn node(&self) -> &Node {
        &self.known.nodes[self.known.preferred.load(Relaxed)]
    }

    /// The address of [`Endpoints::node`].
    pub fn url(&self) -> &str {
        self.node().url()
    }

    /// All of them, as named.
    pub fn nodes(&self) -> &[Node] {
        &self.known.nodes
    }

    /// All of them, the preferred one first, then the others that the topology had when it was last heard.
    /// The one of these that answered last where no named one did comes before all.
    pub fn known(&self) -> Vec<Node> {
        let (before, from) = self.known.nodes.split_at(self.known.preferred.load(Relaxed));
        let (told, instead) = (self.known.told.lock(), self.known.instead.lock());
        let first = told.iter().filter(|node| instead.as_ref().is_some_and(|i| i.url() == node.url()));
        let rest = told.iter().filter(|node| instead.as_ref().is_none_or(|i| i.url() != node.url()));
        first.chain(from).chain(before).chain(rest).cloned().collect()
    }

    /// Remembers the nodes of a cluster. One that is alone knows no other, and not always its own address.
    pub fn learn(&self, topology: &v1::Topology) {
        if topology.nodes.len() < 2 {
            return;
        }
        let mut told = self.known.told.lock();
        let others = topology.nodes.iter().map(|node| node.address.as_str());
        let others = others.filter(|url| !self.nodes().iter().any(|node| node.url() == *url));
        // Connections are kept.
        let kept = |url: &str| told.iter().find(|node| node.url() == url).cloned();
        let others: Vec<_> = others.filter_map(|url| kept(url).or_else(|| Node::new(url).ok())).collect();
        *told = others;
    }

    /// A node that answers, in the order of [`Endpoints::known`]. Of one node alone it
    /// is not asked whether it does; one of this machine's is started if it does not run.
    pub async fn answering(&self) -> Result<Node> {
        if let Some(local) = &self.local {
            local.start().await?;
        }
        let known = self.known();
        if let [only] = known.as_slice() {
            return Ok(only.clone());
        }
        let KnownNodes { nodes, preferred, instead, .. } = &*self.known;
        let mut faults = Vec::new();
        for node in &known {
            if let Some(fault) = node.fault(PROBE).await {
                faults.push((node.url(), fault));
            } else {
                let named = nodes.iter().position(|named| named.url() == node.url());
                if let Some(named) = named {
                    preferred.store(named, Relaxed);
                }
                *instead.lock() = if named.is_none() { Some(node.clone()) } else { None };
                return Ok(node.clone());
            }
        }
        Err(unreachable(&faults))
    }

    /// What a node answers; of another one if the first goes away meanwhile.
    pub async fn ask<T, F: Future<Output = Result<T>> + Send>(
        &self,
        call: impl Fn(Node) -> F + Send + Sync,
    ) -> Result<T> {
        // One that is started again is as good as another.
        let mut left = self.known().len() + usize::from(self.local.is_some());
        loop {
            let node = self.answering().await?;
            match call(node).await {
                Err(e) if e.kind == Kind::Retry && left > 1 => left -= 1,
                answer => return answer,
            }
        }
    }
}

/// That none of some nodes takes readers, each for its reason: those that are drained can be brought back.
fn unreachable(faults: &[(&str, NodeFault)]) -> Error {
    let urls: Vec<&str> = faults.iter().map(|(url, _)| *url).collect();
    let drained = faults.iter().find(|(_, fault)| *fault == NodeFault::NotServing).map(|(url, _)| url);
    let silent = faults.iter().rev().find_map(|(_, fault)| match fault {
        NodeFault::Silent(why) => Some(why),
        NodeFault::NotServing => None,
    });
    let why = match (drained, silent) {
        (Some(url), None) => format!("all of them are drained: `forebay undrain {url}` brings one back"),
        (Some(url), Some(why)) => {
            format!("{why}; {url} answers, but is drained: `forebay undrain {url}` brings it back")
        }
        (None, why) => format!(
            "{}: check --endpoint and that forebay-server runs there",
            why.map_or("there is none", String::as_str)
        ),
    };
    Error::retry(format!("cannot reach the cache at any of {}: {why}", urls.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic_health::ServingStatus;
    use tonic_health::server::health_reporter;

    /// A node that answers and takes no readers; its URL.
    async fn drained() -> String {
        health(ServingStatus::NotServing).await
    }

    /// A node that says this of itself; its URL.
    async fn health(status: ServingStatus) -> String {
        let (reporter, health) = health_reporter();
        reporter.set_service_status("", status).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        tokio::spawn(tonic::transport::Server::builder().add_service(health).serve_with_incoming(incoming));
        url
    }

    #[tokio::test]
    async fn nodes_that_are_drained_are_told_from_those_that_are_gone() {
        let (a, b) = (drained().await, drained().await);
        let said = async |urls: &[&str]| {
            Endpoints::parse(&urls.join(",")).unwrap().answering().await.unwrap_err().message
        };
        let all = said(&[&a, &b]).await;
        let undrain = format!("`forebay undrain {a}` brings");
        assert!(all.contains("all of them are drained") && all.contains(&undrain), "{all}");
        let one = said(&["127.0.0.1:1", &a]).await;
        assert!(!one.contains("all of them") && one.contains(&undrain), "{one}");
        assert!(one.contains("refused"), "and why the other one is not there: {one}");
        let none = said(&["127.0.0.1:1", "127.0.0.1:2"]).await;
        assert!(!none.contains("drain") && none.contains("check --endpoint"), "{none}");
    }

    #[tokio::test]
    async fn a_node_that_answered_instead_of_the_named_one_is_asked_first() {
        let (gone, serves) = ("http://127.0.0.1:1", health(ServingStatus::Serving).await);
        let endpoints = Endpoints::parse(gone).unwrap();
        let node = |url: &str| v1::Node { address: url.to_owned(), ..Default::default() };
        let nodes = vec![node(gone), node(&serves)];
        endpoints.learn(&v1::Topology { nodes, ..Default::default() });
        let order = || endpoints.known().iter().map(|node| node.url().to_owned()).collect::<Vec<_>>();
        assert_eq!(order(), [gone, &serves]);
        assert_eq!(endpoints.answering().await.unwrap().url(), serves);
        assert_eq!(order(), [&serves, gone]);
    }

    #[tokio::test]
    async fn several_by_commas() {
        let e = Endpoints::parse("a:1, http://b:2,").unwrap();
        assert_eq!(e.nodes().iter().map(Node::url).collect::<Vec<_>>(), ["http://a:1", "http://b:2"]);
        assert_eq!(Endpoints::parse(" ").unwrap_err().kind, Kind::Invalid);
        let e = Endpoints::parse("127.0.0.1:1,127.0.0.1:2").unwrap().answering().await.unwrap_err();
        assert!(e.message.contains("127.0.0.1:1") && e.message.contains("127.0.0.1:2"), "{e}");
    }

    #[test]
    fn readers_of_one_list_begin_at_any_node_of_it() {
        let named = Endpoints::parse("a:1,b:1,c:1").unwrap();
        assert_eq!(named.url(), "http://a:1");
        let mut firsts: Vec<_> =
            (0..100).map(|_| named.clone().spread().known()[0].url().to_owned()).collect();
        firsts.sort();
        firsts.dedup();
        assert_eq!(firsts, ["http://a:1", "http://b:1", "http://c:1"]);
        assert_eq!(named.clone().spread().known().len(), 3);
    }

    #[test]
    fn the_others_of_a_cluster_are_known_once_told() {
        let topology = |addresses: &[&str]| v1::Topology {
            nodes: addresses
                .iter()
                .map(|a| v1::Node { address: (*a).to_owned(), ..Default::default() })
                .collect(),
            ..Default::default()
        };
        let e = Endpoints::parse("a:1").unwrap();
        let known = || e.known().iter().map(|node| node.url().to_owned()).collect::<Vec<_>>();
        e.learn(&topology(&["http://0.0.0.0:1"]));
        assert_eq!(known(), ["http://a:1"], "one alone tells nothing new");
        e.learn(&topology(&["http://c:1", "http://a:1", "http://b:1"]));
        assert_eq!(known(), ["http://a:1", "http://c:1", "http://b:1"]);
        let c = e.known()[1].clone();
        e.learn(&topology(&["http://c:1", "http://d:1"]));
        assert_eq!(known(), ["http://a:1", "http://c:1", "http://d:1"]);
        assert!(std::ptr::eq(e.known()[1].url(), c.url()), "one connection to a node");
        assert_eq!(e.nodes().len(), 1);
    }
}
