//! The audit log: a line of JSON for each call that was refused, and for each call of an operator.
//!
//! Lines go through a bounded queue to the thread that writes them. Callers wait until their line is in the
//! file, or, as it is set, do not, and lines are lost and counted where the queue or the disk is full. In the
//! file means handed to the system: what a crash of the machine leaves of it is the file system's matter. A
//! file that was moved away is made again, and no line begins in the middle of another.

use crate::settings::{AuditSettings, OnFull};
use forebay_proto::{Error, Result};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;

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
    lines: Sender<QueuedLine>,
    on_full: OnFull,
    written: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
}

/// A line on its way to the file.
#[derive(Debug)]
struct QueuedLine {
    text: Vec<u8>,
    /// Who waits until it is there.
    written: Option<oneshot::Sender<()>>,
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

    /// Writes a line down. Waits until it is in the file, if it is set so.
    pub async fn note(&self, mut line: AuditLine<'_>) {
        let Some(queue) = &self.0 else { return };
        line.time = now();
        let Ok(mut text) = serde_json::to_vec(&line) else { return };
        text.push(b'\n');
        if queue.on_full == OnFull::Drop {
            if queue.lines.try_send(QueuedLine { text, written: None }).is_err() {
                queue.dropped.fetch_add(1, Relaxed);
            }
            return;
        }
        let (sender, written) = oneshot::channel();
        // The thread lives as long as the queue.
        if queue.lines.send(QueuedLine { text, written: Some(sender) }).await.is_ok() {
            written.await.ok();
        }
    }

    /// Lines written, and lost, since the start.
    pub fn counts(&self) -> (u64, u64) {
        self.0.as_ref().map_or((0, 0), |queue| (queue.written.load(Relaxed), queue.dropped.load(Relaxed)))
    }
}

struct AuditFile {
    path: PathBuf,
    file: File,
    id: (u64, u64),
    /// It ends in the middle of a line: a write was cut short, by a full disk or by the end of a node.
    is_torn: bool,
    looked: Instant,
}

/// Lines that are written together, and how many of their bytes are in the file.
#[derive(Default)]
struct Batch {
    text: Vec<u8>,
    done: usize,
}

impl AuditFile {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().create(true).append(true).mode(0o600).open(path)?;
        let about = file.metadata()?;
        let id = (about.dev(), about.ino());
        let is_torn = about.is_file() && about.len() > 0 && !ends_a_line(path, about.len());
        Ok(Self { path: path.to_owned(), file, id, is_torn, looked: Instant::now() })
    }

    /// Opens it again if it was moved away.
    fn follow(&mut self) -> io::Result<()> {
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

    /// Writes the rest of a batch. After an error it goes on where it stopped if the file still ends
    /// there, else at the start of that line.
    fn write(&mut self, batch: &mut Batch) -> io::Result<()> {
        let before = self.id;
        self.follow()?;
        if batch.is_within_line() && !(self.is_torn && self.id == before) {
            batch.back_to_line();
        }
        if self.is_torn && !batch.is_within_line() {
            self.file.write_all(b"\n")?;
            self.is_torn = false;
        }
        while batch.done < batch.text.len() {
            match self.file.write(&batch.text[batch.done..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    batch.done += bytes;
                    self.is_torn = batch.is_within_line();
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Whether a file of this length ends with a line's end. One that may be written and not read is taken to.
fn ends_a_line(path: &Path, bytes: u64) -> bool {
    let mut last = [0];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut last, bytes - 1));
    read.is_err() || last == *b"\n"
}

impl Batch {
    /// Whether a line is in the file in part.
    fn is_within_line(&self) -> bool {
        self.done > 0 && self.text[self.done - 1] != b'\n'
    }

    fn back_to_line(&mut self) {
        self.done = self.text[..self.done].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    }

    /// Whole lines that are in the file.
    fn lines_done(&self) -> u64 {
        self.text[..self.done].iter().filter(|byte| **byte == b'\n').count() as u64
    }
}

fn run(
    mut file: AuditFile,
    mut lines: Receiver<QueuedLine>,
    on_full: OnFull,
    counts: &(Arc<AtomicU64>, Arc<AtomicU64>),
) {
    let mut has_warned = false;
    while let Some(first) = lines.blocking_recv() {
        let (mut batch, mut waiting) = (Batch::default(), Vec::new());
        let mut next = Some(first);
        while let Some(QueuedLine { text, written }) = next {
            batch.text.extend(text);
            waiting.push(written);
            next = if waiting.len() < QUEUE { lines.try_recv().ok() } else { None };
        }
        let many = waiting.len() as u64;
        loop {
            let Err(e) = file.write(&mut batch) else {
                has_warned = false;
                break;
            };
            if !std::mem::replace(&mut has_warned, true) {
                let path = file.path.display();
                tracing::warn!(error = %e, %path, "the audit log cannot be written: see [audit] on_full");
            }
            // The old file may be good no more, as after a fault of a network's file system.
            if let Ok(again) = AuditFile::open(&file.path) {
                if again.id != file.id {
                    batch.back_to_line();
                }
                file = again;
            }
            if on_full == OnFull::Drop || lines.is_closed() {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        counts.0.fetch_add(batch.lines_done(), Relaxed);
        counts.1.fetch_add(many - batch.lines_done(), Relaxed);
        waiting.into_iter().flatten().for_each(|written| _ = written.send(()));
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
    async fn a_line_is_in_the_file_when_its_caller_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        // As a node left it that was killed while it wrote.
        std::fs::write(&path, "{\"node\":\"n\"}\n{\"node\":\"n\",\"ca").unwrap();
        let settings = AuditSettings { file: Some(path.clone()), on_full: OnFull::Block };
        let log = AuditLog::open(&settings).unwrap();
        for n in 1..=100 {
            log.note(line("c")).await;
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text.lines().count(), n + 2, "{text}");
            let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
            assert_eq!((last["call"].as_str(), text.ends_with('\n')), (Some("c"), true));
        }
    }

    #[test]
    fn lines_that_were_cut_short_go_on_where_they_stopped_or_begin_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let text = || std::fs::read_to_string(&path).unwrap();
        let batch = |done| Batch { text: b"first\nsecond\n".to_vec(), done };
        let torn = |held: &str| {
            std::fs::write(&path, held).unwrap();
            AuditFile::open(&path).unwrap()
        };
        // The disk was full after a line and a half, and has room again.
        torn("first\nsec").write(&mut batch(9)).unwrap();
        assert_eq!(text(), "first\nsecond\n");
        // Somebody has cut the file meanwhile.
        torn("").write(&mut batch(9)).unwrap();
        assert_eq!(text(), "second\n");
        // The rest was given up: the next lines do not follow half of one.
        torn("first\nsec").write(&mut batch(0)).unwrap();
        assert_eq!(text(), "first\nsec\nfirst\nsecond\n");
        // It was moved away, and another one has come.
        let mut file = torn("first\nsec");
        std::fs::rename(&path, folder.path().join("audit.1")).unwrap();
        file.looked -= LOOK;
        file.write(&mut batch(9)).unwrap();
        assert_eq!(text(), "second\n");
        assert_eq!((batch(9).lines_done(), batch(13).lines_done()), (1, 2));
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
        let first = tokio::time::timeout(Duration::from_secs(2), log.note(line("c"))).await;
        assert!(first.is_err(), "the first line already is waited for");
        assert_eq!(log.counts(), (0, 0));
        assert!(
            AuditLog::open(&AuditSettings { file: Some("/no/such".into()), on_full: OnFull::Drop }).is_err()
        );
    }
}
