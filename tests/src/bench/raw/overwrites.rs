//! Objects that are overwritten while they are read: each read must end with an error, or with the bytes of
//! one version. By the S3 endpoint, by `forebay get`, and as `forebay.fs` reads an open file.

use super::load::{exchange, head_of};
use super::stage::RawStage;
use super::timed_part::TimedPart;
use crate::harness::check::Findings;
use crate::harness::made::MadeObject;
use crate::harness::process::Run;
use crate::harness::s3_client::{S3Ask, S3Client};
use anyhow::Context;
use bytes::Bytes;
use forebay_client::Access;
use forebay_client::objects::Objects;
use futures::TryStreamExt;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::Duration;
use tokio::time::timeout;

/// Bytes of a block: many of them in an object.
const BLOCK: u64 = 64 << 10;

/// Blocks of an object; the last is a short one.
const BLOCKS: u64 = 11;

/// How long a read of one of them may take, and all reads of one way.
const PATIENCE: Duration = Duration::from_secs(120);
const LIMIT: Duration = Duration::from_mins(20);

/// How large the measurement is.
#[derive(Debug, Clone, Copy)]
pub struct OverwritesSettings {
    /// Objects that are read each way.
    pub each: u64,
    /// Decides the moments.
    pub seed: u64,
}

/// How an object is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OverwriteWay {
    Endpoint,
    Get,
    Fs,
}

/// What came of a read.
struct Came {
    bytes: Vec<u8>,
    is_whole: bool,
}

/// How often what came.
#[derive(Debug, Default)]
struct Outcomes {
    old: u64,
    new: u64,
    errors: u64,
    torn: u64,
}

/// Runs it.
pub fn run(settings: &OverwritesSettings) -> anyhow::Result<Findings> {
    let stage = RawStage::start(|options| options.env("FOREBAY_OBJECTS__BLOCK_BYTES", &BLOCK.to_string()))?;
    let objects = {
        let _entered = stage.runtime.enter();
        Objects::new(&Access::endpoint(&stage.node.endpoint)?)
    };
    let mut dice = fastrand::Rng::with_seed(settings.seed);
    let mut found = Findings::default();
    let (mut all, mut torn) = (0, 0);
    for (reader, name) in
        [(OverwriteWay::Endpoint, "s3"), (OverwriteWay::Get, "get"), (OverwriteWay::Fs, "fs")]
    {
        let mut outcomes = Outcomes::default();
        let timed = TimedPart::start(name, "objects", LIMIT);
        for n in 0..settings.each {
            one(&stage, &objects, reader, n, &mut dice, &mut outcomes)?;
            timed.add(1);
            timed.check()?;
        }
        let Outcomes { old, new, errors, torn: of_this } = outcomes;
        let reads = old + new + errors + of_this;
        (all, torn) = (all + reads, torn + of_this);
        found.value(format!("raw_overwrites_{name}_errors"), "reads", errors as f64);
        found.check(
            of_this == 0 && reads == settings.each && errors > reads / 20,
            format!(
                "{reads} objects overwritten while read by {reader:?}: {errors} errors, {old} the old version, {new} the \
                 new one, {of_this} torn; seed {}",
                settings.seed
            ),
        );
    }
    found.value("raw_overwrites", "reads", all as f64);
    found.value("raw_overwrites_torn", "reads", torn as f64);
    stage.node.try_stop()?;
    Ok(found)
}

/// One object, overwritten before one of the object store's answers for it.
fn one(
    stage: &RawStage,
    objects: &Objects,
    reader: OverwriteWay,
    n: u64,
    dice: &mut fastrand::Rng,
    outcomes: &mut Outcomes,
) -> anyhow::Result<()> {
    let key = format!("changing/{reader:?}/{n}");
    // As long as the old one, or a little longer: an equal length hides what an unequal one shows.
    let size = (BLOCKS - 1) * BLOCK + 9;
    let made = |seed, size| MadeObject { seed, size }.bytes(0..size);
    let (old, new) = (made(2 * n, size), made(2 * n + 1, size + n % 3));
    stage.s3.put(&key, old.clone());
    let read = |reader| read(stage, objects, reader, &key);
    if dice.bool() {
        // Some blocks of the old version are there already.
        let range = format!("{}-{}", dice.u64(0..size / 2), dice.u64(size / 2..size));
        let get = Run::find("forebay")?.args(["get", &stage.s3.uri(&key), "-r", &range]);
        get.args(["--endpoint", &stage.node.endpoint]).stdout()?;
    }
    stage.s3.overwrite_before_get(dice.usize(1..=BLOCKS as usize), &key, new.clone());
    let came = read(reader)?;
    stage.s3.heal();
    match came.is_whole {
        true if came.bytes == old => outcomes.old += 1,
        true if came.bytes == new => outcomes.new += 1,
        false if old.starts_with(&came.bytes) || new.starts_with(&came.bytes) => outcomes.errors += 1,
        _ => outcomes.torn += 1,
    }
    // One that was never asked for so often is still the old one.
    let now = stage.s3.objects().get(&stage.s3.bucket, &key).unwrap_or_default();
    let after = read(reader)?;
    anyhow::ensure!(
        after.is_whole && after.bytes == now,
        "{key}: afterwards its bytes are others than the object store's"
    );
    // The object store keeps its objects in memory.
    stage.s3.objects().delete(&stage.s3.bucket, &key);
    Ok(())
}

fn read(stage: &RawStage, objects: &Objects, reader: OverwriteWay, key: &str) -> anyhow::Result<Came> {
    match reader {
        OverwriteWay::Endpoint => by_endpoint(&stage.client()?, &format!("/{}/{key}", stage.s3.bucket)),
        OverwriteWay::Get => {
            let get =
                Run::find("forebay")?.args(["get", &stage.s3.uri(key), "--endpoint", &stage.node.endpoint]);
            let ended = get.limit(PATIENCE).try_end()?;
            let is_known =
                ended.code == Some(0) || ended.stderr.contains("was overwritten while it was read");
            anyhow::ensure!(is_known, "forebay get: {}", ended.stderr);
            Ok(Came { bytes: ended.stdout, is_whole: ended.code == Some(0) })
        }
        OverwriteWay::Fs => stage.runtime.block_on(async {
            let read = timeout(PATIENCE, as_a_file(objects, &stage.s3.uri(key))).await;
            read.with_context(|| format!("{key}: not read as a file after {PATIENCE:?}"))?
        }),
    }
}

fn by_endpoint(client: &S3Client, target: &str) -> anyhow::Result<Came> {
    use std::io::Write as _;
    let ask = client.sign(&S3Ask::new("GET", target))?;
    let mut stream = TcpStream::connect(client.endpoint.trim_start_matches("http://"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{}\r\n", head_of(&client.endpoint, &ask)).as_bytes())?;
    let mut bytes = Vec::new();
    let ended = exchange(&mut stream, &mut vec![0; 256 << 10], None, |some| bytes.extend_from_slice(some));
    let is_whole = ended.is_ok();
    // An answer that breaks off is an error to its reader; one that never ends must not pass for that.
    if let Err(error) = ended
        && error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::WouldBlock)
    {
        return Err(error.context(format!("{target}: nothing came for {PATIENCE:?}")));
    }
    Ok(Came { bytes, is_whole })
}

/// One version when it is opened, then range by range, each larger than the one before.
async fn as_a_file(objects: &Objects, uri: &str) -> anyhow::Result<Came> {
    let (version, mut bytes, mut ahead) = (objects.version(uri).await?, Vec::new(), 128 << 10);
    while (bytes.len() as u64) < version.size {
        let at = bytes.len() as u64;
        let range = at..version.size.min(at + ahead);
        ahead *= 2;
        let pieces: forebay_client::Result<Vec<Bytes>> = match objects.read(&version, range) {
            Ok(pieces) => pieces.try_collect().await,
            Err(e) => Err(e),
        };
        match pieces {
            Ok(pieces) => pieces.iter().for_each(|piece| bytes.extend_from_slice(piece)),
            Err(_) => return Ok(Came { bytes, is_whole: false }),
        }
    }
    Ok(Came { bytes, is_whole: true })
}
