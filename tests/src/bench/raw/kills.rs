//! Objects of all sizes, compared byte for byte with the rule that made them: cold, warm, after a restart,
//! from another node, and while the node is killed again and again as it fills.

use super::checked::{CheckedBytes, MadeSet, RawReaders, RawWay};
use super::stage::{client_of, keys_file};
use super::timed_part::TimedPart;
use crate::bench::disk::node::{counters, status};
use crate::bench::stages::runtime;
use crate::harness::check::Findings;
use crate::harness::ports::free_addresses;
use crate::harness::process::{Run, Server, ServerOptions};
use crate::harness::s3::S3Server;
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How long blocks may take to their places on the disk after their readers have them.
const PLACED: Duration = Duration::from_secs(60);

/// How long a read of the whole set may take, and all kills with the reads meanwhile.
const READ_LIMIT: Duration = Duration::from_mins(20);
const KILLS_LIMIT: Duration = Duration::from_mins(40);

/// How large the measurement is.
#[derive(Debug, Clone, Copy)]
pub struct RawKillsSettings {
    /// How often.
    pub kills: u64,
    /// Objects of 0 bytes, of 1, and of a byte less than a block, a block, and a byte more: of each.
    pub small: u64,
    /// Large objects, and bytes of each.
    pub large: u64,
    /// See `large`.
    pub large_bytes: u64,
    /// Decides the moments.
    pub seed: u64,
}

/// The object store, the set, and what nodes are started with.
struct KillsStage {
    runtime: Runtime,
    s3: S3Server,
    set: MadeSet,
    folder: tempfile::TempDir,
    keys: PathBuf,
}

/// Where a node listens.
struct Place {
    grpc: String,
    s3: String,
}

/// Runs it.
pub fn run(settings: &RawKillsSettings) -> anyhow::Result<Findings> {
    let (s3, folder) = (S3Server::start(), tempfile::tempdir()?);
    let set = MadeSet::put(&s3, settings.small, settings.large, settings.large_bytes);
    check_room(folder.path(), set.bytes)?;
    let keys = keys_file(folder.path())?;
    let stage = KillsStage { runtime: runtime()?, s3, set, folder, keys };
    let mut found = Findings::default();
    found.value("raw_set_objects", "objects", stage.set.len() as f64);
    found.value("raw_set_bytes", "bytes", stage.set.bytes as f64);
    let mut checked = stage.kept(&mut found)?;
    checked += stage.killed(settings, &mut found)?;
    found.value("raw_bytes_checked", "bytes", checked as f64);
    Ok(found)
}

/// Two nodes hold the set at once. On a disk that is too small reads fail or crawl, and nothing says why.
fn check_room(folder: &Path, set_bytes: u64) -> anyhow::Result<()> {
    let disk = rustix::fs::statvfs(folder).with_context(|| folder.display().to_string())?;
    let (free, needed) = (disk.f_bavail * disk.f_frsize, 2 * set_bytes + set_bytes / 4);
    anyhow::ensure!(
        free >= needed,
        "{}: {:.1} GB are free, {:.1} GB are needed: name a larger disk in TMPDIR",
        folder.display(),
        free as f64 / 1e9,
        needed as f64 / 1e9
    );
    Ok(())
}

impl KillsStage {
    fn start(&self, at: &Place, folder: &Path, among: &[&Place]) -> anyhow::Result<Server> {
        let limit = (self.set.bytes + self.set.bytes / 4 + (256 << 20)).to_string();
        let list =
            among.iter().flat_map(|place| ["--cluster-node".to_owned(), format!("http://{}", place.grpc)]);
        let keys = self.keys.to_string_lossy();
        ServerOptions::for_s3(&self.s3)
            .folder(folder)
            .args(["--listen", at.grpc.as_str(), "--s3-listen", at.s3.as_str(), "--s3-keys", &keys])
            .args(["--cache-bytes", limit.as_str()])
            .args(list.collect::<Vec<_>>())
            // What a kill leaves unfit to be read is found and removed, as it should be; and counted here.
            .allow_log("a segment file is damaged")
            .try_start()
    }

    fn readers(&self, node: &Server) -> anyhow::Result<RawReaders<'_>> {
        RawReaders::new(client_of(node)?, &node.endpoint, &self.runtime)
    }

    /// Bytes of objects that left the object store since it was last asked.
    fn s3_bytes(&self) -> u64 {
        self.s3.take_log().iter().filter(|seen| seen.is_object_get()).map(|seen| seen.bytes).sum()
    }

    /// Waits until all blocks lie on the disk.
    fn wait_for_blocks(&self, node: &Server) -> anyhow::Result<()> {
        let deadline = Instant::now() + PLACED;
        loop {
            let files = self.runtime.block_on(status(node))?.raw.unwrap_or_default().files;
            if files == self.set.blocks() {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < deadline, "{files} blocks of {} are held", self.set.blocks());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Cold, warm, after a restart, from another node. Returns the bytes that were compared.
    fn kept(&self, found: &mut Findings) -> anyhow::Result<u64> {
        let [one, two] = [places()?, places()?];
        let folders = ["one", "two"].map(|name| self.folder.path().join(name));
        let mut all = 0;
        let timed = |what| TimedPart::start(what, "GB", READ_LIMIT);
        let mut judge = |what: &str, read: CheckedBytes, s3_bytes: u64, expected: u64| {
            let CheckedBytes { bytes, wrong } = read;
            all += bytes;
            found.value(format!("raw_{what}_wrong_bytes"), "bytes", wrong as f64);
            found.value(format!("raw_{what}_s3_bytes"), "bytes", s3_bytes as f64);
            let is_whole = wrong == 0 && bytes == self.set.bytes && s3_bytes == expected;
            found.check(
                is_whole,
                format!("{what}: {bytes} bytes compared, {wrong} wrong, {s3_bytes} from the object store"),
            );
        };
        let node = self.start(&one, &folders[0], &[])?;
        self.s3_bytes();
        judge(
            "cold",
            self.set.read(&self.readers(&node)?, &timed("cold"), false)?,
            self.s3_bytes(),
            self.set.bytes,
        );
        self.wait_for_blocks(&node)?;
        judge("warm", self.set.read(&self.readers(&node)?, &timed("warm"), true)?, self.s3_bytes(), 0);
        node.try_stop()?;
        let node = self.start(&one, &folders[0], &[])?;
        judge("restart", self.set.read(&self.readers(&node)?, &timed("restart"), false)?, self.s3_bytes(), 0);
        node.try_stop()?;
        let node = self.start(&one, &folders[0], &[&one, &two])?;
        let other = self.start(&two, &folders[1], &[&one, &two])?;
        // By its endpoint alone: the library would ask the first node for what that owns.
        let by_endpoint = |n: usize| (n < self.set.len()).then_some((n, RawWay::Endpoint));
        judge(
            "peer",
            self.set.read_in_turn(&self.readers(&other)?, &timed("peer"), by_endpoint)?,
            self.s3_bytes(),
            0,
        );
        let [holder, reader] = [&node, &other].map(|node| self.runtime.block_on(counters(node)));
        let (holder, reader) = (holder?, reader?);
        found.value("raw_peer_holder_s3_bytes", "bytes", holder.s3_bytes as f64);
        found.value("raw_peer_reader_s3_bytes", "bytes", reader.s3_bytes as f64);
        let fills = reader.peer_fills;
        found.check(fills >= self.set.blocks(), format!("peer: {fills} blocks came from the other node"));
        other.try_stop()?;
        node.try_stop()?;
        folders.iter().try_for_each(std::fs::remove_dir_all)?;
        Ok(all)
    }

    /// Kills at random moments while the set is read, and filled, over and over. Returns the bytes that were
    /// compared.
    fn killed(&self, settings: &RawKillsSettings, found: &mut Findings) -> anyhow::Result<u64> {
        let (place, folder) = (places()?, self.folder.path().join("killed"));
        let mut node = self.start(&place, &folder, &[])?;
        let (readers, has_ended) = (self.readers(&node)?, AtomicBool::new(false));
        let len = self.set.len();
        let turn = |n: usize| {
            let (pass, n) = (n / len, n % len);
            if pass > 0 && has_ended.load(Relaxed) {
                return None;
            }
            if pass > 0 && n == 0 {
                // There is to be something to fill. A node that is dead at this moment keeps what it has.
                let uri = self.s3.uri("set");
                let free =
                    Run::find("forebay").map(|run| run.args(["free", &uri, "--endpoint"]).limit(PLACED));
                free.and_then(|run| run.arg(format!("http://{}", place.grpc)).try_end()).ok();
            }
            Some((n, [RawWay::Endpoint, RawWay::Library][(n + pass) % 2]))
        };
        let mut dice = fastrand::Rng::with_seed(settings.seed);
        let timed = TimedPart::start("killed", "GB", KILLS_LIMIT);
        let (mut killed, mut corrupt) = (0, 0);
        let compared = std::thread::scope(|scope| -> anyhow::Result<CheckedBytes> {
            let reading = scope.spawn(|| self.set.read_in_turn(&readers, &timed, turn));
            // Of this process alone: it has found files that a killed one left unfit to be read.
            let mut seen = |node: &Server| -> anyhow::Result<()> {
                corrupt += self.runtime.block_on(counters(node))?.corrupt_segments;
                Ok(())
            };
            let mut kill_all = || -> anyhow::Result<()> {
                while killed < settings.kills && !reading.is_finished() {
                    std::thread::sleep(Duration::from_millis(dice.u64(20..300)));
                    seen(&node)?;
                    node.kill();
                    killed += 1;
                    timed.note(format!("{killed} of {} kills", settings.kills));
                    node = self.start(&place, &folder, &[])?;
                }
                Ok(())
            };
            let kills = kill_all();
            has_ended.store(true, Relaxed);
            let compared = reading.join().map_err(|_| anyhow::anyhow!("the readers panicked"))??;
            kills?;
            seen(&node)?;
            Ok(compared)
        })?;
        node.try_stop()?;
        let CheckedBytes { bytes, wrong } = compared;
        found.value("raw_kills", "kills", killed as f64);
        found.value("raw_kills_bytes_checked", "bytes", bytes as f64);
        found.value("raw_kills_wrong_bytes", "bytes", wrong as f64);
        found.value("raw_kills_corrupt_files", "files", corrupt as f64);
        let text = format!(
            "{killed} of {} kills while filling, seed {}: {bytes} bytes compared, {wrong} wrong",
            settings.kills, settings.seed
        );
        found.check(killed == settings.kills && wrong == 0 && bytes >= self.set.bytes, text);
        let text = format!("{corrupt} files that a killed process had written do not verify");
        found.check(corrupt == 0, text);
        Ok(bytes)
    }
}

fn places() -> anyhow::Result<Place> {
    let [grpc, s3] =
        <[String; 2]>::try_from(free_addresses(2)?).map_err(|_| anyhow::anyhow!("two addresses"))?;
    Ok(Place { grpc, s3 })
}
