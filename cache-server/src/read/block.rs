//! A raw block as a segment: one column of bytes.

use crate::disk::file::{Origin, RAW_COLUMN};
use arrow::array::{ArrayRef, AsArray, RecordBatch, UInt8Array};
use arrow::buffer::{Buffer, MutableBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Schema, UInt8Type};
use bytes::Bytes;
use forebay_dataset::SegmentBatch;
use forebay_proto::manifest::SegmentId;
use forebay_proto::object::ObjectVersion;
use forebay_proto::{Error, Result};
use std::ops::Range;
use std::sync::{Arc, LazyLock};

/// A block of one version of an object.
#[derive(Debug, Clone)]
pub struct Block {
    pub object: Arc<ObjectVersion>,
    pub index: u64,
}

impl Block {
    /// What names it on every node.
    pub fn id(&self) -> SegmentId {
        self.object.block_id(self.index)
    }

    /// The object's bytes that it has.
    pub fn range(&self) -> Range<u64> {
        self.object.block(self.index)
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        let range = self.range();
        range.end - range.start
    }

    /// What its file says of itself.
    pub fn origin(&self) -> Origin {
        Origin { id: self.id(), object: self.object.uri.clone(), etag: self.object.etag.clone() }
    }
}

/// The columns of every block.
pub static COLUMNS: LazyLock<[String; 1]> = LazyLock::new(|| [RAW_COLUMN.to_owned()]);

/// The same, for those who keep them.
pub fn columns() -> Vec<String> {
    COLUMNS.to_vec()
}

/// The pieces of a block as a segment. Copies them: not for an async thread.
pub fn batch_of(pieces: &[Bytes]) -> Result<SegmentBatch> {
    let mut bytes = MutableBuffer::with_capacity(pieces.iter().map(Bytes::len).sum());
    pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
    let column: ArrayRef = Arc::new(UInt8Array::new(ScalarBuffer::from(Buffer::from(bytes)), None));
    let schema = Arc::new(Schema::new(vec![Field::new(RAW_COLUMN, DataType::UInt8, false)]));
    let batch = RecordBatch::try_new(schema, vec![column]);
    Ok(batch.map_err(|e| Error::corrupt(format!("a block of bytes: {e}")))?.into())
}

/// Bytes of a block that lies as a segment in memory or in a file; shared, not copied.
pub fn bytes_of(segment: &SegmentBatch, bytes: Range<u64>) -> Result<Buffer> {
    let wrong = || Error::corrupt("a raw block has other columns or bytes than it should");
    let column = segment.array_named(RAW_COLUMN).and_then(|column| column.as_primitive_opt::<UInt8Type>());
    let values = column.ok_or_else(wrong)?.values().inner();
    match bytes.end <= values.len() as u64 && bytes.start <= bytes.end {
        true => Ok(values.slice_with_length(bytes.start as usize, (bytes.end - bytes.start) as usize)),
        false => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::file::{Encoded, from_bytes, is_raw};
    use forebay_proto::object::BLOCK_BYTES;

    #[test]
    fn a_block_survives_its_file() {
        let object = ObjectVersion {
            uri: "s3://b/k".into(),
            etag: "e".into(),
            size: 9,
            modified_ms: 0,
            block_bytes: BLOCK_BYTES,
            headers: "".into(),
        };
        let block = Block { object: Arc::new(object), index: 0 };
        let batch = batch_of(&[Bytes::from_static(b"0123"), Bytes::from_static(b"45678")]).unwrap();
        let file = Encoded::new(&block.origin(), &batch).unwrap();
        let overhead = file.bytes() - block.bytes();
        assert!(overhead < 1024, "{overhead} bytes of header");
        let file = Buffer::from(file.0.into_iter().collect::<Vec<_>>().concat());
        let (header, read) = from_bytes(&file).unwrap();
        assert!(is_raw(&header.columns) && header.origin().unwrap() == block.origin());
        assert_eq!(bytes_of(&read, 3..7).unwrap().as_slice(), b"3456");
        assert_eq!(bytes_of(&read, 0..9).unwrap().as_slice(), b"012345678");
        assert!(bytes_of(&read, 0..10).is_err());
    }
}
