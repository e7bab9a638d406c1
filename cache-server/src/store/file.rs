//! The segment file: some columns of a segment as 64-byte-aligned Arrow buffers that verify themselves.
//!
//! ```text
//! 0   magic "FBSEG", zero, zero, format (1)
//! 8   header bytes (u32 LE)      12  body offset (u32 LE, a multiple of 64)
//! 16  xxh3-64 of the header      24  header: protobuf `Header`, then zeros up to the body
//! body: the IPC record batch body, in parts; each part's length and xxh3-64 stand in the header
//! ```
//!
//! A file is written once, under a temporary name, and renamed; it is never changed. Whatever does not verify is
//! treated as absent.

use arrow::array::RecordBatch;
use bytes::Bytes;
use forebay_proto::manifest::{Digest, SegmentId};
use forebay_proto::{Error, Result};
use forebay_segment::wire;
use prost::Message as _;
use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"FBSEG\0\0\x01";
const PREFIX_BYTES: usize = 24;
const ALIGNMENT: usize = 64;

/// Headers larger than this are damage, not headers: 100,000 columns fit.
const HEADER_BYTES_MAX: usize = 64 << 20;

/// What a segment file says of itself.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Header {
    /// The segment's id, 16 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub id: Bytes,
    /// URI of the object it was made from.
    #[prost(string, tag = "2")]
    pub object: String,
    /// The object's version.
    #[prost(string, tag = "3")]
    pub etag: String,
    /// Names of the columns, in order.
    #[prost(string, repeated, tag = "4")]
    pub columns: Vec<String>,
    /// Rows.
    #[prost(uint64, tag = "5")]
    pub rows: u64,
    /// The columns' schema: an IPC Schema message.
    #[prost(bytes = "bytes", tag = "6")]
    pub schema: Bytes,
    /// The IPC RecordBatch message.
    #[prost(bytes = "bytes", tag = "7")]
    pub batch: Bytes,
    /// Bytes of each part of the body.
    #[prost(uint64, repeated, tag = "8")]
    pub part_bytes: Vec<u64>,
    /// xxh3-64 of each part.
    #[prost(fixed64, repeated, tag = "9")]
    pub part_hashes: Vec<u64>,
}

impl Header {
    /// The segment's id.
    pub fn segment_id(&self) -> Result<SegmentId> {
        Digest::from_bytes(&self.id).map(SegmentId)
    }

    /// Bytes of the body.
    pub fn body_bytes(&self) -> u64 {
        self.part_bytes.iter().fold(0, |a, b| a.saturating_add(*b))
    }
}

/// Which segment a file is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The segment.
    pub id: SegmentId,
    /// URI of its object.
    pub object: String,
    /// The object's version.
    pub etag: String,
}

/// A segment file ready to be written.
pub struct Encoded {
    prefix: Vec<u8>,
    body: Vec<Bytes>,
}

impl Encoded {
    /// Encodes columns of a segment; the large buffers are shared, not copied.
    pub fn new(origin: &Origin, batch: &RecordBatch) -> Result<Self> {
        let (message, body) = wire::encode(batch)?;
        let schema = batch.schema();
        let header = Header {
            id: origin.id.0.to_bytes().to_vec().into(),
            object: origin.object.clone(),
            etag: origin.etag.clone(),
            columns: schema.fields().iter().map(|f| f.name().clone()).collect(),
            rows: batch.num_rows() as u64,
            schema: wire::schema_header(&schema),
            batch: message,
            part_bytes: body.iter().map(|p| p.len() as u64).collect(),
            part_hashes: body.iter().map(|p| xxh3_64(p)).collect(),
        }
        .encode_to_vec();
        let body_offset = (PREFIX_BYTES + header.len()).next_multiple_of(ALIGNMENT);
        let mut prefix = Vec::with_capacity(body_offset);
        prefix.extend_from_slice(MAGIC);
        prefix.extend_from_slice(&(header.len() as u32).to_le_bytes());
        prefix.extend_from_slice(&(body_offset as u32).to_le_bytes());
        prefix.extend_from_slice(&xxh3_64(&header).to_le_bytes());
        prefix.extend_from_slice(&header);
        prefix.resize(body_offset, 0);
        Ok(Self { prefix, body })
    }

    /// Bytes that the file will have.
    pub fn bytes(&self) -> u64 {
        (self.prefix.len() + self.body.iter().map(Bytes::len).sum::<usize>()) as u64
    }

    /// Writes all of it.
    pub fn write_to(&self, file: &mut File) -> std::io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = vec![IoSlice::new(&self.prefix)];
        slices.extend(self.body.iter().map(|p| IoSlice::new(p)));
        let mut rest = slices.as_mut_slice();
        while !rest.is_empty() {
            match file.write_vectored(rest) {
                Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                Ok(n) => IoSlice::advance_slices(&mut rest, n),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Reads and checks a file's header, and that the file is as long as it says. Answers with the body's offset too.
pub fn read_header(path: &Path) -> Result<(Header, u64)> {
    let damaged = |why: &str| Error::corrupt(format!("{}: {why}", path.display()));
    let io = |e: std::io::Error| Error::corrupt(format!("{}: read segment header: {e}", path.display()));
    let mut file = File::open(path).map_err(io)?;
    let file_bytes = file.metadata().map_err(io)?.len();
    let mut prefix = [0; PREFIX_BYTES];
    file.read_exact(&mut prefix).map_err(io)?;
    let u32_at =
        |i: usize| u32::from_le_bytes([prefix[i], prefix[i + 1], prefix[i + 2], prefix[i + 3]]) as usize;
    let (header_bytes, body_offset) = (u32_at(8), u32_at(12));
    if &prefix[..8] != MAGIC {
        return Err(damaged("not a segment file of this format"));
    }
    if header_bytes > HEADER_BYTES_MAX
        || body_offset != (PREFIX_BYTES + header_bytes).next_multiple_of(ALIGNMENT)
    {
        return Err(damaged("the header's length is damaged"));
    }
    let mut header = vec![0; header_bytes];
    file.read_exact(&mut header).map_err(io)?;
    if prefix[16..24] != xxh3_64(&header).to_le_bytes() {
        return Err(damaged("the header does not match its checksum"));
    }
    let header = Header::decode(Bytes::from(header)).map_err(|e| damaged(&format!("the header: {e}")))?;
    if header.part_bytes.len() != header.part_hashes.len()
        || (body_offset as u64).checked_add(header.body_bytes()) != Some(file_bytes)
    {
        return Err(damaged("the file is not as long as its header says"));
    }
    Ok((header, body_offset as u64))
}

/// Checks every part of a body against the header's checksums.
pub fn verify_body(header: &Header, body: &[u8]) -> bool {
    let mut rest = body;
    for (&bytes, &hash) in header.part_bytes.iter().zip(&header.part_hashes) {
        let Some((part, after)) = rest.split_at_checked(bytes as usize) else { return false };
        if xxh3_64(part) != hash {
            return false;
        }
        rest = after;
    }
    rest.is_empty()
}
