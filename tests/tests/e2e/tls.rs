//! TLS on every hop, and what does not get through it.
//!
//! * [`hops`]: a cluster of which nothing can be overheard.
//! * [`refusals`]: nodes whose certificates are not good, and files that make no sense.
//! * [`rotation`]: certificates and authorities that change while a job reads.

mod hops;
mod refusals;
mod rotation;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use forebay_tests::harness::s3::S3Server;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use std::sync::Arc;

/// What all rows of [`upload`] have in them.
const KNOWN: &str = "a-known-value-of-row-";

/// Puts a table into the store whose values can be searched for, in objects of several row groups.
fn upload(s3: &S3Server) -> String {
    let properties = WriterProperties::builder()
        .set_compression(Compression::UNCOMPRESSED)
        .set_dictionary_enabled(false)
        .set_max_row_group_row_count(Some(500))
        .build();
    for object in 0..4_i64 {
        let rows = (0..4000).map(|row| object * 4000 + row);
        let text: StringArray = rows.clone().map(|row| Some(format!("{KNOWN}{row}"))).collect();
        let columns: [(&str, ArrayRef); 2] =
            [("id", Arc::new(Int64Array::from_iter_values(rows))), ("text", Arc::new(text))];
        let batch = RecordBatch::try_from_iter(columns).expect("a batch");
        let mut bytes = Vec::new();
        let mut writer =
            ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties.clone())).expect("a writer");
        writer.write(&batch).expect("write");
        writer.close().expect("close");
        s3.put(&format!("hidden/{object}.parquet"), bytes);
    }
    s3.uri("hidden/")
}
