//! Cache nodes in this process: the real answers behind a stock gRPC server, and a network in front that
//! fails.

use super::world::{Random, World};
use crate::access::Access;
use crate::dataset::Dataset;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest,
    HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket,
};
use forebay_dataset::stream::wire;
use forebay_dataset::stream::{BatchStream, Orders, PlanWalk, Reading, StreamBudget, StreamSetup};
use forebay_proto::v1::cache_server::{Cache, CacheServer};
use forebay_proto::{Error, v1};
use futures::StreamExt;
use futures::stream::BoxStream;
use parking_lot::Mutex;
use prost::Message;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, WatchStream};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status, Streaming};

type Reply<T> = Result<Response<T>, Status>;
type Many<T> = BoxStream<'static, Result<T, Status>>;

/// What a node does wrong, and what it has seen.
#[derive(Default)]
pub struct Conduct {
    /// It has forgotten the dataset, as after a start, and will so often forget it when told of it, less this
    /// once.
    pub forgets: AtomicU64,
    /// It flips a bit of a message with a body, once.
    pub flips: Mutex<Option<Flip>>,
    /// It leaves out the first message with rows.
    pub skips: AtomicBool,
    /// It takes the question and never answers.
    pub stalls: AtomicBool,
    /// It fails with this.
    pub fails: Mutex<Option<Error>>,
    /// Rows sent per message, about.
    pub message_bytes: AtomicU64,
    /// It tells one topology and ends, instead of telling all changes; this one, if it is set.
    pub tells_once: AtomicBool,
    pub tells: Mutex<Option<v1::Topology>>,
    /// It takes so long for each message.
    pub delay_ms: AtomicU64,
    /// How often it was asked for what it holds, because another node was late. That also happens when the
    /// machine stands still for a moment: these are not among the streams.
    pub hedges: AtomicU64,
    pub opens: AtomicU64,
    /// Which versions of the protocol it says that it speaks; by default nothing, as a node of before.
    pub speaks: Mutex<Option<v1::Protocol>>,
    /// What it says of its host; by default that it has no socket.
    pub same_host: Mutex<v1::SameHostReply>,
    pub streams: AtomicU64,
    /// Streams that are open now.
    pub open: AtomicU64,
}

/// Where a bit flips: in a message's header or body, so far into it.
#[derive(Clone, Copy)]
pub struct Flip {
    pub header: bool,
    pub at: f64,
}

/// A stream that is open, until this is dropped.
struct Open(Arc<Conduct>);

impl Open {
    /// Keeps it where it is used.
    fn still(&self) {}
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, SeqCst);
    }
}

#[derive(Clone)]
pub struct FakeNode {
    dataset: Dataset,
    topology: watch::Receiver<v1::Topology>,
    pub conduct: Arc<Conduct>,
}

/// Nodes that all serve one dataset.
pub struct Fleet {
    pub nodes: Vec<FakeNode>,
    pub addresses: Vec<String>,
    /// What the nodes tell.
    pub topology: watch::Sender<v1::Topology>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl Fleet {
    /// `cut_bytes`: the network cuts connections after random numbers of bytes below this.
    pub async fn start(world: &World, count: usize, cuts: Option<(u64, u64)>) -> Self {
        let dataset = world.open().await;
        let first = v1::Topology { revision: 1, ..Default::default() };
        let (topology, told) = watch::channel(first);
        let (mut nodes, mut addresses, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
        for i in 0..count {
            let conduct = Arc::new(Conduct { message_bytes: AtomicU64::new(900), ..Default::default() });
            let node = FakeNode { dataset: dataset.clone(), topology: told.clone(), conduct };
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let server = listener.local_addr().unwrap();
            let service = tonic::transport::Server::builder()
                .add_service(CacheServer::new(node.clone()))
                .add_service(FlightServiceServer::new(node.clone()))
                .serve_with_incoming(TcpListenerStream::new(listener));
            tasks.push(tokio::spawn(async move { service.await.unwrap() }));
            let mut front = server;
            if let Some((seed, bytes)) = cuts {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                front = listener.local_addr().unwrap();
                tasks.push(tokio::spawn(network(listener, server, seed.wrapping_add(i as u64), bytes)));
            }
            let address = format!("http://{front}");
            let name = format!("node-{i}");
            let zone = "z".into();
            let told = v1::Node { name, address: address.clone(), weight: 1.0, zone };
            topology.send_modify(|t| t.nodes.push(told));
            nodes.push(node);
            addresses.push(address);
        }
        Self { nodes, addresses, topology, tasks }
    }

    pub async fn open(&self, world: &World) -> Dataset {
        let access = Access::endpoint(&self.addresses[0]).unwrap();
        for _ in 0..1000 {
            match Dataset::open(&access, &world.spec()).await {
                Ok(dataset) => return dataset,
                Err(e) => assert_eq!(e.kind, forebay_proto::Kind::Retry, "{e}"),
            }
        }
        panic!("cannot open the dataset through the failing network");
    }

    /// Tells the nodes, and so the readers, of a change.
    pub fn change(&self, how: impl FnOnce(&mut v1::Topology)) {
        self.topology.send_modify(|t| {
            t.revision += 1;
            how(t);
        });
    }

    /// Stops a task for good: each node has one, and behind it one for the network if that cuts, with which
    /// its connections end.
    pub fn kill(&mut self, task: usize) {
        self.tasks[task].abort();
    }
}

/// Forwards connections and cuts each after a random number of bytes from the server, and all at its end.
async fn network(listener: TcpListener, server: SocketAddr, seed: u64, bytes: u64) {
    let (mut random, mut connections) = (Random(seed), JoinSet::new());
    while let Ok((client, _)) = listener.accept().await {
        let mut left = random.next() % bytes;
        connections.spawn(async move {
            let Ok(server) = TcpStream::connect(server).await else { return };
            let (mut from, mut to) = server.into_split();
            let (mut asks, mut gets) = client.into_split();
            let up = async move { tokio::io::copy(&mut asks, &mut to).await };
            let _up = AbortOnDropHandle::new(tokio::spawn(up));
            let mut buffer = vec![0; 4096];
            while left > 0 {
                match from.read(&mut buffer).await {
                    Ok(n) if n > 0 => {
                        let n = n.min(left as usize);
                        left -= n as u64;
                        if gets.write_all(&buffer[..n]).await.is_err() {
                            break;
                        }
                    }
                    _ => break,
                }
            }
        });
    }
}

#[tonic::async_trait]
impl Cache for FakeNode {
    type LoadStream = Many<v1::LoadProgress>;
    type WatchTopologyStream = Many<v1::Topology>;

    async fn open(&self, request: Request<v1::OpenRequest>) -> Reply<v1::OpenReply> {
        self.conduct.opens.fetch_add(1, SeqCst);
        let _ = self.conduct.forgets.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        let spec = request.into_inner().dataset.unwrap();
        let spec = crate::DatasetSpec {
            uri: spec.uri,
            segment_bytes: Some(spec.segment_bytes),
            objects: spec.objects,
            ..Default::default()
        };
        let now = Dataset::open(&Access::direct(Default::default())?, &spec).await?;
        let manifest = Some(v1::Manifest::from(now.manifest.as_ref()));
        let protocol = self.conduct.speaks.lock().clone();
        Ok(Response::new(v1::OpenReply { manifest, projected_bytes: 1, notes: Vec::new(), protocol }))
    }

    async fn open_parts(&self, _: Request<tonic::Streaming<v1::OpenRequest>>) -> Reply<v1::OpenReply> {
        Err(Status::unimplemented("not needed"))
    }

    async fn load(&self, _: Request<v1::LoadRequest>) -> Reply<Self::LoadStream> {
        Err(Status::unimplemented(""))
    }

    async fn free(&self, _: Request<v1::FreeRequest>) -> Reply<v1::FreeReply> {
        Err(Status::unimplemented(""))
    }

    async fn pin(&self, _: Request<v1::PinRequest>) -> Reply<v1::PinReply> {
        Err(Status::unimplemented(""))
    }

    async fn unpin(&self, _: Request<v1::PinRequest>) -> Reply<v1::PinReply> {
        Err(Status::unimplemented(""))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Reply<v1::StatusReply> {
        Err(Status::unimplemented(""))
    }

    async fn same_host(&self, _: Request<v1::SameHostRequest>) -> Reply<v1::SameHostReply> {
        Ok(Response::new(self.conduct.same_host.lock().clone()))
    }

    async fn drain(&self, _: Request<v1::DrainRequest>) -> Reply<v1::DrainReply> {
        Err(Status::unimplemented(""))
    }

    async fn watch_topology(&self, _: Request<v1::WatchTopologyRequest>) -> Reply<Self::WatchTopologyStream> {
        if self.conduct.tells_once.load(SeqCst) {
            let told = self.conduct.tells.lock().clone();
            let now = told.unwrap_or_else(|| self.topology.borrow().clone());
            return Ok(Response::new(futures::stream::iter([Ok(now)]).boxed()));
        }
        Ok(Response::new(WatchStream::new(self.topology.clone()).map(Ok).boxed()))
    }

    async fn set_replicas(&self, _: Request<v1::SetReplicasRequest>) -> Reply<v1::SetReplicasReply> {
        Err(Status::unimplemented(""))
    }
}

/// Whether a ticket asks only for segments that the node holds.
fn is_hedge(ticket: &[u8]) -> bool {
    let kind = v1::Ticket::decode(ticket).ok().and_then(|ticket| ticket.kind);
    matches!(kind, Some(v1::ticket::Kind::Plan(plan)) if plan.held_only)
}

impl FakeNode {
    fn answer(&self, ticket: &[u8]) -> forebay_proto::Result<BatchStream> {
        if let Some(e) = self.conduct.fails.lock().clone() {
            return Err(e);
        }
        let ticket = v1::Ticket::decode(ticket).map_err(|e| Error::invalid(e.to_string()))?;
        let Some(v1::ticket::Kind::Plan(ticket)) = ticket.kind else {
            return Err(Error::invalid("no plan ticket"));
        };
        if self.conduct.forgets.load(SeqCst) > 0 {
            return Err(Error::not_found("manifest unknown: open the dataset"));
        }
        let Access::Direct(direct) = &self.dataset.access else { unreachable!() };
        let message_bytes = self.conduct.message_bytes.load(SeqCst) as usize;
        let budget = StreamBudget { message_bytes, ..Default::default() };
        let reading = Reading::new(self.dataset.manifest.clone(), &self.dataset.schema, &ticket.columns)?;
        let walk = PlanWalk::new(&reading.manifest, &ticket, &Orders::default())?;
        let setup = StreamSetup::new(reading, Arc::new(direct.clone()));
        Ok(BatchStream::plan(StreamSetup { budget, ..setup }, walk))
    }
}

#[tonic::async_trait]
impl FlightService for FakeNode {
    type HandshakeStream = Many<HandshakeResponse>;
    type ListFlightsStream = Many<FlightInfo>;
    type DoGetStream = Many<FlightData>;
    type DoPutStream = Many<PutResult>;
    type DoActionStream = Many<arrow_flight::Result>;
    type ListActionsStream = Many<ActionType>;
    type DoExchangeStream = Many<FlightData>;

    async fn do_get(&self, request: Request<Ticket>) -> Reply<Self::DoGetStream> {
        let ticket = request.into_inner().ticket;
        let asked = if is_hedge(&ticket) { &self.conduct.hedges } else { &self.conduct.streams };
        asked.fetch_add(1, SeqCst);
        if self.conduct.stalls.load(SeqCst) {
            std::future::pending::<()>().await;
        }
        let answer = self.answer(&ticket)?;
        let schema = FlightData { data_header: wire::schema_header(&answer.schema), ..Default::default() };
        let conduct = self.conduct.clone();
        conduct.open.fetch_add(1, SeqCst);
        let open = Open(conduct.clone());
        let messages = ReceiverStream::new(answer.messages).filter_map(move |message| {
            let conduct = conduct.clone();
            async move {
                let delay = conduct.delay_ms.load(SeqCst);
                tokio::time::sleep(std::time::Duration::from_millis(delay)).await;
                let message = match message {
                    Ok(m) => m,
                    Err(e) => return Some(Err(Status::from(e))),
                };
                if conduct.skips.load(SeqCst) && conduct.skips.swap(false, SeqCst) {
                    return None;
                }
                let (mut header, mut body) = (message.header.to_vec(), message.body.concat());
                let flip = if body.is_empty() { None } else { conduct.flips.lock().take() };
                if let Some(flip) = flip {
                    let part = if flip.header { &mut header } else { &mut body };
                    let at = (flip.at * part.len() as f64) as usize;
                    part[at] ^= 4;
                }
                Some(Ok(FlightData {
                    data_header: header.into(),
                    app_metadata: message.encoded_meta(),
                    data_body: body.into(),
                    flight_descriptor: None,
                }))
            }
        });
        let all = futures::stream::iter([Ok(schema)]).chain(messages);
        Ok(Response::new(all.inspect(move |_| open.still()).boxed()))
    }

    async fn handshake(&self, _: Request<Streaming<HandshakeRequest>>) -> Reply<Self::HandshakeStream> {
        Err(Status::unimplemented(""))
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Reply<Self::ListFlightsStream> {
        Err(Status::unimplemented(""))
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Reply<FlightInfo> {
        Err(Status::unimplemented(""))
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Reply<PollInfo> {
        Err(Status::unimplemented(""))
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Reply<SchemaResult> {
        Err(Status::unimplemented(""))
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Reply<Self::DoPutStream> {
        Err(Status::unimplemented(""))
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Reply<Self::DoExchangeStream> {
        Err(Status::unimplemented(""))
    }

    async fn do_action(&self, _: Request<Action>) -> Reply<Self::DoActionStream> {
        Err(Status::unimplemented(""))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Reply<Self::ListActionsStream> {
        Err(Status::unimplemented(""))
    }
}
