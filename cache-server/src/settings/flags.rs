//! The command line. Every flag overrides the setting of its name.

use super::cluster::ClusterFlags;
use clap::Parser;
use forebay_dataset::SourceArgs;
use forebay_proto::units::bytes;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// forebay-server: a node of the Forebay data cache.
#[derive(Debug, Parser, Serialize)]
#[command(version, about, long_about = None)]
pub struct Flags {
    /// TOML file with settings: the names of the long flags, `_` for `-`. But --cluster-node is `nodes`; the
    /// flags of a cluster (--etcd, --advertise, --zone and so on) stand in `[cluster]`, --s3-* and
    /// --patience-s in `[source]`.
    #[arg(long, env = "FOREBAY_CONFIG")]
    #[serde(skip)]
    pub(super) config: Option<PathBuf>,
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
    /// Bytes a second that the node serves at most, e.g. 1GB: the bandwidth of its network [default: no
    /// limit].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    #[serde(skip_serializing_if = "Option::is_none")]
    serve_bytes_per_s: Option<u64>,
    /// URI under which data may be read, e.g. s3://bucket/prefix; may be repeated.
    #[arg(long)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allow: Vec<String>,
    /// A node of a fixed cluster, as in cache-1=http://10.0.0.1:7070; repeat it for all nodes, this one
    /// included. Without a name the node's name is its host and port.
    #[arg(long = "cluster-node", value_name = "[NAME=]URL")]
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
    #[command(flatten)]
    #[serde(flatten)]
    shared: SourceArgs,
    /// Access key id [default: AWS_ACCESS_KEY_ID, then the AWS files]; the secret only comes from the
    /// environment, the settings file or the AWS files.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    s3_access_key_id: Option<String>,
}
