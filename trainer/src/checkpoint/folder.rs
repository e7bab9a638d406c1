//! The directory of a run's checkpoints: which there are, which one to go on from, which may go.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::disk::{self, Damage, UNFINISHED};
use super::meta::Identity;
use super::state::Checkpoint;

/// Held by the run that has the directory.
const LOCK: &str = ".lock";
/// Names the processes that have started the ranks of the run whose checkpoints these are, a line each. After
/// a restart one of them is still there, whatever became of the others: the run is the same.
const AGENTS: &str = ".agents";
/// A run that was killed a moment ago may still hold it, until the kernel is done with what it was writing.
const DYING: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// A directory of checkpoints, taken by this run until it is dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Takes the directory, which is made if it is not there, and clears away what a crash left unfinished.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_within(path, DYING)
    }

    /// The same, waiting so long for another run that has it.
    pub(super) fn open_within(path: &Path, patience: Duration) -> Result<Self> {
        let in_words = || format!("--checkpoint-dir {}", path.display());
        fs::create_dir_all(path).with_context(in_words)?;
        let lock = File::create(path.join(LOCK)).with_context(in_words)?;
        let began = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if began.elapsed() < patience => sleep(POLL),
                Err(TryLockError::WouldBlock) => bail!("{} is in use by another run", in_words()),
                Err(TryLockError::Error(error)) => return Err(error).with_context(in_words),
            }
        }
        let folder = Self { path: path.to_owned(), _lock: lock };
        for entry in fs::read_dir(path).with_context(in_words)? {
            let entry = entry.with_context(in_words)?;
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                disk::clear(&entry.path()).with_context(in_words)?;
            }
        }
        Ok(folder)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Steps of which there are checkpoints, the newest first.
    pub fn steps(&self) -> Result<Vec<u64>> {
        let in_words = || format!("list {}", self.path.display());
        let mut steps = Vec::new();
        for entry in fs::read_dir(&self.path).with_context(in_words)? {
            let Ok(name) = entry.with_context(in_words)?.file_name().into_string() else { continue };
            let step = name.strip_prefix("step-").and_then(|step| step.parse().ok());
            steps.extend(step.filter(|step| disk::name(*step) == name));
        }
        steps.sort_unstable_by(|a, b| b.cmp(a));
        Ok(steps)
    }

    /// The newest checkpoint that is whole; `None` if there is none at all. Damaged ones are passed over with
    /// a warning; it is an error if all are damaged, if one cannot be read now, or if the newest whole one
    /// does not belong to this run.
    pub fn newest(&self, run: &Identity) -> Result<Option<Checkpoint>> {
        let steps = self.steps()?;
        for step in &steps {
            let place = self.path.join(disk::name(*step));
            let refused = |error: anyhow::Error| {
                error.context(format!("the checkpoint {} is not for this run", place.display()))
            };
            match disk::read(&place) {
                Ok(checkpoint) => {
                    checkpoint.meta.check(run).map_err(refused)?;
                    return Ok(Some(checkpoint));
                }
                Err(Damage::Refused(error)) => return Err(refused(error)),
                // The one before it would undo what may be fine, and none at all everything.
                Err(Damage::Unreadable(error)) => {
                    return Err(error.context(format!(
                        "the checkpoint {} cannot be read now: try again, or move it away to go on from the one before it",
                        place.display()
                    )));
                }
                Err(Damage::Damaged(error)) => {
                    tracing::warn!(
                        "the checkpoint {} is damaged and is passed over: {error:#}",
                        place.display()
                    );
                }
            }
        }
        match steps.len() {
            0 => Ok(None),
            all => {
                bail!("all {all} checkpoints in {} are damaged: start over with --fresh", self.path.display())
            }
        }
    }

    /// Whether the run that has written here was started by one of these processes.
    pub fn is_begun_by(&self, agents: &[String]) -> Result<bool> {
        Ok(self.agents()?.iter().any(|agent| agents.contains(agent)))
    }

    /// Remembers who starts the ranks: beside those before, if the run is theirs, else instead of them.
    pub fn note_agents(&self, agents: &[String], beside: bool) -> Result<()> {
        let mut all = if beside { self.agents()? } else { Vec::new() };
        all.extend(agents.iter().filter(|agent| !all.contains(agent)).cloned().collect::<Vec<_>>());
        let file = self.path.join(format!("{AGENTS}-new"));
        let written =
            fs::write(&file, all.join("\n")).and_then(|()| fs::rename(&file, self.path.join(AGENTS)));
        written.with_context(|| format!("write {}", self.path.join(AGENTS).display()))
    }

    fn agents(&self) -> Result<Vec<String>> {
        let file = self.path.join(AGENTS);
        match fs::read_to_string(&file) {
            Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error).with_context(|| format!("read {}", file.display())),
        }
    }

    /// Moves the checkpoints that there are out of the way, into a directory beside them; gives it if there
    /// were any.
    pub fn set_aside(&self) -> Result<Option<PathBuf>> {
        let steps = self.steps()?;
        if steps.is_empty() {
            return Ok(None);
        }
        let mut numbers = 1..;
        let aside = loop {
            let number: u32 = numbers.next().context("no number is left")?;
            let aside = self.path.join(format!("before-{number}"));
            match fs::create_dir(&aside) {
                Ok(()) => break aside,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| format!("make {}", aside.display())),
            }
        };
        for step in steps {
            let name = disk::name(step);
            fs::rename(self.path.join(&name), aside.join(&name))
                .with_context(|| format!("move {name} to {}", aside.display()))?;
        }
        Ok(Some(aside))
    }

    /// Removes all but the `keep` newest checkpoints. One that cannot be removed stays, with a warning.
    pub(super) fn prune(path: &Path, keep: usize, steps: &[u64]) {
        for step in steps.iter().skip(keep.max(1)) {
            // Under another name first: half a checkpoint must not look like one.
            let (place, beside) =
                (path.join(disk::name(*step)), path.join(format!("{UNFINISHED}old-{}", disk::name(*step))));
            let removed = fs::rename(&place, &beside).and_then(|()| disk::clear(&beside));
            if let Err(error) = removed {
                tracing::warn!("the old checkpoint {} cannot be removed: {error}", place.display());
            }
        }
    }
}
