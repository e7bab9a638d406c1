//! The body of `DoGet`, framed by hand: no byte of a batch is copied on its way to HTTP/2.
//!
//! A gRPC message is 5 bytes (0, length) and a protobuf `FlightData`. Its last field on the wire is `data_body`, so a
//! small head goes out first and the Arrow buffers follow as they are, each a frame of its own.

use crate::events::Events;
use crate::service::gate::Pass;
use bytes::{BufMut, Bytes, BytesMut};
use forebay_dataset::stream::Answer;
use forebay_dataset::stream::wire::{self, Message};
use forebay_proto::{Error, v1};
use http::HeaderMap;
use http_body::Frame;
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use tonic::Status;

const DATA_HEADER: u32 = 2;
const APP_METADATA: u32 = 3;
const DATA_BODY: u32 = 1000;

/// Told of each message that is sent, with its bytes.
pub type Sent = Box<dyn Fn(&v1::MessageMeta, u64) + Send>;

/// An answer as an HTTP/2 body.
pub struct AnswerBody {
    answer: Answer,
    pending: VecDeque<Bytes>,
    trailers_sent: bool,
    events: Arc<Events>,
    sent: Sent,
    stopping: Pin<Box<dyn Future<Output = ()> + Send>>,
    _pass: Pass,
}

impl AnswerBody {
    /// Sends `answer`, schema first; ends early with `Retry`, after a whole message, when the pass says so.
    pub fn new(answer: Answer, events: Arc<Events>, sent: Sent, pass: Pass) -> Self {
        events.streams.fetch_add(1, Relaxed);
        let schema =
            Message { header: wire::schema_header(&answer.schema), meta: Bytes::new(), body: Vec::new() };
        let mut pending = VecDeque::new();
        frame(schema, &mut pending);
        let stopping = Box::pin(pass.end.clone().cancelled_owned());
        Self { answer, pending, trailers_sent: false, events, sent, stopping, _pass: pass }
    }

    fn end(&mut self, status: Status) -> Frame<Bytes> {
        self.trailers_sent = true;
        self.answer.messages.close();
        let mut trailers = HeaderMap::new();
        if status.add_header(&mut trailers).is_err() {
            trailers.insert("grpc-status", http::HeaderValue::from(status.code() as i32));
        }
        Frame::trailers(trailers)
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.trailers_sent {
            return Poll::Ready(None);
        }
        if let Some(part) = self.pending.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        if self.stopping.as_mut().poll(cx).is_ready() {
            let stopping = Error::retry("this node is draining: go on with another, or when it is back");
            return Poll::Ready(Some(Ok(self.end(stopping.into()))));
        }
        match self.answer.messages.poll_recv(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => Poll::Ready(Some(Ok(self.end(Status::ok(""))))),
            Poll::Ready(Some(Err(e))) => {
                tracing::info!(error = %e, "a stream ended with an error");
                Poll::Ready(Some(Ok(self.end(e.into()))))
            }
            Poll::Ready(Some(Ok(message))) => {
                let bytes = message.body_bytes() as u64;
                // What the message says of itself.
                let meta = v1::MessageMeta::decode(message.meta.clone()).unwrap_or_default();
                self.events.bytes_served.fetch_add(bytes, Relaxed);
                let rows = meta.runs.chunks_exact(3).map(|run| u64::from(run[2])).sum();
                self.events.rows_served.fetch_add(rows, Relaxed);
                (self.sent)(&meta, bytes);
                let this = &mut *self;
                frame(message, &mut this.pending);
                let head = this.pending.pop_front().unwrap_or_default();
                Poll::Ready(Some(Ok(Frame::data(head))))
            }
        }
    }
}

/// Appends a message as the parts of a gRPC frame.
fn frame(message: Message, out: &mut VecDeque<Bytes>) {
    let mut head = BytesMut::with_capacity(64 + message.header.len() + message.meta.len());
    head.put_slice(&[0; 5]);
    for (tag, value) in [(DATA_HEADER, &message.header), (APP_METADATA, &message.meta)] {
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
    let length = (head.len() - 5 + body_bytes) as u32;
    head[1..5].copy_from_slice(&length.to_be_bytes());
    out.push_back(head.freeze());
    out.extend(message.body);
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_flight::FlightData;

    #[test]
    fn frames_are_protobuf() {
        let m = Message {
            header: Bytes::from_static(b"head"),
            meta: Bytes::from_static(b"meta"),
            body: vec![Bytes::from_static(b"ab"), Bytes::from_static(b"cde")],
        };
        let mut out = VecDeque::new();
        frame(m, &mut out);
        let all: Vec<u8> = out.iter().flat_map(|p| p.to_vec()).collect();
        assert_eq!(all[0], 0);
        assert_eq!(u32::from_be_bytes(all[1..5].try_into().unwrap()) as usize, all.len() - 5);
        let data = FlightData::decode(&all[5..]).unwrap();
        assert_eq!(
            (&data.data_header[..], &data.app_metadata[..], &data.data_body[..]),
            (&b"head"[..], &b"meta"[..], &b"abcde"[..])
        );
    }
}
