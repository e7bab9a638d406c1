//! Parquet objects of plain columns, and files put into the object store.

use crate::harness::s3::S3Server;
use anyhow::Context;
use arrow::array::{ArrayRef, RecordBatch};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use std::path::Path;

/// An object of some columns, in row groups of at most `group_rows`.
pub fn parquet(columns: Vec<(String, ArrayRef)>, group_rows: usize) -> anyhow::Result<Vec<u8>> {
    let batch = RecordBatch::try_from_iter(columns)?;
    let settings = WriterProperties::builder().set_max_row_group_row_count(Some(group_rows)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(settings))?;
    writer.write(&batch)?;
    Ok(writer.into_inner()?)
}

/// All files below a folder, whatever their names.
pub fn upload(s3: &S3Server, folder: &Path, prefix: &str) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).context("a name that is not UTF-8")?;
        let key = format!("{prefix}/{name}");
        match path.is_dir() {
            true => upload(s3, &path, &key)?,
            false => s3.put(&key, std::fs::read(&path)?),
        }
    }
    Ok(())
}
