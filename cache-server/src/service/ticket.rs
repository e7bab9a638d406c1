//! Reads the ticket of a `DoGet` request: within a time, and within the memory for tickets.
//!
//! A ticket may name millions of rows. Its bytes are accounted for from the first one on, what they become
//! before they are decoded; and a slow sender holds nothing but its bytes: the stream enters the gate only
//! with its whole ticket.

use super::grpc::decoded::{TICKET, decoded_bytes};
use super::message::{MessageRules, read_message};
use super::stalls::StreamWatch;
use crate::read::memory::{MemoryBudget, MemoryPermit};
use crate::runtime::blocking;
use forebay_proto::{Error, Result, v1};
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::body::Body;

/// Bytes that a ticket may have: a bit per segment of 100 million, or a few million explicit rows.
const TICKET_BYTES_MAX: usize = 32 << 20;

/// Most tickets are smaller; a larger one waits for memory while it comes.
const SMALL_BYTES: usize = 64 << 10;

/// How long a ticket may take to come, and a stream may wait for its memory.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What the message of a Flight ticket begins with, if it is not empty: its only field.
const FIELD: u8 = 0x0a;

/// The memory of a ticket, while its stream lives.
#[derive(Debug)]
pub struct TicketMemory {
    /// Of a small ticket as much as the largest of these may take, until [`TicketMemory::with`].
    held: MemoryPermit,
    /// What the ticket takes: its bytes, and what they become.
    bytes: u64,
}

/// Reads a ticket, and says what memory it takes. While a large one comes, that is of `large`: small ones do
/// not wait behind it. `Invalid` if it is too large or no ticket, `Retry` if it does not come in time.
pub async fn read_ticket(
    body: Body,
    watch: &StreamWatch,
    large: &Arc<MemoryBudget>,
    patience: Duration,
) -> Result<(v1::Ticket, TicketMemory)> {
    let late = |_| Error::retry("the memory that this node has for tickets is in use: try again");
    let small = timeout(patience, watch.ticket_permit(SMALL_BYTES as u64)).await.map_err(late)?;
    let is_plausible: fn(&[u8]) -> bool = |bytes| bytes.first().is_none_or(|byte| *byte == FIELD);
    let (bytes_max, free_bytes) = (TICKET_BYTES_MAX, 0);
    let rules = MessageRules { name: "ticket", bytes_max, free_bytes, patience, is_plausible };
    let message = read_message(body, rules, large, Some(small)).await?;
    let (bytes, large) = (message.bytes as u64, message.bytes > SMALL_BYTES);
    let (message, held) = message.into_body();
    let bad = |e: prost::DecodeError| Error::invalid(format!("the ticket cannot be read: {e}"));
    let ticket = arrow_flight::Ticket::decode(message).map_err(bad)?.ticket;
    let (counted, enough) = (ticket.clone(), watch.ticket_bytes_max());
    let count = move || decoded_bytes(TICKET, &mut &counted[..], enough);
    let bytes = bytes.saturating_add(if large { blocking(count).await? } else { count() });
    if bytes > enough {
        return Err(Error::invalid(format!(
            "the ticket takes {bytes} bytes or more, the node has {enough} for tickets: ask for fewer rows at a time, or raise \
             --memory-bytes"
        )));
    }
    let held = match held {
        Some(small) if bytes <= SMALL_BYTES as u64 => small,
        held => {
            // The memory of `large` is held until then; no stream that holds memory for tickets waits for it.
            // A small ticket that becomes large waits for more of the same, and holds none.
            let _until_then = held.filter(|_| large);
            timeout(patience, watch.ticket_permit(bytes)).await.map_err(late)?
        }
    };
    Ok((v1::Ticket::decode(ticket).map_err(bad)?, TicketMemory { held, bytes }))
}

impl TicketMemory {
    /// Memory for the ticket and for `bytes` more that its stream keeps beside its messages. `Invalid` if
    /// that is more than the node has for all streams, `Retry` if others hold it for too long.
    pub async fn with(self, bytes: u64, watch: &StreamWatch) -> Result<MemoryPermit> {
        let (mut held, all) = (self.held, self.bytes.saturating_add(bytes));
        if all <= held.weight() {
            held.resize(all);
            return Ok(held);
        }
        if all > watch.ticket_bytes_max() {
            return Err(Error::invalid(format!(
                "the stream takes {all} bytes for its ticket and the places of a step's rows, the node has {}: use a smaller \
             batch, or raise --memory-bytes",
                watch.ticket_bytes_max()
            )));
        }
        // A stream that waits holds nothing: so none wait for each other.
        drop(held);
        let late = |_| Error::retry("the memory that this node has for tickets is in use: try again");
        timeout(PATIENCE, watch.ticket_permit(all)).await.map_err(late)
    }
}

#[cfg(test)]
mod tests {
    use super::super::stalls::{Stalls, StreamOrigin};
    use super::*;
    use crate::read::memory::Memory;
    use bytes::Bytes;
    use forebay_dataset::Urgency;
    use futures::FutureExt;
    use http_body_util::{Full, StreamBody};

    fn request(rows: usize) -> Bytes {
        let rows = v1::RowsTicket { segment: vec![1 << 20; rows], row: vec![0; rows], ..Default::default() };
        let ticket =
            v1::Ticket { kind: Some(v1::ticket::Kind::Rows(rows)), ..Default::default() }.encode_to_vec();
        let flight = arrow_flight::Ticket { ticket: ticket.into() }.encode_to_vec();
        [&[0][..], &(flight.len() as u32).to_be_bytes(), &flight].concat().into()
    }

    /// A stream that has this memory for its ticket, as one of many.
    fn watch(tickets: &Arc<MemoryBudget>) -> (Vec<StreamWatch>, StreamWatch) {
        let memory = Memory { tickets: tickets.clone(), ..Memory::new(1 << 20) };
        let stalls = Stalls::new(&memory, Arc::default());
        let others = (0..100).map(|_| stalls.watch(StreamOrigin::default())).collect();
        (others, stalls.watch(StreamOrigin::default()))
    }

    #[tokio::test]
    async fn the_bytes_of_a_ticket_are_accounted_for() {
        let memory = MemoryBudget::new(40 << 20);
        let (_others, watch) = watch(&memory);
        let read = |rows| read_ticket(Body::new(Full::new(request(rows))), &watch, &memory, PATIENCE);
        let small = read(9).await.unwrap().1;
        assert_eq!(memory.used(), SMALL_BYTES as u64, "until its stream is open");
        let small = small.with(0, &watch).await.unwrap();
        // Two messages, one in the other, and two numbers for a row.
        let taken = |rows: usize| (request(rows).len() + 2 * 256 + rows * 2 * 8) as u64;
        assert_eq!(memory.used(), taken(9));
        let large = read(100_000).await.unwrap();
        assert_eq!(memory.used(), taken(9) + taken(100_000));
        drop(large);
        assert!(request(6000).len() < SMALL_BYTES);
        let grown = read(6000).await.unwrap();
        assert_eq!(memory.used(), taken(9) + taken(6000), "more than a small one has");
        drop((small, grown));
        let e = read(3_000_000).await.unwrap_err();
        assert!(e.message.contains("ask for fewer rows at a time"), "{e}");
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn a_large_ticket_waits_for_memory_and_a_stream_for_its_steps() {
        let memory = MemoryBudget::new((32 << 20) + (128 << 10));
        let others = memory.acquire(32 << 20, &Urgency::demand()).await;
        let request = Body::new(Full::new(request(100_000)));
        let (_streams, watch) = watch(&memory);
        let mut large = Box::pin(read_ticket(request, &watch, &memory, PATIENCE));
        assert!((&mut large).now_or_never().is_none());
        drop(others);
        let large = large.await.unwrap().1;
        let bytes = memory.used();
        let more = large.with(1 << 20, &watch).await.unwrap();
        assert_eq!(memory.used(), bytes + (1 << 20));
        let more = TicketMemory { held: more, bytes };
        let refused = more.with(64 << 20, &watch).await.unwrap_err();
        assert_eq!((refused.kind, memory.used()), (forebay_proto::Kind::Invalid, 0));
    }

    #[tokio::test]
    async fn a_ticket_that_does_not_come_ends_in_time() {
        let memory = MemoryBudget::new(1 << 20);
        let never = StreamBody::new(futures::stream::pending::<std::result::Result<_, std::io::Error>>());
        let soon = Duration::from_millis(20);
        let (_others, watch) = watch(&memory);
        let late = read_ticket(Body::new(never), &watch, &memory, soon).await.err().unwrap();
        assert_eq!((late.kind, memory.used()), (forebay_proto::Kind::Retry, 0));
    }
}
