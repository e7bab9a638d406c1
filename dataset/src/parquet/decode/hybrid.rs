//! The RLE and bit-packing hybrid of the Parquet format (Encodings.md, "RLE = 3"), run by run.

/// A run of numbers: `count` times `value`, or as many bit-packed ones.
pub(super) enum HybridRun<'a> {
    Same { value: u32, count: u64 },
    Packed { bytes: &'a [u8], count: u64 },
}

/// The next run of numbers of `bits` bits each, 1 to 32; `None` at the end, or where nothing sensible comes.
pub(super) fn next_run<'a>(data: &mut &'a [u8], bits: u32) -> Option<HybridRun<'a>> {
    let (mut header, mut shift) = (0u64, 0);
    loop {
        let (byte, rest) = data.split_first()?;
        *data = rest;
        header |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        match byte & 0x80 {
            0 => break,
            _ if shift > 35 => return None,
            _ => {}
        }
    }
    if header & 1 == 0 {
        let (value, rest) = data.split_at_checked(bits.div_ceil(8) as usize)?;
        *data = rest;
        let value = value.iter().rev().fold(0, |v, b| v << 8 | u32::from(*b));
        return Some(HybridRun::Same { value, count: header >> 1 });
    }
    // Writers may leave out the padding of the last group.
    let length = ((header >> 1) * u64::from(bits)).min(data.len() as u64) as usize;
    let (bytes, rest) = data.split_at_checked(length)?;
    *data = rest;
    Some(HybridRun::Packed { bytes, count: length as u64 * 8 / u64::from(bits) })
}

/// Number `index` of a packed run; bits that are not there are zeros.
pub(super) fn packed(bytes: &[u8], bits: u32, index: u64) -> u32 {
    let mut value = 0;
    for k in 0..u64::from(bits) {
        let bit = index * u64::from(bits) + k;
        let byte = bytes.get((bit / 8) as usize).copied().unwrap_or(0);
        value |= u32::from(byte >> (bit % 8) & 1) << k;
    }
    value
}
