//! Ranges against a model that looks at every byte.

use super::*;
use proptest::prelude::*;

fn object(size: u64, block_bytes: u64) -> ObjectVersion {
    ObjectVersion {
        uri: "s3://b/k".into(),
        etag: "e".into(),
        size,
        modified_ms: 0,
        block_bytes,
        headers: "".into(),
    }
}

proptest! {
    /// Blocks here are as small as a few bytes: the arithmetic does not know the limits.
    #[test]
    fn parts_are_the_bytes_one_by_one(
        size in 0u64..200,
        block in prop::sample::select(vec![1u64, 2, 8, 32, 64, 256]),
        start in 0u64..260,
        end in 0u64..260,
    ) {
        let object = object(size, block);
        let wanted: Vec<(u64, u64)> =
            (0..size).filter(|at| (start..end).contains(at)).map(|at| (at / block, at % block)).collect();
        let parts: Vec<BlockPart> = object.parts(start..end).collect();
        let got: Vec<(u64, u64)> =
            parts.iter().flat_map(|part| part.bytes.clone().map(|at| (part.index, at))).collect();
        prop_assert_eq!(got, wanted);
        prop_assert!(parts.iter().all(|part| !part.bytes.is_empty() && part.index < object.blocks()));
        prop_assert!(parts.windows(2).all(|two| two[0].index + 1 == two[1].index));
        let all: Vec<u64> = (0..object.blocks()).flat_map(|index| object.block(index)).collect();
        prop_assert_eq!(all, (0..size).collect::<Vec<_>>());
        let is_within = start < end && end <= size;
        prop_assert_eq!(object.check_range(&(start..end)).is_ok(), is_within);
    }

    #[test]
    fn ranges_mean_the_bytes_that_http_says(size in 0u64..50, a in 0u64..60, b in 0u64..60) {
        let bytes = |wanted: &dyn Fn(u64) -> bool| (0..size).filter(|at| wanted(*at)).collect::<Vec<_>>();
        let check = |text: String, wanted: Vec<u64>| {
            let spec: RangeSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), text);
            let got = spec.of(size);
            assert_eq!(got.is_err(), wanted.is_empty(), "{text} of {size}");
            assert_eq!(got.map(Iterator::collect::<Vec<_>>).unwrap_or_default(), wanted, "{text} of {size}");
        };
        let (first, last) = (a.min(b), a.max(b));
        check(format!("{first}-{last}"), bytes(&|at| (first..=last).contains(&at)));
        check(format!("{a}-"), bytes(&|at| at >= a));
        check(format!("-{a}"), bytes(&|at| at + a >= size));
    }

    #[test]
    fn any_text_is_a_range_or_an_error(text in "[-0-9 a+]{0,30}") {
        if let Ok(spec) = text.parse::<RangeSpec>() {
            let range = spec.of(u64::MAX >> 14).unwrap_or(0..0);
            prop_assert!(range.start <= range.end);
        }
    }
}

#[test]
fn what_is_no_range_is_refused() {
    for bad in
        ["", "-", "5", "5-4", "+1-2", "1-+2", " 1-2", "1--2", "a-b", "0-1,3-4", "-18446744073709551616"]
    {
        assert!(bad.parse::<RangeSpec>().is_err(), "{bad}");
    }
    assert_eq!("0-18446744073709551615".parse::<RangeSpec>().unwrap().of(7).unwrap(), 0..7);
}

#[test]
fn ids_tell_versions_blocks_and_sizes_apart() {
    let one = object(100 << 20, BLOCK_BYTES);
    let mut ids: Vec<SegmentId> = (0..one.blocks()).map(|index| one.block_id(index)).collect();
    let other = |change: &dyn Fn(&mut ObjectVersion)| {
        let mut other = one.clone();
        change(&mut other);
        other.block_id(0)
    };
    ids.push(other(&|o| o.etag = "f".into()));
    ids.push(other(&|o| o.uri = "s3://b/l".into()));
    ids.push(other(&|o| o.size += 1));
    ids.push(other(&|o| o.block_bytes *= 2));
    ids.push(ObjectVersion::name_id(&one.uri));
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
    // They name files and decide placement: another value would lose every cache.
    assert_eq!(object(5, 65_536).block_id(0).to_string(), "3516a547535c8bbfe6d2b2c6fa818866");
}

#[test]
fn what_no_node_tells_is_refused() {
    let good = v1::ObjectVersion::from(&object(9, BLOCK_BYTES));
    assert_eq!(ObjectVersion::try_from(good.clone()).unwrap(), object(9, BLOCK_BYTES));
    let bad: [&dyn Fn(&mut v1::ObjectVersion); 13] = [
        &|o| o.uri.clear(),
        &|o| o.uri = "x".repeat(2049),
        &|o| o.etag.clear(),
        &|o| o.etag = "x".repeat(1025),
        &|o| o.etag = "W/\"a\"".into(),
        &|o| o.etag = "a\"b".into(),
        &|o| o.etag = "a\r\nb".into(),
        &|o| o.size = u64::MAX,
        &|o| o.block_bytes = 0,
        &|o| o.block_bytes = 3,
        &|o| o.block_bytes = 1 << 63,
        &|o| o.block_bytes = 32 << 10,
        &|o| o.block_bytes = 128 << 20,
    ];
    for (number, change) in bad.iter().enumerate() {
        let mut wire = good.clone();
        change(&mut wire);
        assert!(ObjectVersion::try_from(wire).is_err(), "{number}");
    }
}
