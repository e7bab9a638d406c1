//! The body of `DoGet`, framed by hand: no byte of a batch is copied on its way to HTTP/2.
//!
//! A gRPC message is 5 bytes (0, length) and a protobuf `FlightData`. Its last field on the wire is
//! `data_body`, so a small head goes out first and the Arrow buffers follow as they are, each a frame of its
//! own.

use super::gate::Pass;
use super::meter::StreamMeter;
use crate::read::memory::MemoryPermit;
use bytes::{BufMut, Bytes, BytesMut};
use forebay_dataset::stream::{BatchStream, Message};
use forebay_proto::{Error, Result};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::HeaderMap;
use http_body::Frame;
use prost::encoding::{WireType, encode_key, encode_varint};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tonic::Status;

const DATA_HEADER: u32 = 2;
const APP_METADATA: u32 = 3;
const DATA_BODY: u32 = 1000;

/// A batch stream as an HTTP/2 body.
pub struct BatchBody {
    stream: BatchStream,
    /// Parts of the message that is being sent.
    pending: VecDeque<Bytes>,
    /// The next message, and the wait until the serving limit allows it.
    throttled: Option<(Message, BoxFuture<'static, ()>)>,
    trailers_sent: bool,
    meter: StreamMeter,
    stopping: BoxFuture<'static, ()>,
    _pass: Pass,
    _memory: MemoryPermit,
}

impl BatchBody {
    /// Sends `stream`, schema first; ends early with `Retry`, after a whole message, when the pass says so.
    /// `memory` is held until then.
    pub fn new(stream: BatchStream, meter: StreamMeter, pass: Pass, memory: MemoryPermit) -> Result<Self> {
        let pending = frame(Message::schema(&stream.schema))?;
        let stopping = pass.end.clone().cancelled_owned().boxed();
        let (throttled, trailers_sent) = (None, false);
        Ok(Self { stream, pending, throttled, trailers_sent, meter, stopping, _pass: pass, _memory: memory })
    }

    fn end(&mut self, status: Status) -> Frame<Bytes> {
        self.trailers_sent = true;
        self.stream.messages.close();
        let mut trailers = HeaderMap::new();
        if status.add_header(&mut trailers).is_err() {
            trailers.insert("grpc-status", http::HeaderValue::from(status.code() as i32));
        }
        Frame::trailers(trailers)
    }

    /// Counts a message and begins to send it.
    #[tracing::instrument(level = "trace", skip_all)]
    fn put_on_wire(&mut self, message: Message) -> Frame<Bytes> {
        self.meter.sent(&message);
        match frame(message) {
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

    /// The next message that may be sent, or the frame that ends the stream.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<std::result::Result<Message, Frame<Bytes>>> {
        if self.throttled.is_none() {
            if self.stopping.as_mut().poll(cx).is_ready() {
                let stopping = Error::retry("this node is draining: go on with another, or when it is back");
                return Poll::Ready(Err(self.end(stopping.into())));
            }
            match ready!(self.stream.messages.poll_recv(cx)) {
                None => return Poll::Ready(Err(self.end(Status::ok("")))),
                Some(Err(e)) => return Poll::Ready(Err(self.fail(e))),
                Some(Ok(message)) => {
                    let allowed = self.meter.throttle(message.body_bytes() as u64);
                    self.throttled = Some((message, allowed));
                }
            }
        }
        if let Some((_, allowed)) = &mut self.throttled {
            ready!(allowed.as_mut().poll(cx));
        }
        match self.throttled.take() {
            Some((message, _)) => Poll::Ready(Ok(message)),
            None => Poll::Pending,
        }
    }
}

impl http_body::Body for BatchBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Status>>> {
        if self.trailers_sent {
            return Poll::Ready(None);
        }
        if let Some(part) = self.pending.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        let message = match ready!(self.poll_message(cx)) {
            Ok(message) => message,
            Err(end) => return Poll::Ready(Some(Ok(end))),
        };
        let sent = self.put_on_wire(message);
        Poll::Ready(Some(Ok(sent)))
    }
}

/// A message as the parts of a gRPC frame. `Invalid` if its length does not fit into the frame's 32 bits.
fn frame(message: Message) -> Result<VecDeque<Bytes>> {
    let meta = message.encoded_meta();
    let mut head = BytesMut::with_capacity(64 + message.header.len() + meta.len());
    head.put_slice(&[0; 5]);
    for (tag, value) in [(DATA_HEADER, &message.header), (APP_METADATA, &meta)] {
        if !value.is_empty() {
            encode_key(tag, WireType::LengthDelimited, &mut head);
            encode_varint(value.len() as u64, &mut head);
            head.put_slice(value);
        }
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
    use arrow_flight::FlightData;
    use forebay_proto::{Kind, v1};
    use prost::Message as _;

    #[test]
    fn frames_are_protobuf() {
        let meta = v1::MessageMeta { runs: vec![0, 1, 2], ..Default::default() };
        let m = Message {
            header: Bytes::from_static(b"head"),
            meta: Some(meta.clone()),
            body: vec![Bytes::from_static(b"ab"), Bytes::from_static(b"cde")],
        };
        let all: Vec<u8> = frame(m).unwrap().iter().flat_map(|p| p.to_vec()).collect();
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
        let e = frame(Message { header: Bytes::new(), meta: None, body }).unwrap_err();
        assert!(e.kind == Kind::Invalid && e.message.contains("too large"), "{e}");
    }
}
