//! The set of pinned URIs, and its form as a file.

use forebay_dataset::source::is_under;
use forebay_proto::hash::xxh3_64;
use forebay_proto::{Error, Result};
use std::collections::BTreeSet;

/// Pins at most, and bytes of a pinned URI: the file that holds them stays small.
const PINS_MAX: usize = 1000;
const URI_BYTES_MAX: usize = 2048;

/// URIs under which everything is pinned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PinSet {
    uris: BTreeSet<String>,
    /// Counts changes: of two directories' lists the later one is right.
    version: u64,
}

impl PinSet {
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
    pub fn later(self, other: Self) -> Self {
        if other.version > self.version { other } else { self }
    }

    /// This list with what stands in another one besides, if the other is not as late.
    pub fn with(self, other: &Self) -> Option<Self> {
        let mut both = Some(self).filter(|own| own.version > other.version)?;
        let more = other.uris.iter().filter(|uri| both.add(uri).is_err()).count();
        (more > 0).then(|| tracing::warn!(pins = more, "there are too many pins: some are forgotten"));
        Some(both)
    }

    /// All of them, in order.
    pub fn list(&self) -> Vec<String> {
        self.uris.iter().cloned().collect()
    }

    pub fn to_text(&self) -> String {
        let lines: String = self.uris.iter().map(|uri| format!("{uri}\n")).collect();
        let text = format!("{}\n{lines}", self.version);
        format!("{:016x}\n{text}", xxh3_64(text.as_bytes()))
    }

    /// `None` if the text is damaged.
    pub fn from_text(text: &str) -> Option<Self> {
        let (hash, text) = text.split_once('\n')?;
        let (version, lines) = text.split_once('\n')?;
        let right = hash == format!("{:016x}", xxh3_64(text.as_bytes()));
        let uris = lines.lines().map(str::to_owned).collect();
        Some(Self { uris, version: version.parse().ok()? }).filter(|_| right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_was_written_and_the_later_one_counts() {
        let mut pins = PinSet::default();
        assert!(pins.add("s3://b/one").unwrap() && !pins.add("s3://b/one").unwrap());
        let before = pins.clone();
        assert!(pins.add("s3://b/two").unwrap() && pins.remove("s3://b/one"));
        let text = pins.to_text();
        assert_eq!(PinSet::from_text(&text), Some(pins.clone()));
        assert_eq!(PinSet::from_text(&text.replace("two", "too")), None);
        assert_eq!(before.clone().later(pins.clone()), pins);
        let mut since = PinSet::default();
        assert!(since.add("s3://b/three").unwrap());
        let both = pins.clone().with(&since).unwrap();
        assert_eq!(both.list(), ["s3://b/three", "s3://b/two"]);
        assert!(both.version > pins.version && since.with(&pins).is_none());
        assert_eq!(pins.clone().later(before), pins);
        assert!(pins.cover("s3://b/two/part-0") && !pins.cover("s3://b/one/part-0"));
        assert!(pins.add("s3://b/a\nb").is_err());
    }
}
