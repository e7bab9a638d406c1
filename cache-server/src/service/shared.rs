//! Readers on the node's host that get their batches through shared memory.
//!
//! Such a reader has a connection to the Unix socket beside its batch stream (see
//! [`forebay_dataset::shared::channel`]): over it came the descriptor of its region, over it go the numbers
//! of the messages that it has read. Its batch stream names the token that it was told. When the connection
//! ends, all that the reader held is free at once, however it ended.

use crate::auth::caller::Caller;
use crate::read::memory::{MemoryBudget, MemoryPermit};
use crate::runtime::blocking;
use bytes::Bytes;
use forebay_dataset::shared::channel::{Grant, HELLO_BYTES, Hello, send_grant};
use forebay_dataset::shared::{SharedLease, SharedRegion, host_id};
use forebay_proto::{Error, Result, v1};
use parking_lot::Mutex;
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// The header by which a `DoGet` names its reader's token, in hexadecimal digits.
const TOKEN_HEADER: &str = "forebay-session";

/// Bytes of a region: what a reader asks for, within these bounds.
const REGION_BYTES: (u64, u64) = (1 << 20, 32 << 20);

/// How long a reader may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);

type Token = [u8; 16];

/// The readers that share memory with the node, and the socket by which they come.
#[derive(Debug)]
pub struct SharedReaders {
    /// This process; see `SameHostReply`.
    instance: Token,
    memory: Arc<MemoryBudget>,
    socket: OnceLock<PathBuf>,
    readers: Mutex<HashMap<Token, Arc<SharedReader>>>,
    tickets: Mutex<Tickets>,
    /// Streams that had a region since the start, and regions for which there was no memory.
    pub streams: AtomicU64,
    pub refused: AtomicU64,
}

/// Who may ask at the socket, where there is a policy: a ticket for each principal, as long as the policy
/// stays as it is.
#[derive(Debug, Default)]
struct Tickets {
    /// Of the policy.
    generation: u64,
    of: HashMap<String, Token>,
    principals: HashMap<Token, String>,
}

/// A reader and its region.
#[derive(Debug)]
pub struct SharedReader {
    pub region: SharedRegion,
    /// The principal whose it is, where there is a policy.
    owner: Option<String>,
    /// What was sent and not given back; `None` once the reader has gone.
    sent: Mutex<Option<SentMessages>>,
    _memory: MemoryPermit,
}

#[derive(Debug, Default)]
struct SentMessages {
    /// Number of the next message.
    next: u64,
    leases: HashMap<u64, Vec<SharedLease>>,
}

/// A reader's stay; ends it when dropped.
struct Stay<'a> {
    readers: &'a SharedReaders,
    token: Token,
    reader: Arc<SharedReader>,
}

impl SharedReaders {
    /// None so far; their regions are made of `memory`.
    pub fn new(memory: Arc<MemoryBudget>) -> Result<Self> {
        Ok(Self {
            instance: random()?,
            memory,
            socket: OnceLock::new(),
            readers: Mutex::default(),
            tickets: Mutex::default(),
            streams: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// Says where the Unix socket of the node is. Before that no reader is told of one.
    pub fn listens_at(&self, socket: PathBuf) {
        // It is said once, at the start.
        self.socket.set(socket).ok();
    }

    /// What a caller is told that asks; `generation` is the policy's.
    pub fn same_host(&self, caller: &Caller, generation: u64) -> Result<v1::SameHostReply> {
        let Some(socket) = self.socket.get().and_then(|path| path.to_str()) else {
            return Ok(v1::SameHostReply::default());
        };
        let ticket = match caller.principal_name() {
            None => Bytes::new(),
            Some(name) => self.tickets.lock().ticket(name, generation)?.to_vec().into(),
        };
        Ok(v1::SameHostReply {
            host: host_id(),
            socket: socket.to_owned(),
            instance: self.instance.to_vec().into(),
            ticket,
            lends_files: true,
        })
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.readers.lock().len() as u64
    }

    /// The reader that a request names, if it is the caller's. One that is not known any more gets bytes.
    pub fn named(&self, headers: &http::HeaderMap, caller: &Caller) -> Option<Arc<SharedReader>> {
        let text = headers.get(TOKEN_HEADER)?.to_str().ok()?;
        let token = u128::from_str_radix(text, 16).ok()?.to_be_bytes();
        let reader = self.readers.lock().get(&token).cloned();
        reader.filter(|reader| reader.owner.as_deref() == caller.principal_name())
    }

    /// Serves a reader's connection to its end. `policy` is the generation of the policy, if there is one:
    /// then only those who have a ticket are served.
    pub async fn serve(&self, mut socket: UnixStream, policy: Option<u64>) {
        match self.admit(&mut socket, policy).await {
            Ok(Some(stay)) => {
                tracing::debug!(bytes = stay.reader.region.bytes(), "a reader shares memory");
                let e = stay.reader.follow(&mut socket).await;
                tracing::debug!(reason = %e, "a reader shares memory no more");
            }
            Ok(None) => tracing::debug!("no memory to share with a reader: it gets bytes"),
            Err(e) => tracing::debug!(error = %e, "no memory is shared with a reader"),
        }
    }

    /// Makes a reader's region and sends it; `None` where there is no memory for one.
    async fn admit(&self, socket: &mut UnixStream, policy: Option<u64>) -> io::Result<Option<Stay<'_>>> {
        let mut hello = [0; HELLO_BYTES];
        timeout(PATIENCE, socket.read_exact(&mut hello)).await??;
        let hello = Hello::decode(hello).ok_or(io::ErrorKind::InvalidData)?;
        let owner = match policy {
            None => None,
            Some(generation) => {
                let owner = self.tickets.lock().owner(&hello.ticket, generation);
                Some(owner.ok_or(io::ErrorKind::PermissionDenied)?)
            }
        };
        let bytes = hello.bytes.clamp(REGION_BYTES.0, REGION_BYTES.1);
        let Some(memory) = self.memory.try_acquire(bytes) else {
            self.refused.fetch_add(1, Relaxed);
            let none = Grant { instance: self.instance, token: Token::default(), bytes: 0 };
            socket.async_io(Interest::WRITABLE, || send_grant(&*socket, &none, None)).await?;
            return Ok(None);
        };
        let region =
            blocking(move || SharedRegion::new(bytes as usize)).await.map_err(io::Error::other)??;
        if hello.takes_files {
            region.lend_files(socket.as_fd().try_clone_to_owned()?);
        }
        let token = random().map_err(io::Error::other)?;
        let grant = Grant { instance: self.instance, token, bytes: region.bytes() as u64 };
        let reader = Arc::new(SharedReader {
            region,
            owner,
            sent: Mutex::new(Some(SentMessages::default())),
            _memory: memory,
        });
        // It is known before it knows.
        self.readers.lock().insert(token, reader.clone());
        let stay = Stay { readers: self, token, reader };
        socket
            .async_io(Interest::WRITABLE, || {
                send_grant(&*socket, &grant, Some(stay.reader.region.descriptor()))
            })
            .await?;
        Ok(Some(stay))
    }
}

impl SharedReader {
    /// Says where a message's body lies and keeps it there until the reader gives it back. `Retry` if the
    /// reader has gone.
    pub fn lend(&self, body: &[Bytes]) -> Result<v1::SharedBody> {
        let mut sent = self.sent.lock();
        let sent = sent.as_mut().ok_or_else(|| Error::retry("the reader has left its shared memory"))?;
        let (mut leases, mut parts) = (Vec::new(), Vec::with_capacity(body.len()));
        for part in body {
            parts.push(match self.region.lease(part) {
                None => v1::SharedPart { bytes: part.clone(), ..Default::default() },
                Some(lease) => {
                    let (offset, length, rows) = (lease.offset, part.len() as u64, lease.file_rows());
                    leases.push(lease);
                    v1::SharedPart { bytes: Bytes::new(), offset, length, rows }
                }
            });
        }
        let lease = sent.next;
        sent.next += 1;
        sent.leases.insert(lease, leases);
        Ok(v1::SharedBody { lease, parts })
    }

    /// Takes messages back as the reader gives them back. Returns why that ended.
    async fn follow(&self, socket: &mut UnixStream) -> io::Error {
        loop {
            let lease = match socket.read_u64_le().await {
                Ok(lease) => lease,
                Err(e) => return e,
            };
            let given = self.sent.lock().as_mut().and_then(|sent| sent.leases.remove(&lease));
            if given.is_none() {
                return io::Error::new(io::ErrorKind::InvalidData, "it gave back what it did not have");
            }
        }
    }
}

impl Tickets {
    /// The ticket of a principal.
    fn ticket(&mut self, principal: &str, generation: u64) -> Result<Token> {
        self.renew(generation);
        if let Some(ticket) = self.of.get(principal) {
            return Ok(*ticket);
        }
        let ticket = random()?;
        self.of.insert(principal.to_owned(), ticket);
        self.principals.insert(ticket, principal.to_owned());
        Ok(ticket)
    }

    /// The principal of a ticket.
    fn owner(&mut self, ticket: &Token, generation: u64) -> Option<String> {
        self.renew(generation);
        self.principals.get(ticket).cloned()
    }

    /// Another policy makes all tickets void.
    fn renew(&mut self, generation: u64) {
        if self.generation != generation {
            *self = Self { generation, ..Self::default() };
        }
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        self.readers.readers.lock().remove(&self.token);
        let held = self.reader.sent.lock().take();
        self.reader.region.close();
        drop(held);
    }
}

fn random() -> Result<Token> {
    let mut token = Token::default();
    match getrandom(&mut token[..], GetRandomFlags::empty()) {
        Ok(got) if got == token.len() => Ok(token),
        _ => Err(Error::denied("the system has no random numbers")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_dataset::shared::SharedMap;
    use forebay_dataset::shared::channel::receive_grant;
    use std::os::fd::OwnedFd;
    use tokio::io::AsyncWriteExt;

    const BYTES: u64 = 1 << 20;

    /// A reader's end.
    struct Guest {
        socket: UnixStream,
        grant: Grant,
        region: Option<OwnedFd>,
        serving: tokio::task::JoinHandle<()>,
    }

    async fn join(readers: &Arc<SharedReaders>) -> Guest {
        join_with(readers, None, Token::default()).await
    }

    async fn join_with(readers: &Arc<SharedReaders>, policy: Option<u64>, ticket: Token) -> Guest {
        let (node, mut socket) = UnixStream::pair().unwrap();
        let readers = readers.clone();
        let serving = tokio::spawn(async move { readers.serve(node, policy).await });
        socket.write_all(&Hello { bytes: BYTES, ticket, takes_files: false }.encode()).await.unwrap();
        let answer = socket.async_io(Interest::READABLE, || receive_grant(&socket)).await;
        let (grant, region) = answer.unwrap();
        Guest { socket, grant, region, serving }
    }

    fn headers(token: Token) -> http::HeaderMap {
        let text = format!("{:032x}", u128::from_be_bytes(token));
        http::HeaderMap::from_iter([(TOKEN_HEADER.parse().unwrap(), text.parse().unwrap())])
    }

    fn part(region: &SharedRegion, bytes: usize) -> Bytes {
        let mut buffer = region.take(bytes).unwrap();
        buffer.as_slice_mut().fill(5);
        region.share(buffer, bytes)
    }

    #[tokio::test]
    async fn what_was_sent_stays_until_it_is_given_back() {
        let memory = MemoryBudget::new(BYTES);
        let readers = Arc::new(SharedReaders::new(memory.clone()).unwrap());
        let mut guest = join(&readers).await;
        assert_eq!((guest.grant.bytes, memory.used()), (BYTES, BYTES));
        let map = SharedMap::new(guest.region.as_ref().unwrap(), BYTES as usize).unwrap();
        let reader = readers.named(&headers(guest.grant.token), &Caller::everyone()).unwrap();
        assert!(readers.named(&headers([7; 16]), &Caller::everyone()).is_none());
        let body = [part(&reader.region, 700_000), Bytes::from_static(b"inline")];
        let told = reader.lend(&body).unwrap();
        assert_eq!((told.lease, &told.parts[1].bytes[..]), (0, &b"inline"[..]));
        drop(body);
        assert!(reader.region.take(500_000).is_none(), "the reader has it");
        let v1::SharedPart { offset, length, .. } = told.parts[0];
        assert!(map.get(offset, length).unwrap().iter().all(|byte| *byte == 5));
        guest.socket.write_all(&told.lease.to_le_bytes()).await.unwrap();
        assert!(reader.region.room(BYTES as usize).await);
    }

    #[tokio::test]
    async fn a_reader_that_goes_leaves_nothing() {
        let memory = MemoryBudget::new(BYTES + 1);
        let readers = Arc::new(SharedReaders::new(memory.clone()).unwrap());
        let guest = join(&readers).await;
        let reader = readers.named(&headers(guest.grant.token), &Caller::everyone()).unwrap();
        reader.lend(&[part(&reader.region, 700_000)]).unwrap();
        // There is no memory for another one meanwhile.
        let other = join(&readers).await;
        assert!(other.grant.bytes == 0 && other.region.is_none());
        let late = part(&reader.region, 1000);
        drop(guest.socket);
        guest.serving.await.unwrap();
        assert!(!reader.region.room(1).await, "nothing is taken any more");
        assert_eq!(reader.lend(&[late]).unwrap_err().kind, forebay_proto::Kind::Retry);
        assert_eq!((readers.count(), readers.refused.load(Relaxed)), (0, 1));
        drop(reader);
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn with_a_policy_a_region_is_for_its_ticket_and_its_principal() {
        let readers = Arc::new(SharedReaders::new(MemoryBudget::new(8 * BYTES)).unwrap());
        let ticket = readers.tickets.lock().ticket("a", 1).unwrap();
        assert_eq!(readers.tickets.lock().ticket("a", 1).unwrap(), ticket);
        assert_ne!(readers.tickets.lock().ticket("b", 1).unwrap(), ticket);
        let guest = join_with(&readers, Some(1), ticket).await;
        assert_eq!(guest.grant.bytes, BYTES);
        assert!(readers.named(&headers(guest.grant.token), &Caller::everyone()).is_none(), "it is a's");
        for (policy, ticket) in [(1, Token::default()), (2, ticket)] {
            let (node, mut socket) = UnixStream::pair().unwrap();
            socket.write_all(&Hello { bytes: BYTES, ticket, takes_files: false }.encode()).await.unwrap();
            readers.serve(node, Some(policy)).await;
            assert_eq!(readers.count(), 1, "no ticket, or one of an earlier policy");
        }
    }

    #[tokio::test]
    async fn nonsense_ends_the_connection() {
        let memory = MemoryBudget::new(BYTES);
        let readers = Arc::new(SharedReaders::new(memory.clone()).unwrap());
        let mut guest = join(&readers).await;
        guest.socket.write_all(&77u64.to_le_bytes()).await.unwrap();
        guest.serving.await.unwrap();
        assert_eq!((readers.count(), memory.used()), (0, 0));
        let (node, mut socket) = UnixStream::pair().unwrap();
        socket.write_all(&[7; HELLO_BYTES]).await.unwrap();
        readers.serve(node, None).await;
        assert_eq!((readers.count(), memory.used()), (0, 0));
    }
}
