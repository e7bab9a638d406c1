//! The values of a page, in the two encodings that nearly all writers use: side by side (PLAIN), or as
//! numbers of entries of a dictionary. They go straight into the type that they have in the end.

use super::hybrid::{HybridRun, next_run, packed};
use parquet::errors::ParquetError;
use std::iter::repeat_n;

/// A number as Parquet lays it out: little endian.
pub(super) trait StoredNumber: Copy {
    /// Bytes of one.
    const BYTES: usize;

    /// Of exactly that many bytes.
    fn of(bytes: &[u8]) -> Self;
}

macro_rules! physical {
    ($($number:ty),*) => {$(
        impl StoredNumber for $number {
            const BYTES: usize = size_of::<$number>();

            fn of(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$number>()];
                own.copy_from_slice(bytes);
                Self::from_le_bytes(own)
            }
        }
    )*};
}

physical!(i32, i64, f32, f64);

/// Appends `count` values that lie side by side.
///
/// # Errors
/// If there are fewer.
pub(super) fn plain<P: StoredNumber, N>(
    data: &[u8],
    count: usize,
    narrow: impl Fn(P) -> N,
    out: &mut Vec<N>,
) -> Result<(), ParquetError> {
    let bytes = count.checked_mul(P::BYTES).and_then(|bytes| data.get(..bytes)).ok_or_else(cut)?;
    out.extend(bytes.chunks_exact(P::BYTES).map(|bytes| narrow(P::of(bytes))));
    Ok(())
}

/// Appends `count` entries of a dictionary, whose numbers lie in `data` behind their width in bits.
///
/// # Errors
/// If there are fewer, or one is not in the dictionary.
pub(super) fn indexed<N: Copy>(
    data: &[u8],
    count: usize,
    dictionary: &[N],
    out: &mut Vec<N>,
) -> Result<(), ParquetError> {
    let (width, mut data) = data.split_first().ok_or_else(cut)?;
    let width = u32::from(*width);
    let Some(first) = dictionary.first().copied().filter(|_| width <= 32) else { return Err(absent()) };
    if width == 0 {
        out.extend(repeat_n(first, count));
        return Ok(());
    }
    let mut missing = count;
    while missing > 0 {
        let run = next_run(&mut data, width).ok_or_else(cut)?;
        let (HybridRun::Same { count, .. } | HybridRun::Packed { count, .. }) = run;
        let now = missing.min(usize::try_from(count).unwrap_or(usize::MAX));
        if now == 0 {
            return Err(cut());
        }
        match run {
            HybridRun::Same { value, .. } => {
                let value = dictionary.get(value as usize).ok_or_else(absent)?;
                out.extend(repeat_n(*value, now));
            }
            HybridRun::Packed { bytes, .. } if width == 8 => bytes_of(&bytes[..now], dictionary, out)?,
            HybridRun::Packed { bytes, .. } => unpacked(bytes, width, now, dictionary, out)?,
        }
        missing -= now;
    }
    Ok(())
}

/// Entries whose numbers are bytes: looked up without asking each time whether it is there.
fn bytes_of<N: Copy>(numbers: &[u8], dictionary: &[N], out: &mut Vec<N>) -> Result<(), ParquetError> {
    let largest = numbers.iter().copied().max().map_or(0, usize::from);
    let Some(last) = dictionary.get(largest).copied() else { return Err(absent()) };
    let mut table = [last; 256];
    table.iter_mut().zip(dictionary).for_each(|(place, entry)| *place = *entry);
    out.extend(numbers.iter().map(|number| table[usize::from(*number)]));
    Ok(())
}

/// Entries whose numbers are packed, `width` bits each.
fn unpacked<N: Copy>(
    bytes: &[u8],
    width: u32,
    count: usize,
    dictionary: &[N],
    out: &mut Vec<N>,
) -> Result<(), ParquetError> {
    let before = out.len();
    out.resize(before + count, dictionary[0]);
    let (groups, rest) = out[before..].as_chunks_mut::<8>();
    let whole = groups.len().min(bytes.len() / width as usize);
    // The width is a constant in each of these, so that eight numbers are found without a loop.
    macro_rules! by_width {
        ($($w:literal)*) => {
            match width {
                $($w => by_groups::<N, $w>(bytes, dictionary, &mut groups[..whole]),)*
                _ => one_by_one(bytes, width, 0, dictionary, groups[..whole].as_flattened_mut()),
            }
        };
    }
    let mut is_known = by_width!(1 2 3 4 5 6 7 9 10 11 12 13 14 15 16 17 18 19 20);
    let begins = 8 * whole as u64;
    is_known &= one_by_one(bytes, width, begins, dictionary, groups[whole..].as_flattened_mut());
    let begins = 8 * groups.len() as u64;
    is_known &= one_by_one(bytes, width, begins, dictionary, rest);
    if is_known { Ok(()) } else { Err(absent()) }
}

/// Looks up the numbers of whole groups of eight; whether the dictionary has them all.
fn by_groups<N: Copy, const W: usize>(bytes: &[u8], dictionary: &[N], out: &mut [[N; 8]]) -> bool {
    let mut largest = 0;
    for (bytes, out) in bytes.chunks_exact(W).zip(out) {
        let mut group = [0; 32];
        group[..W].copy_from_slice(bytes);
        for (i, out) in out.iter_mut().enumerate() {
            let bit = i * W;
            let mut word = [0; 8];
            word.copy_from_slice(&group[bit / 8..bit / 8 + 8]);
            let number = (u64::from_le_bytes(word) >> (bit % 8)) as usize & ((1 << W) - 1);
            largest = largest.max(number);
            *out = dictionary[number.min(dictionary.len() - 1)];
        }
    }
    largest < dictionary.len()
}

/// The same bit by bit, from number `begins` on.
fn one_by_one<N: Copy>(bytes: &[u8], width: u32, begins: u64, dictionary: &[N], out: &mut [N]) -> bool {
    let number = |i| packed(bytes, width, i) as usize;
    out.iter_mut().zip(begins..).all(|(out, i)| match dictionary.get(number(i)) {
        Some(entry) => {
            *out = *entry;
            true
        }
        None => false,
    })
}

fn cut() -> ParquetError {
    ParquetError::EOF("a page has fewer values than it says".into())
}

fn absent() -> ParquetError {
    ParquetError::General("a page names a value that its dictionary lacks".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `numbers` packed as one run, behind their width.
    fn page(numbers: &[u32], width: u32) -> Vec<u8> {
        let groups = numbers.len().div_ceil(8);
        let mut data = vec![width as u8];
        let mut header = (groups << 1 | 1) as u32;
        while header > 0x7f {
            data.push(header as u8 | 0x80);
            header >>= 7;
        }
        data.push(header as u8);
        let mut packed = vec![0u8; groups * width as usize];
        for (i, number) in numbers.iter().enumerate() {
            for k in (0..width as usize).filter(|k| number >> k & 1 == 1) {
                let bit = i * width as usize + k;
                packed[bit / 8] |= 1 << (bit % 8);
            }
        }
        [data, packed].concat()
    }

    #[test]
    fn numbers_of_every_width_name_their_entries() {
        for width in 1..=20 {
            let dictionary: Vec<u64> = (0..1 << width).map(|i| i * 3).collect();
            for count in [1, 7, 8, 9, 63, 64, 65, 1000] {
                let any = |i: usize| (i as u32).wrapping_mul(0x9e37_79b9) >> (32 - width);
                let numbers: Vec<u32> = (0..count).map(any).collect();
                let mut out = vec![9];
                indexed(&page(&numbers, width), count, &dictionary, &mut out).unwrap();
                let wanted: Vec<u64> =
                    [9].into_iter().chain(numbers.iter().map(|i| u64::from(*i) * 3)).collect();
                assert_eq!(out, wanted, "width {width}, {count} numbers");
            }
        }
    }

    #[test]
    fn runs_of_one_entry_and_packed_ones_follow_each_other() {
        // 5 times entry 2, then 8 packed, then entry 1 for ever.
        let data = [2, 10, 2, 3, 0b1110_0100, 0b0001_1011, 0xfe, 0x01, 1];
        let mut out = Vec::new();
        indexed(&data, 20, &[10, 11, 12, 13], &mut out).unwrap();
        assert_eq!(out[..5], [12; 5]);
        assert_eq!(out[5..13], [10, 11, 12, 13, 13, 12, 11, 10]);
        assert_eq!(out[13..], [11; 7]);
        out.clear();
        indexed(&[0], 3, &[7], &mut out).unwrap();
        assert_eq!(out, [7, 7, 7], "no bits: the only entry");
    }

    #[test]
    fn nonsense_is_an_error() {
        let mut out: Vec<u8> = Vec::new();
        for (data, dictionary) in [
            (&[][..], &[1u8][..]),
            (&[2], &[1]),
            (&[2, 10], &[1]),
            (&[2, 10, 3], &[1, 2, 3]),
            (&[8, 3, 0, 1, 2, 3, 4, 5, 6, 7], &[1, 2, 3]),
            (&[2, 3, 0xff, 0xff], &[1, 2, 3]),
            (&[33, 3, 0], &[1]),
            (&[1, 2, 0], &[]),
            (&[2, 0, 0], &[1]),
            (&[2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], &[1]),
        ] {
            assert!(indexed(data, 8, dictionary, &mut out).is_err(), "{data:?}");
        }
        assert!(plain(&[0; 11], 3, |v: i32| v, &mut Vec::new()).is_err());
        assert!(plain(&[0; 11], usize::MAX, |v: i64| v, &mut Vec::new()).is_err());
    }
}
