//! Any object in one of its versions, cut into raw blocks; and ranges of its bytes. Pure arithmetic.

use crate::error::{Error, Result};
use crate::manifest::SegmentId;
use crate::v1;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

/// Bytes of a raw block unless settings say otherwise: 45 ms of one connection at 90 MB/s.
pub const BLOCK_BYTES: u64 = 4 << 20;

/// The bytes that a block may have, a power of two in between.
pub const BLOCK_BYTES_RANGE: (u64, u64) = (64 << 10, 64 << 20);

/// An object's bytes at most: of a stranger's sizes none may overflow.
const OBJECT_BYTES_MAX: u64 = 1 << 50;

/// Bytes of an object's URI at most.
pub const URI_BYTES_MAX: usize = 2048;
const ETAG_BYTES_MAX: usize = 1024;

/// Bytes of an object's other headers at most. S3 allows 2 KB of a user's metadata.
pub const HEADERS_BYTES_MAX: usize = 16 << 10;

/// An object in one of its versions. Every block of it shares the texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectVersion {
    /// In normal form.
    pub uri: Arc<str>,
    /// The object store's tag of the version, without quotes.
    pub etag: Arc<str>,
    /// In bytes.
    pub size: u64,
    /// When it was written, in milliseconds since 1970.
    pub modified_ms: i64,
    /// Bytes of each block but the last.
    pub block_bytes: u64,
    /// What else the object store says of it: lines `name: value`. Empty where a listing told of it.
    pub headers: Arc<str>,
}

/// A stretch of one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockPart {
    /// The block's number, from 0.
    pub index: u64,
    /// Bytes within the block.
    pub bytes: Range<u64>,
}

/// `Invalid` unless blocks may have this length.
pub fn check_block_bytes(bytes: u64) -> Result<()> {
    let (least, most) = BLOCK_BYTES_RANGE;
    match bytes.is_power_of_two() && (least..=most).contains(&bytes) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "blocks of {bytes} bytes: they have a power of two, {least} to {most} bytes"
        ))),
    }
}

impl ObjectVersion {
    /// The value of a header that the object store sent with this version.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers().find_map(|(header, value)| (header == name).then_some(value))
    }

    /// Names and values of the headers.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.lines().filter_map(|line| line.split_once(": "))
    }

    /// How many blocks the object has; none if it is empty.
    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(self.block_bytes)
    }

    /// The object's bytes that are block `index`.
    pub fn block(&self, index: u64) -> Range<u64> {
        let start = index.saturating_mul(self.block_bytes).min(self.size);
        start..start.saturating_add(self.block_bytes).min(self.size)
    }

    /// What names a block on every node. Another version of the object has other ids.
    pub fn block_id(&self, index: u64) -> SegmentId {
        SegmentId::block(&self.uri, &self.etag, [self.size, self.block_bytes, index])
    }

    /// What names the object whatever its version: decides which node keeps its metadata.
    pub fn name_id(uri: &str) -> SegmentId {
        SegmentId::block(uri, "", [0; 3])
    }

    /// The blocks under a range of bytes, in order. What lies beyond the object is left out.
    pub fn parts(&self, range: Range<u64>) -> impl Iterator<Item = BlockPart> + use<> {
        let (size, block) = (self.size, self.block_bytes);
        let (start, end) = (range.start.min(size), range.end.min(size));
        let indices = if start < end { start / block..(end - 1) / block + 1 } else { 0..0 };
        indices.map(move |index| {
            let first = index * block;
            BlockPart { index, bytes: start.max(first) - first..end.min(first + block) - first }
        })
    }

    /// `Invalid` unless `range` has a byte and lies within the object.
    pub fn check_range(&self, range: &Range<u64>) -> Result<()> {
        match range.start < range.end && range.end <= self.size {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "{}: has {} bytes: there are no bytes {} to {}",
                self.uri, self.size, range.start, range.end
            ))),
        }
    }
}

impl TryFrom<v1::ObjectVersion> for ObjectVersion {
    type Error = Error;

    /// `Invalid` for what no node could have told.
    fn try_from(wire: v1::ObjectVersion) -> Result<Self> {
        let v1::ObjectVersion { uri, etag, size, modified_ms, block_bytes, headers } = wire;
        check_block_bytes(block_bytes)?;
        if uri.is_empty() || uri.len() > URI_BYTES_MAX {
            return Err(Error::invalid(format!("an object's URI has 1 to {URI_BYTES_MAX} bytes")));
        }
        check_etag(&etag).map_err(|e| e.context(&uri))?;
        if size > OBJECT_BYTES_MAX {
            return Err(Error::invalid(format!("{uri}: no object has {size} bytes")));
        }
        if headers.len() > HEADERS_BYTES_MAX {
            return Err(Error::invalid(format!("{uri}: has more than {HEADERS_BYTES_MAX} bytes of headers")));
        }
        let (uri, etag, headers) = (uri.into(), etag.into(), headers.into());
        Ok(Self { uri, etag, size, modified_ms, block_bytes, headers })
    }
}

impl From<&ObjectVersion> for v1::ObjectVersion {
    fn from(of: &ObjectVersion) -> Self {
        Self {
            uri: of.uri.to_string(),
            etag: of.etag.to_string(),
            size: of.size,
            modified_ms: of.modified_ms,
            block_bytes: of.block_bytes,
            headers: of.headers.to_string(),
        }
    }
}

/// `Invalid` unless a version can be asked for by this tag, which has no quotes around it.
pub fn check_etag(etag: &str) -> Result<()> {
    let why = match etag {
        "" => "the object store gives no ETag, so versions cannot be told apart",
        _ if etag.starts_with("W/") => "its ETag is a weak one: that does not tell its bytes",
        _ if etag.len() > ETAG_BYTES_MAX => "its ETag is longer than 1024 bytes",
        _ if !etag.bytes().all(|b| b.is_ascii_graphic() && b != b'"') => {
            "its ETag has quotes, blanks or other characters than printable ASCII"
        }
        _ => return Ok(()),
    };
    Err(Error::invalid(why))
}

/// A range of bytes as people and HTTP write it: `0-99` (both included), `100-`, `-50` (the last 50).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeSpec {
    /// From a byte to another, which is included.
    Closed(u64, u64),
    /// From a byte on.
    From(u64),
    /// This number of bytes at the end.
    Last(u64),
}

impl RangeSpec {
    /// The bytes of an object of `size` that are meant. `Invalid` where it has none of them.
    pub fn of(self, size: u64) -> Result<Range<u64>> {
        let range = match self {
            Self::Closed(first, last) => first..last.saturating_add(1).min(size),
            Self::From(first) => first..size,
            Self::Last(count) => size.saturating_sub(count)..size,
        };
        match range.is_empty() {
            false => Ok(range),
            true => Err(Error::invalid(format!("the range {self} has no byte of an object of {size} bytes"))),
        }
    }
}

impl std::fmt::Display for RangeSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed(first, last) => write!(f, "{first}-{last}"),
            Self::From(first) => write!(f, "{first}-"),
            Self::Last(count) => write!(f, "-{count}"),
        }
    }
}

impl FromStr for RangeSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(format!("`{}` is no range of bytes: give 0-99, 100- or -50", text.escape_debug()))
        };
        let number = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            digits.parse::<u64>().ok().filter(|_| is_number).ok_or_else(wrong)
        };
        match text.split_once('-').ok_or_else(wrong)? {
            ("", count) => Ok(Self::Last(number(count)?)),
            (first, "") => Ok(Self::From(number(first)?)),
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                if first <= last { Ok(Self::Closed(first, last)) } else { Err(wrong()) }
            }
        }
    }
}

#[cfg(test)]
mod tests;
