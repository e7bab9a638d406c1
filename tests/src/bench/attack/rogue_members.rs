//! Attacks by somebody who may write to etcd and has no certificate of a node: case 44.

use super::arena::{Arena, SLACK_BYTES, forget_peak, peak_bytes};
use super::secured::{STATUS, ask_for, connect, metric, planned, read, small_runtime, within};
use crate::harness::check::Check;
use crate::harness::etcd::Etcd;
use crate::harness::pki::{Leaf, Pki};
use crate::harness::process::Server;
use crate::harness::rogue::Rogue;
use crate::harness::tls_world::{TlsWorld, VISION};
use anyhow::Context;
use forebay_client::TlsFiles;
use serde_json::json;
use std::time::{Duration, Instant};

/// Where the keys of nodes are.
const NODES: &str = "/forebay/nodes/";

/// Nodes that a node keeps at most, as docs/security.md says.
const NODES_MAX: u64 = 1024;

/// How long a node may take to see all that etcd has.
const SEEN: Duration = Duration::from_secs(30);

/// Between two lives of a key whose lease flaps, and how many it has.
const FLAP: (Duration, usize) = (Duration::from_millis(100), 20);

/// Lines in a node's log: one a second, and some at once.
const LINES_AT_ONCE: usize = 40;

/// 44: somebody names nodes of their own in etcd.
pub fn named_in_etcd(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let tls = arena.tls()?;
    let etcd = Etcd::try_start(1)?;
    let memory = arena.scale.memory_bytes.to_string();
    let options = tls.node(arena.store, &tls.issue(Leaf::node("member"))).args(etcd.arguments());
    let options = options.args(["--node", "honest", "--memory-bytes", &memory]);
    let options = options
        .allow_log("no TLS with another node")
        .allow_log("a node that etcd names is left out")
        .allow_log("a key in etcd makes no sense")
        .allow_log("etcd has more keys than a node keeps");
    let node = options.try_start()?;
    let has_entered = within(SEEN, || Ok(etcd.keys(NODES) == [format!("{NODES}honest")]))?;
    has_entered.context("the node is a member")?;
    forget_peak(node.pid())?;
    let attack = Attack { arena, tls, etcd, node, reader: tls.issue(Leaf::client("beside", VISION)) };
    let checks = attack.run()?;
    attack.node.try_stop()?;
    Ok(checks)
}

struct Attack<'a> {
    arena: &'a Arena<'a>,
    tls: &'a TlsWorld,
    etcd: Etcd,
    node: Server,
    reader: TlsFiles,
}

impl Attack<'_> {
    fn run(&self) -> anyhow::Result<Vec<Check>> {
        let (start, lines_before) = (Instant::now(), self.lines());
        let wanted = planned(self.arena.store)?;
        let rogues = Rogues::start(self.tls)?;
        self.etcd.put_all(&rogues.keys()?)?;
        let mut checks = vec![self.sees("the first rogues", |nodes| nodes == 3)?];
        checks.push(self.reads_all("rogues that own everything", &wanted));
        self.etcd.put_all(&rogues.flood(self.arena.scale.member_keys))?;
        let claim = format!("{} keys", self.arena.scale.member_keys);
        checks.push(self.sees(&claim, |nodes| nodes == NODES_MAX)?);
        for _ in 0..FLAP.1 {
            self.etcd.flap(&format!("{NODES}flapping"), &member(&rogues.foreign_url(), 1.0))?;
            std::thread::sleep(FLAP.0);
        }
        checks.push(self.reads_all("a flood of rogues", &wanted));
        checks.push(self.answers()?);
        checks.extend(rogues.got_nothing());
        checks.push(self.memory()?);
        let lines = self.lines() - lines_before;
        let most = LINES_AT_ONCE + start.elapsed().as_secs() as usize;
        checks.push(Check::of(
            "a line a second in the log, at most",
            format!("{lines} of {most}"),
            lines <= most,
        ));
        Ok(checks)
    }

    fn lines(&self) -> usize {
        self.node.log().lines().count()
    }

    /// That the node sees what was written, as far as it keeps it.
    fn sees(&self, what: &str, is_right: impl Fn(u64) -> bool) -> anyhow::Result<Check> {
        let mut nodes = 0;
        let seen = within(SEEN, || {
            nodes = metric(self.tls, &self.node, "topology_nodes")?;
            Ok(is_right(nodes))
        })?;
        Ok(Check::of(
            format!("{what}: the node keeps so much of them as it may"),
            format!("{nodes} nodes"),
            seen.is_some(),
        ))
    }

    /// That a reader gets the table as the plan says.
    fn reads_all(&self, beside: &str, wanted: &str) -> Check {
        let (start, got) = (Instant::now(), read(&self.reader, &self.node.endpoint, self.arena.store));
        let is_right = got.as_ref().is_ok_and(|got| got == wanted);
        let measured = match got {
            Ok(_) => format!("{:.1} s", start.elapsed().as_secs_f64()),
            Err(error) => format!("{error:#}"),
        };
        Check::of(format!("{beside}: a reader gets all rows, in the plan's order"), measured, is_right)
    }

    fn answers(&self) -> anyhow::Result<Check> {
        let at = super::arena::address(&self.node.endpoint)?;
        let answer =
            small_runtime()?.block_on(async { ask_for(&mut connect(&self.reader, at).await?, STATUS).await });
        let is_good = answer.as_ref().is_ok_and(|answer| answer.code == 0);
        let error = answer.err().map(|error| format!("{error:#}")).unwrap_or_default();
        Ok(Check::of("the node answers", error, is_good))
    }

    fn memory(&self) -> anyhow::Result<Check> {
        let (peak, most) = (peak_bytes(self.node.pid())?, self.arena.scale.memory_bytes + SLACK_BYTES);
        let claim = format!("resident memory stays below {} MiB", most >> 20);
        Ok(Check::of(claim, format!("{} MiB", peak >> 20), peak <= most))
    }
}

/// Those who pretend to be nodes.
struct Rogues {
    /// Without TLS.
    plain: Rogue,
    /// With a certificate of another authority.
    foreign: Rogue,
    /// With one of the right authority, for another host.
    elsewhere: Rogue,
}

impl Rogues {
    fn start(tls: &TlsWorld) -> anyhow::Result<Self> {
        let other = Pki::authority("rogue")?;
        let (foreign, _) = tls.pki.issue(Leaf::node("rogue"), Some(&other))?;
        let elsewhere = tls.issue(Leaf { hosts: &["cache-9"], ..Leaf::node("cache-9") });
        Ok(Self {
            plain: Rogue::plain()?,
            foreign: Rogue::with_tls(foreign)?,
            elsewhere: Rogue::with_tls(elsewhere)?,
        })
    }

    fn foreign_url(&self) -> String {
        format!("https://{}", self.foreign.address)
    }

    /// Members of great weight, so that all segments are theirs, and keys that make no sense.
    fn keys(&self) -> anyhow::Result<Vec<(String, String)>> {
        let plain = format!("http://{}", self.plain.address);
        let elsewhere = format!("https://{}", self.elsewhere.address);
        let huge = serde_json::to_string(&"x".repeat(100 << 10)).context("text")?;
        let keys = [
            ("nodes/plain", member(&plain, 1e6)),
            ("nodes/foreign", member(&self.foreign_url(), 1e6)),
            ("nodes/elsewhere", member(&elsewhere, 1e6)),
            ("nodes/half", "{\"address\":".to_owned()),
            ("nodes/huge", format!("{{\"address\":{huge}}}")),
            ("nodes/", "no name".to_owned()),
            ("replicas/s3://forebay/tenants", "minus one".to_owned()),
            ("hot/foreign", "no protobuf".to_owned()),
            ("what/ever", "of another program".to_owned()),
        ];
        Ok(keys.map(|(name, value)| (format!("/forebay/{name}"), value)).into())
    }

    /// Members without end, at 256 addresses.
    fn flood(&self, count: usize) -> Vec<(String, String)> {
        let port = self.foreign.address.port();
        let at = |n: usize| format!("https://127.1.1.{}:{port}", n & 255);
        (0..count).map(|n| (format!("{NODES}flood-{n:06}"), member(&at(n), 1.0))).collect()
    }

    /// That nodes and readers said nothing to any of them, though they tried those with TLS.
    fn got_nothing(&self) -> Vec<Check> {
        let (connections, _, bytes) = self.plain.counts();
        let mut checks = vec![Check::of(
            "a rogue without TLS: nobody connects",
            format!("{connections} connections, {bytes} bytes"),
            connections == 0,
        )];
        let others = [("another authority", &self.foreign), ("another host", &self.elsewhere)];
        for (of, rogue) in others {
            let (connections, handshakes, bytes) = rogue.counts();
            let measured = format!("{connections} connections, {handshakes} handshakes, {bytes} bytes");
            let is_nothing = connections > 0 && handshakes == 0 && bytes == 0;
            checks.push(Check::of(
                format!("a rogue with a certificate of {of}: no handshake"),
                measured,
                is_nothing,
            ));
        }
        checks
    }
}

/// The value of a member's key.
fn member(address: &str, weight: f64) -> String {
    json!({ "address": address, "weight": weight, "version": "9", "instance": 9, "replicas": 16 }).to_string()
}
