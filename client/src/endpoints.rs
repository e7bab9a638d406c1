//! The doors into a cache: one node's URL or several, of which any that answers will do.

use crate::access::Node;
use crate::direct::Direct;
use forebay_proto::{Error, Kind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// How long a node may take to say that it lives, where another could be asked instead.
const PROBE: Duration = Duration::from_secs(1);

/// Nodes by which a cache is entered. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Endpoints(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    nodes: Vec<Node>,
    /// The one that answered last.
    preferred: AtomicUsize,
    fallback: Option<Direct>,
    zone: Option<String>,
}

impl Endpoints {
    /// Of URLs separated by commas; `Invalid` if one is no address, or there is none.
    pub fn parse(urls: &str) -> Result<Self> {
        let urls = urls.split(',').map(str::trim).filter(|url| !url.is_empty());
        let nodes = urls.map(Node::new).collect::<Result<Vec<_>>>()?;
        match nodes.is_empty() {
            true => Node::new("").map(Self::from),
            false => Ok(Self::new(nodes, None, None)),
        }
    }

    /// The same, with the store itself as the last resort when no node answers.
    pub fn with_fallback(&self, direct: Direct) -> Self {
        Self::new(self.0.nodes.clone(), Some(direct), self.0.zone.clone())
    }

    /// The same for a reader in a zone, which prefers the copies there.
    pub fn in_zone(&self, zone: Option<String>) -> Self {
        Self::new(self.0.nodes.clone(), self.0.fallback.clone(), zone)
    }

    fn new(nodes: Vec<Node>, fallback: Option<Direct>, zone: Option<String>) -> Self {
        Self(Arc::new(Inner { nodes, preferred: AtomicUsize::new(0), fallback, zone }))
    }

    /// The reader's own zone.
    pub fn zone(&self) -> Option<&str> {
        self.0.zone.as_deref()
    }

    /// The last resort.
    pub fn fallback(&self) -> Option<&Direct> {
        self.0.fallback.as_ref()
    }

    /// The node that answered last; at first, the one that was named first.
    pub fn node(&self) -> &Node {
        &self.0.nodes[self.0.preferred.load(Relaxed)]
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        self.node().url()
    }

    /// All of them, as named.
    pub fn nodes(&self) -> &[Node] {
        &self.0.nodes
    }

    /// A node that answers, the preferred one first. Of one node alone it is not asked whether it does.
    pub async fn answering(&self) -> Result<Node> {
        let Inner { nodes, preferred, .. } = &*self.0;
        if let [only] = nodes.as_slice() {
            return Ok(only.clone());
        }
        let first = preferred.load(Relaxed);
        for i in (first..first + nodes.len()).map(|i| i % nodes.len()) {
            if nodes[i].is_serving(PROBE).await {
                preferred.store(i, Relaxed);
                return Ok(nodes[i].clone());
            }
        }
        let urls: Vec<&str> = nodes.iter().map(Node::url).collect();
        Err(Error::retry(format!(
            "cannot reach the cache at any of {}: check --endpoint and that forebay-server runs there",
            urls.join(", ")
        )))
    }

    /// What a node answers; of another one if the first goes away meanwhile.
    pub async fn ask<T, F: Future<Output = Result<T>> + Send>(
        &self,
        call: impl Fn(Node) -> F + Send + Sync,
    ) -> Result<T> {
        let mut left = self.0.nodes.len();
        loop {
            let node = self.answering().await?;
            match call(node).await {
                Err(e) if e.kind == Kind::Retry && left > 1 => left -= 1,
                answer => return answer,
            }
        }
    }
}

impl From<Node> for Endpoints {
    fn from(node: Node) -> Self {
        Self::new(vec![node], None, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn several_by_commas() {
        let e = Endpoints::parse("a:1, http://b:2,").unwrap();
        assert_eq!(e.nodes().iter().map(Node::url).collect::<Vec<_>>(), ["http://a:1", "http://b:2"]);
        assert_eq!(Endpoints::parse(" ").unwrap_err().kind, Kind::Invalid);
        let e = Endpoints::parse("127.0.0.1:1,127.0.0.1:2").unwrap().answering().await.unwrap_err();
        assert!(e.message.contains("127.0.0.1:1") && e.message.contains("127.0.0.1:2"), "{e}");
    }
}
