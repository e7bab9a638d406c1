//! The table of all metrics: each figure is defined here, once.
//!
//! `/metrics` and the counters of the status reply come from it, and docs/metrics.md is checked against it.

use crate::disk::dirs::Health;
use crate::node::Node;
use forebay_proto::v1;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A figure of a node.
pub struct Metric {
    /// Without the prefix `forebay_`, and without the `_total` of counters; the unit is a part of it.
    pub name: &'static str,
    pub help: &'static str,
    pub value: Value,
    /// Its place in the status reply.
    field: Option<fn(&mut v1::Counters) -> &mut u64>,
}

/// How a figure is read.
pub enum Value {
    /// A sum since start.
    Counter(fn(&Node) -> u64),
    Gauge(fn(&Node) -> u64),
    FloatGauge(fn(&Node) -> f64),
    /// A gauge for each cache directory.
    DirGauge(fn(&Node) -> Vec<(String, u64)>),
}

impl Metric {
    const fn help(self, help: &'static str) -> Self {
        Self { help, ..self }
    }

    const fn in_status(self, field: fn(&mut v1::Counters) -> &mut u64) -> Self {
        Self { field: Some(field), ..self }
    }
}

/// The counters of the status reply.
pub fn counters(node: &Node) -> v1::Counters {
    let mut counters = v1::Counters::default();
    for metric in METRICS {
        if let (Some(field), Value::Counter(value)) = (metric.field, &metric.value) {
            *field(&mut counters) = value(node);
        }
    }
    counters
}

const fn counter(name: &'static str, value: fn(&Node) -> u64) -> Metric {
    metric(name, Value::Counter(value))
}

const fn gauge(name: &'static str, value: fn(&Node) -> u64) -> Metric {
    metric(name, Value::Gauge(value))
}

const fn metric(name: &'static str, value: Value) -> Metric {
    Metric { name, help: "", value, field: None }
}

fn get(value: &AtomicU64) -> u64 {
    value.load(Relaxed)
}

/// All of them, in the order of docs/metrics.md.
pub const METRICS: &[Metric] = &[
    counter("s3_requests", |n| get(&n.source.counters().s3_requests))
        .help("requests to the object store that carried column data")
        .in_status(|c| &mut c.s3_requests),
    counter("s3_bytes", |n| get(&n.source.counters().s3_bytes))
        .help("bytes of column data read from the object store")
        .in_status(|c| &mut c.s3_bytes),
    counter("s3_footer_requests", |n| get(&n.source.counters().footer_requests))
        .help("listings, heads and footer reads, which are counted apart")
        .in_status(|c| &mut c.s3_footer_requests),
    counter("s3_footer_bytes", |n| get(&n.source.counters().footer_bytes))
        .help("bytes of Parquet footers read")
        .in_status(|c| &mut c.s3_footer_bytes),
    counter("s3_retries", |n| get(&n.source.counters().retries))
        .help("requests to the object store that failed and were tried again")
        .in_status(|c| &mut c.s3_retries),
    counter("s3_damaged", |n| get(&n.source.counters().damaged))
        .help(
            "segments that did not decode and were fetched again; more than 0 means that bytes are \
             damaged on their way",
        ),
    counter("parquet_decoded_bytes", |n| get(&n.source.counters().parquet_bytes_decoded))
        .help("compressed Parquet bytes decoded")
        .in_status(|c| &mut c.parquet_bytes_decoded),
    counter("arrow_decoded_bytes", |n| get(&n.source.counters().arrow_bytes_decoded))
        .help("Arrow bytes that decoding yielded")
        .in_status(|c| &mut c.arrow_bytes_decoded),
    counter("segment_hits", |n| get(&n.events.hits))
        .help(
            "segment reads answered from the disk cache, or from memory where a segment was not stored",
        )
        .in_status(|c| &mut c.hits),
    counter("segment_joins", |n| get(&n.events.joins))
        .help("segment reads that waited for a fill under way")
        .in_status(|c| &mut c.joins),
    counter("segment_misses", |n| get(&n.events.misses))
        .help(
            "segments filled, from another node (`forebay_peer_fills_total`) or the object store, for a \
             read or ahead of it",
        )
        .in_status(|c| &mut c.misses),
    counter("evictions", |n| get(&n.disk.counters().evictions))
        .help("segment files evicted")
        .in_status(|c| &mut c.evictions),
    counter("corrupt_segments", |n| get(&n.disk.counters().corrupt))
        .help("segment files that failed their checks; more than 0 means a disk lies")
        .in_status(|c| &mut c.corrupt_segments),
    counter("store_written_bytes", |n| get(&n.disk.counters().bytes_written))
        .help("bytes written to segment files")
        .in_status(|c| &mut c.store_bytes_written),
    counter("segments_not_stored", |n| get(&n.disk.counters().not_stored))
        .help("segments served without storing them: no room, or no disk that works"),
    counter("scrubbed_bytes", |n| get(&n.disk.counters().scrubbed_bytes))
        .help("bytes of segment files that the scrub has read"),
    counter("cache_dir_faults", |n| get(&n.disk.counters().dir_faults))
        .help("times that a cache directory failed or was full and was set aside"),
    counter("rows_served", |n| get(&n.events.rows_served))
        .help("rows sent on batch streams")
        .in_status(|c| &mut c.rows_served),
    counter("served_bytes", |n| get(&n.events.bytes_served))
        .help("Arrow bytes sent on batch streams")
        .in_status(|c| &mut c.bytes_served),
    counter("streams", |n| get(&n.events.streams))
        .help("batch streams opened")
        .in_status(|c| &mut c.streams),
    counter("segments_prefetched", |n| get(&n.events.prefetched))
        .help("segments filled before a reader asked for them; they are among the misses")
        .in_status(|c| &mut c.prefetched),
    counter("segments_bypassed", |n| get(&n.events.bypassed))
        .help(
            "segments filled and served from memory without being stored: others are needed sooner",
        )
        .in_status(|c| &mut c.bypassed),
    counter("segments_unplaced", |n| get(&n.events.unplaced)).help(
        "those of them for which memory had no room either: they are fetched again when they are needed again; if it \
         grows, raise `--memory-bytes` or `--cache-bytes`",
    ),
    counter("plans_announced", |n| n.plans.announced())
        .help("plans announced, one for each stream that reads one")
        .in_status(|c| &mut c.plans_announced),
    counter("peer_fills", |n| get(&n.peers.counters().fills))
        .help(
            "segments that came from other nodes rather than the object store; copies taken as a \
             precaution too",
        )
        .in_status(|c| &mut c.peer_fills),
    counter("peer_bytes", |n| get(&n.peers.counters().bytes))
        .help("bytes of the segments that came from other nodes")
        .in_status(|c| &mut c.peer_bytes),
    counter("peer_corrupt", |n| get(&n.peers.counters().corrupt))
        .help(
            "segments that came from other nodes damaged and were not used; the log names the node",
        ),
    counter("peer_served_bytes", |n| get(&n.peers.counters().bytes_served))
        .help("bytes of segments sent to other nodes")
        .in_status(|c| &mut c.peer_bytes_served),
    gauge("hot_segments", |n| n.hot.published() as u64)
        .help(
            "segments of which this node has more readers than it can serve: they are told to read \
             copies too",
        ),
    gauge("load_percent", |n| (n.hot.load() * 100.0) as u64)
        .help(
            "how busy the node is with serving: of `--serve-bytes-per-s` or of its processors, \
             whichever is more; processors count 0 while anything is read from the object store",
        ),
    gauge("cache_used_bytes", |n| n.disk.used_bytes())
        .help(
            "bytes that the cache directories use on their disks: segment files, those being written, \
             folders",
        ),
    gauge("cache_limit_bytes", |n| n.disk.limit_bytes())
        .help("bytes that the cache directories may use together"),
    gauge("cache_pinned_bytes", |n| n.disk.pinned().1)
        .help("bytes of segment files that are pinned"),
    gauge("segment_files", |n| n.disk.files())
        .help("segment files held"),
    metric("cache_dir_up", Value::DirGauge(dirs_up)).help(
        "by `dir`. 1: the directory works; 0: it failed and is set aside, or its disk is full and it is only read",
    ),
    gauge("streams_open", |n| n.gate.streams())
        .help("batch streams that are open"),
    gauge("draining", |n| n.gate.is_closed().into())
        .help("1 while the node sends its readers to other nodes"),
    gauge("topology_nodes", |n| n.membership.state().nodes)
        .help("nodes in the topology that this node tells its clients"),
    gauge("topology_revision", |n| n.membership.state().revision)
        .help("revision of that topology, as etcd counts; 0: etcd was not reached yet"),
    gauge("registered", |n| n.membership.state().registered.into())
        .help("1 if the node is a member of its cluster"),
    gauge("etcd_connected", |n| n.membership.state().connected.into())
        .help("1 if etcd answers, or if there is none"),
    gauge("etcd_silent_seconds", |n| n.membership.state().silent_s as u64)
        .help("for how long etcd does not answer; the last topology stays in force meanwhile"),
    gauge("memory_limit_bytes", |n| n.memory.limit_bytes())
        .help("bytes of memory that may be used: `--memory-bytes`"),
    gauge("memory_fills_bytes", |n| n.memory.fills.used())
        .help("bytes in segments being fetched and decoded; 3/8 of the limit at most"),
    gauge("memory_prefetch_bytes", |n| n.memory.prefetch.used())
        .help("the part of the fills that no reader waits for yet; half of them at most"),
    gauge("memory_transit_bytes", |n| n.memory.tier.used())
        .help(
            "bytes in segments served without being stored; 2/8 of the limit at most, unless neither \
             the cache nor memory has room",
        ),
    gauge("memory_streams_bytes", |n| n.memory.streams.used() + n.memory.tickets.used())
        .help(
            "bytes in messages that are not sent yet; 1/8 of the limit at most, or one message for each \
             stream",
        ),
    gauge("resident_bytes", |_| resident_bytes())
        .help("resident memory of the process, touched pages of mapped files included"),
    metric("ticker_stall_ms_max", Value::FloatGauge(|n| n.stall_probe.worst_ms()))
        .help("worst lateness of a 1 ms ticker on the async threads, in the last 15 to 20 s"),
];

fn dirs_up(node: &Node) -> Vec<(String, u64)> {
    let up = |health| u64::from(health == Health::Up);
    let dirs = node.disk.dirs().into_iter();
    dirs.map(|dir| (dir.path.display().to_string(), up(dir.health))).collect()
}

/// Resident memory of the process, pages of mapped files included; 0 where the system does not tell.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_metric() {
        let row = |metric: &Metric| match metric.value {
            Value::Counter(_) => format!("| `forebay_{}_total` | counter | {} |\n", metric.name, metric.help),
            _ => format!("| `forebay_{}` | gauge | {} |\n", metric.name, metric.help),
        };
        let table: String = METRICS.iter().map(row).collect();
        let page = include_str!("../../../../docs/metrics.md");
        assert!(page.contains(&table), "docs/metrics.md must have this table:\n{table}");
    }
}
