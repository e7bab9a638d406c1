//! The parser of a batch stream's bytes: gRPC length prefixes around protobuf `FlightData`, taken apart as
//! they come.
//!
//! It never waits for a whole message: header and metadata are collected (they are small), the body is handed
//! on in whatever pieces the network delivers, uncopied. It relies on `data_body` being a message's last
//! field, which its number guarantees for every encoder that writes fields in order. Lengths are checked
//! before anything is kept; malformed input is an error, never a panic.

use super::rows::{SharedRows, SharedSegments};
use bytes::{Buf, Bytes};
use forebay_proto::{Error, Result, v1};
use prost::Message;

/// Bytes of header or metadata that a message may have.
const HEAD_BYTES_MAX: u64 = 64 << 20;

/// Bytes of body that a message may have.
const BODY_BYTES_MAX: u64 = 2 << 30;

/// What the bytes mean, in order: one `Head`, any number of `Body`, `Shared` and `Rows` or one of
/// `Segments`, one `End` for each message.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// A message begins.
    Head(Head),
    /// The next bytes of its body; never empty.
    Body(Bytes),
    /// The same, in memory that the node shares: they did not travel, and its hash leaves them out. To be let
    /// go soon, as the node wants the memory back.
    Shared(Bytes),
    /// The same, as rows in files that the node lends.
    Rows(SharedRows),
    /// A whole body, of a message of whole steps.
    Segments(SharedSegments),
    /// Its body is complete.
    End,
}

/// What precedes a message's body.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Head {
    /// The IPC message (a flatbuffer): `data_header`.
    pub header: Bytes,
    /// `app_metadata`.
    pub meta: Bytes,
    /// Length of the body, whether it travels or not.
    pub body_bytes: usize,
    /// Where the body lies, if it does not travel.
    pub shared: Option<v1::SharedBody>,
}

#[derive(Debug)]
enum ParserState {
    /// Between messages, or within the 5 bytes before one.
    Prefix,
    /// At a field's tag, or within it.
    Tag,
    /// Within the value of a varint field that is skipped.
    Varint,
    /// Within the length of a field.
    Length { field: u64 },
    /// Within a header or metadata.
    Keep { field: u64, bytes: usize },
    /// Within something that is skipped.
    Skip { bytes: usize },
    /// Within the body.
    Body { bytes: usize },
    /// The message is over and its `End` is due.
    Ended,
}

/// Takes a stream of bytes apart.
#[derive(Debug)]
pub struct Parser {
    state: ParserState,
    /// Bytes left of the message.
    left: usize,
    /// The bytes being collected.
    kept: Vec<u8>,
    head: Head,
}

impl Default for Parser {
    fn default() -> Self {
        Self { state: ParserState::Prefix, left: 0, kept: Vec::new(), head: Head::default() }
    }
}

impl Parser {
    /// Takes bytes off `input` up to the next event; `None` when all are taken and more are needed.
    pub fn next(&mut self, input: &mut Bytes) -> Result<Option<StreamEvent>> {
        loop {
            match self.state {
                ParserState::Ended => {
                    self.state = ParserState::Prefix;
                    return Ok(Some(StreamEvent::End));
                }
                ParserState::Tag if self.left == 0 && self.kept.is_empty() => {
                    // No body at all.
                    self.state = ParserState::Ended;
                    return Ok(Some(StreamEvent::Head(std::mem::take(&mut self.head))));
                }
                ParserState::Skip { bytes: 0 } => self.state = ParserState::Tag,
                ParserState::Keep { field, bytes } if bytes == self.kept.len() => {
                    let kept = Bytes::from(std::mem::take(&mut self.kept));
                    match field {
                        2 => self.head.header = kept,
                        3 => self.head.meta = kept,
                        _ => self.shared(kept)?,
                    }
                    self.state = ParserState::Tag;
                }
                ParserState::Body { bytes: 0 } => {
                    if self.left > 0 {
                        return Err(malformed("a field follows data_body"));
                    }
                    self.state = ParserState::Ended;
                }
                _ if input.is_empty() => return Ok(None),
                ParserState::Body { bytes } => {
                    let piece = input.split_to(bytes.min(input.len()));
                    self.left -= piece.len();
                    self.state = ParserState::Body { bytes: bytes - piece.len() };
                    return Ok(Some(StreamEvent::Body(piece)));
                }
                ParserState::Keep { bytes, .. } => {
                    let piece = input.split_to((bytes - self.kept.len()).min(input.len()));
                    self.left -= piece.len();
                    self.kept.extend_from_slice(&piece);
                }
                ParserState::Skip { bytes } => {
                    let n = bytes.min(input.len());
                    input.advance(n);
                    self.left -= n;
                    self.state = ParserState::Skip { bytes: bytes - n };
                }
                ParserState::Prefix => self.prefix(input)?,
                ParserState::Tag => self.tag(input)?,
                ParserState::Varint => {
                    if self.varint(input)?.is_some() {
                        self.state = ParserState::Tag;
                    }
                }
                ParserState::Length { field } => {
                    if let Some(bytes) = self.varint(input)?
                        && let Some(event) = self.field(field, bytes)?
                    {
                        return Ok(Some(event));
                    }
                }
            }
        }
    }

    /// Whether the stream may end here.
    pub fn between_messages(&self) -> bool {
        matches!(self.state, ParserState::Prefix) && self.kept.is_empty()
    }

    fn prefix(&mut self, input: &mut Bytes) -> Result<()> {
        let piece = input.split_to((5 - self.kept.len()).min(input.len()));
        self.kept.extend_from_slice(&piece);
        if let [compressed, a, b, c, d] = self.kept[..] {
            if compressed != 0 {
                return Err(malformed("it is compressed, which was not asked for"));
            }
            self.left = u32::from_be_bytes([a, b, c, d]) as usize;
            self.kept.clear();
            self.head = Head::default();
            self.state = ParserState::Tag;
        }
        Ok(())
    }

    fn tag(&mut self, input: &mut Bytes) -> Result<()> {
        if let Some(tag) = self.varint(input)? {
            self.state = after_tag(tag)?;
        }
        match self.state {
            ParserState::Skip { bytes } if bytes > self.left => Err(malformed("it ends within a field")),
            _ => Ok(()),
        }
    }

    /// A varint, once all its bytes have come.
    fn varint(&mut self, input: &mut Bytes) -> Result<Option<u64>> {
        while input.has_remaining() {
            if self.left == 0 {
                return Err(malformed("it ends within a field"));
            }
            let byte = input.get_u8();
            self.left -= 1;
            self.kept.push(byte);
            if self.kept.len() > 10 {
                return Err(malformed("a varint has more than 10 bytes"));
            }
            if byte < 0x80 {
                let low = |(i, b): (usize, &u8)| u64::from(b & 0x7f).wrapping_shl(7 * i as u32);
                let value = self.kept.iter().enumerate().map(low).fold(0, |a, b| a | b);
                self.kept.clear();
                return Ok(Some(value));
            }
        }
        match self.left {
            0 => Err(malformed("it ends within a field")),
            _ => Ok(None),
        }
    }

    /// The place of a body has come.
    fn shared(&mut self, kept: Bytes) -> Result<()> {
        let body = v1::SharedBody::decode(kept).map_err(|e| malformed(&e.to_string()))?;
        self.head.body_bytes = body_bytes(&body).ok_or_else(|| malformed("a shared body is too large"))?;
        self.head.shared = Some(body);
        Ok(())
    }

    /// The length of a field has come.
    fn field(&mut self, field: u64, bytes: u64) -> Result<Option<StreamEvent>> {
        let limit = if field == BODY { BODY_BYTES_MAX } else { HEAD_BYTES_MAX };
        if bytes > self.left as u64 || bytes > limit {
            return Err(malformed(&format!(
                "field {field} claims {bytes} bytes, {} are left of the message",
                self.left
            )));
        }
        let bytes = bytes as usize;
        match field {
            BODY => {
                self.state = ParserState::Body { bytes };
                self.head.body_bytes = bytes;
                return Ok(Some(StreamEvent::Head(std::mem::take(&mut self.head))));
            }
            2 | 3 | SHARED_BODY => self.state = ParserState::Keep { field, bytes },
            _ => self.state = ParserState::Skip { bytes },
        }
        Ok(None)
    }
}

/// Field number of a `SharedBody`.
const SHARED_BODY: u64 = 999;

/// Field number of `data_body`.
const BODY: u64 = 1000;

fn after_tag(tag: u64) -> Result<ParserState> {
    let field = tag >> 3;
    match tag & 7 {
        0 => Ok(ParserState::Varint),
        1 => Ok(ParserState::Skip { bytes: 8 }),
        2 => Ok(ParserState::Length { field }),
        5 => Ok(ParserState::Skip { bytes: 4 }),
        other => Err(malformed(&format!("field {field} has wire type {other}"))),
    }
}

/// The length of a body that lies in shared memory; `None` if that is no length.
fn body_bytes(body: &v1::SharedBody) -> Option<usize> {
    let mut lengths = body.parts.iter().map(|part| part.length.checked_add(part.bytes.len() as u64));
    let all = lengths.try_fold(0u64, |all, length| all.checked_add(length?))?;
    (all <= BODY_BYTES_MAX).then_some(all as usize)
}

fn malformed(why: &str) -> Error {
    Error::corrupt(format!("a message of the batch stream is malformed: {why}"))
}

#[cfg(test)]
mod tests;
