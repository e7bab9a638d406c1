//! Reads the one gRPC message of a request: within a time, and within memory for such messages.
//!
//! A message is held against its limit by its head, before its bytes come, and takes memory as they come, not
//! as the head says. Other bytes are refused as soon as they show it.

use crate::read::memory::{MemoryBudget, MemoryPermit};
use bytes::{Bytes, BytesMut};
use forebay_dataset::Urgency;
use forebay_proto::{Error, Result};
use http_body_util::BodyExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::body::Body;

/// Bytes before a message: a flag, and its length.
pub const HEAD_BYTES: usize = 5;

/// Parts that are smaller are put together: each costs something beside its bytes.
const SMALL_PART_BYTES: usize = 4 << 10;

/// As large do they become together.
const PART_BYTES: usize = 64 << 10;

/// How long a part of a message may take to come, or wait for memory.
const PART_PATIENCE: Duration = Duration::from_secs(20);

/// What a message may take.
#[derive(Debug, Clone, Copy)]
pub struct MessageRules {
    /// For errors: whose message it is.
    pub name: &'static str,
    pub bytes_max: usize,
    /// Up to this it needs no memory permit, for there are many small messages.
    pub free_bytes: usize,
    /// How long all of it may take to come.
    pub patience: Duration,
    /// Whether the first bytes after the head may begin such a message.
    pub is_plausible: fn(&[u8]) -> bool,
}

/// A message as it came, with its head.
#[derive(Debug)]
pub struct WholeMessage {
    parts: Vec<Bytes>,
    /// What follows the parts.
    tail: BytesMut,
    pub bytes: usize,
    /// The memory that it takes.
    pub held: Option<MemoryPermit>,
}

impl WholeMessage {
    fn push(&mut self, data: Bytes) {
        self.bytes += data.len();
        if data.len() < SMALL_PART_BYTES {
            self.tail.extend_from_slice(&data);
        }
        if data.len() >= SMALL_PART_BYTES || self.tail.len() >= PART_BYTES {
            self.end_tail();
        }
        if data.len() >= SMALL_PART_BYTES {
            self.parts.push(data);
        }
    }

    fn end_tail(&mut self) {
        if !self.tail.is_empty() {
            self.parts.push(self.tail.split().freeze());
        }
    }

    /// Its first bytes, and those that come.
    fn first(&self, then: &[u8]) -> Vec<u8> {
        let all = self.parts.iter().map(|part| &part[..]).chain([&self.tail[..], then]);
        all.flatten().take(HEAD_BYTES + 1).copied().collect()
    }

    /// All parts, and the memory that they take.
    pub fn into_parts(mut self) -> (Vec<Bytes>, Option<MemoryPermit>) {
        self.end_tail();
        (self.parts, self.held)
    }

    /// The message without its head, in one piece.
    pub fn into_body(self) -> (Bytes, Option<MemoryPermit>) {
        let (mut parts, held) = self.into_parts();
        let mut all = match parts.len() {
            1 => parts.remove(0),
            _ => Bytes::from(parts.concat()),
        };
        drop(all.split_to(HEAD_BYTES.min(all.len())));
        (all, held)
    }
}

/// Reads a message; the memory that it takes is `held`, or more. `Invalid` if it is too large or no message,
/// `Retry` if it does not come in time.
pub async fn read_message(
    body: Body,
    rules: MessageRules,
    memory: &Arc<MemoryBudget>,
    held: Option<MemoryPermit>,
) -> Result<WholeMessage> {
    let (name, seconds) = (rules.name, rules.patience.as_secs());
    let late = |_| Error::retry(format!("the {name} did not come within {seconds} s"));
    timeout(rules.patience, collect(body, rules, memory, held)).await.map_err(late)?
}

async fn collect(
    mut body: Body,
    rules: MessageRules,
    memory: &Arc<MemoryBudget>,
    held: Option<MemoryPermit>,
) -> Result<WholeMessage> {
    let (name, demand) = (rules.name, Urgency::demand());
    let mut whole = WholeMessage { parts: Vec::new(), tail: BytesMut::new(), bytes: 0, held };
    let late = |_| Error::retry(format!("the rest of the {name} did not come, or there is no memory for it"));
    while let Some(frame) = timeout(PART_PATIENCE, body.frame()).await.map_err(late)? {
        let frame = frame.map_err(|e| Error::invalid(format!("the {name} cannot be read: {e}")))?;
        let Ok(data) = frame.into_data() else { continue };
        // A wrong beginning is told before it costs memory.
        rules.check(&whole.first(&data))?;
        let bytes = whole.bytes + data.len();
        if bytes > rules.bytes_max + HEAD_BYTES {
            return Err(rules.too_large());
        }
        let has = whole.held.as_ref().map_or(rules.free_bytes as u64, MemoryPermit::weight);
        if bytes as u64 > has {
            // Twice as much, so that a large message waits seldom. A sender that waits for memory holds none:
            // so none wait for each other.
            drop(whole.held.take());
            let wanted = (2 * bytes).min(rules.bytes_max + HEAD_BYTES) as u64;
            whole.held = Some(timeout(PART_PATIENCE, memory.acquire(wanted, &demand)).await.map_err(late)?);
        }
        whole.push(data);
    }
    let has = whole.bytes.saturating_sub(HEAD_BYTES);
    match *whole.first(&[]) {
        [_, a, b, c, d, ..] if u32::from_be_bytes([a, b, c, d]) as usize == has => Ok(whole),
        [_, a, b, c, d, ..] => Err(Error::invalid(format!(
            "the {name} is said to have {} bytes and has {has}",
            u32::from_be_bytes([a, b, c, d])
        ))),
        _ => Err(Error::invalid(format!("the request has no {name}"))),
    }
}

impl MessageRules {
    /// Whether the first bytes may begin such a message.
    fn check(&self, first: &[u8]) -> Result<()> {
        let name = self.name;
        match first.first() {
            None | Some(0) => {}
            Some(1) => return Err(Error::invalid(format!("the {name} is compressed: send it as it is"))),
            Some(_) => return Err(Error::invalid(format!("the {name} is no gRPC message"))),
        }
        let Some(([_, length @ ..], rest)) = first.split_first_chunk::<HEAD_BYTES>() else { return Ok(()) };
        if u32::from_be_bytes(*length) as usize > self.bytes_max {
            return Err(self.too_large());
        }
        match rest.is_empty() || (self.is_plausible)(rest) {
            true => Ok(()),
            false => Err(Error::invalid(format!("these bytes are no {name}"))),
        }
    }

    fn too_large(&self) -> Error {
        Error::invalid(format!("the {} has more than {} bytes", self.name, self.bytes_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::Kind;
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;

    const RULES: MessageRules = MessageRules {
        name: "request",
        bytes_max: 1000,
        free_bytes: 10,
        patience: PART_PATIENCE,
        is_plausible: |bytes| bytes[0] != b'x',
    };

    fn framed(flag: u8, length: u32, bytes: &[u8]) -> Vec<u8> {
        [&[flag][..], &length.to_be_bytes(), bytes].concat()
    }

    async fn read(bytes: Vec<u8>) -> Result<(usize, u64)> {
        let memory = MemoryBudget::new(4096);
        let message = read_message(Body::new(Full::from(bytes)), RULES, &memory, None).await?;
        assert_eq!(memory.used(), message.held.as_ref().map_or(0, MemoryPermit::weight));
        Ok((message.bytes, memory.used()))
    }

    #[tokio::test]
    async fn memory_is_taken_as_bytes_come() {
        assert_eq!(read(framed(0, 5, b"12345")).await.unwrap(), (10, 0));
        assert_eq!(read(framed(0, 100, &[7; 100])).await.unwrap(), (105, 210));
        assert_eq!(read(framed(0, 1000, &[7; 1000])).await.unwrap(), (1005, 1005));
    }

    #[tokio::test]
    async fn what_is_no_message_is_refused() {
        for (bytes, says) in [
            (vec![], "has no request"),
            (vec![0, 0, 0], "has no request"),
            (framed(0, u32::MAX, b"1"), "more than 1000 bytes"),
            (framed(0, 1001, b"1"), "more than 1000 bytes"),
            (framed(0, 3, b"1"), "said to have 3 bytes and has 1"),
            (framed(0, 1, b"123"), "said to have 1 bytes and has 3"),
            (framed(0, 900, &[7; 2000]), "more than 1000 bytes"),
            (framed(1, 1, b"1"), "compressed"),
            (framed(7, 1, b"1"), "no gRPC message"),
            (framed(0, 3, b"xyz"), "these bytes are no request"),
        ] {
            let e = read(bytes).await.unwrap_err();
            assert!(e.kind == Kind::Invalid && e.message.contains(says), "{says}: {e}");
        }
    }

    #[test]
    fn small_parts_are_put_together() {
        let mut whole = WholeMessage { parts: Vec::new(), tail: BytesMut::new(), bytes: 0, held: None };
        (0..100_000u32).for_each(|n| whole.push(Bytes::from(vec![n as u8])));
        whole.push(Bytes::from(vec![1; SMALL_PART_BYTES]));
        whole.push(Bytes::from_static(b"end"));
        assert_eq!(whole.bytes, 100_003 + SMALL_PART_BYTES);
        let first = whole.first(b"more");
        assert_eq!(first, [0, 1, 2, 3, 4, 5]);
        let (parts, _) = whole.into_parts();
        assert_eq!(parts.len(), 4);
        let all = parts.concat();
        assert!((0..100_000).all(|n| all[n] == n as u8) && all.ends_with(b"\x01end"));
    }

    #[tokio::test]
    async fn a_head_that_comes_in_pieces_counts_too() {
        let bytes = framed(0, 1001, b"1");
        let pieces = bytes.into_iter().map(|b| Ok::<_, std::io::Error>(Frame::data(Bytes::from(vec![b]))));
        // It never ends: the refusal comes with the head.
        let pieces = futures::StreamExt::chain(futures::stream::iter(pieces), futures::stream::pending());
        let memory = MemoryBudget::new(4096);
        let e = read_message(Body::new(StreamBody::new(pieces)), RULES, &memory, None).await.unwrap_err();
        assert!(e.message.contains("more than 1000"), "{e}");
    }
}
