//! Where a worker's messages come from: a node's stream, or segments read in this process. The events are the
//! same.

use crate::dataset::Dataset;
use crate::direct::Direct;
use crate::node::Node;
use crate::stream::{Head, Stream, StreamEvent};
use forebay_dataset::stream::{BatchStream, Orders, PlanWalk, Reading};
use forebay_proto::{Manifest, Result, v1};
use prost::Message as _;
use std::collections::VecDeque;

/// How the messages of nodes come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wire {
    /// Bytes that a node may send ahead.
    pub window_bytes: u32,
    /// Through shared memory from a node on this host.
    pub same_host: bool,
}

/// Where messages come from: a node's stream, or this process, which reads the object store.
#[derive(Debug)]
pub(crate) enum Feed {
    Stream(Box<Stream>),
    Direct { answer: BatchStream, events: VecDeque<StreamEvent> },
}

impl Feed {
    /// Has a node answer the ticket.
    pub async fn stream(
        node: &Node,
        manifest: &Manifest,
        ticket: v1::PlanTicket,
        wire: Wire,
    ) -> Result<Self> {
        let ticket = v1::Ticket::new(manifest, v1::ticket::Kind::Plan(ticket)).encode_to_vec();
        let Wire { window_bytes, same_host } = wire;
        Ok(Self::Stream(Box::new(node.stream(&ticket, window_bytes, same_host).await?)))
    }

    /// Answers the ticket in this process.
    pub fn direct(direct: &Direct, dataset: &Dataset, ticket: &v1::PlanTicket) -> Result<Self> {
        let reading = Reading::new(dataset.manifest.clone(), &dataset.schema, &ticket.columns)?;
        let walk = PlanWalk::new(&reading.manifest, ticket, &Orders::default())?;
        let answer = BatchStream::plan(direct.stream(reading), walk);
        Ok(Self::Direct { answer, events: VecDeque::new() })
    }

    /// The next event; `None` after a whole and successful answer.
    pub async fn next(&mut self) -> Result<Option<StreamEvent>> {
        match self {
            Self::Stream(stream) => stream.next().await,
            Self::Direct { answer, events } => {
                if events.is_empty() {
                    let Some(message) = answer.messages.recv().await.transpose()? else { return Ok(None) };
                    let body_bytes = message.body_bytes();
                    events.push_back(StreamEvent::Head(Head {
                        meta: message.encoded_meta(),
                        header: message.header,
                        body_bytes,
                        shared: None,
                    }));
                    events.extend(message.body.into_iter().map(StreamEvent::Body));
                    events.push_back(StreamEvent::End);
                }
                Ok(events.pop_front())
            }
        }
    }
}
