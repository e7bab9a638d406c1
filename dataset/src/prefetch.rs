//! Asks the processor for memory before it is needed: a gather knows the rows it copies next, and each lies
//! somewhere else.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_asked_for_as_far_ahead_as_the_cache_holds_them() {
        assert_eq!([0, 165, 3136, 100_000].map(rows_ahead), [24, 24, 5, 1]);
        for bytes in [0, 1, 63, 64, 165, 5000] {
            prefetch(&vec![7; bytes]);
        }
    }
}
