//! A request, read as a whole before its method sees it, and held against what it becomes when it is decoded.

use super::decoded::decoded_bytes;
use super::parts::each_counted;
use crate::read::memory::{MemoryBudget, MemoryPermit};
use crate::runtime::blocking;
use crate::service::message::{HEAD_BYTES, MessageRules, read_message};
use bytes::{Buf, Bytes};
use forebay_dataset::Urgency;
use forebay_proto::{Error, Result};
use futures::StreamExt as _;
use http::Request;
use http_body::Frame;
use http_body_util::StreamBody;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::body::Body;

/// Methods whose requests are streams: they read them by themselves, and each message is looked at before.
const STREAMS: [&str; 2] = ["/forebay.v1.Cache/OpenParts", "/forebay.v1.Snapshots/SaveParts"];

/// Bytes that a request may have, by the beginning of its method's path; the first that fits counts.
/// Manifests are told by one node to another, one at a time where they are large; copies are offered by the
/// dozen; 65,536 numbers of blocks fit in a request for objects. Requests of other methods are not read here:
/// of the batch stream, which does it by itself, and of services that are not here.
const BYTES_MAX: [(&str, usize); 7] = [
    ("/forebay.v1.Peer/Learn", 256 << 20),
    ("/forebay.v1.Peer/Copy", 32 << 20),
    ("/forebay.v1.Objects/", 512 << 10),
    ("/forebay.v1.", 4 << 20),
    ("/arrow.flight.protocol.FlightService/GetFlightInfo", 64 << 10),
    ("/arrow.flight.protocol.FlightService/GetSchema", 64 << 10),
    ("/grpc.health.", 64 << 10),
];

/// Up to this a request is not accounted for: most are smaller.
const FREE_BYTES: usize = 1 << 10;

/// A request that comes alone may take this many times the memory for requests once it is decoded, between
/// these bounds.
const DECODED_TIMES: u64 = 64;
const DECODED_BYTES: (u64, u64) = (32 << 20, 1 << 30);

/// A message of this length is counted on another thread.
const LARGE_BYTES: usize = 1 << 20;

/// How long a request waits for the memory that it takes once it is decoded.
const DECODED_PATIENCE: Duration = Duration::from_secs(20);

/// How long a request may take to come: a small one, and one that may be large.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(120));

/// The request with its message in memory, and the memory that it takes.
pub async fn whole(
    request: Request<Body>,
    memory: &Arc<MemoryBudget>,
) -> Result<(Request<Body>, Option<MemoryPermit>)> {
    if STREAMS.contains(&request.uri().path()) {
        return Ok((each_counted(request), None));
    }
    let Some(bytes_max) = bytes_max(request.uri().path()) else { return Ok((request, None)) };
    let patience = if bytes_max > 4 << 20 { PATIENCE.1 } else { PATIENCE.0 };
    let rules =
        MessageRules { name: "request", bytes_max, free_bytes: FREE_BYTES, patience, is_plausible: |_| true };
    let (head, body) = request.into_parts();
    let message = read_message(body, rules, memory, None).await?;
    let is_small = message.bytes <= FREE_BYTES;
    let (parts, mut held) = message.into_parts();
    if !is_small {
        let has = held.as_ref().map_or(0, MemoryPermit::weight);
        let taken = decoded_within(head.uri.path(), &parts, memory.limit()).await?;
        if taken > has {
            // As with its bytes: who waits for memory holds none.
            drop(held);
            let demand = Urgency::demand();
            let more = timeout(DECODED_PATIENCE, memory.acquire(taken, &demand)).await;
            held = Some(more.map_err(|_| Error::retry("there is no memory for the request: try again"))?);
        }
    }
    // The method lets go of each as it puts them together.
    let frames = futures::stream::iter(parts).map(|part| Ok::<_, Infallible>(Frame::data(part)));
    Ok((Request::from_parts(head, Body::new(StreamBody::new(frames))), held))
}

/// What a request takes once it is decoded; `Invalid` if that is too much.
async fn decoded_within(path: &str, parts: &[Bytes], all_bytes: u64) -> Result<u64> {
    let most = (DECODED_TIMES * all_bytes).clamp(DECODED_BYTES.0, DECODED_BYTES.1);
    let (path, parts) = (path.to_owned(), parts.to_vec());
    let large = parts.iter().map(Bytes::len).sum::<usize>() >= LARGE_BYTES;
    let count = move || {
        // The flag and the length come first.
        let mut message = PartsBuf::of(parts);
        message.advance(HEAD_BYTES.min(message.remaining()));
        decoded_bytes(&path, &mut message, most)
    };
    let taken = if large { blocking(count).await? } else { count() };
    match taken > most {
        true => Err(Error::invalid(format!(
            "the request would take more than {most} bytes of memory: it lists too much; send it in parts, or raise \
             --memory-bytes"
        ))),
        false => Ok(taken),
    }
}

/// The bytes of parts, one after the other.
struct PartsBuf {
    parts: VecDeque<Bytes>,
    remaining: usize,
}

impl PartsBuf {
    fn of(parts: Vec<Bytes>) -> Self {
        let parts: VecDeque<Bytes> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        Self { remaining: parts.iter().map(Bytes::len).sum(), parts }
    }
}

impl Buf for PartsBuf {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.parts.front().map_or(&[], |part| part)
    }

    fn advance(&mut self, mut bytes: usize) {
        self.remaining -= bytes;
        while bytes > 0
            && let Some(part) = self.parts.front_mut()
        {
            let taken = bytes.min(part.len());
            part.advance(taken);
            bytes -= taken;
            if part.is_empty() {
                self.parts.pop_front();
            }
        }
    }
}

/// Bytes that a method's request may have; `None` if it is not read here.
fn bytes_max(path: &str) -> Option<usize> {
    let limit = BYTES_MAX.iter().find(|(start, _)| path.starts_with(start))?;
    (!STREAMS.contains(&path)).then_some(limit.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::v1::{self, DESCRIPTORS};
    use http_body_util::Full;
    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    #[test]
    fn exactly_requests_that_are_streams_are_left_to_their_methods() {
        let set = FileDescriptorSet::decode(DESCRIPTORS).unwrap();
        let mut methods = 0;
        for file in &set.file {
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    assert_eq!(bytes_max(&path).is_none(), method.client_streaming(), "{path}");
                    methods += 1;
                }
            }
        }
        assert!(methods > 20, "{methods}");
    }

    #[tokio::test]
    async fn a_request_holds_what_it_becomes_or_is_refused() {
        let memory = MemoryBudget::new(1 << 20);
        let ask = async |objects: usize| {
            let dataset =
                v1::DatasetSpec { objects: vec![Default::default(); objects], ..Default::default() };
            let message = v1::OpenRequest { dataset: Some(dataset), ..Default::default() }.encode_to_vec();
            let framed = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
            let request = Request::post("/forebay.v1.Cache/Open").body(Body::new(Full::from(framed)));
            whole(request.unwrap(), &memory).await.map(|(_, held)| held.map(|held| held.weight()))
        };
        assert_eq!(ask(10).await.unwrap(), None);
        let held = ask(1000).await.unwrap().unwrap();
        assert!((256_000..300_000).contains(&held), "{held}");
        let e = ask(1_000_000).await.unwrap_err();
        assert!(e.message.contains("more than 67108864 bytes of memory"), "{e}");
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn parts_are_read_one_after_the_other() {
        let parts = ["ab", "", "cdef", "g"].map(|part| Bytes::from_static(part.as_bytes()));
        let mut all = PartsBuf::of(parts.to_vec());
        all.advance(3);
        assert_eq!((all.remaining(), all.chunk()), (4, &b"def"[..]));
        assert_eq!(all.copy_to_bytes(4), &b"defg"[..]);
        assert!(!all.has_remaining() && all.chunk().is_empty());
    }

    #[test]
    fn each_method_has_its_limit() {
        assert_eq!(bytes_max("/forebay.v1.Peer/Learn"), Some(256 << 20));
        assert_eq!(bytes_max("/forebay.v1.Peer/Holds"), Some(4 << 20));
        assert_eq!(bytes_max("/forebay.v1.Objects/Read"), Some(512 << 10));
        assert_eq!(bytes_max("/arrow.flight.protocol.FlightService/GetSchema"), Some(64 << 10));
        for own in
            ["/arrow.flight.protocol.FlightService/DoGet", "/arrow.flight.protocol.FlightService/DoPut", "*"]
        {
            assert_eq!(bytes_max(own), None);
        }
    }
}
