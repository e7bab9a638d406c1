//! Settings of a node's place in a cluster.

use clap::Args;
use forebay_proto::{Error, Result};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// How the node finds the others through etcd, and how it presents itself to them and to clients.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterSettings {
    /// URLs of the members of etcd, which keeps the list of nodes; empty: no etcd.
    pub etcd: Vec<String>,
    /// What all keys in etcd begin with: clusters with different prefixes share one etcd.
    pub etcd_prefix: String,
    /// The URL that clients and other nodes are told; unset: the address that the node listens on.
    pub advertise: Option<String>,
    /// The node's share of the segments, relative to the others' weights; 0: none.
    pub weight: f64,
    /// Where the node stands, such as a rack or an availability zone.
    pub zone: String,
    /// Seconds after which the others learn that this node died without a word. etcd grants 2 at least.
    pub lease_ttl_s: u64,
    /// Nodes that are to hold each segment, its owner included, unless `forebay replicas` said otherwise of
    /// its dataset. Of several numbers in a cluster the largest counts.
    pub replicas: u32,
}

/// A node of a fixed cluster; `NAME=URL` or `URL` in the settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct StaticNode {
    pub name: String,
    pub url: String,
}

impl From<String> for StaticNode {
    fn from(text: String) -> Self {
        match text.split_once('=') {
            Some((name, url)) => Self { name: name.to_owned(), url: url.to_owned() },
            None => Self { name: host_and_port(&text).to_owned(), url: text },
        }
    }
}

impl From<StaticNode> for String {
    fn from(node: StaticNode) -> Self {
        format!("{}={}", node.name, node.url)
    }
}

impl Default for ClusterSettings {
    /// 5 s of lease: clients notice a dead node by themselves within a second, so it need not be short.
    fn default() -> Self {
        Self {
            etcd: Vec::new(),
            etcd_prefix: "/forebay".into(),
            advertise: None,
            weight: 1.0,
            zone: String::new(),
            lease_ttl_s: 5,
            replicas: 1,
        }
    }
}

#[derive(Debug, Args, Serialize)]
pub(super) struct ClusterFlags {
    /// URL of etcd, e.g. http://etcd-1:2379, which keeps the list of nodes; repeat it for each member of
    /// etcd.
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    etcd: Vec<String>,
    /// What all keys in etcd begin with [default: /forebay].
    #[arg(long, value_name = "PREFIX")]
    #[serde(skip_serializing_if = "Option::is_none")]
    etcd_prefix: Option<String>,
    /// URL that clients and other nodes are told, e.g. http://cache-1:7070 [default: the address of
    /// --listen].
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    advertise: Option<String>,
    /// Share of the segments that this node takes, relative to the others' [default: 1].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<f64>,
    /// Where the node stands, such as a rack or an availability zone.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    /// Seconds after which etcd takes a node that died for gone, 2 to 3600 [default: 5].
    #[arg(long, value_name = "S")]
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_ttl_s: Option<u64>,
    /// Nodes that are to hold each segment, 1 to 16 [default: 1]; the same on every node. With 2, a node that
    /// dies costs no read from the object store.
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    replicas: Option<u32>,
}

/// A node's name where it is given none.
pub(super) fn host_and_port(url: &str) -> &str {
    url.trim_start_matches("http://")
}

/// Whether `url` is `http://host:port`.
pub(super) fn is_node_url(url: &str) -> bool {
    let parsed = url.strip_prefix("http://").and_then(|at| at.rsplit_once(':'));
    parsed.is_some_and(|(host, port)| !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok())
}

impl ClusterSettings {
    pub(super) fn check(&self) -> Result<()> {
        let bad = |why: String| Err(Error::invalid(why));
        for url in &self.etcd {
            let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
            if rest.is_none_or(|rest| rest.trim_end_matches('/').is_empty() || rest.contains(' ')) {
                return bad(format!("etcd `{url}`: use its URL, as in http://etcd-1:2379"));
            }
        }
        let prefix = &self.etcd_prefix;
        if !prefix.starts_with('/') || prefix.ends_with('/') || prefix.chars().any(char::is_control) {
            return bad(format!("etcd_prefix = `{prefix}`: must begin with / and not end with it"));
        }
        if !(self.weight >= 0.0 && self.weight <= 1e6) {
            return bad(format!("weight = {}: must be 0 to 1,000,000", self.weight));
        }
        if !(2..=3600).contains(&self.lease_ttl_s) {
            return bad(format!("lease_ttl_s = {}: must be 2 to 3600 seconds", self.lease_ttl_s));
        }
        if !(1..=16).contains(&self.replicas) {
            return bad(format!("replicas = {}: must be 1 to 16", self.replicas));
        }
        match &self.advertise {
            Some(url) if !is_node_url(url) => {
                bad(format!("advertise `{url}`: use the node's URL, as in http://cache-1:7070"))
            }
            Some(url) if is_nowhere(url) => bad(format!(
                "advertise `{url}`: nobody can reach that address: give this node's own host name or address"
            )),
            _ => Ok(()),
        }
    }

    /// The URL that others are told of a node that listens on `bound`. `Invalid` where that is every address.
    pub fn url(&self, bound: SocketAddr) -> Result<String> {
        match &self.advertise {
            Some(url) => Ok(url.clone()),
            None if bound.ip().is_unspecified() && !self.etcd.is_empty() => Err(Error::invalid(format!(
                "{bound} is every address of this machine and cannot be told to others: say what they shall use, \
                 with --advertise http://HOST:{}",
                bound.port()
            ))),
            None => Ok(format!("http://{bound}")),
        }
    }
}

fn is_nowhere(url: &str) -> bool {
    let host = url.trim_start_matches("http://").rsplit_once(':').map_or("", |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_nobodys() {
        let mut s = ClusterSettings { etcd: vec!["http://e:2379".into()], ..Default::default() };
        let everywhere = SocketAddr::from(([0, 0, 0, 0], 7070));
        assert!(s.url(everywhere).unwrap_err().message.contains("--advertise http://HOST:7070"));
        assert_eq!(s.url(SocketAddr::from(([10, 0, 0, 1], 7))).unwrap(), "http://10.0.0.1:7");
        for (url, good) in [
            ("http://c-1:7070", true),
            ("http://0.0.0.0:7070", false),
            ("http://[::]:1", false),
            ("c:1", false),
        ] {
            s.advertise = Some(url.into());
            assert_eq!(s.check().is_ok(), good, "{url}");
        }
        s.advertise = Some("http://c-1:7070".into());
        assert_eq!(s.url(everywhere).unwrap(), "http://c-1:7070");
        s.etcd.push("etcd:2379".into());
        assert!(s.check().unwrap_err().message.contains("etcd:2379"));
    }
}
