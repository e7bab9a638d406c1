//! Datasets of every shape, frozen and read from `file://`.

use crate::given::{self, Dir, all_types, ints, write, write_empty_groups};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StructArray, TimestampMillisecondArray};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Field, Fields, Int64Type, Schema, TimeUnit};
use forebay_dataset::{SegmentReader, SourceSettings, Urgency, schema};
use forebay_proto::{Kind, Manifest, v1};
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::arrow::{ARROW_SCHEMA_META_KEY, ArrowWriter, encode_arrow_schema};
use parquet::basic::Compression;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

fn source() -> SegmentReader {
    SegmentReader::new(SourceSettings::default()).unwrap()
}

async fn read_all(source: &SegmentReader, manifest: &Manifest, projection: &[usize]) -> Vec<RecordBatch> {
    let mut batches = Vec::new();
    for i in 0..manifest.segments().len() as u32 {
        let batch = source.read_segment(manifest, i, projection, &Urgency::demand()).await.unwrap();
        assert_eq!(batch.num_rows() as u64, manifest.segment(i).unwrap().rows);
        batches.push(batch);
    }
    batches
}

async fn freeze_error(dir: &Dir) -> (Kind, String) {
    let e = source().freeze(&dir.uri(), 0).await.unwrap_err();
    assert!(!e.message.contains('\n'));
    (e.kind, e.message)
}

#[tokio::test]
async fn every_type_survives() {
    let batch = all_types(300);
    let b = WriterProperties::builder;
    let variants = [
        b().set_compression(Compression::ZSTD(Default::default())),
        b().set_compression(Compression::SNAPPY).set_writer_version(WriterVersion::PARQUET_2_0),
        b().set_compression(Compression::LZ4_RAW).set_statistics_enabled(EnabledStatistics::None),
        b().set_compression(Compression::BROTLI(Default::default())).set_offset_index_disabled(true),
        b().set_compression(Compression::GZIP(Default::default())).set_data_page_size_limit(64),
        b().set_dictionary_enabled(false),
    ];
    for (i, properties) in variants.into_iter().enumerate() {
        for group_rows in [1, 7, 1000] {
            let dir = Dir::new();
            write(&dir.path("a.parquet"), &batch, group_rows, properties.clone());
            let source = source();
            let frozen = source.freeze(&dir.uri(), 4096).await.unwrap();
            let all = schema::projection(&frozen.schema, &[]).unwrap();
            let read = read_all(&source, &frozen.manifest, &all).await;
            let read = concat_batches(&frozen.schema, &read).unwrap();
            for (want, got) in batch.columns().iter().zip(read.columns()) {
                let want = match (want.data_type(), got.data_type()) {
                    (a, b) if a == b => want.clone(),
                    (_, b) => cast(want, b).unwrap(),
                };
                assert_eq!(want.as_ref(), got.as_ref(), "variant {i}, {group_rows} rows a group");
            }
            let plain =
                |t: &DataType| !format!("{t:?}").contains("Dictionary") && !format!("{t:?}").contains("View");
            assert!(frozen.schema.fields().iter().all(|f| plain(f.data_type())));
            assert!(frozen.schema.metadata().is_empty());
        }
    }
}

#[tokio::test]
async fn a_dataset_is_its_parquet_objects_in_order_of_keys() {
    let dir = Dir::new();
    for (name, first) in [("b.parquet", 10), ("a/z.parquet", 5), ("a.parquet", 0), ("c/x=1/y.parquet", 15)] {
        write(&dir.path(name), &ints(first..first + 5), 2, WriterProperties::builder());
    }
    for other in ["_SUCCESS", "x.csv", ".hidden.parquet", "_tmp/q.parquet", "c/_part.parquet"] {
        std::fs::create_dir_all(dir.path(other).parent().unwrap()).unwrap();
        std::fs::write(dir.path(other), b"not Parquet").unwrap();
    }
    let source = source();
    let frozen = source.freeze(&format!("{}/", dir.uri()), 1).await.unwrap();
    let m = &frozen.manifest;
    let keys: Vec<_> = m.objects().iter().map(|o| o.key.as_str()).collect();
    assert_eq!(keys, ["a.parquet", "a/z.parquet", "b.parquet", "c/x=1/y.parquet"]);
    assert_eq!((m.rows(), m.segments().len(), frozen.row_groups), (20, 12, 12));
    let read = read_all(&source, m, &[0]).await;
    let read = concat_batches(&read[0].schema(), &read).unwrap();
    assert_eq!(read.column(0).as_primitive::<Int64Type>().values().as_ref(), (0..20).collect::<Vec<i64>>());

    // The URI of one object is that object; a sibling that shares letters is no part of a prefix.
    let one = source.freeze(&format!("{}/b.parquet", dir.uri()), 0).await.unwrap();
    assert_eq!((one.manifest.rows(), one.manifest.objects()[0].key.as_str()), (5, ""));
    let read = read_all(&source, &one.manifest, &[0]).await;
    assert_eq!(read[0].column(0).as_primitive::<Int64Type>().value(0), 10);
    let sub = source.freeze(&format!("{}/a", dir.uri()), 0).await.unwrap();
    assert_eq!(sub.manifest.objects().len(), 1);
    // Frozen twice, the same.
    assert_eq!(source.freeze(&dir.uri(), 1).await.unwrap().manifest, frozen.manifest);
}

#[tokio::test]
async fn a_manifest_is_all_a_reader_needs_and_footers_are_kept() {
    let dir = Dir::new();
    write(&dir.path("a.parquet"), &ints(0..1000), 100, WriterProperties::builder());
    let maker = source();
    let frozen = maker.freeze(&dir.uri(), 1).await.unwrap();
    let wire = v1::Manifest::from(&frozen.manifest);
    let manifest = Manifest::try_from(wire).unwrap();

    let reader = source();
    read_all(&reader, &manifest, &[0]).await;
    let c = reader.counters();
    assert_eq!((c.footer_requests.load(Relaxed), c.s3_requests.load(Relaxed)), (1, 10));
    assert_eq!(c.s3_bytes.load(Relaxed), frozen.projected_bytes(&[0]));
    assert_eq!(c.parquet_bytes_decoded.load(Relaxed), frozen.projected_bytes(&[0]));
    assert!(c.arrow_bytes_decoded.load(Relaxed) >= 8000);

    let none = SegmentReader::new(SourceSettings { footer_cache_bytes: 0, ..Default::default() }).unwrap();
    read_all(&none, &manifest, &[0]).await;
    assert_eq!(none.counters().footer_requests.load(Relaxed), 10);
}

#[tokio::test]
async fn a_footer_larger_than_all_that_are_kept_is_refused() {
    use std::io::{Seek, SeekFrom, Write};
    let dir = Dir::new();
    let path = dir.path("a.parquet");
    // Nothing but what its last bytes say: that all before them is its footer.
    let mut file = std::fs::File::create(&path).unwrap();
    let footer = 20u32 << 20;
    file.seek(SeekFrom::Start(u64::from(footer) + 4)).unwrap();
    file.write_all(&footer.to_le_bytes()).unwrap();
    file.write_all(b"PAR1").unwrap();
    let reason = async |footer_cache_bytes| {
        let settings = SourceSettings { footer_cache_bytes, ..Default::default() };
        SegmentReader::new(settings).unwrap().freeze(&dir.uri(), 0).await.unwrap_err()
    };
    let e = reason(1 << 20).await;
    assert!(e.kind == Kind::Invalid && e.message.contains("footer_cache_bytes"), "{e}");
    assert_eq!(reason(32 << 20).await.kind, Kind::Corrupt, "it is read");
}

#[tokio::test]
async fn only_projected_columns_are_read() {
    let dir = Dir::new();
    let batch = all_types(500);
    let plain = WriterProperties::builder().set_dictionary_enabled(false);
    write(&dir.path("a.parquet"), &batch, 500, plain);
    let source = source();
    let frozen = source.freeze(&dir.uri(), 0).await.unwrap();
    let names = |n: &[&str]| n.iter().map(|n| n.to_string()).collect::<Vec<_>>();
    let projection = schema::projection(&frozen.schema, &names(&["utf8", "bool"])).unwrap();
    let batch = source.read_segment(&frozen.manifest, 0, &projection, &Urgency::demand()).await.unwrap();
    let schema = batch.schema();
    assert_eq!(schema.fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>(), ["bool", "utf8"]);
    let read = source.counters().s3_bytes.load(Relaxed);
    let projected = frozen.projected_bytes(&projection);
    assert!(read >= projected && read <= projected + 4096, "{read} of {projected}");
    assert!(read < frozen.projected_bytes(&schema::projection(&frozen.schema, &[]).unwrap()) / 2);

    let e = schema::projection(&frozen.schema, &names(&["nope"])).unwrap_err();
    assert!(e.kind == Kind::Invalid && e.message.contains("nope") && e.message.contains("utf8"), "{e}");
    assert_eq!(
        schema::projection(&frozen.schema, &names(&["bool", "bool"])).unwrap_err().kind,
        Kind::Invalid
    );
    assert_eq!(
        source.read_segment(&frozen.manifest, 0, &[999], &Urgency::demand()).await.unwrap_err().kind,
        Kind::Invalid
    );
    assert_eq!(
        source.read_segment(&frozen.manifest, 1, &[0], &Urgency::demand()).await.unwrap_err().kind,
        Kind::Invalid
    );
}

#[tokio::test]
async fn nothing_there() {
    let dir = Dir::new();
    let (kind, message) = freeze_error(&dir).await;
    assert!(kind == Kind::NotFound && message.contains("no Parquet objects under"), "{message}");
    let e = source().freeze(&format!("{}/nope", dir.uri()), 0).await.unwrap_err();
    assert!(e.kind == Kind::NotFound && e.message.contains("no such file"), "{e}");
    for uri in ["nope", "ftp://x/y", "s3:///x", "file://x"] {
        assert_eq!(source().freeze(uri, 0).await.unwrap_err().kind, Kind::Invalid, "{uri}");
    }
}

#[tokio::test]
async fn zero_rows_are_no_error() {
    let dir = Dir::new();
    write_empty_groups(&dir.path("a.parquet"), &[]);
    write_empty_groups(&dir.path("b.parquet"), &[0, 0]);
    let frozen = source().freeze(&dir.uri(), 0).await.unwrap();
    assert_eq!((frozen.manifest.rows(), frozen.manifest.segments().len()), (0, 0));
    assert_eq!(frozen.manifest.objects().len(), 2);
}

#[tokio::test]
async fn each_read_counts_its_own_bytes() {
    let dir = Dir::new();
    write(&dir.path("a.parquet"), &ints(0..100), 10, WriterProperties::builder());
    let source = source();
    let frozen = source.freeze(&dir.uri(), 1).await.unwrap();
    let (one, two) = (Urgency::demand(), Urgency::demand());
    let read = async |segments: std::ops::Range<u32>, urgency: &Urgency| {
        for segment in segments {
            source.read_segment(&frozen.manifest, segment, &[0], urgency).await.unwrap();
        }
    };
    tokio::join!(read(0..1, &one), read(1..4, &two));
    let (one, two) = (one.fetched_bytes(), two.fetched_bytes());
    assert!(one > 0 && two > one, "{one} {two}");
    assert_eq!(one + two, source.counters().s3_bytes.load(Relaxed));
}

#[tokio::test]
async fn an_overwritten_object_is_changed() {
    let dir = Dir::new();
    write(&dir.path("a.parquet"), &ints(0..100), 10, WriterProperties::builder());
    let source = source();
    let frozen = source.freeze(&dir.uri(), 1).await.unwrap();
    source.read_segment(&frozen.manifest, 0, &[0], &Urgency::demand()).await.unwrap();
    write(&dir.path("a.parquet"), &ints(100..200), 10, WriterProperties::builder());
    let e = source.read_segment(&frozen.manifest, 1, &[0], &Urgency::demand()).await.unwrap_err();
    assert!(e.kind == Kind::Changed && e.message.contains("a.parquet: was overwritten"), "{e}");
    std::fs::remove_file(dir.path("a.parquet")).unwrap();
    let e = source.read_segment(&frozen.manifest, 1, &[0], &Urgency::demand()).await.unwrap_err();
    assert!(e.kind == Kind::NotFound && e.message.contains("deleted"), "{e}");
    // Opened again, it is another version.
    write(&dir.path("a.parquet"), &ints(100..200), 10, WriterProperties::builder());
    let again = source.freeze(&dir.uri(), 1).await.unwrap();
    assert_ne!(again.manifest.digest(), frozen.manifest.digest());
}

#[tokio::test]
async fn nullability_is_no_difference() {
    let dir = Dir::new();
    write(&dir.path("a.parquet"), &ints(0..5), 5, WriterProperties::builder());
    let field = ints(0..1).schema().field(0).clone();
    let nullable = Arc::new(Schema::new(vec![field.with_nullable(true).with_metadata([("k", "v")])]));
    let batch = RecordBatch::try_new(nullable, ints(5..9).columns().to_vec()).unwrap();
    write(&dir.path("b.parquet"), &batch, 5, WriterProperties::builder());
    let source = source();
    let frozen = source.freeze(&dir.uri(), 0).await.unwrap();
    assert!(frozen.schema.field(0).is_nullable());
    let read = concat_batches(&frozen.schema, &read_all(&source, &frozen.manifest, &[0]).await).unwrap();
    assert_eq!(read.num_rows(), 9);
    assert_eq!(frozen.manifest.shape(), None, "one schema");
}

/// Parquet has no timestamps in seconds: writers store milliseconds and note in the Arrow schema what they
/// were.
#[tokio::test]
async fn zones_survive_a_change_of_unit() {
    let milliseconds = |zone: &str| TimestampMillisecondArray::from(vec![1000, 2000]).with_timezone(zone);
    let stored: ArrayRef = Arc::new(milliseconds("UTC"));
    let noted = DataType::Timestamp(TimeUnit::Second, Some("Europe/Berlin".into()));
    let inner = Fields::from(vec![Field::new("in", stored.data_type().clone(), true)]);
    let nested: ArrayRef = Arc::new(StructArray::new(inner, vec![stored.clone()], None));
    let noted_inner = DataType::Struct(vec![Field::new("in", noted.clone(), true)].into());
    let written = Schema::new(vec![Field::new("at", noted, true), Field::new("nested", noted_inner, true)]);
    let pair = KeyValue::new(ARROW_SCHEMA_META_KEY.to_owned(), encode_arrow_schema(&written));
    let batch =
        RecordBatch::try_from_iter_with_nullable([("at", stored, true), ("nested", nested, true)]).unwrap();
    let dir = Dir::new();
    let properties = WriterProperties::builder().set_key_value_metadata(Some(vec![pair])).build();
    let options = ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
    let file = std::fs::File::create(dir.path("a.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new_with_options(file, batch.schema(), options).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();

    let source = source();
    let frozen = source.freeze(&dir.uri(), 0).await.unwrap();
    let read = read_all(&source, &frozen.manifest, &[0, 1]).await;
    let want: ArrayRef = Arc::new(milliseconds("Europe/Berlin"));
    assert_eq!(read[0].column(0), &want);
    assert_eq!(read[0].column(1).as_struct().column(0), &want);
}

#[tokio::test]
async fn datasets_of_files_can_be_mixed() {
    let dirs = [Dir::new(), Dir::new()];
    let source = source();
    let mut parts = Vec::new();
    for (dir, rows) in dirs.iter().zip([0..5, 5..9]) {
        write(&dir.path("a.parquet"), &ints(rows), 5, WriterProperties::builder());
        parts.push((source.freeze(&dir.uri(), 0).await.unwrap().manifest.clone(), 1.0));
    }
    let mix = Manifest::mix(&parts).unwrap();
    let read = read_all(&source, &mix, &[0]).await;
    assert_eq!(read.iter().map(RecordBatch::num_rows).sum::<usize>(), 9);
}

#[tokio::test]
async fn segments_of_any_size_but_not_of_every_size() {
    let dir = Dir::new();
    write(&dir.path("a.parquet"), &ints(0..5), 5, WriterProperties::builder());
    let source = source();
    let most = forebay_proto::manifest::SEGMENT_BYTES_MAX;
    assert!(source.freeze(&dir.uri(), most).await.is_ok());
    let e = source.freeze(&dir.uri(), most + 1).await.unwrap_err();
    assert!(e.kind == Kind::Invalid && e.message.contains("too large"), "{e}");
}

#[tokio::test]
async fn a_link_does_not_lead_out() {
    let (dir, other) = (Dir::new(), Dir::new());
    write(&dir.path("a.parquet"), &ints(0..5), 5, WriterProperties::builder());
    write(&other.path("b.parquet"), &ints(0..5), 5, WriterProperties::builder());
    std::os::unix::fs::symlink(other.path("b.parquet"), dir.path("b.parquet")).unwrap();
    let (kind, message) = freeze_error(&dir).await;
    assert!(kind == Kind::Denied && message.contains("b.parquet"), "{message}");
}

#[tokio::test]
async fn what_is_not_parquet_is_corrupt() {
    let whole = {
        let dir = Dir::new();
        write(&dir.path("a.parquet"), &all_types(200), 50, WriterProperties::builder());
        std::fs::read(dir.path("a.parquet")).unwrap()
    };
    let n = whole.len();
    let mut long_footer = whole.clone();
    long_footer[n - 8..n - 4].copy_from_slice(&u32::MAX.to_le_bytes());
    let cases: Vec<Vec<u8>> = vec![
        b"PAR1".to_vec(),
        b"hello, this is no Parquet".to_vec(),
        vec![0; 100_000],
        b"PAR1\0\0\0\0PAR1".to_vec(),
        whole[..n / 2].to_vec(),
        whole[..n - 1].to_vec(),
        whole[n / 2..].to_vec(),
        long_footer,
    ];
    for (i, bytes) in cases.into_iter().enumerate() {
        let dir = Dir::new();
        std::fs::write(dir.path("a.parquet"), bytes).unwrap();
        let (kind, message) = freeze_error(&dir).await;
        assert!(kind == Kind::Corrupt && message.contains("a.parquet"), "case {i}: {kind:?} {message}");
    }
}

#[tokio::test]
async fn long_footers_are_read_exactly() {
    let dir = Dir::new();
    write(&dir.path("a.parquet"), &all_types(600), 1, WriterProperties::builder());
    let source = source();
    let frozen = source.freeze(&dir.uri(), 0).await.unwrap();
    let c = source.counters();
    let file = std::fs::read(dir.path("a.parquet")).unwrap();
    let footer = u32::from_le_bytes(file[file.len() - 8..file.len() - 4].try_into().unwrap()) as u64 + 8;
    assert!(footer > 64 << 10);
    assert_eq!((c.footer_requests.load(Relaxed), c.footer_bytes.load(Relaxed)), (3, footer));
    assert_eq!(frozen.row_groups, 600);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn segments_cover_all_rows_once(
        objects in prop::collection::vec(prop::collection::vec(0u64..40, 0..12), 1..5),
        segment_bytes in 1u64..600,
    ) {
        let dir = Dir::new();
        let mut next = 0;
        for (i, groups) in objects.iter().enumerate() {
            next = given::write_groups(&dir.path(&format!("{i}.parquet")), groups, next);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let source = source();
            let m = source.freeze(&dir.uri(), segment_bytes).await.unwrap().manifest.clone();
            prop_assert_eq!(m.rows(), next as u64);
            let mut values = Vec::new();
            for batch in read_all(&source, &m, &[0]).await {
                values.extend_from_slice(batch.column(0).as_primitive::<Int64Type>().values());
            }
            prop_assert_eq!(values, (0..next).collect::<Vec<_>>());
            for s in m.segments() {
                prop_assert!(s.row_groups == 1 || s.decoded_bytes <= segment_bytes || s.decoded_bytes == s.rows * 8);
            }
            Ok(())
        })?;
    }

    #[test]
    fn flipped_bytes_never_panic(flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..4), zstd: bool) {
        let dir = Dir::new();
        let properties = WriterProperties::builder();
        let properties = if zstd { properties.set_compression(Compression::ZSTD(Default::default())) } else { properties };
        write(&dir.path("a.parquet"), &all_types(120), 40, properties);
        let mut bytes = std::fs::read(dir.path("a.parquet")).unwrap();
        for (at, with) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= with;
        }
        std::fs::write(dir.path("a.parquet"), bytes).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let source = source();
            let fits = |kind| matches!(kind, Kind::Corrupt | Kind::Invalid);
            match source.freeze(&dir.uri(), 1).await {
                Err(e) => prop_assert!(fits(e.kind), "{}", e),
                Ok(frozen) => {
                    let all = schema::projection(&frozen.schema, &[]).unwrap();
                    for i in 0..frozen.manifest.segments().len() as u32 {
                        if let Err(e) = source.read_segment(&frozen.manifest, i, &all, &Urgency::demand()).await {
                            prop_assert!(fits(e.kind) && e.message.contains("a.parquet"), "{}", e);
                        }
                    }
                }
            }
            Ok(())
        })?;
    }
}
