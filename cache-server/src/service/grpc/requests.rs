//! A request, read as a whole before its method sees it.

use crate::read::memory::{MemoryBudget, MemoryPermit};
use crate::service::message::{MessageRules, read_message};
use forebay_proto::Result;
use futures::StreamExt as _;
use http::Request;
use http_body::Frame;
use http_body_util::StreamBody;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tonic::body::Body;

/// Methods whose requests are streams, and which read them by themselves.
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

/// How long a request may take to come: a small one, and one that may be large.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(120));

/// The request with its message in memory, and the memory that it takes.
pub async fn whole(
    request: Request<Body>,
    memory: &Arc<MemoryBudget>,
) -> Result<(Request<Body>, Option<MemoryPermit>)> {
    let Some(bytes_max) = bytes_max(request.uri().path()) else { return Ok((request, None)) };
    let patience = if bytes_max > 4 << 20 { PATIENCE.1 } else { PATIENCE.0 };
    let rules =
        MessageRules { name: "request", bytes_max, free_bytes: FREE_BYTES, patience, is_plausible: |_| true };
    let (head, body) = request.into_parts();
    let (parts, held) = read_message(body, rules, memory, None).await?.into_parts();
    // The method lets go of each as it puts them together.
    let frames = futures::stream::iter(parts).map(|part| Ok::<_, Infallible>(Frame::data(part)));
    Ok((Request::from_parts(head, Body::new(StreamBody::new(frames))), held))
}

/// Bytes that a method's request may have; `None` if it is not read here.
fn bytes_max(path: &str) -> Option<usize> {
    let limit = BYTES_MAX.iter().find(|(start, _)| path.starts_with(start))?;
    (!STREAMS.contains(&path)).then_some(limit.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::v1::DESCRIPTORS;
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
