//! Pins: URIs whose objects' segments stay. Kept in a small file in every directory, so that they survive a
//! restart and the loss of a disk.

use super::dirs::{self, Dir, Health};
use super::pin_set::PinSet;
use super::segment_files::{SegmentFiles, TRIES};
use forebay_proto::{Error, Result};
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a change of the list waits for another, which may be written to a disk that hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// The list of pins, as the directories keep it.
#[derive(Debug)]
pub struct Pins {
    files: Arc<SegmentFiles>,
    /// Held while the list changes and is written: the last one written must be the last one.
    changing: Mutex<()>,
    /// Whether it was said that pins do not fit, since they changed last.
    warned_full: AtomicBool,
}

impl Pins {
    pub fn new(files: Arc<SegmentFiles>) -> Self {
        Self { files, changing: Mutex::default(), warned_full: AtomicBool::new(false) }
    }

    /// Reads the list that was written last, of those in the directories but for those that hang. Where all
    /// do, it waits for `patience` at most.
    pub fn load(&self, patience: Duration) {
        let lists = self.files.dirs.on_each(patience, |dir| {
            let files = self.files.clone();
            (move || Ok(load(files.dirs.get(dir))), drop::<Result<PinSet>>)
        });
        let latest = lists.into_iter().flatten().fold(PinSet::default(), |latest, pins| pins.later(latest));
        self.files.set_pins(latest);
    }

    /// Takes the list of a directory whose files are about to be indexed, if it is later than the one that is
    /// known: the directory did not answer when lists were read. What was pinned since then stays so.
    pub fn learn(&self, dir: usize) {
        let own = load(self.files.dirs.get(dir));
        let Some(_changing) = self.changing.try_lock_for(PATIENCE) else { return };
        if let Some(both) = own.with(&self.files.pins()) {
            self.files.set_pins(both);
        }
    }

    /// Pins what lies under a URI, now and in future. Returns the files and bytes of it that are held.
    /// `Retry`, and nothing has changed, if no directory can keep the list.
    pub fn pin(&self, uri: &str) -> Result<(u64, u64)> {
        self.change(uri, |pins| pins.add(uri))
    }

    /// Unpins a URI; `NotFound` unless it was pinned, else as [`Pins::pin`].
    pub fn unpin(&self, uri: &str) -> Result<(u64, u64)> {
        self.change(uri, |pins| match pins.remove(uri) {
            true => Ok(true),
            false => Err(Error::not_found(format!("{uri} is not pinned: forebay status lists the pins"))),
        })
    }

    /// Has a directory that came back keep the pins as they are now.
    pub fn save_in(&self, dir: usize) {
        let Some(_changing) = self.changing.try_lock_for(PATIENCE) else {
            let path = self.files.dirs.get(dir).path.display();
            tracing::warn!(dir = %path, "the pins are not kept in this directory yet: they are being written to another one, which does not answer");
            return;
        };
        self.save(dir, &self.files.pins());
    }

    /// Says once, until the pins change, that a pinned object's segments have no room.
    pub fn warn_full(&self, object: &str) {
        if !self.warned_full.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                object,
                "pinned segments do not fit any more and are served without being stored: raise --cache-bytes or unpin some"
            );
        }
    }

    fn change(&self, uri: &str, change: impl FnOnce(&mut PinSet) -> Result<bool>) -> Result<(u64, u64)> {
        let Some(_changing) = self.changing.try_lock_for(PATIENCE) else {
            return Err(Error::retry(format!(
                "{uri}: the list of pins is being written to a cache directory that does not answer: nothing was changed"
            )));
        };
        let mut pins = self.files.pins();
        if change(&mut pins)? {
            // In every directory that works.
            let saved = (0..self.files.dirs.all().len()).filter(|dir| self.save(*dir, &pins)).count();
            if saved == 0 {
                return Err(Error::retry(format!(
                    "{uri}: no cache directory could keep the list of pins: nothing was changed; the node's log says why"
                )));
            }
            self.warned_full.store(false, Ordering::Relaxed);
            self.files.set_pins(pins);
        }
        let index = self.files.index();
        let held = index.files_under(uri);
        let bytes = held.iter().filter_map(|key| index.get(key)).map(|e| e.bytes).sum();
        Ok((held.len() as u64, bytes))
    }

    /// Writes pins to a directory; false if it does not keep them.
    fn save(&self, dir: usize, pins: &PinSet) -> bool {
        let place = self.files.dirs.get(dir);
        if place.health() == Health::Away {
            return false;
        }
        let text = pins.to_text();
        // Segments leave for it after the first try if the disk is full and is not left alone.
        let failed = |tries: usize| match self.try_save(dir, &text) {
            Err(e) if dirs::is_full(&e) && tries + 1 < TRIES => None,
            saved => Some(saved),
        };
        let saved = (0..TRIES).find_map(failed);
        saved.is_some_and(|saved| {
            let warn = |e: &io::Error| tracing::warn!(dir = %place.path.display(), error = %e, "the pins could not be kept in this directory");
            saved.inspect_err(warn).is_ok()
        })
    }

    fn try_save(&self, dir: usize, text: &str) -> io::Result<()> {
        let place = self.files.dirs.get(dir);
        let bytes = self.files.dirs.allocated_bytes(text.len() as u64);
        // Space for this list while the one before it is still there. Where there is none it is reserved all
        // the same: the cache may be full of segments that are to be unpinned.
        let reserved = self.files.reserve_sidecar(dir, bytes);
        let reservation = reserved.unwrap_or_else(|| self.files.index().quotas.reserve(dir, bytes));
        let saved = place.place(&path(place), &mut [IoSlice::new(text.as_bytes())], true);
        // Before the reservation goes, as the list counts here from now on.
        let measured = saved.is_ok().then(|| self.files.measure(dir));
        self.files.index().quotas.release(reservation);
        if let Some(Err(e)) = &measured {
            self.files.fault(dir, e, None);
        }
        // Nothing has left for one that was reserved all the same.
        saved.map(drop).inspect_err(|e| self.files.fault(dir, e, reserved.as_ref()))
    }
}

/// Reads the pins of a directory. A damaged list is said, and is none.
fn load(dir: &Dir) -> PinSet {
    let path = path(dir);
    let Ok(text) = dir.read(&path) else { return PinSet::default() };
    std::str::from_utf8(&text).ok().and_then(PinSet::from_text).unwrap_or_else(|| {
        tracing::warn!(path = %path.display(), "the list of pins is damaged: what only it named is no longer pinned");
        PinSet::default()
    })
}

fn path(dir: &Dir) -> PathBuf {
    dir.path.join("v1/pins")
}
