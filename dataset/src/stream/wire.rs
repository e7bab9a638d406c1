//! What travels: the three parts of a Flight message, and their way from and to Arrow.
//!
//! A [`Message`] is one `FlightData` before protobuf framing: an IPC RecordBatch header, our `MessageMeta`,
//! and the body as the Arrow buffers themselves, uncopied. Dictionaries and compression do not occur.

use super::gather::LENT_BYTES;
use crate::off_thread::on_disk;
use crate::ready::{MemoryGuard, ReadySegment};
use crate::shared::MessagePool;
use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::{Schema, SchemaRef};
use arrow_ipc::MessageHeader;
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions, StreamEncoder};
use bytes::{Bytes, BytesMut};
use forebay_proto::hash::Hash64;
use forebay_proto::{Error, Result, v1};
use prost::Message as _;

/// Body parts smaller than this are copied together: a frame of their own would cost more.
const SMALL_PART_BYTES: usize = 8 << 10;

/// Bytes that a message may have: Flight clients refuse longer ones, whose lengths are signed 32-bit numbers
/// to them.
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize - (1 << 20);

/// One message of a batch stream.
#[derive(Debug, Clone)]
pub struct Message {
    /// The IPC RecordBatch message (a flatbuffer): FlightData's `data_header`.
    pub header: Bytes,
    /// FlightData's `app_metadata`, to be encoded when the message is sent; `None` for the schema.
    pub meta: Option<v1::MessageMeta>,
    /// FlightData's `data_body` in parts, to be read one after the other.
    pub body: Vec<Bytes>,
    /// Its large parts lie in the memory that is shared with the reader, and need not travel.
    pub is_shared: bool,
    /// The segment in whose memory or file parts of the body lie.
    pub lender: Option<ReadySegment>,
    /// Its rows, where the plan alone says which they are.
    pub planned: Option<PlannedRows>,
}

/// Rows of a message of whole steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedRows {
    /// How many.
    pub rows: u32,
    /// Those of which they may be.
    pub segments: Vec<u32>,
}

impl Message {
    /// The message that begins every stream.
    pub fn schema(schema: &Schema) -> Self {
        let header = schema_header(schema);
        Self { header, meta: None, body: Vec::new(), is_shared: false, lender: None, planned: None }
    }

    /// Encodes a batch whose buffers come from `pool`; `meta.hash` is filled in here. `Invalid` if the batch
    /// is too large for a message.
    pub fn new(batch: &RecordBatch, meta: v1::MessageMeta, pool: &MessagePool) -> Result<Self> {
        let (header, body) = encode(batch)?;
        Self::of(header, body, meta, pool)
    }

    fn of(header: Bytes, body: Vec<Bytes>, mut meta: v1::MessageMeta, pool: &MessagePool) -> Result<Self> {
        let (body, is_shared) = pool.place(body);
        let (bytes, rows) =
            (body.iter().map(Bytes::len).sum::<usize>(), meta.row_runs()?.map(|r| r.rows).sum::<u32>());
        if bytes > MESSAGE_BYTES_MAX {
            return Err(Error::invalid(format!(
                "{rows} rows have {bytes} bytes, and a message can have {MESSAGE_BYTES_MAX}: leave out the column \
                 with the large values, or store these in several rows"
            )));
        }
        let mut hash = Hash64::default();
        hash.update(&header);
        // What the reader sees in shared memory does not travel.
        let travels = |part: &&Bytes| !is_shared || !pool.is_shared(part);
        body.iter().filter(travels).for_each(|part| hash.update(part));
        meta.hash = hash.digest();
        Ok(Self { header, meta: Some(meta), body, is_shared, lender: None, planned: None })
    }

    /// A message whose body stands for rows that the plan says, in the memory that is shared with the reader.
    /// The padding behind them is left out: nothing of the body travels.
    pub(super) fn of_planned(
        batch: &RecordBatch,
        mut meta: v1::MessageMeta,
        planned: PlannedRows,
        pool: &MessagePool,
    ) -> Result<Self> {
        let (header, mut body) = encode(batch)?;
        body.retain(|part| pool.is_shared(part));
        let mut hash = Hash64::default();
        hash.update(&header);
        meta.hash = hash.digest();
        Ok(Self { header, meta: Some(meta), body, is_shared: true, lender: None, planned: Some(planned) })
    }

    /// How many rows there are of which segments, in any order. Where the plan alone says that, all segments
    /// have their share.
    pub fn segment_rows(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        let told = self.meta.iter().filter_map(|meta| meta.row_runs().ok()).flatten();
        let planned = self.planned.iter().flat_map(|PlannedRows { rows, segments }| {
            let share = f64::from(*rows) / segments.len() as f64;
            segments.iter().map(move |segment| (*segment, share))
        });
        told.map(|run| (run.segment, f64::from(run.rows))).chain(planned)
    }

    /// How many rows there are.
    pub fn rows(&self) -> u64 {
        let told = self.meta.iter().filter_map(|meta| meta.row_runs().ok()).flatten();
        let planned = self.planned.as_ref().map_or(0, |planned| planned.rows.into());
        told.map(|run| u64::from(run.rows)).sum::<u64>() + planned
    }

    /// FlightData's `app_metadata`; empty for the schema.
    pub fn encoded_meta(&self) -> Bytes {
        self.meta.as_ref().map(|meta| meta.encode_to_vec().into()).unwrap_or_default()
    }

    /// Length of the Arrow buffers; header and metadata are not counted.
    pub fn body_bytes(&self) -> usize {
        self.body.iter().map(Bytes::len).sum()
    }

    /// The message, its body holding `guard` until its last byte is dropped.
    pub fn guarded(mut self, guard: MemoryGuard) -> Self {
        struct Guarded {
            bytes: Bytes,
            _guard: MemoryGuard,
        }
        impl AsRef<[u8]> for Guarded {
            fn as_ref(&self) -> &[u8] {
                &self.bytes
            }
        }
        if guard.is_some() {
            for part in &mut self.body {
                let bytes = std::mem::take(part);
                *part = Bytes::from_owner(Guarded { bytes, _guard: guard.clone() });
            }
        }
        self
    }

    /// The message as it is to be sent by an async thread: where parts of the body lie in a file whose pages
    /// have left memory while the message waited, they are read into a copy first.
    pub async fn in_memory(mut self) -> Result<Self> {
        let Some(lender) = self.lender.take() else { return Ok(self) };
        let is_there = self.body.iter().all(|part| part.len() < LENT_BYTES || lender.is_in_memory(part));
        if is_there {
            return Ok(self);
        }
        on_disk(move || {
            self.body.iter_mut().for_each(|part| *part = Bytes::copy_from_slice(part));
            self
        })
        .await
    }

    /// The message's rows as a batch of `schema`; copies the body. `Corrupt` if it does not fit.
    pub fn to_record_batch(&self, schema: &SchemaRef) -> Result<RecordBatch> {
        let mut body = BytesMut::with_capacity(self.body_bytes());
        self.body.iter().for_each(|part| body.extend_from_slice(part));
        decode(&self.header, &Buffer::from(&body[..]), schema)
    }
}

/// A batch's IPC header and body. The body's parts share the batch's buffers.
#[tracing::instrument(level = "trace", skip_all)]
pub fn encode(batch: &RecordBatch) -> Result<(Bytes, Vec<Bytes>)> {
    let fail = |e: arrow::error::ArrowError| Error::invalid(format!("encode a record batch: {e}"));
    let mut encoder = StreamEncoder::try_new(&batch.schema()).map_err(fail)?;
    let mut parts = encoder.encode(batch).map_err(fail)?.into_iter().map(Part::from);
    let mut rest = Vec::new();
    // The first message is the schema, which every stream sends once by itself.
    take_header(&mut parts, &mut rest).ok_or_else(|| Error::invalid("encode a record batch: no schema"))?;
    let mut parts = std::mem::take(&mut rest).into_iter().chain(parts);
    let header = take_header(&mut parts, &mut rest)
        .ok_or_else(|| Error::invalid("encode a record batch: no header"))?;
    let body = rest.into_iter().chain(parts).filter(|p| !p.0.is_empty()).map(|p| p.0).collect();
    Ok((header, join_small(body)))
}

/// The batch of an IPC header and body. Shares `body` where its alignment (64 bytes) allows.
pub fn decode(header: &[u8], body: &Buffer, schema: &SchemaRef) -> Result<RecordBatch> {
    let corrupt = |why: String| Error::corrupt(format!("a record batch message cannot be read: {why}"));
    let message = arrow_ipc::root_as_message(header).map_err(|e| corrupt(e.to_string()))?;
    let batch = match message.header_type() {
        MessageHeader::RecordBatch => message.header_as_record_batch(),
        other => return Err(corrupt(format!("its header is {other:?}"))),
    };
    let batch = batch.ok_or_else(|| corrupt("it has no header".into()))?;
    let none = Default::default();
    arrow_ipc::reader::read_record_batch(body, batch, schema.clone(), &none, None, &message.version())
        .map_err(|e| corrupt(e.to_string()))
}

/// The IPC Schema message (a flatbuffer) that begins every stream: FlightData's `data_header`.
pub fn schema_header(schema: &Schema) -> Bytes {
    let options = IpcWriteOptions::default();
    let mut dictionaries = DictionaryTracker::new(false);
    IpcDataGenerator::default()
        .schema_to_bytes_with_dictionary_tracker(schema, &mut dictionaries, &options)
        .ipc_message
        .into()
}

struct Part(Bytes);

impl From<Buffer> for Part {
    fn from(b: Buffer) -> Self {
        struct Owner(Buffer);
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        Part(Bytes::from_owner(Owner(b)))
    }
}

/// Takes one encapsulated message's metadata (continuation marker, length, flatbuffer, padding) off the
/// parts; what follows it in its last part goes to `rest`.
fn take_header(parts: &mut impl Iterator<Item = Part>, rest: &mut Vec<Part>) -> Option<Bytes> {
    let mut got = BytesMut::new();
    loop {
        if got.len() >= 8 {
            let bytes = u32::from_le_bytes(got[4..8].try_into().ok()?) as usize;
            if got.len() >= 8 + bytes {
                let after = got.split_off(8 + bytes).freeze();
                if !after.is_empty() {
                    rest.push(Part(after));
                }
                return Some(got.split_off(8).freeze());
            }
        }
        got.extend_from_slice(&parts.next()?.0);
    }
}

fn join_small(parts: Vec<Bytes>) -> Vec<Bytes> {
    let mut out: Vec<Bytes> = Vec::with_capacity(parts.len());
    let mut small = BytesMut::new();
    for part in parts {
        match part.len() < SMALL_PART_BYTES {
            true => small.extend_from_slice(&part),
            false => {
                if !small.is_empty() {
                    out.push(small.split().freeze());
                }
                out.push(part);
            }
        }
    }
    if !small.is_empty() {
        out.push(small.freeze());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;
    use arrow::array::{ArrayRef, FixedSizeListArray, Int64Array, StringArray, UInt8Array};
    use arrow::datatypes::{DataType, Field};
    use std::sync::Arc;

    #[test]
    fn batches_survive_and_are_not_copied() {
        let item = Arc::new(Field::new("item", DataType::UInt8, true));
        let values = UInt8Array::from_iter_values((0..100_000u32).map(|i| i as u8));
        let address = values.values().as_ptr();
        let batch = RecordBatch::try_from_iter([
            ("image", Arc::new(FixedSizeListArray::new(item, 100, Arc::new(values), None)) as ArrayRef),
            ("label", Arc::new(Int64Array::from_iter_values(0..1000))),
            ("name", Arc::new(StringArray::from_iter((0..1000).map(|i| (i % 3 > 0).then(|| i.to_string()))))),
        ])
        .unwrap();
        let (header, body) = encode(&batch).unwrap();
        assert!(body.iter().any(|p| p.as_ptr() == address), "the large buffer is shared");
        let m = Message { header, body, ..Message::schema(&batch.schema()) };
        assert_eq!(m.to_record_batch(&batch.schema()).unwrap(), batch);
        let empty = batch.slice(5, 0);
        let (header, body) = encode(&empty).unwrap();
        assert_eq!(
            Message { header, body, ..Message::schema(&batch.schema()) }
                .to_record_batch(&batch.schema())
                .unwrap(),
            empty
        );
    }

    #[test]
    fn a_message_that_is_too_large_says_so() {
        // The same megabyte 2,048 times: nothing of that size is in memory.
        let body = vec![Bytes::from(vec![0; 1 << 20]); 2048];
        let meta = v1::MessageMeta { runs: vec![0, 7, 1], ..Default::default() };
        let e = Message::of(Bytes::new(), body, meta, &Pool::new(0).into()).unwrap_err();
        assert_eq!(e.kind, forebay_proto::Kind::Invalid);
        assert!(e.message.contains("1 rows have 2147483648 bytes"), "{e}");
    }

    #[test]
    fn garbage_is_an_error() {
        let schema = Arc::new(Schema::empty());
        assert!(decode(b"", &Buffer::from(&[0u8; 0][..]), &schema).is_err());
        assert!(decode(&[7; 64], &Buffer::from(&[0u8; 64][..]), &schema).is_err());
    }
}
