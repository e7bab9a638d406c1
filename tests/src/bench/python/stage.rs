//! Data in an object store, a node that has it on its disk, and one measured epoch by either side.

use super::process::PythonProcesses;
use super::settings::PythonSettings;
use crate::bench::peers::Content;
use crate::bench::stages::runtime;
use crate::bench::warm::{ChildProcess, MEASURED_EPOCH, SEED, Shape, Span, Stored, Subject, Transport};
use crate::harness::process::{Server, ServerOptions};
use crate::harness::reader::planned_digest;
use crate::harness::s3::S3Server;
use anyhow::Context;
use forebay_client::loader::Shuffle;
use forebay_client::{Access, Dataset, DatasetSpec};
use forebay_proto::digest::OrderDigest;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Segments that are shuffled together.
pub const WINDOW: u32 = 16;

/// Binaries as Python's `bytes`, which is the default, as a tensor that shares the loader's memory, and as
/// views of that memory.
pub const LIST: &str = "list";
pub const RAW: &str = "raw";
pub const VIEWS: &str = "views";

/// Where both sides read.
pub struct PythonStage {
    /// Dropped before the object store that it reads.
    node: Server,
    s3: S3Server,
    processes: PythonProcesses,
    pub data: Vec<PythonData>,
}

/// A dataset, and what an epoch of it must hold.
pub struct PythonData {
    pub stored: Stored,
    content: Content,
    planned: OrderDigest,
}

/// The report of a Python process that has read an epoch.
#[derive(Debug, Deserialize)]
struct PythonRead {
    span: Span,
    samples: u64,
    digest: String,
    /// Of the epoch before it.
    checksum: u64,
}

impl PythonStage {
    pub fn new(settings: &PythonSettings) -> anyhow::Result<Self> {
        let processes = PythonProcesses::of(&settings.repository)?;
        let s3 = S3Server::start();
        let stored = settings.shapes.iter().map(|shape| shape.upload(&s3, settings.scale));
        let stored: Vec<Stored> = stored.collect::<Result<_, _>>()?;
        let node = ServerOptions::for_s3(&s3).slow_disk().try_start()?;
        let data = stored.into_iter().map(|stored| PythonData::new(&s3, &node, stored));
        let data = data.collect::<Result<_, _>>()?;
        Ok(Self { node, s3, processes, data })
    }

    /// Rows a second of the Rust loader.
    pub fn rust(&self, data: &PythonData) -> anyhow::Result<f64> {
        let read = subject(data.stored.shape).measure(&self.s3, &self.node, &data.stored, data.planned)?;
        Ok(read.rows_per_s)
    }

    /// Rows a second of `forebay.torch.Loader`, with binaries as this keyword says. An error if a row or the
    /// order is wrong, or if the measured epoch read the object store.
    pub fn python(&self, data: &PythonData, binaries: &str) -> anyhow::Result<f64> {
        let mut job = self.job(data, "epoch", 0);
        job["binaries"] = binaries.into();
        let mut child = self.processes.start(&job)?;
        child.ready()?;
        self.s3.take_log();
        child.go()?;
        let read: PythonRead = child.report()?;
        let (content, samples) = (data.content, read.samples);
        anyhow::ensure!(samples == content.rows, "{samples} samples were read of {}", content.rows);
        anyhow::ensure!(read.checksum == content.checksum, "values of {:?} are wrong", data.stored.shape);
        let digest: OrderDigest = read.digest.parse()?;
        anyhow::ensure!(digest == data.planned, "the order digest is {digest}, not {}", data.planned);
        let requests = self.s3.take_log();
        anyhow::ensure!(requests.is_empty(), "a warm epoch sent requests to S3: {requests:?}");
        Ok(samples as f64 / read.span.seconds())
    }

    /// What a process reports that measures one thing.
    pub fn one<T: DeserializeOwned>(
        &self,
        data: &PythonData,
        what: &'static str,
        epochs: u32,
    ) -> anyhow::Result<T> {
        self.processes.start(&self.job(data, what, epochs))?.report()
    }

    /// Starts a process that reads on from a state, or from the beginning if that is null. It goes through
    /// epochs without end and reports each step.
    pub fn steps(&self, data: &PythonData, batch_rows: u64, state: &Value) -> anyhow::Result<ChildProcess> {
        let mut job = self.job(data, "steps", 0);
        job["batch_rows"] = batch_rows.into();
        job["state"] = state.clone();
        self.processes.start(&job)
    }

    fn job(&self, data: &PythonData, what: &str, epochs: u32) -> Value {
        let shape = data.stored.shape;
        json!({
            "what": what,
            "endpoint": self.node.endpoint,
            "uri": data.stored.uri,
            "shape": format!("{shape:?}"),
            "binaries": LIST,
            "batch_rows": shape.batch_rows(),
            "seed": SEED,
            "window": WINDOW,
            "epoch": MEASURED_EPOCH,
            "epochs": epochs,
        })
    }

    /// Ends the node.
    pub fn end(self) -> anyhow::Result<()> {
        self.node.try_stop()
    }
}

impl PythonData {
    fn new(s3: &S3Server, node: &Server, stored: Stored) -> anyhow::Result<Self> {
        // The objects have equal content.
        let keys: Vec<String> = stored.shape.keys().collect();
        let object =
            s3.objects().get(&s3.bucket, &keys[0]).with_context(|| format!("there is no {}", keys[0]))?;
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), object)?;
        let content = Content::of_file(stored.shape, file.path())?.times(keys.len() as u64);
        let access = Access::endpoint(&node.endpoint)?;
        let dataset = runtime()?.block_on(Dataset::open(&access, &DatasetSpec::new(&stored.uri)))?;
        let settings = subject(stored.shape).rank(0, node, &stored).settings();
        let planned = planned_digest(&dataset.manifest, &settings, MEASURED_EPOCH)?;
        Ok(Self { stored, content, planned })
    }
}

/// The Rust loader as Python's is: one rank, with the defaults.
fn subject(shape: Shape) -> Subject {
    Subject { shape, shuffle: Shuffle::Window(WINDOW), ranks: 1, transport: Transport::Fd }
}
