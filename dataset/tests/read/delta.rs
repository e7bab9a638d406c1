//! Delta tables, as far as they can be made here: the scripts of the end-to-end tests make others.

use crate::given::{Dir, ints, write};
use arrow::array::{ArrayRef, RecordBatch, TimestampMicrosecondArray};
use crc_fast::CrcAlgorithm;
use forebay_dataset::{SegmentReader, SourceSettings};
use parquet::file::properties::WriterProperties;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

fn source() -> SegmentReader {
    SegmentReader::new(SourceSettings::default()).unwrap()
}

/// Writes the first version of the table in `t`: its columns, and the objects that it has.
fn commit(dir: &Dir, fields: &[(&str, &str)], objects: &[Value]) {
    let field =
        |(name, kind): &(&str, &str)| json!({"name": name, "type": kind, "nullable": true, "metadata": {}});
    let schema = json!({"type": "struct", "fields": fields.iter().map(field).collect::<Vec<_>>()});
    let features = json!(["deletionVectors"]);
    let protocol = json!({"protocol": {
        "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features,
    }});
    let metadata = json!({"metaData": {
        "id": "t", "format": {"provider": "parquet", "options": {}}, "schemaString": schema.to_string(),
        "partitionColumns": [], "configuration": {}, "createdTime": 0,
    }});
    let actions = [&[protocol, metadata][..], objects].concat();
    let log = dir.path("t/_delta_log");
    std::fs::create_dir_all(&log).unwrap();
    let lines: Vec<String> = actions.iter().map(Value::to_string).collect();
    std::fs::write(log.join("00000000000000000000.json"), lines.join("\n")).unwrap();
}

/// The action that adds an object, without some of its rows.
fn add(dir: &Dir, key: &str, vector: Option<Value>) -> Value {
    let size = std::fs::metadata(dir.path(&format!("t/{key}"))).unwrap().len();
    let mut object = json!({
        "path": key, "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": true,
        "stats": "{}",
    });
    if let Some(vector) = vector {
        object["deletionVector"] = vector;
    }
    json!({"add": object})
}

/// Puts a vector of one row at the end of a file of vectors; what an object's action says of it.
fn vector(dir: &Dir, file: &mut Vec<u8>, row: u16) -> Value {
    let mut data = 1_681_511_377u32.to_le_bytes().to_vec();
    // One bitmap, the high bits of whose rows are 0; one container in it, of one row.
    data.extend(1u64.to_le_bytes());
    data.extend(0u32.to_le_bytes());
    data.extend([12_346u32, 1].map(u32::to_le_bytes).concat());
    data.extend([0u16, 0].map(u16::to_le_bytes).concat());
    data.extend(16u32.to_le_bytes());
    data.extend(row.to_le_bytes());
    let offset = file.len();
    file.extend((data.len() as u32).to_be_bytes());
    file.extend(&data);
    file.extend((crc_fast::checksum(CrcAlgorithm::Crc32IsoHdlc, &data) as u32).to_be_bytes());
    json!({
        "storageType": "p", "pathOrInlineDv": format!("{}/t/vectors.bin", dir.uri()), "offset": offset,
        "sizeInBytes": data.len(), "cardinality": 1,
    })
}

#[tokio::test]
async fn a_file_of_deletion_vectors_is_fetched_once_for_all_objects() {
    let dir = Dir::new();
    let (objects, mut vectors) = (50, vec![1]);
    let mut actions = Vec::new();
    for i in 0..objects {
        let key = format!("{i:02}.parquet");
        write(&dir.path(&format!("t/{key}")), &ints(0..10), 10, WriterProperties::builder());
        let vector = vector(&dir, &mut vectors, i % 10);
        actions.push(add(&dir, &key, Some(vector)));
    }
    std::fs::write(dir.path("t/vectors.bin"), vectors).unwrap();
    commit(&dir, &[("i", "long")], &actions);
    let reader = source();
    let frozen = reader.freeze(&format!("delta+{}/t", dir.uri()), 0).await.unwrap();
    assert_eq!(frozen.manifest.rows(), 9 * u64::from(objects));
    // A footer of each object, the log and two listings; one head and one read of the vectors.
    let requests = reader.counters().footer_requests.load(Relaxed);
    assert!(requests < u64::from(objects) + 15, "{requests} requests");
}

#[tokio::test]
async fn a_column_that_a_table_reads_in_another_zone_makes_other_segments() {
    let dir = Dir::new();
    // Parquet says of such moments that they are in no time zone, the log that they are in UTC.
    let at: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![1, 2, 3]));
    let batch = RecordBatch::try_from_iter([("at", at)]).unwrap();
    write(&dir.path("t/a.parquet"), &batch, 10, WriterProperties::builder());
    commit(&dir, &[("at", "timestamp")], &[add(&dir, "a.parquet", None)]);
    let (reader, uri) = (source(), format!("{}/t", dir.uri()));
    let plain = reader.freeze(&uri, 0).await.unwrap();
    let table = reader.freeze(&format!("delta+{uri}"), 0).await.unwrap();
    assert_ne!(plain.schema, table.schema);
    assert_ne!(plain.manifest.segment_id(0).unwrap(), table.manifest.segment_id(0).unwrap());
}
