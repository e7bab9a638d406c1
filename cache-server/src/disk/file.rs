//! The segment file: some columns of a segment as 64-byte-aligned Arrow buffers that verify themselves.
//!
//! ```text
//! 0   magic "FBSEG", zero, zero, format (2; 1 is read too)
//! 8   header bytes (u32 LE)      12  body offset (u32 LE, a multiple of 64)
//! 16  xxh3-64 of the header      24  header: protobuf `Header`, then zeros up to the body
//! body: the IPC record batch body, in parts; each part's length and xxh3-64 stand in the header
//! ```
//!
//! In format 2 the record batch holds narrow columns as packed rows ([`PackedSchema`]), in format 1
//! as columns like all others.
//!
//! A file is written once, under a temporary name, and renamed; it is never changed. Nothing is flushed to
//! the medium: after a power loss a file verifies, or it counts as absent, like all that does not.

use super::file_system::Disk;
use arrow::buffer::Buffer;
use bytes::Bytes;
use forebay_dataset::stream::wire;
use forebay_dataset::{PackedSchema, SegmentBatch};
use forebay_proto::Result;
use forebay_proto::hash::{Hash64, xxh3_64};
use forebay_proto::manifest::{Digest, SegmentId};
use prost::Message as _;
use std::fs::File;
use std::io;
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"FBSEG\0\0\x02";
const OLD_MAGIC: &[u8; 8] = b"FBSEG\0\0\x01";
const PREFIX_BYTES: usize = 24;
const ALIGNMENT: usize = 64;

/// Bytes read at once when a body is checked: they stay in the processor's cache.
const VERIFY_BYTES: usize = 256 << 10;

/// Headers larger than this are damage, not headers: 100,000 columns fit.
const HEADER_BYTES_MAX: usize = 64 << 20;

/// The one column of a raw block: each byte is a row. No Parquet column can be called that.
pub const RAW_COLUMN: &str = "\0raw";

/// Whether these are the columns of a raw block.
pub fn is_raw(columns: &[String]) -> bool {
    matches!(columns, [only] if only == RAW_COLUMN)
}

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
    /// The record batch is the physical form of `schema`: from format 2 on.
    #[prost(bool, tag = "10")]
    pub packed: bool,
}

impl Header {
    pub fn body_bytes(&self) -> u64 {
        self.part_bytes.iter().fold(0, |a, b| a.saturating_add(*b))
    }

    /// Which segment it is of.
    pub fn origin(&self) -> Result<Origin> {
        let id = SegmentId(Digest::from_bytes(&self.id)?);
        Ok(Origin { id, object: self.object.as_str().into(), etag: self.etag.as_str().into() })
    }

    /// The columns, over a body that was checked or is trusted.
    pub fn batch_of(&self, body: &Buffer) -> Result<SegmentBatch, Unreadable> {
        let schema = arrow_ipc::root_as_message(&self.schema)
            .ok()
            .and_then(|m| m.header_as_schema())
            .and_then(|s| arrow_ipc::convert::try_fb_to_schema(s).ok())
            .ok_or_else(|| damaged("its schema cannot be read"))?;
        let packed = match self.packed {
            true => PackedSchema::new(Arc::new(schema)),
            false => PackedSchema::unpacked(Arc::new(schema)),
        };
        let batch = wire::decode(&self.batch, body, &packed.physical)
            .and_then(|batch| SegmentBatch::from_physical(&packed, batch))
            .map_err(|e| damaged(e.message))?;
        match batch.num_rows() as u64 == self.rows {
            true => Ok(batch),
            false => Err(damaged("it holds another number of rows than its header says")),
        }
    }
}

/// Which segment a file is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The segment.
    pub id: SegmentId,
    /// URI of its object.
    pub object: Arc<str>,
    /// The object's version.
    pub etag: Arc<str>,
}

/// The name of a file: some columns of a segment. Packed, as the index has millions: 24 bytes, not 32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C, packed(8))]
pub struct FileKey {
    /// The segment.
    pub id: SegmentId,
    columns: u64,
}

impl FileKey {
    /// All files of a segment lie between these two.
    pub fn all(id: SegmentId) -> std::ops::RangeInclusive<Self> {
        Self { id, columns: 0 }..=Self { id, columns: u64::MAX }
    }

    /// The file that holds these columns of a segment.
    pub fn new(id: SegmentId, columns: &[String]) -> Self {
        let mut h = Hash64::default();
        for c in columns {
            h.update(&(c.len() as u64).to_le_bytes());
            h.update(c.as_bytes());
        }
        Self { id, columns: h.digest() }
    }

    /// Segment and columns, both in hex.
    pub fn file_name(&self) -> String {
        let Self { id, columns } = *self;
        format!("{id}.{columns:016x}")
    }
}

/// A segment file whose length is known, and whose checksums are still to be computed: that costs a pass over
/// all its bytes, which only a file that is really written is worth.
pub struct Unsealed {
    header: Header,
    body: Vec<Bytes>,
}

#[cfg(test)]
thread_local! {
    /// Files that this thread has sealed.
    pub static SEALED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl Unsealed {
    /// Lays out columns of a segment. The large buffers are shared, not copied.
    pub fn new(origin: &Origin, batch: &SegmentBatch) -> Result<Self> {
        let schema = batch.schema();
        let packed = PackedSchema::new(schema.clone());
        let (message, body) = wire::encode(&batch.to_physical(&packed)?)?;
        let header = Header {
            id: origin.id.0.to_bytes().to_vec().into(),
            object: origin.object.to_string(),
            etag: origin.etag.to_string(),
            columns: schema.fields().iter().map(|f| f.name().clone()).collect(),
            rows: batch.num_rows() as u64,
            schema: wire::schema_header(schema),
            batch: message,
            part_bytes: body.iter().map(|p| p.len() as u64).collect(),
            // As long as the checksums will be: their encoding has a fixed width.
            part_hashes: vec![0; body.len()],
            packed: true,
        };
        Ok(Self { header, body })
    }

    pub fn bytes(&self) -> u64 {
        self.body_offset() as u64 + self.header.body_bytes()
    }

    /// Computes the checksums, by a pass over all bytes, and puts them into the header.
    pub fn seal(mut self) -> Encoded {
        #[cfg(test)]
        SEALED.set(SEALED.get() + 1);
        let body_offset = self.body_offset();
        self.header.part_hashes = self.body.iter().map(|p| xxh3_64(p)).collect();
        let header = self.header.encode_to_vec();
        let lengths = [header.len() as u32, body_offset as u32].map(u32::to_le_bytes);
        let hash = xxh3_64(&header).to_le_bytes();
        let mut prefix = [&MAGIC[..], lengths.as_flattened(), &hash, &header].concat();
        prefix.resize(body_offset, 0);
        Encoded(std::iter::once(Bytes::from(prefix)).chain(self.body).collect())
    }

    fn body_offset(&self) -> usize {
        (PREFIX_BYTES + self.header.encoded_len()).next_multiple_of(ALIGNMENT)
    }
}

/// A segment file ready to be written: its pieces in order. The large buffers are shared, not copied.
pub struct Encoded(pub Vec<Bytes>);

impl Encoded {
    /// Encodes columns of a segment.
    pub fn new(origin: &Origin, batch: &SegmentBatch) -> Result<Self> {
        Ok(Unsealed::new(origin, batch)?.seal())
    }

    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|piece| piece.len() as u64).sum()
    }
}

/// Why a file gives no segment.
#[derive(Debug)]
pub enum Unreadable {
    /// It is not there.
    Gone,
    /// Its content does not match its checksums, or is none of ours.
    Damaged(String),
    /// The disk failed to read it.
    Disk(io::Error),
}

impl From<io::Error> for Unreadable {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::NotFound => Self::Gone,
            _ => Self::Disk(e),
        }
    }
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gone => f.write_str("the file is gone"),
            Self::Damaged(why) => f.write_str(why),
            Self::Disk(e) => write!(f, "read: {e}"),
        }
    }
}

fn damaged(why: impl Into<String>) -> Unreadable {
    Unreadable::Damaged(why.into())
}

/// Reads and checks a file's header, and that the file is as long as it says. Returns the body's offset too.
pub fn read_header(disk: &dyn Disk, file: &File, file_bytes: u64) -> Result<(Header, u64), Unreadable> {
    header(|piece, at| disk.read(file, piece, at), file_bytes)
}

/// A file's columns from all its bytes, every one of them checked.
pub fn from_bytes(file: &Buffer) -> Result<(Header, SegmentBatch), Unreadable> {
    let read = |piece: &mut [u8], at: u64| {
        let rest = file.as_slice().get(at as usize..).unwrap_or_default();
        let n = piece.len().min(rest.len());
        piece[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    };
    let (header, offset) = header(read, file.len() as u64)?;
    let body = file.slice(offset as usize);
    if !BodyCheck::new(&header).take(&body) {
        return Err(damaged("a buffer does not match its checksum"));
    }
    let batch = header.batch_of(&body)?;
    Ok((header, batch))
}

fn header(
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
    file_bytes: u64,
) -> Result<(Header, u64), Unreadable> {
    // Nearly every header is shorter than this: one read is enough for it.
    let mut start = vec![0; 4096.min(file_bytes as usize)];
    let got = read(&mut start, 0)?;
    start.truncate(got);
    let Some(prefix) = start.get(..PREFIX_BYTES) else { return Err(damaged("too short for a segment file")) };
    let u32_at =
        |i: usize| u32::from_le_bytes([prefix[i], prefix[i + 1], prefix[i + 2], prefix[i + 3]]) as usize;
    let (header_bytes, body_offset) = (u32_at(8), u32_at(12));
    let hash = prefix[16..24].to_vec();
    if &prefix[..8] != MAGIC && &prefix[..8] != OLD_MAGIC {
        return Err(damaged("not a segment file of this format"));
    }
    if header_bytes > HEADER_BYTES_MAX
        || body_offset != (PREFIX_BYTES + header_bytes).next_multiple_of(ALIGNMENT)
        || body_offset as u64 > file_bytes
    {
        return Err(damaged("the header's length is damaged"));
    }
    let end = PREFIX_BYTES + header_bytes;
    if start.len() < end {
        let had = start.len();
        start.resize(end, 0);
        if read(&mut start[had..], had as u64)? < end - had {
            return Err(damaged("the file ends within its header"));
        }
    }
    start.truncate(end);
    let header = Bytes::from(start).slice(PREFIX_BYTES..);
    if hash != xxh3_64(&header).to_le_bytes() {
        return Err(damaged("the header does not match its checksum"));
    }
    let header = Header::decode(header).map_err(|e| damaged(format!("the header: {e}")))?;
    if header.part_bytes.len() != header.part_hashes.len()
        || (body_offset as u64).checked_add(header.body_bytes()) != Some(file_bytes)
    {
        return Err(damaged("the file is not as long as its header says"));
    }
    Ok((header, body_offset as u64))
}

/// Checks a body piece by piece, as it is read, against the checksums of its parts.
pub struct BodyCheck {
    parts: std::vec::IntoIter<(u64, u64)>,
    /// Bytes of the current part still to come, and its checksum.
    current: (u64, u64),
    hash: Hash64,
}

impl BodyCheck {
    /// For the body of this header.
    pub fn new(header: &Header) -> Self {
        Self::of(Vec::new(), header)
    }

    /// For the whole file: what comes before the body, which was checked, and the body.
    pub fn of_file(header: &Header, start: &[u8]) -> Self {
        Self::of(vec![(start.len() as u64, xxh3_64(start))], header)
    }

    fn of(mut parts: Vec<(u64, u64)>, header: &Header) -> Self {
        parts.extend(header.part_bytes.iter().copied().zip(header.part_hashes.iter().copied()));
        let mut parts = parts.into_iter();
        let current = parts.next().unwrap_or((0, Hash64::default().digest()));
        Self { parts, current, hash: Hash64::default() }
    }

    /// Takes the next bytes of the body; false when a part does not match.
    pub fn take(&mut self, mut bytes: &[u8]) -> bool {
        loop {
            let n = bytes.len().min(usize::try_from(self.current.0).unwrap_or(usize::MAX));
            self.hash.update(&bytes[..n]);
            self.current.0 -= n as u64;
            bytes = &bytes[n..];
            if self.current.0 > 0 {
                return true;
            }
            if self.hash.digest() != self.current.1 {
                return false;
            }
            match self.parts.next() {
                Some(next) => (self.current, self.hash) = (next, Hash64::default()),
                // Matched again and again, it stays matched.
                None => return bytes.is_empty(),
            }
        }
    }
}

/// Reads and checks a whole body. It is read rather than mapped: a disk that fails, or a file cut meanwhile,
/// is an error here, where touching a map would be a signal.
pub fn verify_body(disk: &dyn Disk, file: &File, header: &Header, offset: u64) -> Result<(), Unreadable> {
    let mut check = BodyCheck::new(header);
    let (mut at, end) = (offset, offset + header.body_bytes());
    let mut piece = vec![0; VERIFY_BYTES.min(header.body_bytes() as usize)];
    while at < end {
        let n = (end - at).min(piece.len() as u64) as usize;
        if disk.read(file, &mut piece[..n], at)? < n || !check.take(&piece[..n]) {
            return Err(damaged("a buffer does not match its checksum"));
        }
        at += n as u64;
    }
    Ok(())
}
