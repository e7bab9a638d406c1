//! The dataset that all ways read, the order in which they do, and pyarrow's digest of each epoch.

use super::super::world::World;
use crate::harness::process::Run;
use crate::harness::reader::Job;
use crate::harness::s3::REGION;
use crate::harness::table::Table;
use anyhow::Context;
use forebay_client::LoaderSettings;
use forebay_client::loader::Shuffle;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Segments of the dataset, a quarter of a MiB each: many enough that each of three nodes owns some of each
/// window.
const SEGMENTS: u64 = 96;
const SEGMENT_ROWS: u64 = 256;

/// Segments shuffled together.
const WINDOW: u32 = 8;

/// Rows of a step: a multiple of most numbers of ranks.
const BATCH: u64 = 240;

/// Where it lies in the bucket.
const NAME: &str = "content";

/// The dataset, its surroundings, and what pyarrow says of it.
pub struct ContentStage {
    pub world: World,
    pub table: Table,
    seed: u64,
    /// The same objects as files.
    files: tempfile::TempDir,
    /// Digests by pyarrow, by epoch.
    known: RefCell<BTreeMap<u64, String>>,
}

/// What one way to read gave.
pub struct ContentRead {
    /// As in names of rows.
    pub name: &'static str,
    /// In words.
    pub way: String,
    /// Number and content digest of each epoch that it read; an epoch that it read more than once is there
    /// more than once.
    pub digests: Vec<(u64, String)>,
}

impl ContentStage {
    /// Makes the dataset.
    pub fn start(seed: u64) -> anyhow::Result<Self> {
        let world = World::start()?;
        let table = world.table(NAME, SEGMENTS, SEGMENT_ROWS)?;
        let (files, objects) = (tempfile::tempdir()?, world.s3.objects());
        let name = |number| format!("part-{number:05}.parquet");
        let object = |number| objects.get(&world.s3.bucket, &format!("{NAME}/{}", name(number)));
        for (number, bytes) in (0..SEGMENTS).map_while(|number| Some((number, object(number)?))) {
            std::fs::write(files.path().join(name(number)), bytes)?;
        }
        Ok(Self { world, table, seed, files, known: RefCell::default() })
    }

    /// A job of loaders in this process, which asks for content digests. Its rows travel by TCP; those of
    /// commands come through shared memory, where nobody says otherwise.
    pub fn job(&self, world: u32, step: Duration, epochs: Option<u64>) -> Job {
        let settings = LoaderSettings {
            seed: self.seed,
            shuffle: Shuffle::Window(WINDOW),
            global_batch: BATCH,
            epochs,
            // Little is read ahead, so that a fault meets rows that are still to come.
            prefetch_bytes: 2 << 20,
            content_digest: true,
            same_host: false,
            ..Default::default()
        };
        Job { columns: None, world, step, settings }
    }

    /// Reads `epochs` epochs by the command `forebay epoch`.
    pub fn epochs(&self, epochs: u64, world: u32, access: &[&str]) -> anyhow::Result<Vec<(u64, String)>> {
        let run = Run::find("forebay")?.args(["epoch", &self.table.uri, "--verify"]).args(self.order());
        // Another batch for each number of ranks: digests do not depend on it.
        let batch = u64::from(world) * 16;
        let run = run.args(["--world", &world.to_string(), "--batch", &batch.to_string()]);
        let run = run.args(["--epochs", &epochs.to_string()]).args(access).envs(self.world.s3.credentials());
        let report: Value = run.json()?;
        let read = report["epochs"].as_array().context("the report has epochs")?;
        let of = |(number, epoch): (u64, &Value)| {
            let digest = epoch["content_digest"].as_str().context("an epoch without a content digest")?;
            anyhow::Ok((number, digest.to_owned()))
        };
        anyhow::ensure!(read.len() as u64 == epochs, "{} of {epochs} epochs", read.len());
        (0..).zip(read).map(of).collect()
    }

    /// The access of commands that read without a cache.
    pub fn directly(&self) -> [&str; 5] {
        ["--direct", "--s3-endpoint", &self.world.s3.endpoint, "--s3-region", REGION]
    }

    /// The content digest of an epoch by a script that shares no code with Forebay but the plan: which row
    /// stands where.
    pub fn by_pyarrow(&self, epoch: u64) -> anyhow::Result<String> {
        if let Some(known) = self.known.borrow().get(&epoch) {
            return Ok(known.clone());
        }
        let plan = Run::find("forebay")?.args(["plan", &self.table.uri]).args(self.order());
        let rows = SEGMENTS * SEGMENT_ROWS;
        let plan = plan.args(["--epoch", &epoch.to_string(), "--batch", &rows.to_string(), "--json"]);
        let plan = plan.args(self.directly()).envs(self.world.s3.credentials()).stdout()?;
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), plan)?;
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let python = project.join(".venv/bin/python");
        anyhow::ensure!(python.exists(), "there is no {}: `make bench-content` sets it up", python.display());
        let script = Run::program(python, "content_digest.py").arg(project.join("scripts/content_digest.py"));
        let digest = String::from_utf8(script.arg(self.files.path()).arg(file.path()).stdout()?)?;
        let digest = digest.trim().to_owned();
        self.known.borrow_mut().insert(epoch, digest.clone());
        Ok(digest)
    }

    /// The flags on which the order depends.
    fn order(&self) -> [String; 6] {
        let flags = [
            ("--seed", self.seed.to_string()),
            ("--window", WINDOW.to_string()),
            ("--segment-bytes", self.table.segment_bytes.to_string()),
        ];
        let [seed, window, bytes] = flags.map(|(flag, value)| [flag.to_owned(), value]);
        let ([a, b], [c, d], [e, f]) = (seed, window, bytes);
        [a, b, c, d, e, f]
    }
}
