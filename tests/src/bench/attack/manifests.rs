//! Manifests that another node tells, and that are wrong: case 28.

use super::arena::{Arena, OTHERS};
use super::calls::INVALID_ARGUMENT;
use crate::harness::check::Check;
use crate::harness::question::{DENIED, UNKNOWN};
use anyhow::Context;
use forebay_proto::manifest::{Manifest, Object, SegmentSize};
use forebay_proto::v1;
use prost::Message;
use prost::encoding::encode_varint;

const LEARN: &str = "/forebay.v1.Peer/Learn";
const OPEN: &str = "/forebay.v1.Cache/Open";
const STATUS: &str = "/forebay.v1.Cache/Status";

/// DATA_LOSS of gRPC: what does not fit together.
const CORRUPT: u32 = 15;

/// A manifest in words, its bytes, and the codes with which it may be refused.
type Wrong = (String, Vec<u8>, &'static [u32]);

/// Outside of what the node may read.
const OUTSIDE: &[u32] = &[INVALID_ARGUMENT as u32, DENIED];

/// No manifest.
const SENSELESS: &[u32] = &[INVALID_ARGUMENT as u32, CORRUPT];

/// 28: manifests of a node that means harm.
pub fn manifests(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let dataset = Some(v1::DatasetSpec { uri: arena.store.uri(OTHERS), ..Default::default() });
    let request = v1::OpenRequest { dataset, ..Default::default() }.encode_to_vec();
    let good = arena.ask(Some("audio"), OPEN, &request)?.first::<v1::OpenReply>()?;
    let good = good.manifest.context("a manifest")?;
    let before = known(arena)?;
    let mut checks = Vec::new();
    for (who, code) in [(Some("peers"), 0), (Some("vision"), DENIED), (None, UNKNOWN)] {
        let answer = arena.ask(who, LEARN, &good.encode_to_vec())?;
        let claim = format!("a good manifest of {}: {code}", who.unwrap_or("nobody"));
        checks.push(Check::of(claim, answer.code.to_string(), answer.code == code));
    }
    let mut all = outside(&good)?;
    all.extend(senseless(&good));
    all.push(("100 M segments that are claimed, and not sent".into(), claim(100_000_000), SENSELESS));
    all.push((
        format!("{} segments of nothing but their objects", arena.scale.segments),
        numbers(arena.scale.segments),
        SENSELESS,
    ));
    for (what, message, codes) in all {
        let (is_right, measured) = match arena.ask(Some("peers"), LEARN, &message) {
            Ok(answer) => (codes.contains(&answer.code), format!("{} {}", answer.code, answer.message)),
            Err(e) => (false, format!("{e:#}")),
        };
        let measured: String = measured.chars().take(160).collect();
        checks.push(Check::of(format!("{what}: refused"), measured, is_right));
    }
    let after = known(arena)?;
    checks.push(Check::of("nothing of them is kept", format!("{before:?} {after:?}"), before == after));
    checks.push(arena.memory_check()?);
    Ok(checks)
}

/// The datasets that the node knows.
fn known(arena: &Arena<'_>) -> anyhow::Result<Vec<String>> {
    let status: v1::StatusReply = arena.ask(Some("root"), STATUS, &[])?.first()?;
    let mut uris: Vec<String> = status.datasets.into_iter().map(|dataset| dataset.uri).collect();
    uris.sort();
    uris.dedup();
    Ok(uris)
}

/// Manifests that are sound, of what the node may not read.
fn outside(good: &v1::Manifest) -> anyhow::Result<Vec<Wrong>> {
    let segments = good.segments.clone().context("segments")?;
    let size = |n: usize| SegmentSize {
        object: segments.object[n],
        row_groups: segments.row_groups[n],
        rows: segments.rows[n],
        decoded_bytes: segments.decoded_bytes[n],
    };
    let sizes: Vec<SegmentSize> = (0..segments.object.len()).map(size).collect();
    let manifest = |uri: &str, key: Option<&str>| {
        let object =
            |object: &Object| Object { key: key.unwrap_or(&object.key).to_owned(), ..object.clone() };
        let objects = good.objects.iter().map(object).collect();
        let made = Manifest::new(uri, good.segment_bytes, good.schema.to_vec(), objects, &sizes)?;
        anyhow::Ok(v1::Manifest::from(&made).encode_to_vec())
    };
    let mut all = Vec::new();
    for uri in ["s3://elsewhere/x", "file:///etc", "gs://bucket/x", "s3://forebay/../x", "nonsense"] {
        all.push((format!("a manifest of {uri}"), manifest(uri, None)?, OUTSIDE));
    }
    for key in ["file:///etc/passwd", "s3://elsewhere/secret", "../../../x", "a/../b", "a//b"] {
        all.push((format!("one with an object at {key}"), manifest(&good.uri, Some(key))?, OUTSIDE));
    }
    Ok(all)
}

/// Manifests whose numbers cannot be.
fn senseless(good: &v1::Manifest) -> Vec<Wrong> {
    let with = |change: &dyn Fn(&mut v1::Manifest)| {
        let mut manifest = good.clone();
        change(&mut manifest);
        manifest.encode_to_vec()
    };
    let of_segments =
        |change: &dyn Fn(&mut v1::Segments)| with(&|manifest| manifest.segments.iter_mut().for_each(change));
    let twice = |segments: &mut v1::Segments| {
        segments.object.push(0);
        segments.row_groups.push(1);
        segments.rows.push(1);
        segments.decoded_bytes.push(1);
    };
    let all: [(&str, Vec<u8>); 13] = [
        ("a digest of other content", with(&|m| m.digest = vec![7; 16].into())),
        ("a digest of one byte", with(&|m| m.digest = vec![7].into())),
        ("an unknown format", with(&|m| m.format = 99)),
        ("no schema", with(&|m| m.schema = Vec::new().into())),
        ("no objects", with(&|m| m.objects.clear())),
        ("other objects under the same digest", with(&|m| m.objects[0].etag = "another".into())),
        ("2^63 rows", of_segments(&|s| s.rows[0] = 1 << 63)),
        ("2^64 - 1 rows, twice", of_segments(&|s| (twice(s), s.rows.fill(u64::MAX)).1)),
        ("2^64 - 1 decoded bytes, twice", of_segments(&|s| (twice(s), s.decoded_bytes.fill(u64::MAX)).1)),
        ("2^32 - 1 row groups, twice", of_segments(&|s| (twice(s), s.row_groups.fill(u32::MAX)).1)),
        ("an object that there is not", of_segments(&|s| s.object[0] = u32::MAX)),
        ("columns of unequal lengths", of_segments(&|s| s.rows.push(1))),
        (
            "parts of 2^32 - 1 segments",
            with(&|m| {
                let part = |uri: &str| v1::Part { uri: uri.into(), segments: u32::MAX, slots: u32::MAX };
                m.parts = vec![part("s3://forebay/a"), part("s3://forebay/b")];
            }),
        ),
    ];
    all.into_iter().map(|(what, message)| (what.to_owned(), message, SENSELESS)).collect()
}

/// The head of a manifest whose first column would have this many segments of a byte each.
fn claim(segments: usize) -> Vec<u8> {
    let mut column = vec![0x0a];
    encode_varint(segments as u64, &mut column);
    // Of the first format.
    let mut message = vec![0x08, 1, 0x32];
    encode_varint((column.len() + segments) as u64, &mut message);
    message.extend(column);
    message
}

/// The same with its bytes: each segment is of the first object, and no more is said of it.
fn numbers(segments: usize) -> Vec<u8> {
    let mut message = claim(segments);
    message.resize(message.len() + segments, 0);
    message
}
