//! Checksums that S3 keeps of objects, as far as they say something of an answer.
//!
//! S3 sends the checksum of the whole object, or of one part of a multipart upload, and for a range that is
//! neither it sends none. Some servers send the whole object's with any range, and S3 itself sends the
//! checksum of a multipart object's part checksums without saying so when the range is `0-`. So what counts
//! here is an answer that holds the whole object and names its checksum's type `FULL_OBJECT`; any other tells
//! nothing of the bytes at hand. Column chunks are ranges: for them there is Parquet's own page checksum.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use crc_fast::CrcAlgorithm;
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
        if headers.get("x-amz-checksum-type")?.as_bytes() != b"FULL_OBJECT" {
            return None;
        }
        KNOWN.into_iter().find_map(|(header, name, algorithm, bytes)| {
            let value = BASE64_STANDARD.decode(headers.get(header)?.as_bytes()).ok()?;
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
}
