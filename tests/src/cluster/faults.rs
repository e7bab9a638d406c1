//! What is done to the cluster while the job reads. Each yields its rows.

use super::nodes::Nodes;
use super::reader::Reader;
use crate::etcd::Etcd;
use crate::report::Row;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How long after a fault waits are still put down to it. Readers are over it long before.
const AFTERMATH: Duration = Duration::from_secs(4);

/// Everything that takes part.
pub struct Stage<'a> {
    runtime: &'a Runtime,
    nodes: &'a mut Nodes,
    etcd: &'a mut Etcd,
    reader: &'a Reader,
    random: Random,
}

impl<'a> Stage<'a> {
    pub fn new(
        runtime: &'a Runtime,
        nodes: &'a mut Nodes,
        etcd: &'a mut Etcd,
        reader: &'a Reader,
        seed: u64,
    ) -> Self {
        Self { runtime, nodes, etcd, reader, random: Random(seed) }
    }

    /// Lets the readers go through the first epoch, so that the cache is warm.
    pub fn warm_up(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        while self.reader.epochs()?.0 < 1 {
            anyhow::ensure!(self.reader.errors().is_empty(), "a rank ended: {:?}", self.reader.errors());
            anyhow::ensure!(began.elapsed() < Duration::from_secs(300), "no epoch within 300 s");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// kill -9 of a node at a random moment, so many times.
    pub fn kills(&mut self, times: u32) -> anyhow::Result<Vec<Row>> {
        let quiet = self.watch(Duration::from_secs(5));
        let (mut stalls, mut fetched) = (Vec::new(), 0);
        for _ in 0..times {
            std::thread::sleep(Duration::from_millis(self.random.below(1500)));
            let victim = self.random.below(self.nodes.count() as u64) as usize;
            let before = self.s3_bytes_but(victim);
            let at = Instant::now();
            self.nodes.kill(victim)?;
            std::thread::sleep(AFTERMATH);
            stalls.push(self.reader.longest_wait_ms(at));
            fetched += self.s3_bytes_but(victim).saturating_sub(before);
            eprintln!("kill of node {victim}: {:.0} ms", stalls.last().copied().unwrap_or_default());
            self.nodes.up(victim)?;
            self.nodes.wait_until_agreed(self.runtime)?;
            std::thread::sleep(Duration::from_secs(2));
        }
        let mut sorted = stalls.clone();
        sorted.sort_by(f64::total_cmp);
        let quantile = |q: f64| sorted.get(((sorted.len() as f64 * q).ceil() as usize).saturating_sub(1));
        let row = |name: &str, q: f64| Row {
            n: stalls.len(),
            ..Row::of(name, "ms", quantile(q).map_or(&[], std::slice::from_ref))
        };
        Ok(vec![
            Row::of("no_fault_wait_ms_max", "ms", &[quiet]),
            row("kill_stall_ms_p50", 0.5),
            row("kill_stall_ms_p99", 0.99),
            row("kill_stall_ms_max", 1.0),
            Row::of("kill_s3_bytes_per_kill", "bytes", &[fetched as f64 / f64::from(times.max(1))]),
        ])
    }

    /// A node that says nothing for a while (SIGSTOP).
    pub fn silence(&mut self, seconds: u64) -> anyhow::Result<Vec<Row>> {
        let victim = self.random.below(self.nodes.count() as u64) as usize;
        let at = Instant::now();
        self.nodes.server(victim)?.pause();
        std::thread::sleep(Duration::from_secs(seconds));
        self.nodes.server(victim)?.resume();
        self.nodes.wait_until_agreed(self.runtime)?;
        std::thread::sleep(AFTERMATH);
        Ok(vec![self.stall("sigstop_stall_ms_max", at)])
    }

    /// A node is drained, and brought back.
    pub fn drain(&mut self) -> anyhow::Result<Vec<Row>> {
        let victim = self.random.below(self.nodes.count() as u64) as usize;
        let at = Instant::now();
        let reply = self.nodes.drain(self.runtime, victim, false)?;
        std::thread::sleep(AFTERMATH);
        let served = |stage: &Self| {
            let counters = stage.nodes.status(stage.runtime, victim).ok().and_then(|s| s.counters);
            counters.map_or(0, |c| c.rows_served)
        };
        let before = served(self);
        std::thread::sleep(Duration::from_secs(1));
        let after = served(self);
        self.nodes.drain(self.runtime, victim, true)?;
        self.nodes.wait_until_agreed(self.runtime)?;
        Ok(vec![
            self.stall("drain_stall_ms_max", at),
            Row::of("drain_streams_left", "streams", &[reply.streams_left as f64]),
            Row::of("drain_rows_served_afterwards", "rows", &[(after - before) as f64]),
        ])
    }

    /// Every node in turn: SIGTERM, a new process, until it is a member again.
    pub fn rolling_restart(&mut self) -> anyhow::Result<Vec<Row>> {
        let at = Instant::now();
        let mut fetched = 0;
        for node in 0..self.nodes.count() {
            let before = self.s3_bytes_but(node);
            self.nodes.stop(node)?;
            self.nodes.up(node)?;
            self.nodes.wait_until_agreed(self.runtime)?;
            std::thread::sleep(Duration::from_secs(2));
            fetched += self.s3_bytes_but(node).saturating_sub(before);
        }
        std::thread::sleep(AFTERMATH);
        let errors = self.reader.errors().len() as f64;
        Ok(vec![
            self.stall("rolling_restart_stall_ms_max", at),
            Row::of("rolling_restart_errors", "errors", &[errors]),
            Row::of("rolling_restart_s3_bytes", "bytes", &[fetched as f64]),
        ])
    }

    /// All of etcd is killed, and comes back.
    pub fn etcd_stopped(&mut self, seconds: u64) -> anyhow::Result<Vec<Row>> {
        let at = Instant::now();
        self.etcd.kill_all();
        std::thread::sleep(Duration::from_secs(seconds));
        self.etcd.restart().map_err(anyhow::Error::msg)?;
        let found = self.nodes.wait_until_agreed(self.runtime)?;
        std::thread::sleep(AFTERMATH);
        Ok(vec![
            self.stall("etcd_stopped_wait_ms_max", at),
            Row::of("etcd_found_again_s", "s", &[found.as_secs_f64()]),
        ])
    }

    /// etcd's leader is killed, and comes back.
    pub fn etcd_leader_killed(&mut self) -> anyhow::Result<Vec<Row>> {
        let at = Instant::now();
        if let Some(leader) = self.etcd.leader() {
            self.etcd.kill(leader);
        }
        std::thread::sleep(AFTERMATH);
        self.etcd.restart().map_err(anyhow::Error::msg)?;
        self.nodes.wait_until_agreed(self.runtime)?;
        Ok(vec![self.stall("etcd_leader_killed_wait_ms_max", at)])
    }

    /// All members of etcd but one are killed, and come back.
    pub fn etcd_quorum_lost(&mut self, seconds: u64) -> anyhow::Result<Vec<Row>> {
        let at = Instant::now();
        let survivor = self.random.below(self.etcd.count() as u64) as usize;
        (0..self.etcd.count()).filter(|&m| m != survivor).for_each(|m| self.etcd.kill(m));
        std::thread::sleep(Duration::from_secs(seconds));
        self.etcd.restart().map_err(anyhow::Error::msg)?;
        let found = self.nodes.wait_until_agreed(self.runtime)?;
        std::thread::sleep(AFTERMATH);
        Ok(vec![
            self.stall("etcd_quorum_lost_wait_ms_max", at),
            Row::of("etcd_quorum_found_again_s", "s", &[found.as_secs_f64()]),
        ])
    }

    /// The longest wait of a while in which nothing is done.
    fn watch(&self, time: Duration) -> f64 {
        let at = Instant::now();
        std::thread::sleep(time);
        self.reader.longest_wait_ms(at)
    }

    fn stall(&self, name: &str, since: Instant) -> Row {
        let stall = self.reader.longest_wait_ms(since);
        eprintln!("{name}: {stall:.0}, {} batches so far", self.reader.batches());
        Row::of(name, "ms", &[stall])
    }

    /// What the nodes have fetched, but for one whose process ends.
    fn s3_bytes_but(&self, node: usize) -> u64 {
        self.nodes.s3_bytes_but(self.runtime, node)
    }
}

/// SplitMix64, so that a seed says what happens.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n.max(1)
    }
}
