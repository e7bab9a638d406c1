//! Settings: flags over environment (`FOREBAY_*`) over a TOML file over defaults.

mod cluster;

use clap::Parser;
pub use cluster::ClusterSettings;
use cluster::{ClusterFlags, is_node_url};
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use forebay_dataset::SourceSettings;
use forebay_proto::units::bytes;
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
    #[serde(deserialize_with = "one_or_many")]
    pub cache_dir: Vec<PathBuf>,
    /// Bytes that the directories may use on their disks, all together and all included; each gets an equal
    /// share.
    #[serde(deserialize_with = "size")]
    pub cache_bytes: u64,
    /// Megabytes a second at which segment files are read through in the background, to find damage early; 0:
    /// not at all.
    pub scrub_mb_per_s: f64,
    /// Memory for segments being fetched, in transit and mapped, and for messages: [`crate::read::memory`]
    /// divides it.
    #[serde(deserialize_with = "size")]
    pub memory_bytes: u64,
    /// URIs under which data may be read. There is no default: nothing can be read unless somebody allowed
    /// it.
    pub allow: Vec<String>,
    /// URLs of all nodes of a fixed cluster, this one included; empty: a cluster of one, or what etcd says.
    /// Every node must be given the same list: clients place segments by it.
    pub nodes: Vec<String>,
    /// Its place in a cluster that etcd keeps.
    pub cluster: ClusterSettings,
    /// Bytes a second that the node serves at most, as its network gives; unset: no limit. A node near it has
    /// others share what is read most.
    #[serde(deserialize_with = "maybe_size")]
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

/// forebay-server: a node of the Forebay data cache.
#[derive(Debug, Parser, Serialize)]
#[command(version, about, long_about = None)]
pub struct Flags {
    /// TOML file with settings: the names of the long flags, `_` for `-`. But --cluster-node is `nodes`; the
    /// flags of a cluster (--etcd, --advertise, --zone and so on) stand in `[cluster]`, --s3-* and
    /// --patience-s in `[source]`.
    #[arg(long, env = "FOREBAY_CONFIG")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Address of the gRPC service [default: 127.0.0.1:7070]; port 0 picks a free one.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    listen: Option<SocketAddr>,
    /// Address of /metrics and /health over HTTP [default: off].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics_listen: Option<SocketAddr>,
    /// The node's name [default: its address].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// Directory of segment files [default: /var/cache/forebay]; repeat it for several disks.
    #[arg(long)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cache_dir: Vec<PathBuf>,
    /// Bytes that the cache directories may use together, each an equal share, e.g. 500GB or 64GiB [default:
    /// 10GB].
    #[arg(long, value_parser = bytes)]
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_bytes: Option<u64>,
    /// MB/s at which segment files are read through in the background, to find damage early [default: 20]; 0:
    /// off.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    scrub_mb_per_s: Option<f64>,
    /// Memory: 3/8 of it for segments being fetched and decoded, 2/8 for those served without being stored,
    /// 2/8 for mapped files, 1/8 for messages [default: 2GiB].
    #[arg(long, value_parser = bytes)]
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    /// Bytes a second that the node serves at most, e.g. 1GB: what its network gives [default: no limit].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    #[serde(skip_serializing_if = "Option::is_none")]
    serve_bytes_per_s: Option<u64>,
    /// URI under which data may be read, e.g. s3://bucket/prefix; may be repeated.
    #[arg(long)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allow: Vec<String>,
    /// URL of a node of a fixed cluster, e.g. http://cache-1:7070; repeat it for all nodes, this one
    /// included.
    #[arg(long = "cluster-node", value_name = "URL")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<String>,
    #[command(flatten)]
    cluster: ClusterFlags,
    /// Logs as JSON lines.
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    log_json: bool,
    #[command(flatten)]
    source: SourceFlags,
}

#[derive(Debug, clap::Args, Serialize)]
struct SourceFlags {
    /// URL of the S3 service [default: AWS].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    s3_endpoint: Option<String>,
    /// Region.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    s3_region: Option<String>,
    /// Access key id [default: AWS_ACCESS_KEY_ID, then the AWS files]; the secret only comes from the
    /// environment, the settings file or the AWS files.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    s3_access_key_id: Option<String>,
    /// Profile of the AWS files.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    s3_profile: Option<String>,
    /// Bucket in the path rather than the host name [default: with an endpoint].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    s3_path_style: Option<bool>,
    /// Send no credentials: public buckets.
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    s3_anonymous: bool,
    /// Requests to the object store under way at once [default: 32].
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    s3_max_requests: Option<usize>,
    /// Bytes a second read from the object store by all requests together, e.g. 500MB [default: no limit].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    #[serde(skip_serializing_if = "Option::is_none")]
    s3_max_bytes_per_s: Option<u64>,
    /// Seconds that a failing request is retried [default: 60].
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    patience_s: Option<f64>,
}

/// Bytes, as a number or as people write them: 500GB, 64GiB.
fn size<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    maybe_size(deserializer)?.ok_or_else(|| serde::de::Error::custom("no size is given"))
}

/// The same, or nothing.
fn maybe_size<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a number of bytes, or a size such as 500GB")]
    enum Size {
        Bytes(u64),
        Text(String),
    }
    match Option::deserialize(deserializer)? {
        None => Ok(None),
        Some(Size::Bytes(n)) => Ok(Some(n)),
        Some(Size::Text(text)) => bytes(&text).map(Some).map_err(serde::de::Error::custom),
    }
}

/// A path, or a list of them.
fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a path or a list of paths")]
    enum Paths {
        One(PathBuf),
        Many(Vec<PathBuf>),
    }
    Ok(match Paths::deserialize(deserializer)? {
        Paths::One(path) => vec![path],
        Paths::Many(paths) => paths,
    })
}

/// Settings that are text whatever they look like: in a variable, `0123` would else become a number.
const TEXTS: [&str; 10] = [
    "node",
    "cluster__advertise",
    "cluster__etcd_prefix",
    "cluster__zone",
    "source__s3_endpoint",
    "source__s3_region",
    "source__s3_access_key_id",
    "source__s3_secret_access_key",
    "source__s3_session_token",
    "source__s3_profile",
];

/// What is wrong with the settings; of a secret only that it is.
fn wrong(e: figment::Error) -> Error {
    let key = e.path.join(".").to_ascii_lowercase();
    match ["secret", "token"].iter().any(|word| key.contains(word)) {
        true => Error::invalid(format!("settings: {key} must be text, in quotes")),
        false => Error::invalid(format!("settings: {e}")),
    }
}

impl Settings {
    /// Merges flags, environment and file, and checks the whole. `Invalid` names the setting.
    pub fn load(flags: &Flags) -> Result<Self> {
        let mut figment = Figment::from(Serialized::defaults(Settings::default()));
        if let Some(path) = &flags.config {
            if !path.is_file() {
                return Err(Error::not_found(format!("settings file {} does not exist", path.display())));
            }
            figment = figment.merge(Toml::file_exact(path));
        }
        // Variables of ours that are no settings of a node: whoever has one set may start a node all the
        // same.
        let others = ["config", "endpoint", "log", "zone", "nccl_plugin", "launcher", "base", "tag"];
        figment = figment.merge(Env::prefixed("FOREBAY_").ignore(&others).ignore(&TEXTS).split("__"));
        for key in TEXTS {
            if let Ok(text) = std::env::var(format!("FOREBAY_{}", key.to_ascii_uppercase())) {
                figment = figment.merge((key.replace("__", "."), text));
            }
        }
        let settings: Settings = figment.merge(Serialized::defaults(flags)).extract().map_err(wrong)?;
        settings.check()?;
        Ok(settings)
    }

    /// The URL that others are told of a node that listens on `bound`. `Invalid` where that is every address,
    /// or not one of the fixed cluster's.
    pub fn url(&self, bound: SocketAddr) -> Result<String> {
        let url = self.cluster.url(bound)?;
        if self.nodes.is_empty() || self.nodes.contains(&url) {
            return Ok(url);
        }
        let all = self.nodes.join(", ");
        Err(Error::invalid(format!(
            "this node is {url}, and the nodes of its cluster are {all}: say which of them it is, with --advertise"
        )))
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
        for (i, url) in self.nodes.iter().enumerate() {
            if !is_node_url(url) {
                return bad(format!("cluster node `{url}`: use its URL, as in http://cache-1:7070"));
            }
            if self.nodes[..i].contains(url) {
                return bad(format!("cluster node {url} is named twice"));
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
        let elsewhere = Settings { nodes: vec!["http://a:1".into()], ..s };
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
