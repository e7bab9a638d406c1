//! The body of `DoGet`, framed by hand: no byte of a batch is copied on its way to HTTP/2.
//!
//! A gRPC message is 5 bytes (0, length) and a protobuf `FlightData`. Its last field on the wire is
//! `data_body`, so a small head goes out first and the Arrow buffers follow as they are, each a frame of its
//! own. Of a body that the reader sees in shared memory only its place is sent.

use super::gate::{GatePermit, draining};
use super::meter::StreamMeter;
use super::shared::SharedReader;
use crate::read::memory::MemoryPermit;
use arrow_flight::FlightData;
use bytes::{BufMut, Bytes, BytesMut};
use forebay_dataset::stream::{BatchStream, Message};
use forebay_proto::{Error, Result, v1};
use http::HeaderMap;
use http_body::Frame;
use http_body_util::StreamBody;
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};
use std::collections::VecDeque;
use std::sync::Arc;
use tonic::Status;

const DATA_BODY: u32 = 1000;

/// A `SharedBody` in place of it.
const SHARED_BODY: u32 = 999;

/// A batch stream as an HTTP/2 body.
pub struct BatchBody {
    stream: BatchStream,
    /// Parts of the message that is being sent.
    pending: VecDeque<Bytes>,
    has_ended: bool,
    meter: StreamMeter,
    permit: GatePermit,
    /// The reader, if it shares memory.
    reader: Option<Arc<SharedReader>>,
    _memory: MemoryPermit,
}

impl BatchBody {
    /// Sends `stream`, schema first; ends early with `Retry`, after a whole message, when the permit says so.
    /// `memory` is held until then.
    pub fn start(
        stream: BatchStream,
        meter: StreamMeter,
        permit: GatePermit,
        memory: MemoryPermit,
        reader: Option<Arc<SharedReader>>,
    ) -> Result<tonic::body::Body> {
        let pending = frame(Message::schema(&stream.schema), None)?;
        let body = Self { stream, pending, has_ended: false, meter, permit, reader, _memory: memory };
        let frames = futures::stream::unfold(body, |mut body| async move {
            let frame = body.next().await?;
            Some((Ok::<_, Status>(frame), body))
        });
        Ok(tonic::body::Body::new(StreamBody::new(frames)))
    }

    async fn next(&mut self) -> Option<Frame<Bytes>> {
        if self.has_ended {
            return None;
        }
        if let Some(part) = self.pending.pop_front() {
            return Some(Frame::data(part));
        }
        let message = tokio::select! {
            biased;
            () = self.permit.end.cancelled() => return Some(self.end(draining().into())),
            message = self.stream.messages.recv() => message,
        };
        Some(match message {
            None => self.end(Status::ok("")),
            Some(Err(e)) => self.fail(e),
            Some(Ok(message)) => {
                self.meter.throttle(message.body_bytes() as u64).await;
                match message.in_memory().await {
                    Ok(message) => self.put_on_wire(message),
                    Err(e) => self.fail(e),
                }
            }
        })
    }

    /// Counts a message and begins to send it.
    #[tracing::instrument(level = "trace", skip_all)]
    fn put_on_wire(&mut self, message: Message) -> Frame<Bytes> {
        self.meter.sent(&message);
        let reader = self.reader.as_ref().filter(|_| message.is_shared);
        let shared = reader.map(|reader| reader.lend(&message.body)).transpose();
        match shared.and_then(|shared| {
            self.meter.shared(shared.as_ref());
            frame(message, shared)
        }) {
            Ok(parts) => {
                self.pending = parts;
                Frame::data(self.pending.pop_front().unwrap_or_default())
            }
            Err(e) => self.fail(e),
        }
    }

    fn fail(&mut self, e: Error) -> Frame<Bytes> {
        tracing::info!(error = %e, "a stream ended with an error");
        self.end(e.into())
    }

    fn end(&mut self, status: Status) -> Frame<Bytes> {
        self.has_ended = true;
        self.stream.messages.close();
        let mut trailers = HeaderMap::new();
        if status.add_header(&mut trailers).is_err() {
            trailers.insert("grpc-status", http::HeaderValue::from(status.code() as i32));
        }
        Frame::trailers(trailers)
    }
}

/// A message as the parts of a gRPC frame; of its body only the place, if it is shared. `Invalid` if its
/// length does not fit into the frame's 32 bits.
fn frame(mut message: Message, shared: Option<v1::SharedBody>) -> Result<VecDeque<Bytes>> {
    let (data_header, app_metadata) = (message.header.clone(), message.encoded_meta());
    let mut head = BytesMut::with_capacity(64 + data_header.len() + app_metadata.len());
    head.put_slice(&[0; 5]);
    let data = FlightData { data_header, app_metadata, ..Default::default() };
    data.encode(&mut head).map_err(|e| Error::invalid(format!("a message cannot be sent: {e}")))?;
    if let Some(shared) = shared {
        message.body.clear();
        prost::encoding::message::encode(SHARED_BODY, &shared, &mut head);
    }
    let body_bytes = message.body_bytes();
    if body_bytes > 0 {
        encode_key(DATA_BODY, WireType::LengthDelimited, &mut head);
        encode_varint(body_bytes as u64, &mut head);
    }
    let bytes = head.len() - 5 + body_bytes;
    let length = u32::try_from(bytes)
        .map_err(|_| Error::invalid(format!("a message of {bytes} bytes is too large to be sent")))?;
    head[1..5].copy_from_slice(&length.to_be_bytes());
    Ok(std::iter::once(head.freeze()).chain(message.body).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::Schema;
    use forebay_proto::Kind;

    #[test]
    fn frames_are_protobuf() {
        let meta = v1::MessageMeta { runs: vec![0, 1, 2], ..Default::default() };
        let m = Message {
            header: Bytes::from_static(b"head"),
            meta: Some(meta.clone()),
            body: vec![Bytes::from_static(b"ab"), Bytes::from_static(b"cde")],
            is_shared: false,
            lender: None,
            planned: None,
        };
        let all: Vec<u8> = frame(m, None).unwrap().iter().flat_map(|p| p.to_vec()).collect();
        assert_eq!(all[0], 0);
        assert_eq!(u32::from_be_bytes(all[1..5].try_into().unwrap()) as usize, all.len() - 5);
        let data = FlightData::decode(&all[5..]).unwrap();
        assert_eq!(
            (&data.data_header[..], &data.app_metadata[..], &data.data_body[..]),
            (&b"head"[..], &meta.encode_to_vec()[..], &b"abcde"[..])
        );
    }

    #[test]
    fn a_length_that_does_not_fit_is_an_error() {
        // The same megabyte again and again: nothing of that size is in memory.
        let body = vec![Bytes::from(vec![0; 1 << 20]); 4096];
        let message = Message { body, ..Message::schema(&Schema::empty()) };
        let e = frame(message, None).unwrap_err();
        assert!(e.kind == Kind::Invalid && e.message.contains("too large"), "{e}");
    }
}
