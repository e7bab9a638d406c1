//! What node and reader say to each other beside the batch stream, over a connection of its own to the
//! node's Unix socket: the reader asks ([`Hello`]), the node's answer brings the region's descriptor
//! ([`Grant`]), the reader gives messages back (their numbers, 8 bytes each). Where the reader takes files,
//! their descriptors follow, each before a message that has rows in it ([`FileNote`]). When either end closes
//! it, the region is gone.

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, sendmsg,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The first byte, which tells it from gRPC: HTTP/2 begins with `PRI`.
pub const FIRST: u8 = 0xf7;

/// What the reader says begins so; one of [`VERSIONS`] follows.
const MAGIC: [u8; 7] = [FIRST, b'F', b'B', b'S', b'H', b'M', 0];

/// What the reader can do: the region alone, or files too.
const VERSIONS: [u8; 2] = [2, 3];

/// Bytes of a [`Hello`].
pub const HELLO_BYTES: usize = 32;

const GRANT_BYTES: usize = 40;

const NOTE_BYTES: usize = 32;

/// The reader asks for a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// How long it should be.
    pub bytes: u64,
    /// What the `SameHost` call told it; zeros where the node has no policy.
    pub ticket: [u8; 16],
    /// Whether it copies rows out of files by itself. Only to be said to a node that lends files.
    pub takes_files: bool,
}

/// The node's answer to a [`Hello`]; the region's descriptor comes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The node's process: the reader knows it from the `SameHost` call.
    pub instance: [u8; 16],
    /// What the reader names in its request for a batch stream; nobody can guess it.
    pub token: [u8; 16],
    /// The region's length; 0: the node has no memory for one.
    pub bytes: u64,
}

/// Of a file in which rows of messages lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileNote {
    /// Its number, by which messages name it.
    pub number: u32,
    /// Its length; 0: no message will name it any more.
    pub bytes: u64,
    /// Time of its last write, in nanoseconds.
    pub modified: i128,
}

impl Hello {
    /// The bytes that are sent.
    pub fn encode(self) -> [u8; HELLO_BYTES] {
        let mut all = [0; HELLO_BYTES];
        all[..7].copy_from_slice(&MAGIC);
        all[7] = VERSIONS[usize::from(self.takes_files)];
        all[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        all[16..].copy_from_slice(&self.ticket);
        all
    }

    /// `None` if it is something else, or of another version.
    pub fn decode(bytes: [u8; HELLO_BYTES]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<7>()?;
        let (version, rest) = rest.split_first()?;
        let (length, ticket) = rest.split_first_chunk::<8>()?;
        let (bytes, ticket) = (u64::from_le_bytes(*length), ticket.try_into().ok()?);
        let takes_files = VERSIONS.iter().position(|known| known == version)? == 1;
        (*magic == MAGIC).then_some(Self { bytes, ticket, takes_files })
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

impl FileNote {
    fn encode(&self) -> [u8; NOTE_BYTES] {
        let mut all = [0; NOTE_BYTES];
        all[..4].copy_from_slice(&self.number.to_le_bytes());
        all[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        all[16..].copy_from_slice(&self.modified.to_le_bytes());
        all
    }

    fn decode(all: &[u8; NOTE_BYTES]) -> Option<Self> {
        let (number, rest) = all.split_first_chunk()?;
        let (bytes, modified) = rest[4..].split_first_chunk()?;
        let (number, bytes) = (u32::from_le_bytes(*number), u64::from_le_bytes(*bytes));
        Some(Self { number, bytes, modified: i128::from_le_bytes(modified.try_into().ok()?) })
    }
}

/// Sends an answer, with the descriptor of the region if there is one. The socket's buffer is empty at that
/// time, so it goes out whole.
pub fn send_grant(socket: impl AsFd, grant: &Grant, region: Option<BorrowedFd<'_>>) -> io::Result<()> {
    send(socket, &grant.encode(), region)
}

/// Waits for the answer, as long as the socket's own time limit allows.
pub fn receive_grant(socket: impl AsFd) -> io::Result<(Grant, Option<OwnedFd>)> {
    let (bytes, descriptor) = receive::<GRANT_BYTES>(socket)?;
    Ok((Grant::decode(&bytes).ok_or_else(no_answer)?, descriptor))
}

/// Sends a file's note and its descriptor; a note that takes a file back has none.
pub fn send_note(socket: impl AsFd, note: &FileNote, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    send(socket, &note.encode(), file)
}

/// Whether the other end is still there.
pub fn is_open(socket: impl AsFd) -> bool {
    let looked = recv(socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    looked.map_or_else(|e| e == Errno::WOULDBLOCK, |(_, bytes)| bytes > 0)
}

/// The next note; `WouldBlock` where none has come.
pub(super) fn receive_note(socket: impl AsFd) -> io::Result<(FileNote, Option<OwnedFd>)> {
    let (bytes, file) = receive::<NOTE_BYTES>(socket)?;
    Ok((FileNote::decode(&bytes).ok_or_else(no_answer)?, file))
}

/// Sends bytes and a descriptor. Whole or not at all, but for a socket whose buffer is nearly full.
fn send(socket: impl AsFd, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|descriptor| [descriptor]);
    if let Some(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
}

/// Receives as many bytes, and the descriptor that comes with them. Bytes that are sent at once come at once.
fn receive<const N: usize>(socket: impl AsFd) -> io::Result<([u8; N], Option<OwnedFd>)> {
    let mut bytes = [0; N];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    if got.bytes == N { Ok((bytes, descriptor)) } else { Err(no_answer()) }
}

fn no_answer() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "it is no answer")
}
