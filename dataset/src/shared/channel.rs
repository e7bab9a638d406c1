//! What node and reader say to each other beside the batch stream, over a connection of its own to the
//! node's Unix socket: the reader asks ([`Hello`]), the node's answer brings the region's descriptor
//! ([`Grant`]), the reader gives messages back (their numbers, 8 bytes each). When either end closes it, the
//! region is gone.

use super::region::SharedRegion;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// The first byte, which tells it from gRPC: HTTP/2 begins with `PRI`.
pub const FIRST: u8 = 0xf7;

/// What the reader says begins so; the last byte is the version.
const MAGIC: [u8; 8] = [FIRST, b'F', b'B', b'S', b'H', b'M', 0, 2];

/// Bytes of a [`Hello`].
pub const HELLO_BYTES: usize = 32;

const GRANT_BYTES: usize = 40;

/// The reader asks for a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// How long it should be.
    pub bytes: u64,
    /// What the `SameHost` call told it; zeros where the node has no policy.
    pub ticket: [u8; 16],
}

/// The node's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The node's process: the reader knows it from the `SameHost` call.
    pub instance: [u8; 16],
    /// What the reader names in its request for a batch stream; nobody can guess it.
    pub token: [u8; 16],
    /// The region's length; 0: the node has no memory for one.
    pub bytes: u64,
}

impl Hello {
    /// The bytes that are sent.
    pub fn encode(self) -> [u8; HELLO_BYTES] {
        let mut all = [0; HELLO_BYTES];
        all[..8].copy_from_slice(&MAGIC);
        all[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        all[16..].copy_from_slice(&self.ticket);
        all
    }

    /// `None` if it is something else, or of another version.
    pub fn decode(bytes: [u8; HELLO_BYTES]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (length, ticket) = rest.split_first_chunk::<8>()?;
        let bytes = u64::from_le_bytes(*length);
        (*magic == MAGIC).then_some(Self { bytes, ticket: ticket.try_into().ok()? })
    }
}

impl Grant {
    fn encode(&self) -> [u8; GRANT_BYTES] {
        let mut all = [0; GRANT_BYTES];
        all[..16].copy_from_slice(&self.instance);
        all[16..32].copy_from_slice(&self.token);
        all[32..].copy_from_slice(&self.bytes.to_le_bytes());
        all
    }

    fn decode(all: &[u8; GRANT_BYTES]) -> Option<Self> {
        let (instance, rest) = all.split_first_chunk()?;
        let (token, length) = rest.split_first_chunk()?;
        let bytes = u64::from_le_bytes(length.try_into().ok()?);
        Some(Self { instance: *instance, token: *token, bytes })
    }
}

/// Sends an answer, with the descriptor of the region if there is one. The socket's buffer is empty at that
/// time, so it goes out whole.
pub fn send_grant(socket: impl AsFd, grant: &Grant, region: Option<&SharedRegion>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = region.map(|region| [region.descriptor()]);
    if let Some(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let bytes = grant.encode();
    match sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)? {
        GRANT_BYTES => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// Waits for the answer, as long as the socket's own time limit allows.
pub fn receive_grant(socket: impl AsFd) -> io::Result<(Grant, Option<OwnedFd>)> {
    let mut bytes = [0; GRANT_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let grant = if got.bytes == GRANT_BYTES { Grant::decode(&bytes) } else { None };
    let grant = grant.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is no answer"))?;
    Ok((grant, descriptor))
}
