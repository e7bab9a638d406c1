//! Settings: flags over environment (`FOREBAY_*`) over a TOML file over defaults.

mod cluster;
mod flags;
mod load;

pub use cluster::{ClusterSettings, StaticNode};
pub use flags::Flags;

use cluster::is_node_url;
use forebay_dataset::SourceSettings;
use forebay_proto::{Error, Result};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

/// All settings of a node. In the file and the environment they have these names; nested ones are
/// `[source] s3_endpoint` in the file and `FOREBAY_SOURCE__S3_ENDPOINT` in the environment.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where gRPC listens. Loopback unless told otherwise: the service has no authentication of its own.
    pub listen: SocketAddr,
    /// Where `/metrics` and `/health` are served over HTTP; unset: nowhere.
    pub metrics_listen: Option<SocketAddr>,
    /// The node's name; unset: its address.
    pub node: Option<String>,
    /// Directories of segment files, this server's alone: one, or one for each disk.
    #[serde(deserialize_with = "load::one_or_many")]
    pub cache_dir: Vec<PathBuf>,
    /// Bytes that the directories may use on their disks, all together and all included; each gets an equal
    /// share.
    #[serde(deserialize_with = "load::size")]
    pub cache_bytes: u64,
    /// Megabytes a second at which segment files are read through in the background, to find damage early; 0:
    /// not at all.
    pub scrub_mb_per_s: f64,
    /// Memory for segments being fetched, in transit and mapped, and for messages: [`crate::read::memory`]
    /// divides it.
    #[serde(deserialize_with = "load::size")]
    pub memory_bytes: u64,
    /// URIs under which data may be read. There is no default: nothing can be read unless it is allowed
    /// here.
    pub allow: Vec<String>,
    /// All nodes of a fixed cluster, this one included; empty: a cluster of one, or the nodes that etcd
    /// lists. Every node must be given the same list: segments are placed by the names in it.
    pub nodes: Vec<StaticNode>,
    /// Its place in a cluster that etcd keeps.
    pub cluster: ClusterSettings,
    /// Bytes a second that the node serves at most, as its network gives; unset: no limit. A node near it has
    /// other nodes share the segments that are read most.
    #[serde(deserialize_with = "load::maybe_size")]
    pub serve_bytes_per_s: Option<u64>,
    /// Seconds that open streams get to finish at shutdown.
    pub drain_s: f64,
    /// Logs as JSON lines rather than text.
    pub log_json: bool,
    /// How to reach object stores.
    pub source: SourceSettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 7070)),
            metrics_listen: None,
            node: None,
            cache_dir: vec![PathBuf::from("/var/cache/forebay")],
            cache_bytes: 10_000_000_000,
            // A day for 1.7 TB, and a disk does not notice.
            scrub_mb_per_s: 20.0,
            memory_bytes: 2 << 30,
            allow: Vec::new(),
            nodes: Vec::new(),
            cluster: ClusterSettings::default(),
            serve_bytes_per_s: None,
            drain_s: 5.0,
            log_json: false,
            source: SourceSettings::default(),
        }
    }
}

impl Settings {
    /// Merges flags, environment and file, and checks the whole. `Invalid` names the setting.
    pub fn load(flags: &Flags) -> Result<Self> {
        let settings = load::merge(&Self::default(), flags.config.as_deref(), flags)?;
        settings.check()?;
        Ok(settings)
    }

    /// The URL that others are told of a node that listens on `bound`. `Invalid` where that is every address,
    /// or not one of the fixed cluster's.
    pub fn url(&self, bound: SocketAddr) -> Result<String> {
        let url = self.cluster.url(bound)?;
        if self.nodes.is_empty() || self.static_node(&url).is_some() {
            return Ok(url);
        }
        let all: Vec<&str> = self.nodes.iter().map(|node| node.url.as_str()).collect();
        let all = all.join(", ");
        Err(Error::invalid(format!(
            "this node is {url}, and the nodes of its cluster are {all}: say which of them it is, with --advertise"
        )))
    }

    /// The name of the node at `url`: what the list of a fixed cluster says, or --node, or its host and port.
    /// `Invalid` where list and --node contradict each other.
    pub fn name(&self, url: &str) -> Result<String> {
        match (self.static_node(url), &self.node) {
            (Some(listed), Some(name)) if listed.name != *name => Err(Error::invalid(format!(
                "--node {name}: the list of nodes calls this one {}: give every node --cluster-node {name}={url}",
                listed.name
            ))),
            (Some(listed), _) => Ok(listed.name.clone()),
            (None, Some(name)) => Ok(name.clone()),
            (None, None) => Ok(cluster::host_and_port(url).to_owned()),
        }
    }

    fn static_node(&self, url: &str) -> Option<&StaticNode> {
        self.nodes.iter().find(|node| node.url == url)
    }

    fn check(&self) -> Result<()> {
        let bad = |why: String| Err(Error::invalid(why));
        if self.allow.is_empty() {
            return bad(
                "no data may be read: allow at least one root, e.g. --allow s3://bucket/prefix".into()
            );
        }
        if self.cache_dir.is_empty() {
            return bad("no cache directory: give one with --cache-dir".into());
        }
        for (i, dir) in self.cache_dir.iter().enumerate() {
            if self.cache_dir[..i].contains(dir) {
                return bad(format!("cache directory {} is named twice", dir.display()));
            }
        }
        if self.cache_bytes / (self.cache_dir.len() as u64) < 1 << 20 {
            return bad(format!(
                "cache_bytes = {}: less than 1 MiB for each cache directory cannot hold a segment",
                self.cache_bytes
            ));
        }
        if self.memory_bytes < 8 << 20 {
            return bad(format!("memory_bytes = {}: less than 8 MiB is not enough", self.memory_bytes));
        }
        if !(self.scrub_mb_per_s >= 0.0 && self.scrub_mb_per_s <= 1e6) {
            return bad(format!("scrub_mb_per_s = {}: must be 0 (off) to 1000000", self.scrub_mb_per_s));
        }
        if self.serve_bytes_per_s.is_some_and(|rate| rate < 1 << 20) {
            return bad("serve_bytes_per_s: less than 1 MiB a second is not enough".into());
        }
        if !(self.drain_s >= 0.0 && self.drain_s <= 3600.0) {
            return bad(format!("drain_s = {}: must be 0 to 3600 seconds", self.drain_s));
        }
        for (i, node) in self.nodes.iter().enumerate() {
            if !is_node_url(&node.url) {
                return bad(format!("cluster node `{}`: use its URL, as in http://cache-1:7070", node.url));
            }
            if node.name.is_empty() || node.name.chars().any(char::is_control) {
                return bad(format!(
                    "cluster node {}: a name must have letters, and no line breaks",
                    node.url
                ));
            }
            if self.nodes[..i].iter().any(|other| other.url == node.url || other.name == node.name) {
                return bad(format!("cluster node {} is named twice", node.url));
            }
        }
        self.cluster.check()?;
        if !self.nodes.is_empty() && !self.cluster.etcd.is_empty() {
            return bad(
                "--etcd and --cluster-node contradict each other: either etcd keeps the list of nodes, or \
                        it is fixed"
                    .into(),
            );
        }
        let name = self.node.as_deref().unwrap_or("node");
        if name.is_empty() || name.chars().any(char::is_control) {
            return bad("node: a name must have letters, and no line breaks".into());
        }
        if self.metrics_listen == Some(self.listen) && self.listen.port() != 0 {
            return bad(format!(
                "listen and metrics_listen are both {}: give each its own port",
                self.listen
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn load(args: &[&str]) -> Result<Settings> {
        Settings::load(&Flags::parse_from([&["forebay-server"], args].concat()))
    }

    #[test]
    fn flags_win_over_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            file.path(),
            "cache_bytes = 5000000\nallow = ['s3://a/b']\n[source]\ns3_region = 'eu'\n",
        )
        .unwrap();
        let path = file.path().to_str().unwrap();
        let s = load(&["--config", path, "--cache-bytes", "2MiB"]).unwrap();
        assert_eq!((s.cache_bytes, s.allow.len(), s.source.s3_region.as_deref()), (2 << 20, 1, Some("eu")));
    }

    #[test]
    fn the_file_of_the_docs_is_one() {
        let page = include_str!("../../docs/server.md");
        let text = page.split("```toml").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let s = load(&["--config", file.path().to_str().unwrap()]).unwrap();
        assert_eq!((s.cache_dir.len(), s.cluster.replicas, s.source.s3_max_requests), (2, 2, 64));
        let elsewhere = Settings { nodes: vec!["http://a:1".to_owned().into()], ..s };
        assert!(elsewhere.url(elsewhere.listen).unwrap_err().message.contains("http://cache-1:7070"));
    }

    #[test]
    fn sizes_as_people_write_them() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let text =
            "allow = ['s3://a']\ncache_bytes = '3GB'\nmemory_bytes = 16777216\nserve_bytes_per_s = '2MiB'\n";
        std::fs::write(file.path(), text).unwrap();
        let s = load(&["--config", path]).unwrap();
        assert_eq!(
            (s.cache_bytes, s.memory_bytes, s.serve_bytes_per_s),
            (3_000_000_000, 16 << 20, Some(2 << 20))
        );
        std::fs::write(file.path(), "allow = ['s3://a']\ncache_bytes = 'much'\n").unwrap();
        let e = load(&["--config", path]).unwrap_err();
        assert!(e.message.contains("cache_bytes") && e.message.contains("4GB"), "{e}");
    }

    #[test]
    fn nodes_of_a_fixed_cluster_have_the_names_of_the_list() {
        let all = ["--allow", "s3://a", "--cluster-node", "a=http://h:1", "--cluster-node", "http://h:2"];
        let s = load(&all).unwrap();
        assert_eq!(
            (s.name("http://h:1").unwrap(), s.name("http://h:2").unwrap()),
            ("a".into(), "h:2".into())
        );
        let named = load(&[&all[..], &["--node", "a"]].concat()).unwrap();
        assert_eq!(named.name("http://h:1").unwrap(), "a");
        assert!(named.name("http://h:2").unwrap_err().message.contains("--cluster-node a=http://h:2"));
        assert!(load(&[&all[..], &["--cluster-node", "a=http://h:3"]].concat()).is_err());
        assert!(load(&["--allow", "s3://a", "--cluster-node", "a=h"]).is_err());
        assert_eq!(load(&["--allow", "s3://a"]).unwrap().name("http://h:1").unwrap(), "h:1");
    }

    #[test]
    fn one_cache_directory_or_several() {
        let dirs = |args: &[&str]| load(&[&["--allow", "s3://a"], args].concat()).map(|s| s.cache_dir);
        assert_eq!(dirs(&[]).unwrap(), [PathBuf::from("/var/cache/forebay")]);
        let two = ["--cache-dir", "/a", "--cache-dir", "/b"];
        assert_eq!(dirs(&two).unwrap(), [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert!(dirs(&["--cache-dir", "/a", "--cache-dir", "/a"]).unwrap_err().message.contains("twice"));
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        for (text, wanted) in [("'/a'", 1), ("['/a', '/b']", 2)] {
            std::fs::write(file.path(), format!("cache_dir = {text}")).unwrap();
            assert_eq!(dirs(&["--config", path]).unwrap().len(), wanted);
        }
    }

    #[test]
    fn mistakes_are_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        std::fs::write(file.path(), "allow = ['s3://a/b']\ncache_bites = 1\n").unwrap();
        assert!(load(&["--config", path]).unwrap_err().message.contains("cache_bites"));
        assert!(load(&[]).unwrap_err().message.contains("--allow"));
        std::fs::write(file.path(), "allow = ['s3://a/b']\n[source]\ns3_secret_access_key = 8675309\n")
            .unwrap();
        let e = load(&["--config", path]).unwrap_err();
        assert!(e.message.contains("s3_secret_access_key") && !e.message.contains("8675309"), "{e}");
        assert!(load(&["--config", "/nonexistent"]).unwrap_err().message.contains("/nonexistent"));
        let e = load(&["--allow", "s3://a", "--listen", "127.0.0.1:7", "--metrics-listen", "127.0.0.1:7"]);
        assert!(e.unwrap_err().message.contains("own port"));
        assert!(
            load(&["--allow", "s3://a", "--cache-bytes", "10"]).unwrap_err().message.contains("cache_bytes")
        );
    }
}
