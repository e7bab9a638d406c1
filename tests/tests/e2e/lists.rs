//! Lists of very many objects: more than fit into one message to a node.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use forebay_tests::harness::process::ServerOptions;
use forebay_tests::harness::s3::S3Server;
use parquet::arrow::ArrowWriter;

use crate::commands::{cached, digest, direct, epoch, json};

/// With keys of 930 bytes: 4.4 MB, where a node takes messages of 4 MiB.
const OBJECTS: i64 = 4_700;

#[test]
fn a_list_that_fits_into_no_message_is_opened_and_loaded() {
    let s3 = S3Server::start();
    let (name, mut list) = ("k".repeat(915), String::new());
    for i in 0..OBJECTS {
        let rows: ArrayRef = Arc::new(Int64Array::from(vec![2 * i, 2 * i + 1]));
        let batch = RecordBatch::try_from_iter([("id", rows)]).expect("a batch");
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).expect("a writer");
        writer.write(&batch).expect("write");
        let key = format!("many/{i:05}{name}/a.parquet");
        s3.put(&key, writer.into_inner().expect("an object"));
        list += &format!("{}\n", s3.uri(&key));
    }
    assert!(list.len() > 4 << 20);
    let file = tempfile::NamedTempFile::new().expect("make a file");
    std::fs::write(file.path(), list).expect("write the list");
    let server = ServerOptions::for_s3(&s3).start();
    let uri = format!("@{}", file.path().display());
    let load = json(cached(&server, &["load", &uri]));
    assert_eq!(load["segments_held"].as_i64(), Some(OBJECTS), "{load}");
    let line = ["epoch", &uri, "--batch", "1000", "--verify"];
    let (shared, alone) = (json(cached(&server, &line)), json(direct(&s3, &line)));
    assert_eq!(epoch(&shared, 0, "samples").as_i64(), Some(2 * OBJECTS));
    assert_eq!(epoch(&shared, 0, "s3_requests").as_i64(), Some(0), "it was loaded");
    assert_eq!(digest(&shared, 0), digest(&alone, 0));
    assert_eq!(epoch(&shared, 0, "content_digest"), epoch(&alone, 0, "content_digest"));
    server.stop();
}
