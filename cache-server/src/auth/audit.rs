//! The audit log: a line of JSON for each call that was refused, and for each call of an operator.
//!
//! Lines wait in a bounded queue for the thread that writes them. Where that is full, or the disk is, callers
//! wait, or lines are lost and counted, as it is set. A file that was moved away is made again.

use crate::settings::{AuditSettings, OnFull};
use forebay_proto::{Error, Result};
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};

/// Lines that wait to be written at most.
const QUEUE: usize = 8192;

/// How often it is looked whether the file was moved away.
const LOOK: Duration = Duration::from_secs(2);

/// How long a disk that takes nothing is left alone.
const PAUSE: Duration = Duration::from_millis(500);

/// A call, as it is written down.
#[derive(Debug, Default, Serialize)]
pub struct AuditLine<'a> {
    /// As of now, if left out.
    pub time: String,
    pub node: &'a str,
    pub request: String,
    /// Nobody's where there is no policy, or nobody is known.
    pub principal: &'a str,
    /// How it proved who it is.
    pub by: String,
    /// Where it comes from.
    pub address: String,
    pub call: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub uri: &'a str,
    /// `denied`, `ok`, or the code of gRPC.
    pub outcome: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub why: &'a str,
}

/// Where lines go; nowhere without a file.
#[derive(Debug, Clone, Default)]
pub struct AuditLog(Option<Arc<AuditQueue>>);

#[derive(Debug)]
struct AuditQueue {
    lines: Sender<Vec<u8>>,
    on_full: OnFull,
    written: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
}

impl AuditLog {
    /// Opens the file, and starts the thread that writes it. Touches the disk.
    pub fn open(settings: &AuditSettings) -> Result<Self> {
        let Some(path) = &settings.file else { return Ok(Self::default()) };
        let file = AuditFile::open(path).map_err(|e| {
            Error::denied(format!(
                "the audit log {} cannot be written: {e}; see [audit] file",
                path.display()
            ))
        })?;
        let (sender, lines) = channel(QUEUE);
        let (written, dropped): (Arc<AtomicU64>, Arc<AtomicU64>) = Default::default();
        let (on_full, counts) = (settings.on_full, (written.clone(), dropped.clone()));
        let write = move || run(file, lines, on_full, &counts);
        let started = std::thread::Builder::new().name("forebay-audit".into()).spawn(write);
        started.map_err(|e| Error::denied(format!("the audit log's thread cannot be started: {e}")))?;
        Ok(Self(Some(Arc::new(AuditQueue { lines: sender, on_full, written, dropped }))))
    }

    /// Whether lines go anywhere.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Writes a line down. Waits for room in the queue, if it is set so.
    pub async fn note(&self, mut line: AuditLine<'_>) {
        let Some(queue) = &self.0 else { return };
        line.time = now();
        let Ok(mut text) = serde_json::to_vec(&line) else { return };
        text.push(b'\n');
        match queue.lines.try_send(text) {
            Ok(()) => {}
            Err(TrySendError::Full(text)) if queue.on_full == OnFull::Block => {
                // The thread lives as long as the queue.
                queue.lines.send(text).await.ok();
            }
            Err(_) => {
                queue.dropped.fetch_add(1, Relaxed);
            }
        }
    }

    /// Lines written, and lost, since the start.
    pub fn counts(&self) -> (u64, u64) {
        self.0.as_ref().map_or((0, 0), |queue| (queue.written.load(Relaxed), queue.dropped.load(Relaxed)))
    }
}

struct AuditFile {
    path: PathBuf,
    file: BufWriter<File>,
    id: (u64, u64),
    looked: Instant,
}

impl AuditFile {
    fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::options().create(true).append(true).mode(0o600).open(path)?;
        let about = file.metadata()?;
        let id = (about.dev(), about.ino());
        Ok(Self { path: path.to_owned(), file: BufWriter::new(file), id, looked: Instant::now() })
    }

    /// Opens it again if it was moved away.
    fn follow(&mut self) -> std::io::Result<()> {
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            let is_there =
                std::fs::metadata(&self.path).is_ok_and(|about| (about.dev(), about.ino()) == self.id);
            if !is_there {
                *self = Self::open(&self.path)?;
            }
        }
        Ok(())
    }

    /// Lines, all at once.
    fn write(&mut self, lines: &[u8]) -> std::io::Result<()> {
        self.follow()?;
        self.file.write_all(lines)?;
        self.file.flush()
    }
}

fn run(
    mut file: AuditFile,
    mut lines: Receiver<Vec<u8>>,
    on_full: OnFull,
    counts: &(Arc<AtomicU64>, Arc<AtomicU64>),
) {
    let mut has_warned = false;
    while let Some(mut text) = lines.blocking_recv() {
        let mut many = 1;
        while let Ok(more) = lines.try_recv() {
            text.extend(more);
            many += 1;
        }
        loop {
            let Err(e) = file.write(&text) else {
                counts.0.fetch_add(many, Relaxed);
                has_warned = false;
                break;
            };
            if !std::mem::replace(&mut has_warned, true) {
                let path = file.path.display();
                tracing::warn!(error = %e, %path, "the audit log cannot be written: see [audit] on_full");
            }
            // A part of the lines may be there: they come again from the start.
            if let Ok(again) = AuditFile::open(&file.path.clone()) {
                file = again;
            }
            if on_full == OnFull::Drop || lines.is_closed() {
                counts.1.fetch_add(many, Relaxed);
                break;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "what happened is told with the time of day")]
fn now() -> String {
    let now: chrono::DateTime<chrono::Utc> = SystemTime::now().into();
    now.to_rfc3339_opts(chrono::SecondsFormat::Micros, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn written(log: &AuditLog, lines: u64) {
        for _ in 0..500 {
            if log.counts().0 >= lines {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{:?} of {lines} lines", log.counts());
    }

    fn line(call: &str) -> AuditLine<'_> {
        AuditLine { node: "n", call, outcome: "denied", why: "a \"quoted\"\nreason", ..AuditLine::default() }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn each_line_is_written_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let settings = AuditSettings { file: Some(path.clone()), on_full: OnFull::Block };
        let log = AuditLog::open(&settings).unwrap();
        let begin = Instant::now();
        for _ in 0..20_000 {
            log.note(line("c")).await;
        }
        written(&log, 20_000).await;
        let per_s = 20_000.0 / begin.elapsed().as_secs_f64();
        assert!(per_s > 1000.0, "{per_s} lines a second, not optimised");
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 20_000);
        let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!((first["call"].as_str(), first["outcome"].as_str()), (Some("c"), Some("denied")));
        assert!(first.get("uri").is_none() && first["time"].as_str().unwrap().ends_with('Z'));
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        std::fs::rename(&path, folder.path().join("audit.1")).unwrap();
        tokio::time::sleep(LOOK).await;
        log.note(line("d")).await;
        written(&log, 20_001).await;
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1, "the file is made again");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_full_disk_loses_lines_or_keeps_callers_waiting() {
        let full = Some(PathBuf::from("/dev/full"));
        let log = AuditLog::open(&AuditSettings { file: full.clone(), on_full: OnFull::Drop }).unwrap();
        for _ in 0..2 * QUEUE {
            log.note(line("c")).await;
        }
        let all_lost = async {
            while log.counts().1 < 2 * QUEUE as u64 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), all_lost).await.unwrap();
        let log = AuditLog::open(&AuditSettings { file: full, on_full: OnFull::Block }).unwrap();
        let many = async {
            for _ in 0..3 * QUEUE {
                log.note(line("c")).await;
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(2), many).await.is_err(), "it waits");
        assert_eq!(log.counts(), (0, 0));
        assert!(
            AuditLog::open(&AuditSettings { file: Some("/no/such".into()), on_full: OnFull::Drop }).is_err()
        );
    }
}
