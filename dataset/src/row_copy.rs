//! Copies rows that lie anywhere in memory: a gather knows the rows it copies next, and asks the processor for
//! them before they are needed.
#![expect(unsafe_code, reason = "the instruction is only to be had through a pointer")]

/// Rows that a gather asks for ahead of the one that it copies, at most.
const ROWS_AHEAD: usize = 24;

/// Bytes that it asks for ahead: they must not drive each other out of the cache before they are copied.
const BYTES_AHEAD: usize = 16 << 10;

/// Bytes of a row that are asked for: in longer ones the processor goes on by itself.
const BYTES: usize = 4 << 10;

/// Bytes of a line of the processor's cache.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Rows up to this length are copied without a call, a block at a time.
const SHORT_BYTES: usize = 256;

/// Bytes of such a block.
const BLOCK: usize = 32;

/// How many rows of about `bytes` a gather asks for ahead, at least one.
pub(crate) fn rows_ahead(bytes: usize) -> usize {
    (BYTES_AHEAD / bytes.max(1)).clamp(1, ROWS_AHEAD)
}

/// Has the processor fetch every line that a row touches into its second cache. Nothing else happens,
/// whatever the row is. The first cache can wait for few lines at once: with rows asked for there, a gather
/// takes half as long again.
#[inline]
pub(crate) fn prefetch(row: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        let row = row[..row.len().min(BYTES)].as_ptr_range();
        let mut line = row.start.map_addr(|at| at & !(LINE - 1));
        while line < row.end {
            // SAFETY: it reads nothing: the address may be any.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) };
            line = line.wrapping_add(LINE);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = row;
}

/// Copies a row to where it goes, as long as it.
#[inline]
pub(crate) fn copy_row(row: &[u8], to: &mut [u8]) {
    let is_short = row.len() <= SHORT_BYTES && row.len() == to.len();
    let (true, Some(last), Some(to_last)) =
        (is_short, row.last_chunk::<BLOCK>(), to.last_chunk_mut::<BLOCK>())
    else {
        return to.copy_from_slice(row);
    };
    *to_last = *last;
    to.as_chunks_mut::<BLOCK>().0.iter_mut().zip(row.as_chunks::<BLOCK>().0).for_each(|(to, row)| *to = *row);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_any_length_are_copied() {
        for length in (0..300).chain([4095, 4096, 5000]) {
            let row: Vec<u8> = (0..length).map(|i| (i * 7 + i / 256) as u8).collect();
            let mut to = vec![0; length];
            prefetch(&row);
            copy_row(&row, &mut to);
            assert_eq!(to, row, "{length} bytes");
        }
        assert_eq!((rows_ahead(0), rows_ahead(165), rows_ahead(3136), rows_ahead(100_000)), (24, 24, 5, 1));
    }

    #[test]
    #[should_panic(expected = "copy_from_slice")]
    fn a_row_of_another_length_is_refused() {
        copy_row(&[1; 40], &mut [0; 41]);
    }
}
