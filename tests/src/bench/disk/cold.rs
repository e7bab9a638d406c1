//! Cold speed behind a slow S3: rows a second through an empty cache, beside two ways to read the same
//! objects directly.
//!
//! The three take turns, each in a process of its own or with a client of its own, so that none finds open
//! connections or footers of another. The direct ways are our own direct mode, and a stock reader
//! ([`stock`]): `object_store` and `parquet`'s asynchronous reader, with as many row groups at once as the
//! cache may send requests.
//!
//! The number of requests at once decides. With few of them S3 is the limit; with many it is the processor,
//! which S3, the cache and the reader share here. So there are rows for several numbers.
//!
//! A virtual machine may give memory that was not used for seconds back to its host. Taking a page back costs
//! ten times as much as writing it. Only the cache needs new memory, for the files that it keeps, so it alone
//! would pay. Before each way as much memory as any of them needs is taken and released ([`take_memory`]).
//! Rows called `untaken` are without that.

mod connection;
mod stock;

use crate::harness::answers::{EpochReport, EpochsReport};
use crate::harness::check::Findings;
use crate::harness::process::{Run, ServerOptions};
use crate::harness::report::Row;
use crate::harness::s3::{REGION, S3Server};
use crate::harness::slow::{SlowProxy, Slowness};
use anyhow::Context;
use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Int64Array, RecordBatch, UInt8Array};
use arrow::datatypes::{DataType, Field};
use bytes::Bytes;
use fastrand::Rng;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Requests at once, the same on every way.
const CONNECTIONS: [usize; 4] = [1, 2, 4, 32];

/// What cold through the cache must at least reach of the better direct way: with one request at once, and
/// with more.
const OF_DIRECT: (f64, f64) = (1.0, 0.9);

/// The same, of the stock reader.
const OF_STOCK: f64 = 1.2;

/// The node's processor time over that of our direct reader, at most.
const CPU_OF_DIRECT: f64 = 1.25;

/// The time until the first batch over that of our direct reader, at most.
const FIRST_OF_DIRECT: f64 = 1.1;

/// With this many requests S3 is the limit for every reader, as the promise has it. Two cores need more time
/// to decode the bytes of two such connections than S3 needs to send them.
const BEHIND_S3: usize = 1;

/// How far the rate of one connection may be from what the slow S3 is set to: 80 to 100 MB/s of 90.
const RATE_OFF: f64 = 1.0 / 9.0;

/// Rows of a row group: 7.5 MB decoded.
const GROUP_ROWS: usize = 8192;

/// Row groups of an object.
const GROUPS: usize = 8;

/// Memory that is taken before each way: more than twice the decoded dataset.
const MEMORY_MB: usize = 3072;

/// Columns of single floats.
const FLOATS: usize = 32;

/// How large the measurement is.
#[derive(Debug, Clone, Copy)]
pub struct ColdSettings {
    /// Objects of 60 MB decoded.
    pub objects: usize,
    /// How often each way is taken.
    pub runs: usize,
}

impl ColdSettings {
    /// Of all objects.
    pub fn rows(&self) -> u64 {
        (self.objects * GROUPS * GROUP_ROWS) as u64
    }
}

/// Runs it.
pub fn run(runtime: &Runtime, settings: &ColdSettings) -> anyhow::Result<Findings> {
    let s3 = S3Server::start();
    let slowness = Slowness::remote_s3();
    let proxy = SlowProxy::start(&s3.endpoint, slowness.clone());
    let rates = runtime.block_on(connection::read(&s3, &proxy.endpoint, settings.runs))?;
    let stored = upload(&s3, settings.objects)?;
    let stage = ColdStage { s3, proxy, rows: settings.rows() };
    let mut found = Findings::default();
    let rate = Row::of("cold_connection_mb_s", "MB/s", &rates);
    let (value, set) = (rate.value, slowness.connection_mb_s);
    let text = format!("{} = {value:.0}, the slow S3 is set to {set} MB/s for a connection", rate.name);
    found.check((value / set - 1.0).abs() <= RATE_OFF, text);
    found.rows.push(rate);
    let mut memory = Vec::new();
    for connections in CONNECTIONS {
        let (mut ways, mut untaken) = (Ways::default(), Ways::default());
        for _ in 0..settings.runs {
            stage.each_way(runtime, connections, true, &mut ways)?;
            stage.each_way(runtime, connections, false, &mut untaken)?;
        }
        memory.append(&mut ways.memory);
        ways.add_rows(&stage, connections, stored, &mut found);
        ways.judge(connections, "", &mut found);
        untaken.judge(connections, "untaken_", &mut found);
    }
    found.rows.push(Row::of("cold_memory_s_per_gb", "s/GB", &memory));
    Ok(found)
}

/// Each way, run by run.
#[derive(Debug, Default)]
struct Ways {
    cache: Vec<EpochReport>,
    direct: Vec<EpochReport>,
    /// Rows a second.
    stock: Vec<f64>,
    /// The node's processor time in seconds.
    node_cpu: Vec<f64>,
    /// Seconds for taking a gigabyte of memory, before each.
    memory: Vec<f64>,
}

impl Ways {
    /// Something of each run.
    fn each(&self, of: impl Fn(usize) -> f64) -> Vec<f64> {
        (0..self.cache.len()).map(of).collect()
    }

    /// Cold through the cache over the better direct way.
    fn of_direct(&self) -> Vec<f64> {
        self.each(|i| self.cache[i].samples_per_s / self.direct[i].samples_per_s.max(self.stock[i]))
    }

    fn add_rows(&self, stage: &ColdStage, connections: usize, stored: usize, found: &mut Findings) {
        let name = |what: &str| format!("cold_{connections}_{what}");
        let row = |what: &str, values: &[f64]| Row::of(name(what), "rows/s", values);
        let direct = row("direct_rows_per_s", &self.each(|i| self.direct[i].samples_per_s));
        let plain = row("stock_rows_per_s", &self.stock);
        let best = direct.value.max(plain.value);
        let gives = Slowness::remote_s3().connection_mb_s * 1e6 * connections as f64;
        let taken = best / stage.rows as f64 * stored as f64 / gives;
        if connections == BEHIND_S3 {
            let row = Row::of("cold_vs_direct", "ratio", &self.of_direct())
                .against("the better direct way, run by run", 1.0);
            let (value, least) = (row.value, row.min);
            let text = format!(
                "cold through the cache is {value:.2} x direct (least {least:.2}) with {connections} requests at once, 1 wanted"
            );
            found.check(value >= 1.0, text);
            found.rows.push(row);
        }
        let gigabytes = stage.rows as f64 * row_bytes() as f64 / 1e9;
        let cache = self.each(|i| self.cache[i].samples_per_s);
        found.rows.extend([
            row("rows_per_s", &cache).against("the better direct way", best),
            direct,
            plain,
            Row::of(name("s3_taken"), "of what S3 gives", &[taken]),
            Row::of(name("node_cpu_s_per_gb"), "s/GB", &self.each(|i| self.node_cpu[i] / gigabytes)),
            Row::of(name("first_batch_s"), "s", &self.each(|i| self.cache[i].first_batch_s)),
        ]);
    }

    /// Adds the ratios that there are promises about; `kind` tells their rows apart.
    fn judge(&self, connections: usize, kind: &str, found: &mut Findings) {
        let of_direct = if connections == 1 { OF_DIRECT.0 } else { OF_DIRECT.1 };
        let of_stock = self.each(|i| self.cache[i].samples_per_s / self.stock[i]);
        let cpu = self.each(|i| self.node_cpu[i] / self.direct[i].cpu_s);
        let first = self.each(|i| self.cache[i].first_batch_s / self.direct[i].first_batch_s);
        for (what, values, bound, at_least) in [
            ("vs_direct", self.of_direct(), of_direct, true),
            ("vs_stock", of_stock, OF_STOCK, true),
            ("node_cpu_vs_direct", cpu, CPU_OF_DIRECT, false),
            ("ttfb_vs_direct", first, FIRST_OF_DIRECT, false),
        ] {
            let row = Row::of(format!("cold_{connections}_{kind}{what}"), "ratio", &values);
            let kept = if at_least { row.value >= bound } else { row.value <= bound };
            let side = if at_least { "least" } else { "most" };
            found.check(kept, format!("{} = {:.2}, at {side} {bound} wanted", row.name, row.value));
            found.rows.push(row);
        }
    }
}

/// A slow S3 with a dataset in it.
struct ColdStage {
    s3: S3Server,
    proxy: SlowProxy,
    rows: u64,
}

impl ColdStage {
    /// Takes each way once, with memory taken before it or not.
    fn each_way(
        &self,
        runtime: &Runtime,
        connections: usize,
        taken: bool,
        ways: &mut Ways,
    ) -> anyhow::Result<()> {
        let Self { s3, proxy, rows } = self;
        let mut memory = Vec::new();
        let mut take = || {
            if taken {
                memory.push(take_memory()?);
            }
            anyhow::Ok(())
        };
        take()?;
        let (epoch, cpu) = through_cache(s3, proxy, *rows, connections, &[])?;
        ways.cache.push(epoch);
        ways.node_cpu.push(cpu);
        take()?;
        ways.direct.push(directly(s3, proxy, *rows, connections)?);
        take()?;
        ways.stock.push(runtime.block_on(stock::read(s3, &proxy.endpoint, "cold", connections, *rows))?);
        ways.memory.append(&mut memory);
        Ok(())
    }
}

/// Takes memory from the machine's host and releases it for the next reader: writes a file and removes it.
/// Returns the seconds that a gigabyte took.
fn take_memory() -> anyhow::Result<f64> {
    let (mut file, megabyte) = (tempfile::tempfile()?, vec![0; 1 << 20]);
    let began = Instant::now();
    for _ in 0..MEMORY_MB {
        file.write_all(&megabyte)?;
    }
    Ok(began.elapsed().as_secs_f64() / (MEMORY_MB << 20) as f64 * 1e9)
}

/// An epoch through a new cache, whose node has some more arguments, and the seconds of processor time that
/// the node took.
pub fn through_cache(
    s3: &S3Server,
    proxy: &SlowProxy,
    rows: u64,
    connections: usize,
    args: &[&str],
) -> anyhow::Result<(EpochReport, f64)> {
    let options = ServerOptions::for_endpoint(s3, &proxy.endpoint);
    let options = options.args(["--s3-max-requests", &connections.to_string()]).args(args.iter().copied());
    let server = options.try_start()?;
    let read = epoch(s3, &["--endpoint", &server.endpoint], rows);
    let cpu = server.cpu_s();
    server.try_stop()?;
    Ok((read?, cpu?))
}

/// An epoch without a cache, by our own reader.
pub fn directly(
    s3: &S3Server,
    proxy: &SlowProxy,
    rows: u64,
    connections: usize,
) -> anyhow::Result<EpochReport> {
    let requests = connections.to_string();
    let store = ["--s3-endpoint", &proxy.endpoint, "--s3-region", REGION, "--s3-max-requests", &requests];
    epoch(s3, &[["--direct"].as_slice(), &store].concat(), rows)
}

fn epoch(s3: &S3Server, from: &[&str], rows: u64) -> anyhow::Result<EpochReport> {
    let run = Run::find("forebay")?.args(["epoch", &s3.uri("cold")]).args(from).envs(s3.credentials());
    let answer: EpochsReport = run.limit(Duration::from_secs(600)).json()?;
    let epoch = answer.epochs.into_iter().next().context("an epoch was read")?;
    anyhow::ensure!(epoch.samples == rows, "{} rows were read, not {rows}", epoch.samples);
    anyhow::ensure!(epoch.s3_requests > 0, "the epoch was not cold");
    Ok(epoch)
}

/// Decoded bytes of a row.
const fn row_bytes() -> usize {
    784 + 4 * FLOATS + 8
}

/// Puts a dataset under `cold/`: images like MNIST's, a label, and floats that hardly compress. Returns its
/// bytes.
pub fn upload(s3: &S3Server, objects: usize) -> anyhow::Result<usize> {
    let (mut dice, mut stored) = (Rng::with_seed(11), 0);
    for object in 0..objects {
        let mut writer: Option<ArrowWriter<Vec<u8>>> = None;
        for _ in 0..GROUPS {
            let batch = batch(&mut dice)?;
            let writer = match &mut writer {
                Some(writer) => writer,
                None => writer.insert(ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties()?))?),
            };
            writer.write(&batch)?;
        }
        let bytes = writer.context("an object has row groups")?.into_inner()?;
        stored += bytes.len();
        s3.put(&format!("cold/part-{object:03}.parquet"), Bytes::from(bytes));
    }
    Ok(stored)
}

/// As most writers have it: dictionaries, but for floats, which do not repeat.
fn properties() -> anyhow::Result<WriterProperties> {
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        .set_max_row_group_row_count(Some(GROUP_ROWS));
    for i in 0..FLOATS {
        properties = properties.set_column_dictionary_enabled(float(i).into(), false);
    }
    Ok(properties.build())
}

fn float(i: usize) -> String {
    format!("f{i:02}")
}

/// A row group.
fn batch(dice: &mut Rng) -> anyhow::Result<RecordBatch> {
    let mut pixels = vec![0u8; GROUP_ROWS * 784];
    for image in pixels.chunks_exact_mut(784) {
        // A stroke: a fifth of the pixels, in the middle, as in MNIST.
        let (mut x, mut y) = (14.0, 6.0);
        for _ in 0..16 {
            (x, y) = ((x + 5.0 * (dice.f64() - 0.5)).clamp(5.0, 22.0), y + 1.0);
            for dx in 0..8 {
                let at = y as usize * 28 + x as usize + dx - 4;
                if let Some(pixel) = image.get_mut(at) {
                    *pixel = if dx == 0 || dx == 7 { (dice.f64() * 255.0) as u8 } else { 253 };
                }
            }
        }
    }
    let item = Arc::new(Field::new("item", DataType::UInt8, false));
    let image = FixedSizeListArray::try_new(item, 784, Arc::new(UInt8Array::from(pixels)), None)?;
    let labels = Int64Array::from_iter_values((0..GROUP_ROWS).map(|_| (dice.f64() * 10.0) as i64));
    let mut columns: Vec<(String, ArrayRef)> =
        vec![("image".into(), Arc::new(image)), ("label".into(), Arc::new(labels))];
    for i in 0..FLOATS {
        let values = Float32Array::from_iter_values((0..GROUP_ROWS).map(|_| dice.f64() as f32));
        columns.push((float(i), Arc::new(values)));
    }
    let columns = columns.into_iter().map(|(name, column)| (name, column, false));
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
}
