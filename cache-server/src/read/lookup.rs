//! Which segment is looked up, and the batch that is composed of the columns found.

use crate::disk::file::Origin;
use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema, SchemaRef};
use forebay_dataset::{ReadySegment, schema};
use forebay_proto::manifest::Manifest;
use forebay_proto::{Error, Result};
use std::sync::Arc;

/// Which object version a segment of a dataset is of.
pub fn origin(manifest: &Manifest, segment: u32) -> Result<Origin> {
    let object = &manifest.objects()[manifest.segment(segment)?.object as usize];
    let id = manifest.segment_id(segment)?;
    Ok(Origin { id, object: manifest.object_uri(object), etag: object.etag.clone() })
}

/// The wanted columns out of parts that hold them all.
pub fn compose(wanted: &SchemaRef, parts: &[ReadySegment], rows: u64) -> Result<ReadySegment> {
    if let [only] = parts
        && only.batch.schema().fields() == wanted.fields()
    {
        return Ok(only.clone());
    }
    let unfit = |e| Error::corrupt(format!("the stored columns do not fit the dataset's schema: {e}"));
    let column = |wanted: &Field| {
        let found = parts.iter().find_map(|p| p.batch.column_by_name(wanted.name()).cloned());
        let found = found.ok_or_else(|| {
            Error::corrupt(format!("column `{}` vanished while it was read", wanted.name()))
        })?;
        // A segment may have been filled for another dataset that holds its object, whose first object named
        // the parts of lists and maps differently.
        schema::retype(found, wanted.data_type()).map_err(unfit)
    };
    let columns = wanted.fields().iter().map(|f| column(f)).collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows as usize));
    let plain: SchemaRef = Arc::new(Schema::new(wanted.fields().clone()));
    let batch = RecordBatch::try_new_with_options(plain, columns, &options).map_err(unfit)?;
    Ok(ReadySegment::composed(Arc::new(batch), parts))
}
