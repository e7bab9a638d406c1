//! Neighbouring columns turned from rows into columns and back in the processor's registers: several times as
//! fast as value by value.

use super::layout::PackedColumn;

/// Splits the first of `columns`, and those behind it that go with it, as far as blocks of `rows` reach:
/// returns how many columns that were, and how many rows of each are written to its `values`, from row
/// `first` on. None where there is no such block, or no such processor.
pub(super) fn split(
    columns: &[PackedColumn],
    rows: &[u8],
    row_width: usize,
    first: usize,
    values: &mut [&mut [u8]],
) -> (usize, usize) {
    #[cfg(target_arch = "x86_64")]
    match (columns, values) {
        ([column, ..], [a, b, c, d, ..]) if are_all(columns, 4, 4) => {
            let values = [a, b, c, d].map(|values| &mut values[first * 4..]);
            (4, sse2::four_of_four(rows, row_width, column.offset, values))
        }
        ([column, ..], [a, b, ..]) if are_all(columns, 2, 4) => {
            let values = [a, b].map(|values| &mut values[first * 4..]);
            (2, sse2::two_of_four(rows, row_width, column.offset, values))
        }
        ([column, ..], [a, b, ..]) if are_all(columns, 2, 8) => {
            let values = [a, b].map(|values| &mut values[first * 8..]);
            (2, sse2::two_of_eight(rows, row_width, column.offset, values))
        }
        _ => (1, 0),
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (columns, rows, row_width, first, values);
        (1, 0)
    }
}

/// Writes values of four neighbouring columns of four bytes to rows, from their byte `offset` on, as far as
/// blocks of rows reach. Returns how many rows that were.
pub(super) fn join(values: [&[u8]; 4], rows: &mut [u8], row_width: usize, offset: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    return sse2::join_four_of_four(values, rows, row_width, offset);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (values, rows, row_width, offset);
        0
    }
}

/// Whether the first `count` columns have values of this many bytes. Those of a layout lie side by side.
#[cfg(target_arch = "x86_64")]
fn are_all(columns: &[PackedColumn], count: usize, width: usize) -> bool {
    columns.get(..count).is_some_and(|block| block.iter().all(|column| column.width == width))
}

#[cfg(target_arch = "x86_64")]
mod sse2 {
    #![expect(unsafe_code, reason = "every x86-64 has SSE2, but calls of its instructions must say so")]

    use std::arch::x86_64::{
        __m128i, _mm_cvtsi128_si64, _mm_set_epi64x, _mm_unpackhi_epi32, _mm_unpackhi_epi64,
        _mm_unpacklo_epi32, _mm_unpacklo_epi64,
    };

    /// Four columns of four bytes, four rows at a time. Returns how many rows that were.
    pub fn four_of_four(rows: &[u8], row_width: usize, offset: usize, values: [&mut [u8]; 4]) -> usize {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { fours(rows, row_width, offset, values) }
        rows.len() / (4 * row_width) * 4
    }

    /// Two columns of four bytes, four rows at a time. Returns how many rows that were.
    pub fn two_of_four(rows: &[u8], row_width: usize, offset: usize, values: [&mut [u8]; 2]) -> usize {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { pairs(rows, row_width, offset, values) }
        rows.len() / (4 * row_width) * 4
    }

    /// Two columns of eight bytes, two rows at a time. Returns how many rows that were.
    pub fn two_of_eight(rows: &[u8], row_width: usize, offset: usize, values: [&mut [u8]; 2]) -> usize {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { twos(rows, row_width, offset, values) }
        rows.len() / (2 * row_width) * 2
    }

    /// Four columns of four bytes into rows, four rows at a time. Returns how many rows that were.
    pub fn join_four_of_four(values: [&[u8]; 4], rows: &mut [u8], row_width: usize, offset: usize) -> usize {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { join_fours(values, rows, row_width, offset) }
        rows.len() / (4 * row_width) * 4
    }

    #[target_feature(enable = "sse2")]
    fn fours(rows: &[u8], row_width: usize, offset: usize, values: [&mut [u8]; 4]) {
        let [a, b, c, d] = values.map(|values| values.as_chunks_mut().0.iter_mut());
        for ((((a, b), c), d), rows) in a.zip(b).zip(c).zip(d).zip(rows.chunks_exact(4 * row_width)) {
            // Written out: `map` over the four would be a call.
            let row = |row: usize| &rows[row * row_width + offset..];
            let [ta, tb, tc, td] = transposed([load(row(0)), load(row(1)), load(row(2)), load(row(3))]);
            (*a, *b, *c, *d) = (bytes(ta), bytes(tb), bytes(tc), bytes(td));
        }
    }

    #[target_feature(enable = "sse2")]
    fn join_fours(values: [&[u8]; 4], rows: &mut [u8], row_width: usize, offset: usize) {
        let [a, b, c, d] = values.map(|values| values.as_chunks::<16>().0);
        for ((((a, b), c), d), rows) in
            a.iter().zip(b).zip(c).zip(d).zip(rows.chunks_exact_mut(4 * row_width))
        {
            let [r0, r1, r2, r3] = transposed([load(a), load(b), load(c), load(d)]);
            let mut put = |row: usize, value: __m128i| {
                rows[row * row_width + offset..][..16].copy_from_slice(&bytes(value));
            };
            [r0, r1, r2, r3].into_iter().enumerate().for_each(|(row, value)| put(row, value));
        }
    }

    /// Four times four values of four bytes, the first of each first.
    #[target_feature(enable = "sse2")]
    fn transposed([a, b, c, d]: [__m128i; 4]) -> [__m128i; 4] {
        let (low, high) = (_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
        let (low2, high2) = (_mm_unpacklo_epi32(c, d), _mm_unpackhi_epi32(c, d));
        [
            _mm_unpacklo_epi64(low, low2),
            _mm_unpackhi_epi64(low, low2),
            _mm_unpacklo_epi64(high, high2),
            _mm_unpackhi_epi64(high, high2),
        ]
    }

    #[target_feature(enable = "sse2")]
    fn twos(rows: &[u8], row_width: usize, offset: usize, values: [&mut [u8]; 2]) {
        let [a, b] = values.map(|values| values.as_chunks_mut().0.iter_mut());
        for ((a, b), rows) in a.zip(b).zip(rows.chunks_exact(2 * row_width)) {
            let (r0, r1) = (load(&rows[offset..]), load(&rows[row_width + offset..]));
            *a = bytes(_mm_unpacklo_epi64(r0, r1));
            *b = bytes(_mm_unpackhi_epi64(r0, r1));
        }
    }

    #[target_feature(enable = "sse2")]
    fn pairs(rows: &[u8], row_width: usize, offset: usize, values: [&mut [u8]; 2]) {
        let [a, b] = values.map(|values| values.as_chunks_mut().0.iter_mut());
        for ((a, b), rows) in a.zip(b).zip(rows.chunks_exact(4 * row_width)) {
            let row = |row: usize| load_half(&rows[row * row_width + offset..]);
            let (low, high) = (_mm_unpacklo_epi32(row(0), row(1)), _mm_unpacklo_epi32(row(2), row(3)));
            *a = bytes(_mm_unpacklo_epi64(low, high));
            *b = bytes(_mm_unpackhi_epi64(low, high));
        }
    }

    /// The first 16 bytes: one instruction, as are those of [`bytes`].
    #[target_feature(enable = "sse2")]
    fn load(from: &[u8]) -> __m128i {
        let mut first = [0; 16];
        first.copy_from_slice(&from[..16]);
        let value = u128::from_le_bytes(first);
        _mm_set_epi64x((value >> 64) as i64, value as i64)
    }

    /// The first 8 bytes, and zeros.
    #[target_feature(enable = "sse2")]
    fn load_half(from: &[u8]) -> __m128i {
        let mut first = [0; 8];
        first.copy_from_slice(&from[..8]);
        _mm_set_epi64x(0, i64::from_le_bytes(first))
    }

    #[target_feature(enable = "sse2")]
    fn bytes(value: __m128i) -> [u8; 16] {
        let low = _mm_cvtsi128_si64(value) as u64;
        let high = _mm_cvtsi128_si64(_mm_unpackhi_epi64(value, value)) as u64;
        (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
    }
}
