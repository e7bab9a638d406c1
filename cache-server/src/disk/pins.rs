//! Pins: URIs whose objects' segments stay. Kept in a small file in every directory, so that they survive a
//! restart and the loss of a disk.

use super::dirs::Health;
use super::evict::{Room, Wanted};
use super::file_system::Disk;
use super::index::Reservation;
use super::policy::{Admit, Role};
use super::{BLOCK_BYTES, DiskCache};
use forebay_dataset::source::is_under;
use forebay_proto::manifest::{Digest, SegmentId};
use forebay_proto::{Error, Result};
use std::collections::BTreeSet;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::atomic::Ordering;
use xxhash_rust::xxh3::xxh3_64;

/// Pins at most, and bytes of a pinned URI: the file that holds them stays small.
const PINS_MAX: usize = 1000;
const URI_BYTES_MAX: usize = 2048;

/// A set of URIs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pins {
    uris: BTreeSet<String>,
    /// Counts changes: of two directories' lists the later one is right.
    version: u64,
}

impl Pins {
    /// Whether an object lies under a pinned URI.
    pub fn cover(&self, object: &str) -> bool {
        self.uris.iter().any(|uri| is_under(object, uri))
    }

    /// Adds a URI; false if it was there.
    pub fn add(&mut self, uri: &str) -> Result<bool> {
        if uri.len() > URI_BYTES_MAX || uri.contains('\n') {
            return Err(Error::invalid(format!(
                "a pinned URI has at most {URI_BYTES_MAX} bytes, in one line"
            )));
        }
        if self.uris.len() >= PINS_MAX && !self.uris.contains(uri) {
            return Err(Error::full(format!(
                "{uri}: there are {PINS_MAX} pins already: unpin some, or pin what lies above them"
            )));
        }
        let new = self.uris.insert(uri.to_owned());
        self.version += u64::from(new);
        Ok(new)
    }

    /// Removes a URI; false if it was not there.
    pub fn remove(&mut self, uri: &str) -> bool {
        let was = self.uris.remove(uri);
        self.version += u64::from(was);
        was
    }

    /// The later of two lists.
    pub fn later(self, other: Pins) -> Pins {
        if other.version > self.version { other } else { self }
    }

    /// All of them, in order.
    pub fn list(&self) -> Vec<String> {
        self.uris.iter().cloned().collect()
    }

    fn to_text(&self) -> String {
        let lines: String = self.uris.iter().map(|uri| format!("{uri}\n")).collect();
        let text = format!("{}\n{lines}", self.version);
        format!("{:016x}\n{text}", xxh3_64(text.as_bytes()))
    }

    fn from_text(text: &str) -> Option<Self> {
        let (hash, text) = text.split_once('\n')?;
        let (version, lines) = text.split_once('\n')?;
        let right = hash == format!("{:016x}", xxh3_64(text.as_bytes()));
        let uris = lines.lines().map(str::to_owned).collect();
        Some(Self { uris, version: version.parse().ok()? }).filter(|_| right)
    }

    /// Writes them to a directory, and waits until they are on the medium.
    pub fn save(&self, disk: &dyn Disk, tmp: &Path, path: &Path) -> io::Result<()> {
        let text = self.to_text();
        let mut file = disk.create(tmp, text.len() as u64)?;
        disk.write(&mut file, &mut [IoSlice::new(text.as_bytes())])?;
        disk.sync(&file)?;
        disk.rename(tmp, path)
    }

    /// Reads them from a directory that has them; damaged ones are said, and are none.
    pub fn load(disk: &dyn Disk, path: &Path) -> io::Result<Self> {
        let file = match disk.open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(e) => return Err(e),
        };
        let mut text = vec![0; PINS_MAX * (URI_BYTES_MAX + 1) + 64];
        let got = disk.read(&file, &mut text, 0)?;
        let pins = std::str::from_utf8(&text[..got]).ok().and_then(Self::from_text);
        Ok(pins.unwrap_or_else(|| {
            tracing::warn!(path = %path.display(), "the list of pins is damaged: what only it named is no longer pinned");
            Self::default()
        }))
    }
}

impl DiskCache {
    /// Pins what lies under a URI, now and in future; answers with the files and bytes of it that are held.
    /// `Retry`, and nothing has changed, if no directory can keep the list.
    pub fn pin(&self, uri: &str) -> Result<(u64, u64)> {
        self.change_pins(uri, |pins| pins.add(uri))
    }

    /// Unpins a URI; `NotFound` unless it was pinned, `Retry`, and nothing has changed, if no directory can
    /// keep the list. Answers with the files and bytes of it that are held.
    pub fn unpin(&self, uri: &str) -> Result<(u64, u64)> {
        self.change_pins(uri, |pins| match pins.remove(uri) {
            true => Ok(true),
            false => Err(Error::not_found(format!("{uri} is not pinned: forebay status lists what is"))),
        })
    }

    /// Pinned URIs, and the bytes of files under them.
    pub fn pinned(&self) -> (Vec<String>, u64) {
        let index = self.index();
        (index.pins.list(), index.pinned_bytes())
    }

    fn change_pins(&self, uri: &str, change: impl FnOnce(&mut Pins) -> Result<bool>) -> Result<(u64, u64)> {
        let _pinning = self.pinning.lock();
        let mut pins = self.index().pins.clone();
        if change(&mut pins)? {
            // In every directory that works.
            let saved = (0..self.dirs.len()).filter(|dir| self.save_pins(*dir, &pins)).count();
            if saved == 0 {
                return Err(Error::retry(format!(
                    "{uri}: no cache directory could keep the list of pins: nothing was changed; the node's log says why"
                )));
            }
            self.said_full_of_pins.store(false, Ordering::Relaxed);
        }
        let mut index = self.index();
        index.pins = pins;
        index.pins_changed();
        let held = index.files_under(uri);
        let bytes = held.iter().filter_map(|key| index.get(key)).map(|e| e.bytes).sum();
        Ok((held.len() as u64, bytes))
    }

    /// Has a directory that came back keep the pins as they are now.
    pub(super) fn save_pins_of(&self, dir: usize) {
        let _pinning = self.pinning.lock();
        let pins = self.index().pins.clone();
        self.save_pins(dir, &pins);
    }

    /// Writes pins to a directory; false if it does not keep them.
    fn save_pins(&self, dir: usize, pins: &Pins) -> bool {
        let place = &self.dirs[dir];
        if place.health() == Health::Away {
            return false;
        }
        let booking = self.book_list(dir, pins);
        let saved = pins.save(place.disk(), &place.tmp(), &place.pins());
        let is_saved = saved.is_ok();
        if let Err(e) = saved.and_then(|()| self.measure(dir)) {
            tracing::warn!(dir = %place.path().display(), error = %e, "the pins could not be kept in this directory");
            self.fault(dir, &e, BLOCK_BYTES);
        }
        self.index().release(booking);
        is_saved
    }

    /// Room for a list while the one before it is still there; where there is none it is booked all the same:
    /// what fills the disk cache may be what is to be unpinned.
    fn book_list(&self, dir: usize, pins: &Pins) -> Reservation {
        let (id, bytes) = (SegmentId(Digest(0)), self.charge(pins.to_text().len() as u64));
        let wanted = Wanted { id, bytes, admit: Admit::Always, role: Role::Primary, only: Some(dir) };
        match self.make_room(wanted) {
            Room::Booked(booking) => booking,
            Room::NotWorthIt | Room::None => self.index().book(dir, bytes),
        }
    }
}
