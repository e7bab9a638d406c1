//! The memory that reading a segment takes is what was said beforehand, or less. A test binary of its own: it
//! looks at the peak of the whole process.

use arrow::array::{
    ArrayRef, FixedSizeListArray, Float32Array, Int64Array, ListArray, RecordBatch, StringArray, UInt8Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, UInt16Type};
use forebay_dataset::{SegmentReader, Selection, SourceSettings, Urgency};
use forebay_proto::Kind;
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::ParquetMetaDataWriter;
use parquet::file::properties::WriterProperties;
use std::fs::File;
use std::iter::repeat_n;
use std::path::Path;
use std::sync::Arc;

/// What the allocator, the runtime and the connections may hold beside.
const SLACK_BYTES: u64 = 24 << 20;

/// Bytes of resident memory: now, and at most since the last call of [`forget_peak`].
fn resident() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    };
    (field("VmRSS:"), field("VmHWM:"))
}

fn forget_peak() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

fn write(path: &Path, column: ArrayRef, dictionary: bool) {
    let batch = RecordBatch::try_from_iter([("c", column)]).unwrap();
    write_batch(path, &batch, batch.num_rows(), dictionary);
}

fn write_batch(path: &Path, batch: &RecordBatch, group_rows: usize, dictionary: bool) {
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(dictionary)
        .set_max_row_group_row_count(Some(group_rows))
        .build();
    let mut writer =
        ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

/// Texts of a writer that keeps no count of their bytes, in a dictionary: the footer does not tell how much
/// they are.
const UNSIZED: &str = "unsized";

/// Writes texts as such a writer does.
fn write_unsized(path: &Path, texts: ArrayRef) {
    let batch = RecordBatch::try_from_iter([("c", texts)]).unwrap();
    let properties = WriterProperties::builder()
        .set_statistics_truncate_length(None)
        .set_max_row_group_row_count(Some(batch.num_rows()))
        .build();
    let mut object = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut object, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    let metadata = writer.close().unwrap();
    let groups = metadata.row_groups().iter().map(|group| {
        let columns = group.columns().iter().map(|chunk| {
            let chunk = chunk.clone().into_builder().set_unencoded_byte_array_data_bytes(None);
            chunk.build().unwrap()
        });
        group.clone().into_builder().set_column_metadata(columns.collect()).build().unwrap()
    });
    let groups = groups.collect();
    let metadata = metadata.into_builder().set_row_groups(groups).set_page_index(None).build();
    // Another footer behind the same pages.
    let end = object.len() - 8;
    let length = u32::from_le_bytes(object[end..end + 4].try_into().unwrap()) as usize;
    object.truncate(end - length);
    ParquetMetaDataWriter::new(&mut object, &metadata).finish().unwrap();
    std::fs::write(path, object).unwrap();
}

fn columns() -> Vec<(&'static str, ArrayRef, bool)> {
    let n = 8 << 20;
    let item = |t| Arc::new(Field::new("item", t, false));
    let bytes = Arc::new(UInt8Array::from_iter_values((0..4 * n).map(|i| (i * 31 % 256) as u8)));
    let ragged = (0..n / 16).map(|i| Some((0..(i % 8) as u16).map(Some).collect::<Vec<_>>()));
    let ragged = ListArray::from_iter_primitive::<UInt16Type, _, _>(ragged);
    let lengths = OffsetBuffer::from_lengths(repeat_n(512, 40_000));
    let ones = Arc::new(Int64Array::from(vec![1; 40_000 * 512]));
    let ones = ListArray::new(Arc::new(Field::new("item", DataType::Int64, true)), lengths, ones, None);
    vec![
        ("floats", Arc::new(Float32Array::from_iter_values((0..n).map(|i| i as f32))), false),
        ("integers", Arc::new(Int64Array::from_iter_values((0..n as i64).map(|i| i * 77))), false),
        ("bytes", Arc::new(UInt8Array::from_iter_values((0..n).map(|i| i as u8))), false),
        ("nulls", Arc::new(Int64Array::from_iter((0..n as i64).map(|i| (i % 3 > 0).then_some(i)))), false),
        ("images", Arc::new(FixedSizeListArray::new(item(DataType::UInt8), 1024, bytes, None)), true),
        ("lists", Arc::new(ragged), false),
        ("text", Arc::new(StringArray::from_iter_values((0..n / 8).map(|i| format!("{i:040}")))), false),
        (
            "words",
            Arc::new(StringArray::from_iter_values((0..n / 8).map(|i| format!("{:040}", i % 9)))),
            true,
        ),
        // A few kilobytes of each are stored.
        ("ones", Arc::new(ones), true),
        (
            UNSIZED,
            Arc::new(StringArray::from_iter_values((0..n / 32).map(|i| format!("{:0500}", i % 100)))),
            true,
        ),
    ]
}

#[tokio::test]
async fn reading_takes_what_was_said_or_less() {
    let dir = tempfile::tempdir().unwrap();
    for (name, column, dictionary) in columns() {
        let path = dir.path().join(format!("{name}.parquet"));
        match name {
            UNSIZED => write_unsized(&path, column),
            _ => write(&path, column, dictionary),
        }
        let uri = format!("file://{}", path.display());
        let source = SegmentReader::new(SourceSettings::default()).unwrap();
        let manifest = source.freeze(&uri, 0).await.unwrap().manifest.clone();
        let demand = Urgency::demand();
        let cost = source.segment_cost(&manifest, 0, &[0], &demand).await.unwrap();
        forget_peak();
        let before = resident().0;
        let batch = source.read_segment(&manifest, 0, &[0], &demand).await.unwrap();
        let (decoded, took) = (batch.get_array_memory_size() as u64, resident().1.saturating_sub(before));
        assert!(took <= cost.total() + SLACK_BYTES, "{name}: took {took}, {cost:?} was said");
        assert!(cost.total() < 16 * decoded + 2 * SLACK_BYTES, "{name}: {cost:?} for {decoded} bytes");
        drop(batch);

        // The footer does not tell it beforehand, decoding does.
        let tight = if name == UNSIZED { 80 << 20 } else { cost.total() - 1 };
        let tight = SourceSettings { segment_memory_bytes: tight, ..Default::default() };
        let e =
            SegmentReader::new(tight).unwrap().read_segment(&manifest, 0, &[0], &demand).await.unwrap_err();
        assert!(e.kind == Kind::Invalid && e.message.contains("smaller row groups"), "{e}");
    }
    filtered(&dir.path().join("filtered.parquet")).await;
}

/// A few texts of each of several row groups.
async fn filtered(path: &Path) {
    let n = 1 << 20;
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values((0..n).map(|i| i % 50)));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..n).map(|i| format!("{i:0100}"))));
    write_batch(
        path,
        &RecordBatch::try_from_iter([("k", keys), ("t", texts)]).unwrap(),
        n as usize / 4,
        false,
    );
    let source = SegmentReader::new(SourceSettings::default()).unwrap();
    let uri = format!("file://{}", path.display());
    let selection = Selection { filter: "k < 5".into(), ..Selection::new(uri, 0) };
    let manifest = source.freeze_again(&selection, None).await.unwrap().manifest.clone();
    assert_eq!(manifest.segments().len(), 1);
    let demand = Urgency::demand();
    let cost = source.segment_cost(&manifest, 0, &[1], &demand).await.unwrap();
    forget_peak();
    let before = resident().0;
    let batch = source.read_segment(&manifest, 0, &[1], &demand).await.unwrap();
    let took = resident().1.saturating_sub(before);
    assert!(took <= cost.total() + SLACK_BYTES, "filtered: took {took}, {cost:?} was said");
    assert!(cost.decoded >= batch.get_array_memory_size() as u64, "{cost:?}");
    let bound = 2 * cost.fetched + SLACK_BYTES;
    assert!(cost.total() < bound, "{cost:?}: a tenth is left");
}
