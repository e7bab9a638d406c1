//! Settings: flags over environment (`FOREBAY_*`) over a TOML file over defaults.

mod auth;
mod cluster;
mod gateway;
mod limits;
mod listen;
mod load;
mod objects;
mod tls;
mod variables;

pub use auth::{AuditSettings, AuthSettings, JwtSettings, OnFull};
pub use cluster::{ClusterSettings, StaticNode};
pub use gateway::{ClientKey, GatewaySettings};
pub use limits::LimitSettings;
pub use listen::{ListenAddress, SocketPlan};
pub(crate) use load::maybe_size;
pub use objects::{MetadataAge, ObjectSettings, PrefixSettings};
pub use tls::TlsSettings;

use crate::allow::is_all_buckets;
use clap::{Args, CommandFactory, FromArgMatches, Parser};
use cluster::is_node_url;
use forebay_dataset::node_memory::default_bytes;
use forebay_dataset::{SourceArgs, SourceSettings};
use forebay_proto::units::bytes;
use forebay_proto::{Error, Result};
use load::refuse;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};

/// Where security is explained.
const SECURITY_PAGE: &str = "docs/security.md";

const ALL_OR_NONE: &str = "either all nodes of a cluster speak TLS, or none does";

/// forebay-server: a node of the Forebay data cache.
#[derive(Debug, Parser)]
#[command(version, about, long_about = None)]
struct Flags {
    /// TOML file with settings: the names of the long flags, `_` for `-`. But --cluster-node is `nodes`; the
    /// flags of a cluster (--etcd, --advertise, --zone and so on) stand in `[cluster]`, those of the S3
    /// endpoint (--s3-listen, --s3-keys, --s3-domain, --s3-public) in `[gateway]`, --auth-policy is
    /// `policy` and --peer-token-file the same in `[auth]`, --audit-file is `file` in `[audit]`, --tls-cert
    /// is `cert` in `[tls]` and so on, the other --s3-* and --patience-s stand in `[source]`.
    #[arg(long, env = "FOREBAY_CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    source: SourceArgs,
    /// Access key id [default: AWS_ACCESS_KEY_ID, then the AWS files]; the secret only comes from the
    /// environment, the settings file or the AWS files.
    #[arg(long)]
    s3_access_key_id: Option<String>,
}

/// All settings of a node, most of them flags. In the file and the environment they have these names; nested
/// ones are `[source] s3_endpoint` in the file and `FOREBAY_SOURCE__S3_ENDPOINT` in the environment.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Address of the gRPC service; port 0 picks a free one. Or unix:/PATH: only a Unix socket, for a node
    /// that only this host uses.
    // Loopback unless told otherwise: without a policy everybody there may all.
    #[arg(long, default_value = "127.0.0.1:7070")]
    pub listen: ListenAddress,
    /// Unix socket for readers on this host, which then get batches through shared memory: a path, or `off`
    /// [default: forebay.sock in the first cache directory].
    #[arg(long, value_name = "PATH|off")]
    pub unix_socket: Option<String>,
    /// Who may use the Unix socket, in octal as for chmod [default: 666, everybody on this host as with TCP;
    /// 600 with --listen unix:/PATH].
    #[arg(long, value_name = "MODE")]
    pub unix_socket_mode: Option<String>,
    /// Group of the Unix socket, by name or number [default: the server's].
    #[arg(long, value_name = "GROUP")]
    pub unix_socket_group: Option<String>,
    /// Address of /metrics and /health over HTTP [default: off].
    #[arg(long, value_parser = listen::address)]
    pub metrics_listen: Option<SocketAddr>,
    /// The node's name [default: its address].
    #[arg(long)]
    pub node: Option<String>,
    /// Directory of segment files, this server's alone; repeat it for several disks.
    #[arg(long, default_value = "/var/cache/forebay")]
    #[serde(deserialize_with = "load::one_or_many")]
    pub cache_dir: Vec<PathBuf>,
    /// Bytes that the cache directories may use together, each an equal share, e.g. 500GB or 64GiB.
    #[arg(long, value_parser = bytes, default_value = "10GB")]
    #[serde(deserialize_with = "load::size")]
    pub cache_bytes: u64,
    /// MB/s at which segment files are read through in the background, to find damage early; 0: off.
    // A day for 1.7 TB, and a disk does not notice.
    #[arg(long, default_value = "20")]
    pub scrub_mb_per_s: f64,
    /// Memory: 5/16 of it for segments being fetched and decoded, 2/8 for those served without being stored,
    /// 2/8 for mapped files, 1/16 shared with readers on this host, 1/8 for messages [default: an eighth of
    /// the machine's memory, or of what its control group allows, between 2 GiB and 8 GiB; but a quarter of
    /// it at most].
    #[arg(long, value_parser = bytes, default_value_t = default_bytes(), hide_default_value = true)]
    #[serde(deserialize_with = "load::size")]
    pub memory_bytes: u64,
    /// Bytes a second that the node serves at most, e.g. 1GB: the bandwidth of its network [default: no
    /// limit]. A node near it has other nodes share the segments that are read most.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    #[serde(deserialize_with = "load::maybe_size")]
    pub serve_bytes_per_s: Option<u64>,
    /// URI under which data may be read, e.g. s3://bucket/prefix; may be repeated. s3://, gs:// and az://
    /// are all buckets, for a node that only its own user can reach.
    // There is no default: nothing can be read unless it is allowed here.
    #[arg(long)]
    pub allow: Vec<String>,
    /// A node of a fixed cluster, as in cache-1=http://10.0.0.1:7070; repeat it for all nodes, this one
    /// included. Without a name the node's name is its host and port.
    // The same list on every node: segments are placed by the names in it. Empty: a cluster of one, or the
    // nodes that etcd lists.
    #[arg(long = "cluster-node", value_name = "[NAME=]URL")]
    pub nodes: Vec<StaticNode>,
    /// Its place in a cluster that etcd keeps.
    #[command(flatten)]
    pub cluster: ClusterSettings,
    /// The endpoint for clients of S3.
    #[command(flatten)]
    pub gateway: GatewaySettings,
    /// Who may do what.
    #[command(flatten)]
    pub auth: AuthSettings,
    /// What of it is written down.
    #[command(flatten)]
    pub audit: AuditSettings,
    /// Certificates.
    #[command(flatten)]
    pub tls: TlsSettings,
    /// Whether to ask the object store at start whether what `allow` names can be listed.
    #[arg(skip = true)]
    pub check_at_start: bool,
    /// Seconds that open streams get to finish at shutdown.
    #[arg(skip = 5.0)]
    pub drain_s: f64,
    /// Seconds without a reader's connection after which the node ends by itself [default: never].
    // A node of a cluster holds what others read, so it is for a node alone.
    #[arg(long, value_name = "SECONDS")]
    pub exit_when_idle_s: Option<f64>,
    /// Listen beyond this machine although anybody there may do everything (no --auth-policy), or read and
    /// change what travels (no --tls-cert).
    #[arg(long)]
    pub insecure: bool,
    /// Outlive the program that starts this one: leave its session, and close its open files.
    #[arg(long)]
    pub detach: bool,
    /// Logs as JSON lines.
    #[arg(long)]
    pub log_json: bool,
    /// How to reach object stores.
    #[arg(skip)]
    pub source: SourceSettings,
    /// Objects that are read byte for byte.
    #[arg(skip)]
    pub objects: ObjectSettings,
    /// What strangers may take.
    #[arg(skip)]
    pub limits: LimitSettings,
}

impl Default for Settings {
    /// As without any flag.
    fn default() -> Self {
        Flags::parse_from(["forebay-server"]).settings
    }
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Settings::default().gateway
    }
}

impl Default for ClusterSettings {
    fn default() -> Self {
        Settings::default().cluster
    }
}

impl Settings {
    /// Merges flags, environment and file, and checks the whole. `Invalid` names the setting. Ends the
    /// process where the command line is wrong or asks for help.
    pub fn load(command_line: impl IntoIterator<Item = OsString>) -> Result<Self> {
        let matches = Flags::command().get_matches_from(command_line);
        let Flags { config, mut settings, source, s3_access_key_id } =
            Flags::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
        settings.source = SourceSettings { s3_access_key_id, ..source.settings() };
        let settings = load::merge(&settings, &matches, config.as_deref())?;
        settings.check()?;
        Ok(settings)
    }

    /// The node's Unix socket; `None` where it is to have none. `Invalid` names the setting.
    pub fn socket(&self) -> Result<Option<SocketPlan>> {
        let Self { listen, unix_socket, unix_socket_mode, unix_socket_group, .. } = self;
        let dir = self.cache_dir.first();
        let (socket, mode) = (unix_socket.as_deref(), unix_socket_mode.as_deref());
        SocketPlan::new(listen, dir, socket, mode, unix_socket_group.as_ref())
    }

    /// The URL that others are told of a node that listens on `bound`. `Invalid` where that is every address,
    /// or not one of the fixed cluster's.
    pub fn url(&self, bound: &ListenAddress) -> Result<String> {
        let ListenAddress::Tcp(bound) = bound else { return Ok(bound.to_string()) };
        let url = self.cluster.url(*bound, self.tls.is_on())?;
        if self.nodes.is_empty() || self.static_node(&url).is_some() {
            return Ok(url);
        }
        let all: Vec<&str> = self.nodes.iter().map(|node| node.url.as_str()).collect();
        let all = all.join(", ");
        Err(Error::invalid(format!(
            "this node is {url}, and the nodes of its cluster are {all}: say which of them it is, with --advertise"
        )))
    }

    /// The host by which others are told of the node at `url`; `None` for a node alone without --advertise,
    /// which people call as they please.
    pub fn told_host<'a>(&self, url: &'a str) -> Option<&'a str> {
        (self.is_cluster() || self.cluster.advertise.is_some()).then(|| cluster::host_of(url))
    }

    /// Whether there are other nodes, or may be.
    pub fn is_cluster(&self) -> bool {
        !self.cluster.etcd.is_empty() || self.nodes.len() > 1
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
        let is_name = |name: &str| !name.is_empty() && !name.chars().any(char::is_control);
        let (dirs, rate) = (self.cache_dir.len().max(1) as u64, self.serve_bytes_per_s);
        let (cache, memory, drain_s) = (self.cache_bytes, self.memory_bytes, self.drain_s);
        let scrub = self.scrub_mb_per_s;
        let allow = "no data may be read: allow at least one root, e.g. --allow s3://bucket/prefix";
        refuse(self.allow.is_empty(), allow)?;
        self.check_dirs()?;
        let small = "less than 1 MiB for each cache directory cannot hold a segment";
        refuse(cache / dirs < 1 << 20, format!("cache_bytes = {cache}: {small}"))?;
        refuse(memory < 8 << 20, format!("memory_bytes = {memory}: less than 8 MiB is not enough"))?;
        let scrub_range = format!("scrub_mb_per_s = {scrub}: must be 0 (off) to 1000000");
        refuse(!(0.0..=1e6).contains(&scrub), scrub_range)?;
        let slow = "serve_bytes_per_s: less than 1 MiB a second is not enough";
        refuse(rate.is_some_and(|rate| rate < 1 << 20), slow)?;
        let drain_range = format!("drain_s = {drain_s}: must be 0 to 3600 seconds");
        refuse(!(0.0..=3600.0).contains(&drain_s), drain_range)?;
        for (i, StaticNode { name, url }) in self.nodes.iter().enumerate() {
            let bad_url = format!("cluster node `{url}`: use its URL, as in http://cache-1:7070");
            refuse(!is_node_url(url), bad_url)?;
            let bad_name = format!("cluster node {url}: a name must have letters, and no line breaks");
            refuse(!is_name(name), bad_name)?;
            let is_twice = self.nodes[..i].iter().any(|other| other.url == *url || other.name == *name);
            refuse(is_twice, format!("cluster node {url} is named twice"))?;
        }
        self.cluster.check()?;
        self.objects.check()?;
        self.gateway.check()?;
        self.limits.check()?;
        self.auth.check()?;
        self.tls.check()?;
        let both = "--etcd and --cluster-node contradict each other: either etcd keeps the list of nodes, or it \
                    is fixed";
        refuse(!self.nodes.is_empty() && !self.cluster.etcd.is_empty(), both)?;
        let bad_name = "node: a name must have letters, and no line breaks";
        refuse(self.node.as_deref().is_some_and(|name| !is_name(name)), bad_name)?;
        // A list that names this node alone counts here too: other nodes are to follow.
        let is_cluster = self.is_cluster() || !self.nodes.is_empty();
        let lonely =
            "--listen unix:/PATH is for a node alone: other nodes need an address such as 10.0.0.1:7070";
        refuse(is_cluster && self.listen.tcp().is_none(), lonely)?;
        self.check_private(is_cluster)?;
        self.check_schemes()?;
        match self.exposure() {
            Some(exposure) if !self.insecure => Err(Error::invalid(format!(
                "{exposure}. Set these ({SECURITY_PAGE}), listen on 127.0.0.1, or say --insecure where all who reach it \
                 are trusted"
            ))),
            _ => Ok(()),
        }?;
        let fixed = |at: Option<SocketAddr>| at.filter(|at| at.port() != 0);
        let (listen, metrics, s3) = (self.listen.tcp(), self.metrics_listen, self.gateway.s3_listen);
        let pairs = [
            ("listen", listen, "metrics", metrics),
            ("listen", listen, "s3", s3),
            ("metrics", metrics, "s3", s3),
        ];
        for (one, at, other, also) in pairs {
            if let Some(at) = fixed(at).filter(|at| also == Some(*at)) {
                return Err(Error::invalid(format!(
                    "{one} and {other}_listen are both {at}: give each its own port"
                )));
            }
        }
        Ok(())
    }

    fn check_dirs(&self) -> Result<()> {
        refuse(self.cache_dir.is_empty(), "no cache directory: give one with --cache-dir")?;
        let places: Vec<PathBuf> = self.cache_dir.iter().map(|dir| place(dir)).collect();
        for (i, dir) in self.cache_dir.iter().enumerate() {
            let is_twice = places[..i].contains(&places[i]);
            refuse(is_twice, format!("cache directory {} is named twice", dir.display()))?;
        }
        Ok(())
    }

    /// Listeners that other machines reach and should not; `None` if there are none.
    pub fn exposure(&self) -> Option<String> {
        let is_open = |at: &SocketAddr| !at.ip().to_canonical().is_loopback();
        let of = |flag: &str, at: Option<SocketAddr>| at.filter(is_open).map(|at| format!("{flag} {at}"));
        let nodes = [of("--listen", self.listen.tcp()), of("--metrics-listen", self.metrics_listen)];
        // Its clients have keys.
        let s3 = of("--s3-listen", self.gateway.s3_listen);
        let nobody_asked = self.auth.policy.is_none() && nodes.iter().any(Option::is_some);
        let open: Vec<String> = nodes.into_iter().chain([s3]).flatten().collect();
        let lacks = match (nobody_asked, self.tls.is_on()) {
            (true, false) => "authentication (--auth-policy) and TLS (--tls-cert, --tls-key)",
            (true, true) => "authentication (--auth-policy)",
            (false, false) => "TLS (--tls-cert, --tls-key)",
            (false, true) => return None,
        };
        (!open.is_empty())
            .then(|| format!("{} can be reached from other machines, without {lacks}", open.join(" and ")))
    }

    /// All nodes of a cluster speak TLS, or none.
    fn check_schemes(&self) -> Result<()> {
        let (is_on, scheme) = (self.tls.is_on(), cluster::scheme(self.tls.is_on()));
        let all = self.nodes.iter().map(|node| &node.url).chain(&self.cluster.advertise);
        let Some(url) = all.into_iter().find(|url| !url.starts_with(scheme)) else { return Ok(()) };
        Err(Error::invalid(match is_on {
            true => format!("{url}: this node has a certificate, so nodes are at https://: {ALL_OR_NONE}"),
            false => format!("{url}: this node has no certificate (--tls-cert and --tls-key): {ALL_OR_NONE}"),
        }))
    }

    /// What only a node alone may do, and what only one that its own user alone can reach.
    fn check_private(&self, is_cluster: bool) -> Result<()> {
        let idle = self.exit_when_idle_s;
        let range = format!("exit_when_idle_s = {}: must be 0.1 to 1e9 seconds", idle.unwrap_or_default());
        refuse(idle.is_some_and(|idle| !(0.1..=1e9).contains(&idle)), range)?;
        let others = "exit_when_idle_s is for a node alone: others need what a node of a cluster holds";
        refuse(is_cluster && idle.is_some(), others)?;
        let socket = self.socket()?;
        let is_private = self.listen.tcp().is_none() && socket.is_some_and(|socket| socket.mode & 0o077 == 0);
        let everything = self.allow.iter().find(|root| is_all_buckets(root));
        let why = format!(
            "--allow {}: all buckets only with --listen unix:/PATH and mode 600, which let in no other user: \
             name a bucket",
            everything.map_or("", String::as_str)
        );
        refuse(everything.is_some() && !is_private, why)
    }
}

/// Where a path leads, by its text alone: a disk may hang. Who takes one directory by two links finds it
/// locked.
fn place(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.components().fold(PathBuf::new(), |mut place, part| {
        match part {
            Component::ParentDir => drop(place.pop()),
            part => place.push(part),
        }
        place
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(args: &[&str]) -> Result<Settings> {
        Settings::load([&["forebay-server"], args].concat().into_iter().map(OsString::from))
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
        assert_eq!((s.exposure(), s.tls.is_on()), (None, true));
        assert_eq!((s.cache_dir.len(), s.cluster.replicas, s.source.s3_max_requests), (2, 2, 64));
        let elsewhere = Settings { nodes: vec!["http://a:1".to_owned().into()], ..s };
        assert!(elsewhere.url(&elsewhere.listen).unwrap_err().message.contains("https://cache-1:7070"));
    }

    #[test]
    fn others_are_told_of_a_node_by_its_host() {
        let told = |args: &[&str], url: &str| {
            let s = load(&[&["--allow", "s3://b"], args].concat()).unwrap();
            s.told_host(url).map(str::to_owned)
        };
        let advertise = ["--advertise", "http://[::1]:7"];
        assert_eq!(told(&advertise, "http://[::1]:7").as_deref(), Some("::1"));
        let etcd = ["--etcd", "http://e:2379"];
        assert_eq!(told(&etcd, "http://10.0.0.1:7070").as_deref(), Some("10.0.0.1"));
        let fixed = ["--cluster-node", "http://c-1:7070", "--cluster-node", "http://c-2:7070"];
        assert_eq!(told(&fixed, "http://c-1:7070").as_deref(), Some("c-1"));
        assert_eq!(told(&fixed[..2], "http://c-1:7070"), None);
        assert_eq!(told(&[], "http://127.0.0.1:7070"), None);
    }

    #[test]
    fn addresses_as_people_write_them() {
        let listen = |text: &str| Flags::try_parse_from(["x", "--listen", text]).map(|f| f.settings.listen);
        assert_eq!(listen("localhost:7175").unwrap().to_string(), "127.0.0.1:7175");
        for (bad, says) in [("7175", "127.0.0.1:7175"), ("nonsense", "as in 127.0.0.1:7070")] {
            let e = listen(bad).unwrap_err().to_string();
            assert!(e.contains(says), "{e}");
        }
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
    fn all_buckets_are_for_a_node_that_no_other_user_can_reach() {
        let socket = ["--listen", "unix:/run/f.sock", "--allow", "s3://", "--allow", "file:///"];
        assert_eq!(load(&socket).unwrap().allow, ["s3://", "file:///"]);
        for open in [&["--allow", "s3://"][..], &[&socket[..], &["--unix-socket-mode", "660"]].concat()] {
            let e = load(open).unwrap_err();
            assert!(e.message.contains("--allow s3://: all buckets only with --listen unix:"), "{e}");
        }
    }

    #[test]
    fn what_others_can_reach_needs_authentication_and_tls_or_a_word() {
        let base = ["--allow", "s3://a", "--listen", "0.0.0.0:7070"];
        let of = |more: &[&str]| load(&[&base[..], more].concat()).map_err(|e| e.message);
        let e = of(&["--metrics-listen", "[::]:7071"]).unwrap_err();
        assert!(e.contains("--listen 0.0.0.0:7070 and --metrics-listen [::]:7071"), "{e}");
        assert!(e.contains("--auth-policy) and TLS") && e.contains("--insecure"), "{e}");
        let (policy, tls) = (["--auth-policy", "p"], ["--tls-cert", "c", "--tls-key", "k"]);
        assert!(of(&policy).unwrap_err().contains("without TLS"));
        assert!(of(&tls).unwrap_err().contains("without authentication"));
        assert_eq!(of(&[&policy[..], &tls].concat()).unwrap().exposure(), None);
        assert!(of(&["--insecure"]).unwrap().exposure().is_some());
        let s3 = ["--allow", "s3://a", "--s3-listen", "10.0.0.1:7072", "--s3-public", "s3://a"];
        assert!(load(&s3).unwrap_err().message.contains("--s3-listen 10.0.0.1:7072"));
        assert_eq!(load(&[&s3[..], &tls].concat()).unwrap().exposure(), None);
        for loopback in ["[::1]:7070", "127.0.0.9:7070"] {
            assert!(load(&["--allow", "s3://a", "--listen", loopback]).is_ok());
        }
    }

    #[test]
    fn only_a_node_alone_ends_when_it_is_idle() {
        let alone = ["--allow", "s3://a", "--exit-when-idle-s", "2.5"];
        assert_eq!(load(&alone).unwrap().exit_when_idle_s, Some(2.5));
        let others = [&alone[..], &["--cluster-node", "http://127.0.0.1:7070"]].concat();
        assert!(load(&others).unwrap_err().message.contains("for a node alone"));
        for bad in ["0", "nan", "1e12"] {
            let e = load(&["--allow", "s3://a", "--exit-when-idle-s", bad]).unwrap_err();
            assert!(e.message.contains("exit_when_idle_s"), "{e}");
        }
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
        let temp = tempfile::tempdir().unwrap();
        let there = |name: &str| temp.path().join(name).display().to_string();
        let both = |one: &str, other: &str| dirs(&["--cache-dir", &there(one), "--cache-dir", &there(other)]);
        for (one, other) in [("c/a", "c/../c/a"), ("c", "./d/.././c/")] {
            let e = both(one, other).unwrap_err().message;
            assert!(e.contains(&there(other)) && e.contains("is named twice"), "{e}");
        }
        assert!(both("c/a", "c/b").is_ok());
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        for (text, wanted) in [("'/a'", 1), ("['/a', '/b']", 2)] {
            std::fs::write(file.path(), format!("cache_dir = {text}")).unwrap();
            assert_eq!(dirs(&["--config", path]).unwrap().len(), wanted);
        }
        std::fs::write(file.path(), "cache_dir = 5").unwrap();
        let e = dirs(&["--config", path]).unwrap_err().message;
        assert!(e.contains("cache_dir") && e.contains("expected a path or a list of paths"), "{e}");
    }

    #[test]
    fn mistakes_are_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        std::fs::write(file.path(), "allow = ['s3://a/b']\ncache_bites = 1\n").unwrap();
        let e = load(&["--config", path]).unwrap_err();
        assert_eq!(e.message, format!("settings: cache_bites: there is no such setting (in {path})"));
        std::fs::write(file.path(), "allow = ['s3://a/b']\n[cluster]\nreplicas = 'two'\n").unwrap();
        let e = load(&["--config", path]).unwrap_err();
        let wanted = "settings: cluster.replicas: found string \"two\", expected a whole number (in ";
        assert!(e.message.starts_with(wanted), "{e}");
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
