//! Which segment is looked up, and the batch that is composed of the columns found.

use crate::disk::file::Origin;
use arrow::datatypes::SchemaRef;
use forebay_dataset::{ReadySegment, SegmentBatch};
use forebay_proto::Result;
use forebay_proto::manifest::Manifest;
use std::sync::Arc;

/// Which object version a segment of a dataset is of.
pub fn origin(manifest: &Manifest, segment: u32) -> Result<Origin> {
    let object = &manifest.objects()[manifest.segment(segment)?.object as usize];
    let id = manifest.segment_id(segment)?;
    Ok(Origin { id, object: manifest.object_uri(object).into(), etag: object.etag.as_str().into() })
}

/// The wanted columns out of parts that hold them all.
pub fn compose(wanted: &SchemaRef, parts: &[ReadySegment], rows: u64) -> Result<ReadySegment> {
    if let [only] = parts
        && only.batch.schema().fields() == wanted.fields()
    {
        return Ok(only.clone());
    }
    let batches: Vec<&SegmentBatch> = parts.iter().map(|part| &*part.batch).collect();
    let batch = SegmentBatch::compose(wanted, &batches, rows as usize)?;
    Ok(ReadySegment::composed(Arc::new(batch), parts))
}
