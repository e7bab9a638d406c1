//! The settings of a node that is started here: arguments, over the environment, over defaults that depend
//! on the machine.

use crate::environment::variable;
use forebay_dataset::SourceSettings;
use forebay_proto::units::bytes;
use forebay_proto::{Error, Result};
use serde::{Deserialize, Deserializer};
use std::path::PathBuf;

/// Seconds without a reader after which the node ends: the time between two runs of somebody who tries
/// things. What it has cached stays on disk.
pub(super) const IDLE_S: f64 = 600.0;

/// The variables; `FOREBAY_CACHE_DIR` and the sizes are also those of a `forebay-server` that is started by
/// hand.
const CACHE_DIR: &str = "FOREBAY_CACHE_DIR";
const CACHE_BYTES: &str = "FOREBAY_CACHE_BYTES";
const MEMORY_BYTES: &str = "FOREBAY_MEMORY_BYTES";
const IDLE: &str = "FOREBAY_IDLE_S";

/// How a node is started where none runs yet. Unset values come from the environment.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LocalNodeSettings {
    /// Folder in which nodes keep their segments, each in one of its own. Unset: `$FOREBAY_CACHE_DIR`,
    /// `$XDG_CACHE_HOME/forebay` or `~/.cache/forebay`.
    pub cache_dir: Option<PathBuf>,
    /// Bytes on disk. Unset: `$FOREBAY_CACHE_BYTES`, or half of the free space but 50 GB at most.
    #[serde(deserialize_with = "size")]
    pub cache_bytes: Option<u64>,
    /// Bytes of memory. Unset: `$FOREBAY_MEMORY_BYTES`, or an eighth of the memory, 2 to 8 GiB, but a quarter
    /// at most.
    #[serde(deserialize_with = "size")]
    pub memory_bytes: Option<u64>,
    /// Seconds without a reader after which the node ends. Unset: `$FOREBAY_IDLE_S`, or 600.
    pub idle_s: Option<f64>,
    /// Folders in which `forebay-server` may lie, beside the usual ones.
    pub server_folders: Vec<PathBuf>,
    /// How the node reads the object store.
    #[serde(skip)]
    pub source: SourceSettings,
}

impl LocalNodeSettings {
    /// Of how to read the object store alone.
    pub fn of(source: SourceSettings) -> Self {
        Self { source, ..Self::default() }
    }

    /// With what the environment says where nothing else does. `Invalid` names what makes no sense.
    pub(super) fn with_environment(mut self) -> Result<Self> {
        let text = |name: &str| variable(name);
        let wrong = |name: &str, value: &str, why: String| Error::invalid(format!("{name}={value}: {why}"));
        let size = |name: &str| {
            text(name).map(|value| bytes(&value).map_err(|why| wrong(name, &value, why))).transpose()
        };
        if self.cache_dir.is_none() {
            self.cache_dir = text(CACHE_DIR).map(PathBuf::from);
        }
        if self.cache_bytes.is_none() {
            self.cache_bytes = size(CACHE_BYTES)?;
        }
        if self.memory_bytes.is_none() {
            self.memory_bytes = size(MEMORY_BYTES)?;
        }
        if let (None, Some(value)) = (self.idle_s, text(IDLE)) {
            let seconds = value.parse().map_err(|_| wrong(IDLE, &value, "use a number of seconds".into()))?;
            self.idle_s = Some(seconds);
        }
        let (cache, memory) = (self.cache_bytes, self.memory_bytes);
        let refuse = |is_wrong: bool, why: String| if is_wrong { Err(Error::invalid(why)) } else { Ok(()) };
        let small = |bytes: Option<u64>, least: u64| bytes.is_some_and(|bytes| bytes < least);
        refuse(
            small(cache, 1 << 20),
            format!("cache_bytes ({CACHE_BYTES}): less than 1 MiB cannot hold a segment"),
        )?;
        refuse(
            small(memory, 8 << 20),
            format!("memory_bytes ({MEMORY_BYTES}): less than 8 MiB is not enough"),
        )?;
        let idle = self.idle_s.is_some_and(|idle| !(0.1..=1e9).contains(&idle));
        refuse(idle, format!("idle_s ({IDLE}): must be 0.1 to 1e9 seconds"))?;
        Ok(self)
    }

    /// The folder that all nodes of this user keep theirs in.
    pub(super) fn cache_dir(&self) -> Result<PathBuf> {
        let of = |name: &str, below: &str| variable(name).map(|folder| PathBuf::from(folder).join(below));
        let usual = || of("XDG_CACHE_HOME", "forebay").or_else(|| of("HOME", ".cache/forebay"));
        let folder = self.cache_dir.clone().or_else(usual).ok_or_else(|| {
            Error::denied(format!("no folder for a cache: HOME is not set: name one by {CACHE_DIR}"))
        })?;
        match folder.is_absolute() {
            true => Ok(folder),
            false => {
                let folder = folder.display();
                Err(Error::invalid(format!("cache_dir ({CACHE_DIR}) {folder}: use a full path")))
            }
        }
    }
}

/// Bytes, as a number or as people write them.
fn size<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a number of bytes, or a size such as 50GB")]
    enum Size {
        Number(u64),
        Written(String),
    }
    match Option::deserialize(deserializer)? {
        None => Ok(None),
        Some(Size::Number(bytes)) => Ok(Some(bytes)),
        Some(Size::Written(text)) => bytes(&text).map(Some).map_err(serde::de::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them_and_mistakes_by_name() {
        let read = |text: &str| serde_json::from_str::<LocalNodeSettings>(text);
        let settings = read(r#"{"cache_bytes": "5GB", "memory_bytes": 9000000, "idle_s": 3}"#).unwrap();
        assert_eq!((settings.cache_bytes, settings.memory_bytes), (Some(5_000_000_000), Some(9_000_000)));
        assert_eq!(settings.idle_s, Some(3.0));
        assert!(read(r#"{"cache_bites": 1}"#).unwrap_err().to_string().contains("cache_bites"));
        for (text, says) in [
            (r#"{"cache_bytes": 7}"#, "FOREBAY_CACHE_BYTES"),
            (r#"{"memory_bytes": 7}"#, "FOREBAY_MEMORY_BYTES"),
            (r#"{"idle_s": 0}"#, "FOREBAY_IDLE_S"),
        ] {
            let e = read(text).unwrap().with_environment().unwrap_err();
            assert!(e.message.contains(says), "{e}");
        }
        let e = read(r#"{"cache_dir": "here"}"#).unwrap().cache_dir().unwrap_err();
        assert!(e.message.contains("full path"), "{e}");
    }
}
