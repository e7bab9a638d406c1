//! How far ahead of a stream blocks are made ready: two blocks at first, or a sixteenth of all that it was
//! asked for; twice as much for each block that was read in sequence, half as much after a jump. Only bytes
//! that the stream was asked for are read ahead, so that nothing is fetched in vain.

/// Bytes ahead of a stream at most.
pub const BYTES_MAX: u64 = 64 << 20;

/// The window of one stream.
#[derive(Debug, Clone)]
pub struct ReadAhead {
    bytes: u64,
    least: u64,
    most: u64,
    last: Option<u64>,
}

impl ReadAhead {
    /// Of blocks of this length, up to `most` bytes, for a stream of `asked` bytes.
    pub fn new(block_bytes: u64, asked: u64, most: u64) -> Self {
        let least = 2 * block_bytes;
        let most = most.max(least);
        Self { bytes: (asked / 16).clamp(least, most), least, most, last: None }
    }

    /// The stream comes to a block. Returns the bytes that are to be ready behind it.
    pub fn at(&mut self, block: u64) -> u64 {
        self.bytes = match self.last.replace(block) {
            None => self.bytes,
            Some(last) if last == block || last.checked_add(1) == Some(block) => {
                (2 * self.bytes).min(self.most)
            }
            Some(_) => (self.bytes / 2).max(self.least),
        };
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_in_sequence_and_halves_at_a_jump() {
        let mut ahead = ReadAhead::new(4 << 20, 100 << 20, BYTES_MAX);
        let mut mib = |block| ahead.at(block) >> 20;
        assert_eq!([0, 1, 2, 3, 4].map(&mut mib), [8, 16, 32, 64, 64]);
        assert_eq!([90, 91, 3, 40, 80, 2].map(&mut mib), [32, 64, 32, 16, 8, 8]);
        let mut small = ReadAhead::new(4 << 20, 1 << 40, 1 << 20);
        assert_eq!([0, 1].map(|block| small.at(block) >> 20), [8, 8]);
        let mut long = ReadAhead::new(4 << 20, 512 << 20, BYTES_MAX);
        assert_eq!([0, 1, 2].map(|block| long.at(block) >> 20), [32, 64, 64], "much is asked for at once");
    }
}
