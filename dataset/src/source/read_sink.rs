//! Where the bytes of a read go, in order: into memory that is there, or on to somebody piece by piece.

use super::checksum::Offered;
use bytes::Bytes;

/// Takes the bytes of a read. What was put stays if an answer breaks off: the next one goes on behind it.
pub(super) trait ReadSink: Send {
    /// Bytes that were put.
    fn filled(&self) -> u64;

    /// The next bytes. `is_to_be_checked`: a checksum of all comes at the end of this answer.
    fn put(&mut self, piece: Bytes, is_to_be_checked: bool);

    /// All bytes are there. False if they do not fit the checksum: then none count, and all are put again.
    fn finish(&mut self, checksum: Option<&Offered>) -> bool;
}

/// Memory of the length that is read.
pub(super) struct Slice<'a> {
    bytes: &'a mut [u8],
    filled: usize,
}

impl<'a> Slice<'a> {
    pub(super) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, filled: 0 }
    }
}

impl ReadSink for Slice<'_> {
    fn filled(&self) -> u64 {
        self.filled as u64
    }

    fn put(&mut self, piece: Bytes, _: bool) {
        self.bytes[self.filled..][..piece.len()].copy_from_slice(&piece);
        self.filled += piece.len();
    }

    fn finish(&mut self, checksum: Option<&Offered>) -> bool {
        let fits = checksum.is_none_or(|checksum| checksum.fits([&*self.bytes]));
        if !fits {
            self.filled = 0;
        }
        fits
    }
}

/// Hands pieces on as they come; those that are to be checked when all have been.
pub(super) struct Pieces<F> {
    hand_on: F,
    filled: u64,
    held: Vec<Bytes>,
}

impl<F: FnMut(Bytes) + Send> Pieces<F> {
    pub(super) fn new(hand_on: F) -> Self {
        Self { hand_on, filled: 0, held: Vec::new() }
    }

    fn let_go(&mut self) {
        std::mem::take(&mut self.held).into_iter().for_each(&mut self.hand_on);
    }
}

impl<F: FnMut(Bytes) + Send> ReadSink for Pieces<F> {
    fn filled(&self) -> u64 {
        self.filled
    }

    fn put(&mut self, piece: Bytes, is_to_be_checked: bool) {
        self.filled += piece.len() as u64;
        self.held.push(piece);
        if !is_to_be_checked {
            self.let_go();
        }
    }

    fn finish(&mut self, checksum: Option<&Offered>) -> bool {
        let fits = checksum.is_none_or(|checksum| checksum.fits(self.held.iter().map(|piece| &piece[..])));
        match fits {
            true => self.let_go(),
            false => {
                self.held.clear();
                self.filled = 0;
            }
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;

    #[test]
    fn nothing_is_handed_on_that_does_not_fit() {
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-checksum-type", "FULL_OBJECT".parse().unwrap());
        headers.insert("x-amz-checksum-crc32", "y/Q5Jg==".parse().unwrap());
        let checksum = Offered::new(&headers).unwrap();
        let mut got = Vec::new();
        let mut pieces = Pieces::new(|piece: Bytes| got.extend_from_slice(&piece));
        for text in ["12345", "6780"] {
            pieces.put(Bytes::copy_from_slice(text.as_bytes()), true);
        }
        assert!(!pieces.finish(Some(&checksum)) && pieces.filled() == 0);
        for text in ["1234", "56789"] {
            pieces.put(Bytes::copy_from_slice(text.as_bytes()), true);
        }
        assert!(pieces.finish(Some(&checksum)));
        // What an answer that broke off had brought goes on, unchecked, before the rest.
        pieces.put(Bytes::from_static(b"ab"), true);
        pieces.put(Bytes::from_static(b"cd"), false);
        assert_eq!(pieces.filled(), 13);
        assert!(pieces.finish(None));
        assert_eq!(got, b"123456789abcd");
    }
}
