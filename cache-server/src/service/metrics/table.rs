//! The table of all metrics: each figure is defined here, once, and explained in docs/metrics.md, once.
//!
//! `/metrics` and the figures of the status reply come from it; the help texts of `/metrics` are the page's.

use crate::disk::dirs::Health;
use crate::node::Node;
use StatusField::{Counters, Memory, Raw, Reply};
use forebay_proto::v1;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

const PAGE: &str = include_str!("../../../../docs/metrics.md");

/// A figure of a node.
pub struct Metric {
    /// Without the prefix `forebay_`, and without the `_total` of counters; the unit is a part of it.
    pub name: &'static str,
    pub value: Value,
    in_status: Option<StatusField>,
}

/// A figure's place in the status reply.
enum StatusField {
    Reply(fn(&mut v1::StatusReply) -> &mut u64),
    Counters(fn(&mut v1::Counters) -> &mut u64),
    Memory(fn(&mut v1::Memory) -> &mut u64),
    Raw(fn(&mut v1::RawStatus) -> &mut u64),
}

/// How a figure is read.
pub enum Value {
    /// A sum since start.
    Counter(fn(&Node) -> u64),
    Gauge(fn(&Node) -> u64),
    FloatGauge(fn(&Node) -> f64),
    /// A gauge for each value of a label.
    Gauges(&'static str, fn(&Node) -> Vec<(String, u64)>),
    /// A sum since start for each value of a label.
    Counters(&'static str, fn(&Node) -> Vec<(String, u64)>),
}

impl Metric {
    /// What the page says of it.
    pub fn help(&self) -> &'static str {
        let cells = match self.value {
            Value::Counter(_) | Value::Counters(..) => {
                format!("| `forebay_{}_total` | counter | ", self.name)
            }
            _ => format!("| `forebay_{}` | gauge | ", self.name),
        };
        let row = PAGE.lines().find_map(|line| line.strip_prefix(&cells)?.strip_suffix(" |"));
        row.unwrap_or_default()
    }

    const fn in_status(self, field: StatusField) -> Self {
        Self { in_status: Some(field), ..self }
    }
}

/// The figures of the status reply, and nothing else of it. Asks the system: not for an async thread.
pub fn figures(node: &Node) -> v1::StatusReply {
    let (mut reply, mut counters) = (v1::StatusReply::default(), v1::Counters::default());
    let (mut memory, mut raw) = (v1::Memory::default(), v1::RawStatus::default());
    for metric in METRICS {
        let (Some(field), Value::Counter(value) | Value::Gauge(value)) = (&metric.in_status, &metric.value)
        else {
            continue;
        };
        *match field {
            Reply(of) => of(&mut reply),
            Counters(of) => of(&mut counters),
            Memory(of) => of(&mut memory),
            Raw(of) => of(&mut raw),
        } = value(node);
    }
    v1::StatusReply { counters: Some(counters), memory: Some(memory), raw: Some(raw), ..reply }
}

const fn counter(name: &'static str, value: fn(&Node) -> u64) -> Metric {
    metric(name, Value::Counter(value))
}

const fn gauge(name: &'static str, value: fn(&Node) -> u64) -> Metric {
    metric(name, Value::Gauge(value))
}

const fn metric(name: &'static str, value: Value) -> Metric {
    Metric { name, value, in_status: None }
}

fn get(value: &AtomicU64) -> u64 {
    value.load(Relaxed)
}

/// All of them, in the order of docs/metrics.md.
pub const METRICS: &[Metric] = &[
    counter("s3_requests", |n| get(&n.source.counters().s3_requests))
        .in_status(Counters(|c| &mut c.s3_requests)),
    counter("s3_bytes", |n| get(&n.source.counters().s3_bytes)).in_status(Counters(|c| &mut c.s3_bytes)),
    counter("s3_footer_requests", |n| get(&n.source.counters().footer_requests))
        .in_status(Counters(|c| &mut c.s3_footer_requests)),
    counter("s3_footer_bytes", |n| get(&n.source.counters().footer_bytes))
        .in_status(Counters(|c| &mut c.s3_footer_bytes)),
    counter("s3_retries", |n| get(&n.source.counters().retries)).in_status(Counters(|c| &mut c.s3_retries)),
    counter("s3_damaged", |n| get(&n.source.counters().damaged)),
    counter("parquet_decoded_bytes", |n| get(&n.source.counters().parquet_bytes_decoded))
        .in_status(Counters(|c| &mut c.parquet_bytes_decoded)),
    counter("arrow_decoded_bytes", |n| get(&n.source.counters().arrow_bytes_decoded))
        .in_status(Counters(|c| &mut c.arrow_bytes_decoded)),
    counter("decode_cpu_ms", |n| get(&n.source.counters().decode_cpu_us) / 1000),
    counter("segment_hits", |n| get(&n.events.hits)).in_status(Counters(|c| &mut c.hits)),
    counter("segment_joins", |n| get(&n.events.joins)).in_status(Counters(|c| &mut c.joins)),
    counter("segment_misses", |n| get(&n.events.misses)).in_status(Counters(|c| &mut c.misses)),
    counter("evictions", |n| get(&n.disk.counters().evictions)).in_status(Counters(|c| &mut c.evictions)),
    counter("corrupt_segments", |n| get(&n.disk.counters().corrupt))
        .in_status(Counters(|c| &mut c.corrupt_segments)),
    counter("disk_written_bytes", |n| get(&n.disk.counters().bytes_written))
        .in_status(Counters(|c| &mut c.disk_bytes_written)),
    counter("segments_not_stored", |n| get(&n.disk.counters().not_stored)),
    counter("scrubbed_bytes", |n| get(&n.disk.counters().scrubbed_bytes)),
    counter("cache_dir_faults", |n| get(&n.disk.counters().dir_faults)),
    counter("rows_served", |n| get(&n.events.rows_served)).in_status(Counters(|c| &mut c.rows_served)),
    counter("served_bytes", |n| get(&n.events.bytes_served)).in_status(Counters(|c| &mut c.bytes_served)),
    counter("shared_bytes", |n| get(&n.events.bytes_shared)).in_status(Counters(|c| &mut c.shared_bytes)),
    counter("lent_bytes", |n| get(&n.events.bytes_lent)),
    counter("planned_bytes", |n| get(&n.events.bytes_planned)),
    counter("shared_readers", |n| get(&n.shared.streams)),
    counter("shared_refused", |n| get(&n.shared.refused)),
    counter("streams", |n| get(&n.events.streams)).in_status(Counters(|c| &mut c.streams)),
    counter("gateway_requests", |n| get(&n.events.gateway_requests)),
    counter("gateway_refused", |n| get(&n.events.gateway_refused)),
    counter("segments_prefetched", |n| get(&n.events.prefetched)).in_status(Counters(|c| &mut c.prefetched)),
    counter("segments_bypassed", |n| get(&n.events.bypassed)).in_status(Counters(|c| &mut c.bypassed)),
    counter("segments_unplaced", |n| get(&n.events.unplaced)),
    counter("plans_announced", |n| get(&n.plans.announced)).in_status(Counters(|c| &mut c.plans_announced)),
    counter("peer_fills", |n| get(&n.peers.counters.fills)).in_status(Counters(|c| &mut c.peer_fills)),
    counter("peer_bytes", |n| get(&n.peers.counters.bytes)).in_status(Counters(|c| &mut c.peer_bytes)),
    counter("peer_corrupt", |n| get(&n.peers.counters.corrupt)),
    counter("peer_missed", |n| get(&n.peers.counters.missed)),
    counter("peer_served_bytes", |n| get(&n.peers.counters.bytes_served))
        .in_status(Counters(|c| &mut c.peer_bytes_served)),
    gauge("hot_segments", |n| n.hot.detection().published().len() as u64)
        .in_status(Reply(|r| &mut r.segments_hot)),
    gauge("load_percent", |n| (n.hot.load() * 100.0) as u64),
    gauge("cache_used_bytes", |n| n.disk.used_bytes()).in_status(Reply(|r| &mut r.cache_bytes_used)),
    gauge("cache_limit_bytes", |n| n.disk.limit_bytes()).in_status(Reply(|r| &mut r.cache_bytes_limit)),
    gauge("cache_pinned_bytes", |n| n.disk.pinned().1).in_status(Reply(|r| &mut r.pinned_bytes)),
    gauge("segment_files", |n| n.disk.files()),
    gauge("raw_files", |n| n.disk.raw().files).in_status(Raw(|r| &mut r.files)),
    gauge("raw_bytes", |n| n.disk.raw().bytes).in_status(Raw(|r| &mut r.bytes)),
    gauge("raw_guaranteed_bytes", |n| n.disk.raw_share_bytes()).in_status(Raw(|r| &mut r.guaranteed_bytes)),
    metric("cache_dir_up", Value::Gauges("dir", dirs_up)),
    metric("connections", Value::Gauges("listener", |n| n.listeners.counts())),
    metric("refused", Value::Counters("why", |n| n.listeners.refusals.all())),
    counter("calls_unknown", |n| get(&n.guard.authority.figures.unknown)),
    counter("calls_denied", |n| get(&n.guard.authority.figures.forbidden)),
    counter("policies", |n| get(&n.guard.authority.figures.policies)),
    counter("policies_refused", |n| get(&n.guard.authority.figures.policies_refused)),
    counter("tls_handshakes_failed", |n| n.listeners.tls.as_ref().map_or(0, |tls| tls.failed())),
    counter("tls_reloads_failed", |n| n.listeners.tls.as_ref().map_or(0, |tls| tls.failed_reloads())),
    metric("tls_certificate_seconds", Value::Gauges("serial", certificates)),
    counter("audit_lines", |n| n.guard.audit.counts().0),
    counter("audit_dropped", |n| n.guard.audit.counts().1),
    gauge("streams_open", |n| n.gate.streams()),
    gauge("shared_readers_open", |n| n.shared.count()),
    gauge("draining", |n| n.gate.is_closed().into()),
    gauge("topology_nodes", |n| n.membership.state().nodes),
    gauge("topology_revision", |n| n.membership.state().revision),
    gauge("registered", |n| n.membership.state().registered.into()),
    gauge("etcd_connected", |n| n.membership.state().connected.into()),
    gauge("etcd_silent_seconds", |n| n.membership.state().silent_s as u64),
    gauge("memory_limit_bytes", |n| n.memory.limit_bytes).in_status(Memory(|m| &mut m.limit_bytes)),
    gauge("memory_fills_bytes", |n| n.memory.fills_used()).in_status(Memory(|m| &mut m.fills_bytes)),
    gauge("memory_prefetch_bytes", |n| n.memory.prefetch_used()).in_status(Memory(|m| &mut m.prefetch_bytes)),
    gauge("memory_transit_bytes", |n| n.memory.tier.used()).in_status(Memory(|m| &mut m.transit_bytes)),
    gauge("memory_streams_bytes", |n| n.memory.messages_bytes()).in_status(Memory(|m| &mut m.streams_bytes)),
    gauge("memory_shared_bytes", |n| n.memory.shared.used()),
    gauge("resident_bytes", |_| resident_bytes()).in_status(Memory(|m| &mut m.resident_bytes)),
    metric("ticker_stall_ms_max", Value::FloatGauge(|n| n.stall_probe.worst_ms())),
];

fn certificates(node: &Node) -> Vec<(String, u64)> {
    node.listeners.tls.iter().map(|tls| tls.certificate()).collect()
}

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
            Value::Counter(_) | Value::Counters(..) => {
                format!("| `forebay_{}_total` | counter | {} |", metric.name, metric.help())
            }
            _ => format!("| `forebay_{}` | gauge | {} |", metric.name, metric.help()),
        };
        let rows: Vec<&str> = PAGE.lines().filter(|line| line.starts_with("| `forebay_")).collect();
        assert_eq!(rows, METRICS.iter().map(row).collect::<Vec<_>>(), "docs/metrics.md");
        assert!(METRICS.iter().all(|metric| metric.help().len() > 10));
    }

    #[test]
    fn what_the_status_has_is_one_number() {
        let is_one = |metric: &&Metric| matches!(metric.value, Value::Counter(_) | Value::Gauge(_));
        let mut in_status = METRICS.iter().filter(|metric| metric.in_status.is_some());
        assert!(in_status.all(|metric| is_one(&metric)));
    }
}
