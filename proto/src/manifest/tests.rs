//! What a manifest checks, and which ids it gives.

use super::*;
use crate::v1;
use crate::view::Split;

fn sample() -> Manifest {
    let o = |k: &str| Object { key: k.into(), etag: format!("e-{k}"), size: 100, ..Default::default() };
    let s = |object, row_groups, rows| SegmentSize { object, row_groups, rows, decoded_bytes: rows * 8 };
    let sizes = [s(0, 2, 10), s(0, 1, 5), s(2, 3, 7)];
    Manifest::new("s3://b/p", SEGMENT_BYTES, vec![1, 2], vec![o("a"), o("b"), o("c")], &sizes).unwrap()
}

#[test]
fn segments_follow_each_other() {
    let m = sample();
    let places: Vec<_> = m.segments().iter().map(|s| (s.object, s.first_row_group, s.first_row)).collect();
    assert_eq!(places, [(0, 0, 0), (0, 2, 10), (2, 0, 15)]);
    assert_eq!((m.rows(), m.decoded_bytes()), (22, 176));
}

#[test]
fn survives_the_wire_and_notices_tampering() {
    let m = sample();
    let w = v1::Manifest::from(&m);
    assert_eq!(Manifest::try_from(w.clone()).unwrap(), m);
    let mut bad = w;
    bad.segments.as_mut().unwrap().rows[0] += 1;
    assert_eq!(Manifest::try_from(bad).unwrap_err().kind, crate::Kind::Corrupt);
}

#[test]
fn objects_are_compared_in_their_versions_whatever_the_segments_are() {
    let m = sample();
    let split = m.split(&"0:5".parse::<Split>().unwrap()).unwrap();
    assert!(m.has_objects_of(&split) && split.has_objects_of(&m));
    assert!(m.is_whole() && !split.is_whole());
    assert!(m.clone().with_version_ids(vec!["v".into(); 3]).has_objects_of(&m));
    let size = SegmentSize { object: 0, row_groups: 1, rows: 1, decoded_bytes: 8 };
    let changed = |change: fn(&mut Vec<Object>)| {
        let mut objects = m.objects().to_vec();
        change(&mut objects);
        Manifest::new("s3://other", 1, vec![], objects, &[size]).unwrap().has_objects_of(&m)
    };
    assert!(changed(|_| ()));
    let changes: [fn(&mut Vec<Object>); 4] = [
        |objects| objects[1].key.push('x'),
        |objects| objects[1].etag.push('x'),
        |objects| objects[2].size += 1,
        |objects| drop(objects.pop()),
    ];
    assert!(!changes.into_iter().any(changed));
}

#[test]
fn sums_over_segments_fit() {
    let size = SegmentSize { object: 0, row_groups: 1, rows: 1, decoded_bytes: u64::MAX };
    let object = Object { key: "a".into(), etag: "e".into(), size: 1, ..Default::default() };
    let manifest = |sizes: &[_]| Manifest::new("s3://b/p", 1, vec![], vec![object.clone()], sizes);
    assert!(manifest(&[size]).is_ok());
    assert!(manifest(&[size, size]).unwrap_err().message.contains("segment 1 overflows"));
}

#[test]
fn digest_is_pinned() {
    // A change here is a change of every dataset's version: it must be deliberate.
    assert_eq!(sample().digest().to_string(), "7cbd0ab01dca6bf8cb0bd653eec2b5bb");
}

#[test]
fn objects_lie_below_their_dataset_or_have_uris_of_their_own() {
    for (uri, key, wanted) in [
        ("s3://b/t", "x/a", "s3://b/t/x/a"),
        ("s3://b", "a", "s3://b/a"),
        ("s3://b/t/a", "", "s3://b/t/a"),
        ("s3://b/*/a", "s3://b/x/a", "s3://b/x/a"),
        ("file:///t", "a", "file:///t/a"),
        ("file:///", "t/a", "file:///t/a"),
    ] {
        assert_eq!(object_uri(uri, key), wanted, "{uri} {key}");
    }
}

#[test]
fn ids_tell_versions_apart() {
    let m = sample();
    let mut w = v1::Manifest::from(&m);
    w.objects[0].etag = "other".into();
    let sizes: Vec<_> = m
        .segments()
        .iter()
        .map(|s| SegmentSize {
            object: s.object,
            row_groups: s.row_groups,
            rows: s.rows,
            decoded_bytes: s.decoded_bytes,
        })
        .collect();
    let objects = w
        .objects
        .into_iter()
        .map(|o| Object { key: o.key, etag: o.etag, size: o.size, ..Default::default() })
        .collect();
    let n = Manifest::new(m.uri(), m.segment_bytes(), m.schema().to_vec(), objects, &sizes).unwrap();
    assert_ne!(m.segment_id(0).unwrap(), n.segment_id(0).unwrap());
    assert_eq!(m.segment_id(2).unwrap(), n.segment_id(2).unwrap());
    assert_ne!(m.segment_id(0).unwrap(), m.segment_id(1).unwrap());
    assert!(m.segment_id(3).is_err());
}

#[test]
fn copies_of_a_version_have_ids_of_their_own() {
    let mut w = v1::Manifest::from(&sample());
    w.uri = "s3://other/p".into();
    let copy = Manifest::try_from(w.clone()).unwrap();
    assert_eq!(copy.digest(), sample().digest());
    assert_ne!(copy.id(), sample().id());
    assert_ne!(copy.segment_id(0).unwrap(), sample().segment_id(0).unwrap());
    w.segments.as_mut().unwrap().decoded_bytes[0] += 1;
    let resized = Manifest::try_from(w).unwrap();
    assert_eq!(resized.id(), copy.id());
    assert_ne!(resized.sizes_hash(), copy.sizes_hash());
}

#[test]
fn a_shape_is_part_of_the_version_and_forms_of_the_segments() {
    let plain = sample();
    let shape =
        |forms: &[u64]| Some(Shape { partitions: vec!["year".into()], forms: forms.to_vec(), table: None });
    let shaped = sample().shaped(shape(&[7, 0, 9])).unwrap();
    let w = v1::Manifest::from(&shaped);
    assert_eq!((v1::Manifest::from(&plain).format, w.format), (1, 2));
    assert_eq!(Manifest::try_from(w.clone()).unwrap(), shaped);
    assert_ne!(shaped.digest(), plain.digest());
    assert_ne!(shaped.digest(), sample().shaped(shape(&[7, 0, 8])).unwrap().digest());
    assert_ne!(shaped.segment_id(0).unwrap(), plain.segment_id(0).unwrap());
    let same = sample().shaped(shape(&[0, 0, 0])).unwrap();
    assert_eq!(same.segment_id(0).unwrap(), plain.segment_id(0).unwrap(), "its columns are as they are");
    assert_eq!(shaped.shaped(None).unwrap(), plain);
    assert!(sample().shaped(shape(&[1])).is_err());
    let format = v1::Manifest { format: 1, ..w };
    assert_eq!(Manifest::try_from(format).unwrap_err().kind, crate::Kind::Invalid);
}
