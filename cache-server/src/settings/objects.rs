//! `[objects]`: how objects are cut into blocks, how old their metadata may be, and the cache's share
//! that is theirs.

use super::load::{maybe_size, refuse, size};
use forebay_dataset::source;
use forebay_proto::Result;
use forebay_proto::object::{BLOCK_BYTES, check_block_bytes};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Prefixes with settings of their own, at most.
const PREFIXES_MAX: usize = 1000;

/// Settings of objects that are read byte for byte.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObjectSettings {
    /// Bytes of a block, a power of two from 64 KiB to 64 MiB. Small ones cost memory and requests, large
    /// ones bytes that nobody asked for.
    #[serde(deserialize_with = "size")]
    pub block_bytes: u64,
    /// How old the metadata of an object may be. Always asking is right whatever is done to it.
    pub metadata_age: MetadataAge,
    /// The part of the cache that raw blocks keep whatever else is read, 0 to 1. They may use free
    /// room beyond it.
    pub share: f64,
    /// Other settings for what lies under a prefix; the longest that fits counts.
    pub prefix: Vec<PrefixSettings>,
}

/// Settings of what lies under a prefix.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PrefixSettings {
    /// On a `/` boundary.
    pub uri: String,
    /// Instead of [`ObjectSettings::block_bytes`].
    #[serde(deserialize_with = "maybe_size")]
    pub block_bytes: Option<u64>,
    /// Instead of [`ObjectSettings::metadata_age`].
    pub metadata_age: Option<MetadataAge>,
}

/// How old the metadata of an object may be: its version, its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum MetadataAge {
    /// The object store is asked for each read.
    Always,
    /// It is asked again after so long.
    Ttl(Duration),
    /// Objects are never written twice: it is asked once.
    Immutable,
}

impl TryFrom<String> for MetadataAge {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        let seconds = text.strip_suffix('s').and_then(|seconds| seconds.parse::<f64>().ok());
        match (text.as_str(), seconds) {
            ("always", _) => Ok(Self::Always),
            ("immutable", _) => Ok(Self::Immutable),
            (_, Some(s)) if s > 0.0 && s <= 31_536_000.0 => Ok(Self::Ttl(Duration::from_secs_f64(s))),
            _ => Err(format!(
                "metadata_age = `{}`: give \"always\", \"immutable\", or more than 0 s and a year at most, as in \"60s\"",
                text.escape_debug()
            )),
        }
    }
}

impl From<MetadataAge> for String {
    fn from(age: MetadataAge) -> Self {
        match age {
            MetadataAge::Always => "always".into(),
            MetadataAge::Ttl(age) => format!("{}s", age.as_secs_f64()),
            MetadataAge::Immutable => "immutable".into(),
        }
    }
}

impl Default for ObjectSettings {
    fn default() -> Self {
        Self { block_bytes: BLOCK_BYTES, metadata_age: MetadataAge::Always, share: 0.25, prefix: Vec::new() }
    }
}

impl ObjectSettings {
    /// `Invalid` names the setting that makes no sense.
    pub(super) fn check(&self) -> Result<()> {
        check_block_bytes(self.block_bytes).map_err(|e| e.context("[objects] block_bytes"))?;
        let range = format!("[objects] share = {}: must be 0 to 1", self.share);
        refuse(!(0.0..=1.0).contains(&self.share), range)?;
        refuse(self.prefix.len() > PREFIXES_MAX, format!("more than {PREFIXES_MAX} of [[objects.prefix]]"))?;
        for PrefixSettings { uri, block_bytes, .. } in &self.prefix {
            let context = |e: forebay_proto::Error| e.context(format!("[[objects.prefix]] {uri}"));
            source::normalise(uri).map_err(context)?;
            check_block_bytes(block_bytes.unwrap_or(BLOCK_BYTES)).map_err(context)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_as_people_write_them() {
        let age = |text: &str| MetadataAge::try_from(text.to_owned());
        for good in ["always", "immutable", "60s", "0.5s"] {
            assert_eq!(String::from(age(good).unwrap()), good);
        }
        for bad in ["", "60", "-1s", "0s", "nans", "infs", "never", "1e99s"] {
            assert!(age(bad).unwrap_err().contains("60s"), "{bad}");
        }
        assert!(age("0s").unwrap_err().contains("more than 0 s"));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let check = |change: &dyn Fn(&mut ObjectSettings)| {
            let mut settings = ObjectSettings::default();
            change(&mut settings);
            settings.check().map_err(|e| e.message)
        };
        assert!(check(&|_| ()).is_ok());
        assert!(check(&|s| s.block_bytes = 5 << 20).unwrap_err().contains("block_bytes"));
        assert!(check(&|s| s.share = 1.5).unwrap_err().contains("share"));
        assert!(check(&|s| s.share = f64::NAN).is_err());
        let prefix =
            |uri: &str, block_bytes| PrefixSettings { uri: uri.into(), block_bytes, ..Default::default() };
        assert!(check(&|s| s.prefix = vec![prefix("s3://b/p", Some(1 << 20))]).is_ok());
        assert!(check(&|s| s.prefix = vec![prefix("s3://b/p", Some(3))]).unwrap_err().contains("s3://b/p"));
        assert!(check(&|s| s.prefix = vec![prefix("", None)]).unwrap_err().contains("objects.prefix"));
    }
}
