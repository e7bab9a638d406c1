//! What makes an order, and what an order is made of.

use crate::error::{Error, Result};
use crate::hash::xxh3_64;
use crate::manifest::Digest;
use crate::v1;

/// The order's version. Changing what any plan yields means changing this.
pub const VERSION: u32 = 1;

/// How far an epoch's order departs from the order of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shuffle {
    /// File order.
    None,
    /// Segments are shuffled, then rows within each window. The number is the window's segments, at least 1.
    Window(u32),
    /// A uniform shuffle of all rows.
    Full,
}

impl std::fmt::Display for Shuffle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Shuffle::None => f.write_str("none"),
            Shuffle::Window(w) => write!(f, "window({w})"),
            Shuffle::Full => f.write_str("full"),
        }
    }
}

impl std::str::FromStr for Shuffle {
    type Err = Error;

    /// `none`, `full`, `window(4)` or plainly `4`.
    fn from_str(s: &str) -> Result<Self> {
        let digits = s.strip_prefix("window(").and_then(|r| r.strip_suffix(')')).unwrap_or(s);
        match (s, digits.parse::<u32>()) {
            ("none", _) => Ok(Shuffle::None),
            ("full", _) => Ok(Shuffle::Full),
            (_, Ok(w)) if w > 0 => Ok(Shuffle::Window(w)),
            _ => Err(Error::invalid(format!(
                "shuffle `{s}` is unknown: use none, full or a window of 1 or more segments, as in window(4)"
            ))),
        }
    }
}

/// What makes an epoch's order, besides the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PlanKey {
    /// Of the version of the dataset, or of a mix.
    pub manifest: Digest,
    /// The same in all epochs of a run; each epoch draws its order from both.
    pub seed: u64,
    /// Counted from 0.
    pub epoch: u64,
    /// What the seed moves: nothing, segments and the rows of windows of them, or all rows.
    pub shuffle: Shuffle,
}

/// Where a sample lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Sample {
    /// Segment number in the manifest.
    pub segment: u32,
    /// Row among those of the segment that belong to the dataset (a split may begin within a segment).
    pub row: u32,
}

/// The key of a permutation, `key(domain, index)` in the parent's text.
pub(super) fn derive(key: &PlanKey, domain: u64, index: u64) -> u64 {
    let mut bytes = [0; 40];
    bytes[..8].copy_from_slice(b"FBPLAN01");
    for (i, n) in [key.seed, key.epoch, domain, index].into_iter().enumerate() {
        bytes[8 + 8 * i..16 + 8 * i].copy_from_slice(&n.to_le_bytes());
    }
    xxh3_64(&bytes)
}

impl From<Shuffle> for v1::Shuffle {
    fn from(s: Shuffle) -> Self {
        use v1::shuffle::Kind;
        let (kind, window) = match s {
            Shuffle::None => (Kind::None, 0),
            Shuffle::Window(w) => (Kind::Window, w),
            Shuffle::Full => (Kind::Full, 0),
        };
        v1::Shuffle { kind: kind.into(), window }
    }
}

impl TryFrom<v1::Shuffle> for Shuffle {
    type Error = Error;

    fn try_from(s: v1::Shuffle) -> Result<Self> {
        use v1::shuffle::Kind;
        match (Kind::try_from(s.kind), s.window) {
            (Ok(Kind::None), _) => Ok(Shuffle::None),
            (Ok(Kind::Full), _) => Ok(Shuffle::Full),
            (Ok(Kind::Window), w) if w > 0 => Ok(Shuffle::Window(w)),
            _ => Err(Error::invalid(format!("unknown shuffle {s:?}: use equal versions of Forebay"))),
        }
    }
}

impl From<PlanKey> for v1::Plan {
    fn from(k: PlanKey) -> Self {
        v1::Plan {
            version: VERSION,
            manifest: k.manifest.to_bytes().to_vec().into(),
            seed: k.seed,
            epoch: k.epoch,
            shuffle: Some(k.shuffle.into()),
        }
    }
}

impl TryFrom<v1::Plan> for PlanKey {
    type Error = Error;

    fn try_from(p: v1::Plan) -> Result<Self> {
        if p.version != VERSION {
            return Err(Error::invalid(format!(
                "plan version {} is unknown here, this build knows {VERSION}: use equal versions of Forebay",
                p.version
            )));
        }
        let shuffle = p.shuffle.unwrap_or_default().try_into()?;
        Ok(PlanKey { manifest: Digest::from_bytes(&p.manifest)?, seed: p.seed, epoch: p.epoch, shuffle })
    }
}
