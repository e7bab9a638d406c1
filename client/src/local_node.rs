//! A cache node of one's own: started on this machine when it is first needed, reachable only by its user,
//! shared by all processes of the user that read with the same settings, and gone when nobody needs it.
//!
//! A node is named by what it may read with and where it keeps it (`identity`), so two processes share one
//! exactly if either could have read what the other had cached. Its socket, its log and the lock that makes
//! simultaneous starts one start lie in a private folder (`private_folder`); its segments in a folder that no
//! other node uses (`cache_folder`). Nothing that a crash leaves behind has to be removed: locks end with
//! their process, and a socket without a process is replaced.
//!
//! It does not keep the node alive by itself: connections do. A node that dies is started again by the first
//! process that misses it ([`Endpoints`](crate::Endpoints)).

mod cache_folder;
mod identity;
mod private_folder;
mod process;
mod program;
mod settings;
mod variables;

pub use settings::LocalNodeSettings;

use crate::node::Node;
use cache_folder::CacheFolder;
use forebay_dataset::node_memory;
use forebay_proto::v1::StatusReply;
use forebay_proto::{Error, Result};
use private_folder::PrivateFolder;
use process::{NodeProcess, Plan};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// What stands for such a node where the address of a cache is expected.
pub const LOCAL: &str = "local";

/// How long a node that runs may take to say so.
const ALIVE: Duration = Duration::from_secs(2);

/// How long a node may take until it serves: it looks through its cache folder first. Also how long another
/// process may take to start it.
const START: Duration = Duration::from_secs(120);

/// How long a node that listens but does not serve is waited for: one that ends takes some seconds.
const ENDING: Duration = Duration::from_secs(15);

/// A log that has grown beyond this begins again.
const LOG_BYTES: u64 = 64 << 20;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// A cache node of this user's on this machine. Cheap to clone; clones share the connection.
#[derive(Debug, Clone)]
pub struct LocalNode(Arc<Local>);

#[derive(Debug)]
struct Local {
    settings: LocalNodeSettings,
    /// Of the node, its files and its cache folder.
    name: String,
    folder: PathBuf,
    cache_dir: PathBuf,
    node: Node,
    /// One start at a time in this process.
    starting: Mutex<()>,
    compared: AtomicBool,
}

/// What a node says of itself.
#[derive(Debug, Clone)]
pub struct LocalNodeStatus {
    /// The id of its process; `None` if the system does not tell it.
    pub pid: Option<i32>,
    /// As any node's.
    pub status: StatusReply,
}

impl LocalNode {
    /// The node for these settings; those that are unset come from the environment. Starts nothing and reads
    /// no file. `Invalid` or `Denied` names the setting that is wrong or missing.
    pub fn new(settings: LocalNodeSettings) -> Result<Self> {
        let settings = settings.with_environment()?;
        let (cache_dir, folder) = (settings.cache_dir()?, private_folder::path()?);
        let name = identity::name(&settings.source, &cache_dir);
        let socket = folder.join(format!("{name}.sock"));
        private_folder::check_length(&socket)?;
        let node = Node::new(&format!("unix:{}", socket.display()))?;
        let (starting, compared) = Default::default();
        Ok(Self(Arc::new(Local { settings, name, folder, cache_dir, node, starting, compared })))
    }

    /// The address of its socket, `unix:/PATH`.
    pub fn url(&self) -> &str {
        self.0.node.url()
    }

    /// Where it writes what happens to it.
    pub fn log(&self) -> PathBuf {
        self.file("log")
    }

    pub(crate) fn node(&self) -> &Node {
        &self.0.node
    }

    fn file(&self, kind: &str) -> PathBuf {
        self.0.folder.join(format!("{}.{kind}", self.0.name))
    }

    /// Returns when the node serves, which it may have done all along. `Invalid`, `Denied` or `Full` says why
    /// none can be started, `Retry` that one does not answer.
    pub async fn start(&self) -> Result<()> {
        let folder = PrivateFolder::open(&self.0.folder)?;
        if self.0.node.is_serving(ALIVE).await {
            self.joined().await;
            return Ok(());
        }
        let _turn = self.0.starting.lock().await;
        let _lock = self.lock(&folder).await?;
        if self.is_there_already().await? {
            self.joined().await;
            return Ok(());
        }
        let (local, log) = (self.clone(), self.log());
        let plan = spawn_blocking(move || local.plan()).await;
        let plan = plan.map_err(|e| Error::closed(format!("preparing a cache node broke off: {e}")))??;
        tracing::info!(
            socket = self.url(),
            cache_dir = %plan.cache_dir.display(),
            cache_bytes = plan.cache_bytes,
            memory_bytes = plan.memory_bytes,
            "starting a cache node on this machine"
        );
        let mut process = NodeProcess::start(&plan, &log)?;
        let deadline = Instant::now() + START;
        while !self.0.node.is_serving(ALIVE).await {
            if let Some(error) = process.ended(&log) {
                // Another one may have been faster.
                return if self.0.node.is_serving(ALIVE).await { Ok(()) } else { Err(error) };
            }
            if Instant::now() > deadline {
                process.kill();
                let (seconds, log) = (START.as_secs(), log.display());
                return Err(Error::retry(format!(
                    "the cache node of this machine does not serve after {seconds} s: its log is {log}"
                )));
            }
            sleep(LOOK).await;
        }
        self.0.compared.store(true, Relaxed);
        self.check_version(process).await
    }

    /// A program of another version must not listen where this version's node is expected.
    async fn check_version(&self, mut process: NodeProcess) -> Result<()> {
        let version = self.0.node.status().await?.version;
        let ours = env!("CARGO_PKG_VERSION");
        if version == ours {
            process.leave();
            return Ok(());
        }
        process.kill();
        Err(Error::invalid(format!(
            "{} is forebay-server {version}, and this is version {ours}: set {} to one of this version",
            process.program.display(),
            program::VARIABLE
        )))
    }

    /// Takes the lock under which the node is started; it ends with the file, or with the process.
    async fn lock(&self, folder: &PrivateFolder) -> Result<File> {
        let (path, deadline) = (self.file("lock"), Instant::now() + START);
        let file = folder.file(&path)?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => sleep(LOOK).await,
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::retry(format!(
                        "another process has been starting the cache node of this machine for {} s: it holds {}",
                        START.as_secs(),
                        path.display()
                    )));
                }
                Err(TryLockError::Error(e)) => {
                    return Err(Error::denied(format!("cannot lock {}: {e}", path.display())));
                }
            }
        }
    }

    /// Whether it serves, with the lock held. One that just ends is waited for.
    async fn is_there_already(&self) -> Result<bool> {
        let deadline = Instant::now() + ENDING;
        loop {
            let Some(pid) = self.pid().await else { return Ok(false) };
            if self.0.node.is_serving(ALIVE).await {
                return Ok(true);
            }
            if Instant::now() > deadline {
                let pid = pid.map_or("of its own".to_owned(), |pid| pid.to_string());
                return Err(Error::retry(format!(
                    "the cache node of this machine (process {pid}) listens at {} and does not answer: end that process",
                    self.url()
                )));
            }
            sleep(LOOK).await;
        }
    }

    /// The process that listens at the socket, as far as the kernel tells; `None` if none does.
    async fn pid(&self) -> Option<Option<i32>> {
        let stream = UnixStream::connect(self.file("sock")).await.ok()?;
        Some(stream.peer_cred().ok().and_then(|peer| peer.pid()))
    }

    /// Folders, bounds and program of a node about to be started. Looks through folders: not for an async
    /// thread.
    fn plan(&self) -> Result<Plan> {
        let Local { settings, name, cache_dir, .. } = &*self.0;
        let program = program::find(&settings.server_folders)?;
        let cache = CacheFolder::take(cache_dir, name)?;
        let cache_bytes = match settings.cache_bytes {
            Some(bytes) => bytes,
            None => cache.default_bytes()?,
        };
        cache.sweep(cache_bytes);
        let source = settings.source.clone();
        Ok(Plan {
            program,
            socket: self.file("sock"),
            cache_dir: cache.path,
            cache_bytes,
            memory_bytes: settings.memory_bytes.unwrap_or_else(node_memory::default_bytes),
            idle_s: settings.idle_s.unwrap_or(settings::IDLE_S),
            source,
        })
    }

    /// A node runs already. Says so, once, if it was started with other bounds than are asked for here.
    async fn joined(&self) {
        if self.0.compared.swap(true, Relaxed) {
            return;
        }
        // The node appends to it, so it goes on at the beginning.
        let log = File::options().write(true).open(self.log()).ok();
        if let Some(log) = log.filter(|log| log.metadata().is_ok_and(|log| log.len() > LOG_BYTES)) {
            log.set_len(0).ok();
        }
        let LocalNodeSettings { cache_bytes, memory_bytes, .. } = self.0.settings;
        if (cache_bytes, memory_bytes) == (None, None) {
            return;
        }
        let Ok(status) = self.0.node.status().await else { return };
        let memory = status.memory.as_ref().map_or(0, |memory| memory.limit_bytes);
        let differs = |wanted: Option<u64>, has: u64| wanted.is_some_and(|wanted| wanted != has);
        if differs(cache_bytes, status.cache_bytes_limit) || differs(memory_bytes, memory) {
            tracing::warn!(
                cache_bytes = status.cache_bytes_limit,
                memory_bytes = memory,
                "the cache node of this machine runs with the bounds of the process that started it: stop it to change them"
            );
        }
    }

    /// What the node holds and has done; `None` if none runs.
    pub async fn status(&self) -> Result<Option<LocalNodeStatus>> {
        let Some(pid) = self.pid().await else { return Ok(None) };
        Ok(Some(LocalNodeStatus { pid, status: self.0.node.status().await? }))
    }

    /// Ends the node, if one runs, and waits for that; returns whether one did. Readers get some seconds to
    /// finish. Those that go on reading start another.
    pub async fn stop(&self) -> Result<bool> {
        PrivateFolder::open(&self.0.folder)?;
        let Some(pid) = self.pid().await else { return Ok(false) };
        let pid = pid.and_then(Pid::from_raw);
        let pid = pid
            .ok_or_else(|| Error::denied("the cache node of this machine has no process that can be seen"))?;
        let shown = pid.as_raw_nonzero();
        kill_process(pid, Signal::TERM)
            .map_err(|e| Error::denied(format!("cannot end process {shown}: {e}")))?;
        let deadline = Instant::now() + ENDING;
        while test_kill_process(pid).is_ok() && !is_zombie(pid) {
            if Instant::now() > deadline {
                return Err(Error::retry(format!(
                    "the cache node of this machine, process {shown}, does not end"
                )));
            }
            sleep(LOOK).await;
        }
        Ok(true)
    }
}

/// Whether a process has ended and only its parent has not noticed (`stat` of proc(5)).
fn is_zombie(pid: Pid) -> bool {
    let stat =
        std::fs::read_to_string(Path::new("/proc").join(pid.as_raw_nonzero().to_string()).join("stat"));
    stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('Z')))
}
