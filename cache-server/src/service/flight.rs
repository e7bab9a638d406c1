//! Arrow Flight: `DoGet` is the batch stream; `GetFlightInfo` and `GetSchema` let any Flight client read a
//! dataset.
//!
//! `DoGet` goes around tonic's encoder (see [`super::frames`]); all other methods are tonic's.

use super::fetch_limit::throttle;
use super::frames::BatchBody;
use super::guard::caller;
use super::meter::StreamMeter;
use super::refusals::TurnedAway;
use super::stalls::{StreamOrigin, StreamWatch};
use super::stream::StreamSegments;
use super::ticket::{PATIENCE, TicketMemory, read_ticket};
use crate::auth::caller::Caller;
use crate::datasets::OpenDataset;
use crate::node::Node;
use crate::read::memory::MemoryPermit;
use crate::runtime::blocking;
use arrow_flight::flight_descriptor::DescriptorType;
use arrow_flight::{
    FlightDescriptor, FlightEndpoint, FlightInfo, IpcMessage, SchemaAsIpc, SchemaResult, Ticket,
};
use arrow_ipc::writer::IpcWriteOptions;
use forebay_dataset::stream::{BatchStream, PlanWalk, Reading, StreamBudget, StreamSetup};
use forebay_proto::{Error, Result, v1};
use futures::future::BoxFuture;
use prost::Message as _;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// The Flight service of a node.
#[derive(Clone)]
pub struct Flight(pub Arc<Node>);

impl tonic::server::NamedService for Flight {
    const NAME: &'static str = "arrow.flight.protocol.FlightService";
}

impl tower::Service<http::Request<Body>> for Flight {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, std::result::Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let node = self.0.clone();
        Box::pin(async move {
            let method = request.uri().path().rsplit('/').next().unwrap_or_default();
            Ok(match method {
                "DoGet" => do_get(&node, request).await,
                "GetFlightInfo" => unary(request, |who, what| flight_info(node.clone(), who, what)).await,
                "GetSchema" => unary(request, |who, what| schema(node.clone(), who, what)).await,
                other => {
                    let why = format!("{other}: this cache is read with GetFlightInfo and DoGet");
                    Status::unimplemented(why).into_http()
                }
            })
        })
    }
}

async fn do_get(node: &Node, request: http::Request<Body>) -> http::Response<Body> {
    let body = match open(node, request).await {
        Ok(body) => body,
        Err(e) => return Status::from(e).into_http(),
    };
    let mut response = http::Response::new(body);
    let grpc = http::HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
    response
}

/// Answers a method that describes.
async fn unary<T, F>(
    request: http::Request<Body>,
    answer: impl Fn(Caller, FlightDescriptor) -> F,
) -> http::Response<Body>
where
    T: prost::Message + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let method = tower::service_fn(|request: Request<FlightDescriptor>| {
        let answer = caller(request.extensions()).map(|who| answer(who, request.into_inner()));
        async move { answer?.await.map(Response::new).map_err(Status::from) }
    });
    tonic::server::Grpc::new(ProstCodec::<T, FlightDescriptor>::default()).unary(method, request).await
}

/// Reads the ticket of a `DoGet` request and opens the batch stream that it asks for.
#[tracing::instrument(level = "trace", skip_all)]
async fn open(node: &Node, request: http::Request<Body>) -> Result<Body> {
    node.gate.check()?;
    let who = caller(request.extensions())?;
    let mut reader = node.shared.named(request.headers(), &who);
    let origin = request.extensions().get::<StreamOrigin>().cloned().unwrap_or_default();
    let watch = Arc::new(node.stalls.watch(origin));
    let ticket = read_ticket(request.into_body(), &watch, &node.memory.requests, PATIENCE).await;
    let (ticket, memory) = ticket.inspect_err(|_| node.listeners.refusals.count(TurnedAway::Request))?;
    // A slow sender is not inside yet.
    let permit = node.gate.enter()?.limited(who.limiter())?;
    let kind = ticket.kind.ok_or_else(|| Error::invalid("the ticket is empty"))?;
    let (version, columns) = match &kind {
        v1::ticket::Kind::Plan(ticket) => {
            (ticket.plan.as_ref().map(|plan| &plan.manifest[..]).unwrap_or_default(), &ticket.columns)
        }
        v1::ticket::Kind::Scan(ticket) => (&ticket.manifest[..], &ticket.columns),
        v1::ticket::Kind::Rows(ticket) => (&ticket.manifest[..], &ticket.columns),
    };
    let stated = (ticket.sizes_hash, ticket.version_ids);
    let dataset = node.datasets.get(&who, version, &ticket.uri, stated)?;
    let mut reading = Reading::new(dataset.manifest.clone(), &dataset.schema, columns)?;
    let mut link = StreamSegments::new(node.cache.clone(), node.memory.clone(), watch.clone());
    link.throttle = throttle(who.limiter());
    reading.is_throttled = link.throttle.is_some();
    // Other answers are short, or copied anyway.
    reader = reader.filter(|_| matches!(kind, v1::ticket::Kind::Plan(_)));
    link.region = reader.as_ref().map(|reader| reader.region.clone());
    if link.region.is_some() {
        node.shared.streams.fetch_add(1, Relaxed);
    }
    let (stream, memory) = match kind {
        v1::ticket::Kind::Plan(ticket) => open_plan(node, reading, link, ticket, (memory, &watch)).await?,
        v1::ticket::Kind::Scan(ticket) => {
            (BatchStream::scan(setup(reading, link), &ticket), memory.with(0, &watch).await?)
        }
        v1::ticket::Kind::Rows(ticket) => {
            (BatchStream::rows(setup(reading, link), &ticket)?, memory.with(0, &watch).await?)
        }
    };
    let meter = StreamMeter::of_dataset(node.hot.clone(), node.events.clone(), dataset.manifest)
        .limited(who.limiter());
    BatchBody::start(stream, meter, permit, memory, reader)
}

/// Checks a plan ticket, announces its plan and starts its stream.
async fn open_plan(
    node: &Node,
    reading: Reading,
    mut link: StreamSegments,
    ticket: v1::PlanTicket,
    (memory, watch): (TicketMemory, &StreamWatch),
) -> Result<(BatchStream, MemoryPermit)> {
    let plans = node.plans.clone();
    // An order of millions of segments takes milliseconds.
    let checked = blocking(move || {
        let walk = PlanWalk::new(&reading.manifest, &ticket, &plans.orders)?;
        // A reader that asks only for held segments reads by another node's plan.
        link.held_only = ticket.held_only;
        if !ticket.held_only {
            link.plan = Some(plans.announce(&reading, &walk)?);
        }
        Ok::<_, Error>((walk, setup(reading, link)))
    });
    let (walk, setup) = checked.await??;
    let memory = memory.with(walk.step_bytes(), watch).await?;
    Ok((BatchStream::plan(setup, walk), memory))
}

fn setup(reading: Reading, link: StreamSegments) -> StreamSetup {
    let (pool, message_bytes) = (link.pool(), link.message_bytes());
    let link = Arc::new(link);
    // The node prefetches for all streams of a plan at once.
    let budget = StreamBudget { message_bytes, segments_ahead: None, ..StreamBudget::default() };
    StreamSetup { reading, segments: link.clone(), hooks: link, budget, pool }
}

/// The dataset of a descriptor: the path is the URI, whole or in parts.
async fn described(node: &Node, who: &Caller, descriptor: &FlightDescriptor) -> Result<OpenDataset> {
    if descriptor.r#type != DescriptorType::Path as i32 || descriptor.path.is_empty() {
        return Err(Error::invalid("describe a dataset by path: its URI, as in s3://bucket/prefix"));
    }
    let spec = v1::DatasetSpec { uri: descriptor.path.join("/"), ..Default::default() };
    if let Some(limiter) = who.limiter() {
        limiter.open().await?;
    }
    node.datasets.freeze(who, spec, &[]).await
}

async fn flight_info(node: Arc<Node>, who: Caller, descriptor: FlightDescriptor) -> Result<FlightInfo> {
    let OpenDataset { dataset, projected_bytes, .. } = described(&node, &who, &descriptor).await?;
    let manifest = dataset.manifest.digest().to_bytes().to_vec().into();
    let scan = v1::ScanTicket { manifest, ..Default::default() };
    let ticket = v1::Ticket::new(&dataset.manifest, v1::ticket::Kind::Scan(scan));
    let endpoint = FlightEndpoint::new().with_ticket(Ticket::new(ticket.encode_to_vec()));
    let info = FlightInfo::new().try_with_schema(&dataset.schema).map_err(unfit)?;
    Ok(info
        .with_descriptor(descriptor)
        .with_endpoint(endpoint)
        .with_total_records(dataset.manifest.rows() as i64)
        .with_total_bytes(projected_bytes as i64)
        .with_ordered(true))
}

async fn schema(node: Arc<Node>, who: Caller, descriptor: FlightDescriptor) -> Result<SchemaResult> {
    let OpenDataset { dataset, .. } = described(&node, &who, &descriptor).await?;
    let options = IpcWriteOptions::default();
    let IpcMessage(schema) = SchemaAsIpc::new(&dataset.schema, &options).try_into().map_err(unfit)?;
    Ok(SchemaResult { schema })
}

fn unfit(e: arrow::error::ArrowError) -> Error {
    Error::corrupt(format!("the dataset's schema cannot be sent: {e}"))
}
