//! Files that are swapped with links to foreign ones while they are read: the race of case 27.

use crate::bench::stages::runtime;
use crate::harness::check::Check;
use crate::harness::process::Server;
use crate::harness::question::{Answer, Question, ask, flight_ticket};
use anyhow::Context;
use arrow::array::{ArrayRef, RecordBatch, StringArray};
use forebay_proto::v1;
use futures::future::try_join_all;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use prost::Message;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

pub(super) const OPEN: &str = "/forebay.v1.Cache/Open";
pub(super) const HEAD: &str = "/forebay.v1.Objects/Head";
const DO_GET: &str = "/arrow.flight.protocol.FlightService/DoGet";
const READ: &str = "/forebay.v1.Objects/Read";

/// Rows of the file that may be read, and of the one that may not.
const ROWS: (usize, usize) = (100, 37);

/// In the names and the rows of what nobody here may read.
pub(super) const MARK: &str = "zebra7";

pub(super) fn open_request(uri: &str) -> Vec<u8> {
    let dataset = Some(v1::DatasetSpec { uri: uri.into(), ..Default::default() });
    v1::OpenRequest { dataset, ..Default::default() }.encode_to_vec()
}

/// A folder that a node may read, and one beside it, each with a file.
pub fn lay_out(root: &Path) -> anyhow::Result<()> {
    for folder in ["in/set", "in/dirs", "out"] {
        std::fs::create_dir_all(root.join(folder))?;
    }
    for path in ["in/good.parquet", "in/file.parquet", "in/set/part-0.parquet", "in/dirs/part-0.parquet"] {
        std::fs::write(root.join(path), rows("good", ROWS.0)?)?;
    }
    std::fs::write(root.join("out/part-0.parquet"), rows(MARK, ROWS.1)?)?;
    symlink("../out/part-0.parquet", root.join("in/leads-out.parquet"))?;
    symlink(root.join("out"), root.join("in/folder-out"))?;
    symlink("good.parquet", root.join("in/link.parquet"))?;
    Ok(symlink("dirs", root.join("in/tree"))?)
}

/// A file of Parquet whose values can be found in its bytes.
fn rows(text: &str, count: usize) -> anyhow::Result<Vec<u8>> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::UNCOMPRESSED)
        .set_dictionary_enabled(false)
        .build();
    let values = StringArray::from_iter_values((0..count).map(|n| format!("{text} row {n}")));
    let batch = RecordBatch::try_from_iter([("text", Arc::new(values) as ArrayRef)])?;
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties))?;
    writer.write(&batch)?;
    Ok(writer.into_inner()?)
}

/// Puts foreign files in the place of good ones and back, while others read.
pub fn swapped(server: &Server, root: &Path, time: Duration) -> anyhow::Result<Vec<Check>> {
    let (runtime, end, is_over) = (runtime()?, Instant::now() + time, AtomicBool::new(false));
    let (swaps, seen) = std::thread::scope(|scope| {
        let swapping = scope.spawn(|| swap(root, &is_over));
        let lanes = (0..3).map(|lane| read_until(&server.endpoint, root, lane, end));
        let seen = runtime.block_on(try_join_all(lanes));
        is_over.store(true, Relaxed);
        (swapping.join(), seen)
    });
    let swaps = swaps.map_err(|_| anyhow::anyhow!("swapping broke off"))??;
    let (mut good, mut foreign) = (0, Vec::new());
    for lane in seen? {
        good += lane.good;
        foreign.extend(lane.foreign);
    }
    let claim = "files that are swapped with links to foreign ones, again and again: nothing foreign is told";
    let measured = format!(
        "{swaps} swaps, {good} good reads, {} foreign ones {:?}",
        foreign.len(),
        foreign.iter().take(3).collect::<Vec<_>>()
    );
    Ok(vec![
        Check::of(claim, measured, foreign.is_empty()),
        Check::of("good ones are read meanwhile", good.to_string(), good > 0),
    ])
}

/// Swaps until told to end; how often.
fn swap(root: &Path, is_over: &AtomicBool) -> anyhow::Result<usize> {
    let (good, foreign, new) =
        (root.join("in/good.parquet"), root.join("out/part-0.parquet"), root.join("in/new"));
    let put = |name: &str| std::fs::rename(&new, root.join("in").join(name));
    let mut random = fastrand::Rng::with_seed(27);
    let mut swaps = 0;
    while !is_over.load(Relaxed) {
        // Moments of all lengths: the gap to hit may be short or long.
        let mut pause = || std::thread::sleep(Duration::from_micros(random.u64(0..3000)));
        for name in ["file.parquet", "set/part-0.parquet"] {
            symlink(&foreign, &new)?;
            put(name)?;
        }
        for (name, target) in [("link.parquet", &foreign), ("tree", &root.join("out"))] {
            symlink(target, &new)?;
            put(name)?;
        }
        pause();
        for name in ["file.parquet", "set/part-0.parquet"] {
            std::fs::hard_link(&good, &new)?;
            put(name)?;
        }
        for (name, target) in [("link.parquet", &good), ("tree", &root.join("in/dirs"))] {
            symlink(target, &new)?;
            put(name)?;
        }
        pause();
        swaps += 1;
    }
    Ok(swaps)
}

/// What a reader has seen.
#[derive(Default)]
struct SwapsSeen {
    good: usize,
    /// Where something foreign was told.
    foreign: Vec<String>,
}

impl SwapsSeen {
    fn add(&mut self, what: &str, answer: &Answer, is_foreign: bool) {
        if is_foreign || answer.has(MARK.as_bytes(), "") {
            self.foreign.push(what.to_owned());
        } else if answer.code == 0 {
            self.good += 1;
        }
    }
}

/// Opens and reads all that is swapped until a time is over.
async fn read_until(endpoint: &str, root: &Path, lane: usize, end: Instant) -> anyhow::Result<SwapsSeen> {
    let mut seen = SwapsSeen::default();
    let uris = ["link.parquet", "set", "tree", "file.parquet", "set/part-0.parquet", "tree/part-0.parquet"];
    for n in (lane..).take_while(|_| Instant::now() < end) {
        let name = uris[n % uris.len()];
        let uri = format!("file://{}/in/{name}", root.display());
        read_dataset(endpoint, &uri, name, &mut seen).await?;
        if name.ends_with(".parquet") {
            read_object(endpoint, &uri, name, &mut seen).await?;
        }
    }
    Ok(seen)
}

async fn read_dataset(endpoint: &str, uri: &str, name: &str, seen: &mut SwapsSeen) -> anyhow::Result<()> {
    let send = async |path, message: Vec<u8>| {
        ask(Question { endpoint, path, header: None, message: &message }).await
    };
    let opened = send(OPEN, open_request(uri)).await?;
    if opened.code != 0 {
        return Ok(());
    }
    let manifest = opened.first::<v1::OpenReply>()?.manifest.context("a manifest")?;
    let rows: u64 = manifest.segments.iter().flat_map(|segments| &segments.rows).sum();
    seen.add(&format!("opening {name}"), &opened, rows != ROWS.0 as u64);
    let scan = v1::ScanTicket { manifest: manifest.digest, ..Default::default() };
    let kind = Some(v1::ticket::Kind::Scan(scan));
    let ticket = flight_ticket(&v1::Ticket { kind, uri: manifest.uri, ..Default::default() });
    let read = send(DO_GET, ticket).await?;
    seen.add(&format!("rows of {name}"), &read, false);
    Ok(())
}

async fn read_object(endpoint: &str, uri: &str, name: &str, seen: &mut SwapsSeen) -> anyhow::Result<()> {
    let send = async |path, message: Vec<u8>| {
        ask(Question { endpoint, path, header: None, message: &message }).await
    };
    let head = send(HEAD, v1::HeadObjectRequest { uri: uri.into() }.encode_to_vec()).await?;
    if head.code != 0 {
        return Ok(());
    }
    let object: v1::ObjectVersion = head.first()?;
    let ranges = vec![v1::ByteRange { start: 0, end: object.size }];
    let read = v1::ReadObjectRequest { object: Some(object), ranges }.encode_to_vec();
    seen.add(&format!("bytes of {name}"), &send(READ, read).await?, false);
    Ok(())
}
