//! Checksums that S3 keeps of objects, as far as they say something of an answer.
//!
//! S3 sends the checksum of the whole object, or of one part of a multipart upload, and for a range that is
//! neither it sends none. Some servers send the whole object's with any range, and S3 itself sends the
//! checksum of a multipart object's part checksums without saying so when the range is `0-`. So what counts
//! here is an answer that holds the whole object and names its checksum's type `FULL_OBJECT`; any other tells
//! nothing of the bytes at hand. Column chunks are ranges: for them there is Parquet's own page checksum.
//! Who reads all bytes of an object holds them against what a HEAD told of it ([`WholeCheck`]).

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use crc_fast::CrcAlgorithm;
use forebay_proto::object::ObjectVersion;
use forebay_proto::{Error, Result};
use http::HeaderMap;
use std::fmt;

/// The checksums that are understood, strongest first: header, name, algorithm, bytes.
const KNOWN: [(&str, &str, CrcAlgorithm, usize); 3] = [
    ("x-amz-checksum-crc64nvme", "CRC64NVME", CrcAlgorithm::Crc64Nvme, 8),
    ("x-amz-checksum-crc32c", "CRC32C", CrcAlgorithm::Crc32Iscsi, 4),
    ("x-amz-checksum-crc32", "CRC32", CrcAlgorithm::Crc32IsoHdlc, 4),
];

/// The checksum of a whole object, as the object store sent it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Offered {
    name: &'static str,
    algorithm: CrcAlgorithm,
    value: u64,
}

impl Offered {
    /// What the headers of an answer say of the whole object.
    pub(super) fn new(headers: &HeaderMap) -> Option<Self> {
        Self::of(|name| headers.get(name).map(http::HeaderValue::as_bytes))
    }

    /// The same of headers by their names.
    fn of<'a>(header: impl Fn(&str) -> Option<&'a [u8]>) -> Option<Self> {
        if header("x-amz-checksum-type")? != b"FULL_OBJECT" {
            return None;
        }
        KNOWN.into_iter().find_map(|(known, name, algorithm, bytes)| {
            let value = BASE64_STANDARD.decode(header(known)?).ok()?;
            let value =
                (value.len() == bytes).then(|| value.iter().fold(0, |v, b| v << 8 | u64::from(*b)))?;
            Some(Self { name, algorithm, value })
        })
    }

    /// Whether these are the object's bytes.
    pub(super) fn fits<'a>(&self, whole: impl IntoIterator<Item = &'a [u8]>) -> bool {
        let mut digest = crc_fast::Digest::new(self.algorithm);
        whole.into_iter().for_each(|piece| digest.update(piece));
        digest.finalize() == self.value
    }
}

/// The bytes of one version of an object from the first to the last, held against the checksum that the
/// object store keeps of it.
pub struct WholeCheck {
    offered: Offered,
    digest: crc_fast::Digest,
}

impl WholeCheck {
    /// `None` where the object store told of no checksum of the whole.
    pub fn of(object: &ObjectVersion) -> Option<Self> {
        let offered = Offered::of(|name| object.header(name).map(str::as_bytes))?;
        Some(Self { offered, digest: crc_fast::Digest::new(offered.algorithm) })
    }

    /// The next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
    }

    /// All bytes are there: `Corrupt` if they are not the object's.
    pub fn end(&self, uri: &str) -> Result<()> {
        match self.digest.finalize() == self.offered.value {
            true => Ok(()),
            false => Err(Error::corrupt(format!(
                "{uri}: its bytes do not match the {} that the object store keeps of it: drop what the cache holds \
                 (`forebay free {uri}`) and read it again",
                self.offered
            ))),
        }
    }
}

impl fmt::Display for Offered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of "123456789" in the catalogue of CRCs (reveng), in base64.
    #[test]
    fn whole_objects_are_checked_and_nothing_else_is() {
        for (header, value) in [
            ("x-amz-checksum-crc32", "y/Q5Jg=="),
            ("x-amz-checksum-crc32c", "4waSgw=="),
            ("x-amz-checksum-crc64nvme", "rosUhgp5mIg="),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header, value.parse().unwrap());
            assert_eq!(Offered::new(&headers), None, "the type is not known");
            headers.insert("x-amz-checksum-type", "COMPOSITE".parse().unwrap());
            assert_eq!(Offered::new(&headers), None, "a checksum of checksums");
            headers.insert("x-amz-checksum-type", "FULL_OBJECT".parse().unwrap());
            let offered = Offered::new(&headers).unwrap();
            assert!(offered.fits([&b"12345"[..], b"6789"]), "{header}");
            assert!(!offered.fits([&b"123456780"[..]]), "{header}");
            headers.insert(header, "AAA=-3".parse().unwrap());
            assert_eq!(Offered::new(&headers), None);
        }
    }

    #[test]
    fn what_is_read_whole_is_held_against_what_a_head_told() {
        let object = |headers: &str| ObjectVersion {
            uri: "s3://b/k".into(),
            etag: "e".into(),
            size: 9,
            modified_ms: 0,
            block_bytes: 4,
            headers: headers.into(),
        };
        assert!(WholeCheck::of(&object("x-amz-checksum-crc32: y/Q5Jg==\n")).is_none(), "of parts, maybe");
        let told = object("x-amz-checksum-crc32: y/Q5Jg==\nx-amz-checksum-type: FULL_OBJECT\n");
        let end = |pieces: &[&str]| {
            let mut check = WholeCheck::of(&told).unwrap();
            pieces.iter().for_each(|piece| check.add(piece.as_bytes()));
            check.end(&told.uri)
        };
        assert!(end(&["1234", "5678", "9"]).is_ok());
        for wrong in [&["1234", "5678", "0"][..], &["5678", "1234", "9"], &["1234"]] {
            let why = end(wrong).unwrap_err().message;
            assert!(
                why.starts_with("s3://b/k: ") && why.contains("CRC32") && why.contains("forebay free"),
                "{why}"
            );
        }
    }
}
