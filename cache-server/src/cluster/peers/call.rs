//! The connection to another node, and whether it answers.

use crate::read::budget::{Held, Room};
use arrow::buffer::{Buffer, MutableBuffer};
use forebay_dataset::Urgency;
use forebay_proto::manifest::DatasetId;
use forebay_proto::v1::peer_client::PeerClient;
use forebay_proto::{Error, Kind, Manifest, Result, v1};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_millis(500);

/// How long a node may take to say what it holds.
const SAY: Duration = Duration::from_millis(500);

/// Silence after which a node that owes bytes is asked whether it lives; it then has [`SAY`].
const SUSPICION: Duration = Duration::from_millis(250);

/// How long a node is left alone that does not answer: at first, and at most.
const OUT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));

/// How long memory for a copy is waited for: what holds it may itself wait for other nodes.
const ROOM: Duration = Duration::from_secs(20);

/// A dataset version that was just told need not be told again: all who were refused for want of it come at once.
const TOLD: Duration = Duration::from_secs(5);

/// A request among nodes: a manifest, mostly.
const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// Another node.
#[derive(Debug)]
pub struct Peer {
    address: String,
    client: PeerClient<Channel>,
    /// A connection of its own, for what must not wait behind fills.
    probe: PeerClient<Channel>,
    told: tokio::sync::Mutex<Option<(DatasetId, Instant)>>,
    out: Mutex<Option<(Instant, Duration)>>,
}

impl Peer {
    /// The node at a URL, connected to when first used; `None` for what is none. Call it within a Tokio runtime.
    pub fn new(address: &str) -> Option<Self> {
        let endpoint = Endpoint::from_shared(address.to_owned())
            .ok()?
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_secs(5))
            .keep_alive_timeout(Duration::from_secs(5))
            .initial_stream_window_size(4 << 20)
            // Whoever waits for memory reads on later: what it left unread must not stop the others on the connection.
            .initial_connection_window_size(i32::MAX as u32);
        let client = PeerClient::new(endpoint.connect_lazy())
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        let probe = PeerClient::new(endpoint.connect_lazy());
        let (told, out) = Default::default();
        Some(Self { address: address.to_owned(), client, probe, told, out })
    }

    /// Its URL.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether it is left alone for now.
    pub fn is_out(&self) -> bool {
        let out = *self.out.lock();
        out.is_some_and(|(since, pause)| since.elapsed() < pause)
    }

    /// Which of some segments it holds.
    pub async fn holds(&self, request: v1::HoldsRequest) -> Result<Vec<bool>> {
        let asked = request.segments.len();
        let mut client = self.probe.clone();
        let held = self.soon(client.holds(request)).await?.into_inner().held;
        match held.len() == asked {
            true => Ok(held),
            false => Err(Error::corrupt(format!("{}: answered for other segments", self.address))),
        }
    }

    /// How busy and full it is.
    pub async fn load(&self) -> Result<v1::NodeLoad> {
        let mut client = self.probe.clone();
        Ok(self.soon(client.load(v1::LoadOfRequest {})).await?.into_inner())
    }

    /// Tells it a dataset version.
    pub async fn learn(&self, manifest: &Manifest) -> Result<()> {
        let mut told = self.told.lock().await;
        if told.is_some_and(|(dataset, at)| dataset == manifest.id() && at.elapsed() < TOLD) {
            return Ok(());
        }
        let mut client = self.client.clone();
        self.owed(client.learn(v1::Manifest::from(manifest))).await?;
        *told = Some((manifest.id(), Instant::now()));
        Ok(())
    }

    /// Has it take copies; answers with which it holds then. Waits as long as it lives.
    pub async fn copy(&self, request: v1::CopyRequest) -> Result<Vec<bool>> {
        let mut client = self.client.clone();
        Ok(self.owed(client.copy(request)).await?.into_inner().held)
    }

    /// A segment file of `limit_bytes` at most, aligned as Arrow likes it, and the part of `room` that it takes. Waits as
    /// long as the node lives: it may be filling it. Meanwhile nothing is held here, or two nodes that fill for each other
    /// could wait for each other's memory.
    pub async fn fetch(
        &self,
        request: v1::FetchRequest,
        limit_bytes: u64,
        (room, urgency): (&Arc<Room>, &Urgency),
    ) -> Result<(Buffer, Held)> {
        let bad = |why: String| Error::corrupt(format!("{}: {why}", self.address));
        let mut client = self.client.clone();
        let mut chunks = self.owed(client.fetch(request)).await?.into_inner();
        let first = self.owed(chunks.message()).await?.ok_or_else(|| bad("an empty segment".into()))?;
        let file_bytes = first.file_bytes;
        if file_bytes > limit_bytes {
            return Err(bad(format!("a segment of {file_bytes} bytes, at most {limit_bytes} are right")));
        }
        let full = |_| {
            let (from, s) = (&self.address, ROOM.as_secs());
            Error::full(format!("no memory for a segment from {from} within {s} s: raise --memory-bytes"))
        };
        let held = timeout(ROOM, room.hold(file_bytes, urgency)).await.map_err(full)?;
        let mut file = MutableBuffer::with_capacity(file_bytes as usize);
        let mut next = Some(first);
        while let Some(chunk) = next {
            if file.len() + chunk.data.len() > file_bytes as usize {
                return Err(bad("more bytes than announced".into()));
            }
            file.extend_from_slice(&chunk.data);
            next = self.owed(chunks.message()).await?;
        }
        Ok((file.into(), held))
    }

    /// What takes a moment only.
    async fn soon<T>(&self, call: impl Future<Output = std::result::Result<T, Status>>) -> Result<T> {
        match timeout(SAY, call).await {
            Ok(done) => self.done(done),
            Err(_) => Err(self.silent()),
        }
    }

    /// What may take its time, as long as the node says that it lives.
    async fn owed<T>(&self, call: impl Future<Output = std::result::Result<T, Status>>) -> Result<T> {
        tokio::pin!(call);
        loop {
            if let Ok(done) = timeout(SUSPICION, &mut call).await {
                return self.done(done);
            }
            let mut client = self.probe.clone();
            tokio::select! {
                biased;
                done = &mut call => return self.done(done),
                lives = timeout(SAY, client.holds(v1::HoldsRequest::default())) => if !matches!(lives, Ok(Ok(_))) {
                    return Err(self.silent());
                }
            }
        }
    }

    fn done<T>(&self, done: std::result::Result<T, Status>) -> Result<T> {
        let mut out = self.out.lock();
        match done {
            Ok(answer) => {
                *out = None;
                Ok(answer)
            }
            Err(status) => {
                // What a node says itself is no sign that it is gone.
                let is_transport = std::error::Error::source(&status).is_some();
                drop(out);
                if is_transport {
                    self.leave_alone();
                }
                let error = Error::from(status).context(&self.address);
                Err(if is_transport { Error { kind: Kind::Closed, ..error } } else { error })
            }
        }
    }

    fn silent(&self) -> Error {
        self.leave_alone();
        Error::closed(format!("{}: does not answer", self.address))
    }

    fn leave_alone(&self) {
        let mut out = self.out.lock();
        // Calls that fail together count once.
        *out = match *out {
            Some((since, pause)) if since.elapsed() < pause => Some((since, pause)),
            Some((_, pause)) => Some((Instant::now(), (pause * 2).min(OUT.1))),
            None => Some((Instant::now(), OUT.0)),
        };
    }
}
