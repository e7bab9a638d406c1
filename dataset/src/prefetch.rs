//! Asks the processor for memory before it is needed: a gather knows the rows it copies next, and each lies
//! somewhere else.
#![expect(unsafe_code, reason = "the instruction is only to be had through a pointer")]

/// Rows that a gather asks for ahead of the one that it copies.
pub(crate) const ROWS_AHEAD: usize = 12;

/// Bytes of a row that are asked for: the processor goes on by itself.
const BYTES: usize = 256;

/// Bytes of a line of the processor's cache.
const LINE: usize = 64;

/// Has the processor fetch the beginning of a row. Nothing else happens, whatever the row is.
#[inline]
pub(crate) fn prefetch(row: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in row[..row.len().min(BYTES)].chunks(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: it reads nothing: the address may be any.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = row;
}
