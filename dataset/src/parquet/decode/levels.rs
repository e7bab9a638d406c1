//! Parquet levels looked at without expanding them: do they say that every list is present, full and without
//! nulls?

use super::hybrid::{HybridRun, next_run, packed};

/// Whether the first `count` levels, `bits` wide each, satisfy `fits(index, value, times)` run by run; false
/// too if there are fewer.
fn all(mut data: &[u8], bits: u32, count: u64, mut fits: impl FnMut(u64, u32, u64) -> bool) -> bool {
    let mut index = 0;
    while index < count {
        let Some(run) = next_run(&mut data, bits) else { return false };
        match run {
            HybridRun::Same { value, count: times } => {
                let times = times.min(count - index);
                if times == 0 || !fits(index, value, times) {
                    return false;
                }
                index += times;
            }
            HybridRun::Packed { bytes, count: values } => {
                let values = values.min(count - index);
                if values == 0 || !(0..values).all(|i| fits(index + i, packed(bytes, bits, i), 1)) {
                    return false;
                }
                index += values;
            }
        }
    }
    true
}

/// Bits of a level of at most `max`.
fn width(max: i16) -> u32 {
    u16::BITS - (max.max(0) as u16).leading_zeros()
}

/// Whether all `count` definition levels are `max`: nothing is null or empty.
pub(super) fn all_defined(data: &[u8], max: i16, count: u64) -> bool {
    max == 0 || all(data, width(max), count, |_, value, _| value == max as u32)
}

/// Whether `count` repetition levels (0 or 1) cut their values into lists of `length`, where `before` values
/// of the same column chunk came before them.
pub(super) fn all_of_length(data: &[u8], length: u64, before: u64, count: u64) -> bool {
    all(data, 1, count, |index, value, times| {
        let place = (before + index) % length;
        match value {
            0 => place == 0 && (times == 1 || length == 1),
            1 => place != 0 && place + times <= length,
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs() {
        // 5 x 3 as a run, 2 bits wide.
        assert!(all_defined(&[10, 3], 3, 5));
        assert!(!all_defined(&[10, 2], 3, 5));
        assert!(!all_defined(&[8, 3], 3, 5));
        assert!(!all_defined(&[], 3, 1));
        // One group of 8 packed values.
        assert!(all_defined(&[3, 0xff, 0xff], 3, 8));
        assert!(all_defined(&[3, 0xaa, 0xaa], 2, 8));
        assert!(!all_defined(&[3, 0xaa, 0xab], 2, 8));
        // What follows the last value does not count.
        assert!(all_defined(&[3, 0xaa, 0x2a], 2, 7));
        assert!(all_defined(&[], 0, 100));
    }

    #[test]
    fn lists() {
        // 0 1 1 | 0 1 1 | 0 1, then 1 | 0 1 1 ...
        let bytes = [3, 0b1011_0110];
        assert!(all_of_length(&bytes, 3, 0, 8));
        assert!(!all_of_length(&bytes, 3, 1, 8));
        assert!(!all_of_length(&bytes, 4, 0, 8));
        assert!(all_of_length(&[3, 0b1101_1011], 3, 2, 8) == all_of_length(&[3, 0b1101_1011], 3, 5, 8));
        // 0, then a run of 783 ones.
        let bytes = [2, 0, 0x9e, 0x0c, 1];
        assert!(all_of_length(&bytes, 784, 0, 784));
        assert!(!all_of_length(&bytes, 783, 0, 784));
        // Lists of one value are all zeros.
        assert!(all_of_length(&[200, 1, 0], 1, 0, 100));
    }
}
