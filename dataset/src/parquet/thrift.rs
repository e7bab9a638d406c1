//! Thrift's compact protocol, as far as counts and sizes must be known before the parquet crate reads them.
//!
//! That crate reads a field as what it should be, whatever its type is said to be, and cuts numbers off. Here
//! it is done in the same way, or reading ends: both must see the same.

/// Types of the compact protocol. The value of a boolean field is its type.
pub(super) const TRUE: u8 = 1;
pub(super) const FALSE: u8 = 2;
pub(super) const BYTE: u8 = 3;
const I16: u8 = 4;
pub(super) const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
pub(super) const BINARY: u8 = 8;
pub(super) const LIST: u8 = 9;
const SET: u8 = 10;
pub(super) const STRUCT: u8 = 12;

/// Structs and lists within each other, in something that is skipped.
const DEPTH_MAX: u32 = 64;

/// Reads Thrift's compact protocol. `None` from any of its functions: these bytes are none.
pub(super) struct CompactReader<'a> {
    /// What was not read yet.
    pub bytes: &'a [u8],
}

impl CompactReader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    /// A number of 64 bits with 7 in each byte.
    pub fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn number(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// A number of 32 bits that is not negative.
    pub fn count(&mut self) -> Option<u64> {
        u64::try_from(self.number()? as i32).ok()
    }

    /// The type of the struct's next field, whose number is put in `field`; nothing at its end.
    #[expect(clippy::option_option, reason = "broken, the end, or a field")]
    pub fn field(&mut self, field: &mut i64) -> Option<Option<u8>> {
        let head = self.byte()?;
        if head == 0 {
            return Some(None);
        }
        *field = match head >> 4 {
            0 => i64::from(self.number()? as i16),
            more => *field + i64::from(more),
        };
        Some(Some(head & 0x0f))
    }

    /// The type of a list's elements, and how many it says it has.
    pub fn list(&mut self) -> Option<(u8, u64)> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        Some((head & 0x0f, count))
    }

    /// Passes over bytes.
    pub fn take(&mut self, count: u64) -> Option<()> {
        self.bytes = self.bytes.get(usize::try_from(count).ok()?..)?;
        Some(())
    }

    /// Passes over the value of a field.
    pub fn skip(&mut self, kind: u8) -> Option<()> {
        self.skip_at(kind, 0)
    }

    fn skip_at(&mut self, kind: u8, depth: u32) -> Option<()> {
        match kind {
            TRUE | FALSE => Some(()),
            BYTE => self.take(1),
            I16 | I32 | I64 => self.varint().map(drop),
            DOUBLE => self.take(8),
            BINARY => {
                let length = self.varint()?;
                self.take(length)
            }
            LIST | SET if depth < DEPTH_MAX => {
                let (kind, count) = self.list()?;
                // How long booleans in lists are is read in two ways.
                let is_known = count == 0 || !matches!(kind, TRUE | FALSE);
                is_known.then_some(())?;
                (0..count).try_for_each(|_| self.skip_at(kind, depth + 1))
            }
            STRUCT if depth < DEPTH_MAX => {
                let mut field = 0;
                while let Some(kind) = self.field(&mut field)? {
                    self.skip_at(kind, depth + 1)?;
                }
                Some(())
            }
            _ => None,
        }
    }
}
