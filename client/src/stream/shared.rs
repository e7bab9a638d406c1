//! The reader's end of a node's shared memory: a region that the node puts messages into, for one batch
//! stream at a time, and the connection over which they are given back.

use super::parse::StreamEvent;
use super::rows::{SharedRows, SharedSegments};
use crate::idle_slot::WeakIdleSlot;
use bytes::Bytes;
use forebay_dataset::shared::channel::{Hello, is_open, receive_grant};
use forebay_dataset::shared::{FileMaps, RUN_BYTES, SharedMap};
use forebay_proto::{Error, Result, v1};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

/// How long the node may take to answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// Shorter regions would not hold the messages of one stream.
const BYTES_MIN: u32 = 4 << 20;

/// A region shared with a node; the node forgets it when this and all pieces of messages are dropped.
#[derive(Debug)]
pub struct SharedSession {
    instance: Bytes,
    request: SessionRequest,
    token: [u8; 16],
    region: Arc<SessionRegion>,
    /// Where it goes after a stream that came to its end.
    slot: WeakIdleSlot<SharedSession>,
}

#[derive(Debug)]
struct SessionRegion {
    map: SharedMap,
    files: FileMaps,
    socket: UnixStream,
}

/// How a reader asks for a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionRequest {
    /// About how long it should be.
    pub bytes: u32,
    /// What the node gave the reader, to know it again.
    pub ticket: [u8; 16],
    /// The node lends files, and the reader takes them.
    pub takes_files: bool,
}

/// A message that lies in the region. Given back when dropped.
#[derive(Debug)]
struct Lease {
    number: u64,
    region: Arc<SessionRegion>,
}

/// A stretch of such a message.
struct SharedPiece {
    lease: Arc<Lease>,
    offset: u64,
    bytes: u64,
}

impl SharedSession {
    /// Asks the node that listens at `socket`, which must be the process `instance`, for a region. It goes to
    /// `slot` after a stream that came to its end.
    pub async fn open(
        socket: String,
        instance: Bytes,
        request: SessionRequest,
        slot: WeakIdleSlot<Self>,
    ) -> io::Result<Self> {
        let open = move || Self::connect(&socket, instance, request, slot);
        spawn_blocking(open).await.map_err(io::Error::other)?
    }

    /// Whether it is what the node's process `instance` would answer to this request.
    pub fn is_like(&self, instance: &[u8], request: SessionRequest) -> bool {
        self.instance == instance && self.request == request && is_open(&self.region.socket)
    }

    /// The stream came to its end: nothing is under way, and what the reader still holds it gives back. Must
    /// be called within a Tokio runtime.
    pub fn end_stream(self) {
        self.slot.clone().keep(self, &Handle::current());
    }

    fn connect(
        socket: &str,
        instance: Bytes,
        request: SessionRequest,
        slot: WeakIdleSlot<Self>,
    ) -> io::Result<Self> {
        let SessionRequest { bytes, ticket, takes_files } = request;
        let bytes = bytes.max(BYTES_MIN).into();
        let mut socket = UnixStream::connect(socket)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.write_all(&Hello { bytes, ticket, takes_files }.encode())?;
        let (grant, region) = receive_grant(&socket)?;
        if grant.instance != *instance {
            return Err(io::Error::new(ErrorKind::NotFound, "another node listens there"));
        }
        let none = || io::Error::new(ErrorKind::OutOfMemory, "the node has no memory to share");
        let map = SharedMap::new(&region.ok_or_else(none)?, usize::try_from(grant.bytes).unwrap_or(0))?;
        // Giving a message back never waits.
        socket.set_nonblocking(true)?;
        Ok(Self {
            instance,
            request,
            token: grant.token,
            region: Arc::new(SessionRegion { map, files: FileMaps::default(), socket }),
            slot,
        })
    }

    /// What a request for a batch stream names.
    pub fn token(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.token))
    }

    /// The events of a message's body. `Retry` if it lies outside the region.
    pub fn events(&self, body: v1::SharedBody) -> Result<VecDeque<StreamEvent>> {
        let lease = Arc::new(Lease { number: body.lease, region: self.region.clone() });
        let event = |part: v1::SharedPart| {
            if part.length == 0 {
                return Ok(StreamEvent::Body(part.bytes));
            }
            let v1::SharedPart { offset, length: bytes, rows, .. } = part;
            let outside = || Error::retry("a message lies outside the memory that the node shares");
            if let Some(rows) = rows {
                let SessionRegion { map, files, socket } = &*self.region;
                if !rows.segments.is_empty() {
                    let segments = files.segments(socket, &rows)?;
                    return Ok(StreamEvent::Segments(SharedSegments::new(segments, lease.clone())));
                }
                let runs = map.get(offset, u64::from(rows.runs) * RUN_BYTES as u64).ok_or_else(outside)?;
                let rows = files.rows(socket, &rows, runs)?;
                if rows.bytes() as u64 != bytes {
                    return Err(Error::retry("rows of a message in files are not as many as it says"));
                }
                return Ok(StreamEvent::Rows(SharedRows::new(rows, lease.clone())));
            }
            self.region.map.get(offset, bytes).ok_or_else(outside)?;
            let piece = SharedPiece { lease: lease.clone(), offset, bytes };
            Ok(StreamEvent::Shared(Bytes::from_owner(piece)))
        };
        body.parts.into_iter().map(event).collect()
    }
}

impl AsRef<[u8]> for SharedPiece {
    fn as_ref(&self) -> &[u8] {
        // It was looked at before.
        self.lease.region.map.get(self.offset, self.bytes).unwrap_or_default()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let socket = &self.region.socket;
        match (&*socket).write(&self.number.to_le_bytes()) {
            Ok(8) => {}
            // The node has gone, or does not listen any more: then all is over.
            _ => drop(socket.shutdown(std::net::Shutdown::Both)),
        }
    }
}
