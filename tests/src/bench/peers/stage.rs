//! Where everybody reads: the data in an object store, the same through a slow proxy, a copy of the files on
//! this machine, and a node that has it all on its disk.

use super::consumer::{Content, Half, HalfRead, PeerEpochs};
use super::peer::{FILLING, Peer, PeerSource, Standing, WINDOW};
use super::reader::SEED;
use super::settings::PeerSettings;
use crate::bench::package::Package;
use crate::bench::warm::{Shape, Stored};
use crate::harness::process::{Run, Server, ServerOptions};
use crate::harness::s3::{REGION, S3Server};
use crate::harness::slow::{SlowProxy, Slowness};
use anyhow::Context;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a process may take for its epochs.
const PATIENCE: Duration = Duration::from_secs(1800);

/// What all subjects read.
pub struct PeerStage {
    /// Dropped before the object store that it reads.
    node: Server,
    proxy: SlowProxy,
    s3: S3Server,
    data: Vec<Copied>,
    environments: PathBuf,
    scripts: PathBuf,
    /// Our package, if it is measured.
    package: Option<Package>,
    folder: tempfile::TempDir,
}

/// A dataset and its copy.
struct Copied {
    stored: Stored,
    keys: Vec<String>,
    files: Vec<PathBuf>,
    /// Of each file.
    content: Content,
    /// The file for those that pass every row through Python by itself.
    few: PathBuf,
    content_of_few: Content,
}

/// How data became another format's.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Conversion {
    pub seconds: f64,
    pub cpu_s: f64,
    pub bytes: u64,
}

impl PeerStage {
    /// Makes the data, and copies it.
    pub fn new(settings: &PeerSettings) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let s3 = S3Server::start();
        let proxy = SlowProxy::start(&s3.endpoint, Slowness::remote_s3());
        let copied = |shape: &Shape| Copied::new(&s3, shape.upload(&s3, settings.scale)?, folder.path());
        let data = settings.shapes.iter().map(copied).collect::<Result<_, _>>()?;
        let node = ServerOptions::for_s3(&s3).slow_disk().try_start()?;
        let (environments, scripts) = (settings.environments.clone(), settings.scripts.clone());
        let is_ours = |peer: &Peer| peer.standing == Standing::OursInPython;
        let needed = settings.peers.iter().any(is_ours);
        let package = needed.then(|| Package::of(&settings.repository)).transpose()?;
        let stage = Self { node, proxy, s3, data, environments, scripts, package, folder };
        stage.fill()?;
        Ok(stage)
    }

    /// Has our node read everything once; then nothing is left to be written to its disk.
    fn fill(&self) -> anyhow::Result<()> {
        for data in &self.data {
            let read = self.read_ours(&self.node, data, &FILLING)?;
            let (read, all) = (read.epochs.iter().map(|epoch| epoch.content), data.all());
            let wrong = read.into_iter().find(|content| *content != all);
            anyhow::ensure!(wrong.is_none(), "{:?}: {all:?} expected, {wrong:?} read", data.stored.shape);
        }
        rustix::fs::sync();
        Ok(())
    }

    /// The content of an epoch of this subject.
    pub fn content(&self, peer: &Peer, shape: Shape) -> anyhow::Result<Content> {
        let data = self.data(shape)?;
        Ok(if peer.by_rows { data.content_of_few } else { data.all() })
    }

    /// Reads the subject's epochs in a process of its own.
    pub fn measure(&self, peer: &Peer, shape: Shape) -> anyhow::Result<PeerEpochs> {
        let data = self.data(shape)?;
        match (peer.script, peer.source) {
            (Some(script), _) => self.run(peer, script, data, json!({})),
            (None, PeerSource::Local) => self.read_ours(&self.node, data, peer),
            (None, _) => {
                let node = ServerOptions::for_endpoint(&self.s3, &self.proxy.endpoint).try_start()?;
                let read = self.read_ours(&node, data, peer)?;
                node.try_stop()?;
                Ok(read)
            }
        }
    }

    /// Has a peer write the data in its own format.
    pub fn convert(&self, peer: &Peer, shape: Shape) -> anyhow::Result<Conversion> {
        let script = peer.script.context("only peers convert")?;
        self.run(peer, script, self.data(shape)?, json!({"convert": true}))
    }

    /// Has a script read half of an epoch: to the state that it leaves, or from that on.
    pub fn resume(&self, peer: &Peer, shape: Shape, half: Half) -> anyhow::Result<HalfRead> {
        let script = peer.script.context("only scripts are resumed")?;
        let what = if half == Half::First { "save" } else { "go" };
        let middle = self.content(peer, shape)?.rows / 2;
        self.run(peer, script, self.data(shape)?, json!({"resume": what, "middle": middle}))
    }

    fn data(&self, shape: Shape) -> anyhow::Result<&Copied> {
        self.data.iter().find(|data| data.stored.shape == shape).context("each shape has data")
    }

    fn read_ours(&self, node: &Server, data: &Copied, peer: &Peer) -> anyhow::Result<PeerEpochs> {
        let shape = format!("{:?}", data.stored.shape);
        let (epochs, pid) = (peer.epochs.to_string(), node.pid().to_string());
        let by_tcp = peer.standing == Standing::OursByTcp;
        let run = Run::find("forebay-bench-peers")?.args(["reader", "--endpoint", &node.endpoint]);
        let run = run.args(["--uri", &data.stored.uri, "--shape", &shape, "--epochs", &epochs]);
        let run = run.args(["--node", &pid]).args(peer.shuffle.then_some("--shuffle"));
        let run = run.args(by_tcp.then_some("--tcp")).limit(PATIENCE);
        Ok(serde_json::from_slice(&run.stdout()?)?)
    }

    fn run<T: DeserializeOwned>(
        &self,
        peer: &Peer,
        script: &str,
        data: &Copied,
        more: serde_json::Value,
    ) -> anyhow::Result<T> {
        let python = self.environments.join(script).join("bin/python");
        anyhow::ensure!(python.is_file(), "its environment is not there: tests/peers/setup.sh makes it");
        let scratch = self.folder.path().join(format!("{:?}", data.stored.shape)).join(script);
        std::fs::create_dir_all(&scratch)?;
        let mut job = self.job(peer, data, &scratch);
        job.as_object_mut()
            .into_iter()
            .zip(more.as_object())
            .for_each(|(job, more)| job.extend(more.clone()));
        let run = Run::program(python, script).arg(self.scripts.join(format!("{script}.py")));
        let run = run.arg(job.to_string()).envs(self.environment(peer)).limit(PATIENCE);
        let stdout = String::from_utf8(run.stdout()?)?;
        let line = stdout.lines().next_back().with_context(|| format!("{script} says nothing"))?;
        serde_json::from_str(line).with_context(|| format!("{script} reported {line}"))
    }

    fn job(&self, peer: &Peer, data: &Copied, scratch: &Path) -> serde_json::Value {
        let files = if peer.by_rows { std::slice::from_ref(&data.few) } else { &data.files };
        let source = match peer.source {
            PeerSource::Local => "local",
            PeerSource::S3 => "s3",
            PeerSource::Nginx => "nginx",
        };
        json!({
            "shape": format!("{:?}", data.stored.shape),
            "batch_rows": data.stored.shape.batch_rows(),
            "epochs": peer.epochs,
            "seed": SEED,
            "shuffle": peer.shuffle,
            "window": WINDOW,
            "workers": peer.workers,
            "files": files,
            "keys": &data.keys,
            "source": source,
            "bucket": self.s3.bucket,
            "endpoint": self.proxy.endpoint,
            "region": REGION,
            "access_key": self.s3.access_key,
            "secret_key": self.s3.secret_key,
            "scratch": scratch,
            "node": self.node.pid(),
            "node_endpoint": self.node.endpoint,
            "uri": data.stored.uri,
        })
    }

    /// What scripts need in their environment. None of them may look for anything on the internet.
    fn environment(&self, peer: &Peer) -> Vec<(String, String)> {
        let folder = |path: &Path| path.to_string_lossy().into_owned();
        let ours = [
            ("LD_LIBRARY_PATH", folder(&self.environments.join("stand-ins"))),
            ("HF_HOME", folder(&self.folder.path().join("hugging_face"))),
            ("TMPDIR", folder(self.folder.path())),
            ("HF_HUB_OFFLINE", "1".to_owned()),
            ("DO_NOT_TRACK", "1".to_owned()),
            ("PYTHONWARNINGS", "ignore".to_owned()),
        ];
        let package = self.package.iter().filter(|_| peer.standing == Standing::OursInPython);
        let package = package.map(|package| ("PYTHONPATH", folder(package.path())));
        ours.into_iter().chain(package).map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

impl Copied {
    fn new(s3: &S3Server, stored: Stored, folder: &Path) -> anyhow::Result<Self> {
        let folder = folder.join(format!("{:?}", stored.shape)).join("parquet");
        std::fs::create_dir_all(&folder)?;
        let (mut keys, mut files) = (Vec::new(), Vec::new());
        for key in stored.shape.keys() {
            let bytes = s3.objects().get(&s3.bucket, &key).with_context(|| format!("there is no {key}"))?;
            let file = folder.join(key.rsplit('/').next().unwrap_or(&key));
            std::fs::write(&file, bytes)?;
            keys.push(key);
            files.push(file);
        }
        // The objects have equal content.
        let content = Content::of_file(stored.shape, &files[0])?;
        let few = folder.join("few.parquet");
        write_few(stored.shape, &files[0], &few)?;
        let content_of_few = Content::of_file(stored.shape, &few)?;
        Ok(Self { stored, keys, files, content, few, content_of_few })
    }

    fn all(&self) -> Content {
        self.content.times(self.files.len() as u64)
    }
}

/// An error's last line, which of a script in Python is the exception.
pub fn in_a_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
}

/// Copies row groups, as many as one reads row by row within seconds.
fn write_few(shape: Shape, file: &Path, few: &Path) -> anyhow::Result<()> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(file)?)?;
    let group_rows = builder.metadata().row_group(0).num_rows() as usize;
    let groups = if shape == Shape::T { 2 } else { builder.metadata().num_row_groups() };
    let properties = shape.properties(group_rows)?;
    let mut writer = ArrowWriter::try_new(File::create(few)?, builder.schema().clone(), Some(properties))?;
    for batch in builder.with_row_groups((0..groups).collect()).with_batch_size(group_rows).build()? {
        writer.write(&batch?)?;
    }
    writer.close()?;
    Ok(())
}
