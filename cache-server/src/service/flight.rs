//! Arrow Flight: `DoGet` is the batch stream; `GetFlightInfo` and `GetSchema` let any Flight client read a
//! dataset.
//!
//! `DoGet` goes around tonic's encoder (see [`super::frames`]); all other methods are tonic's.

use super::frames::BatchBody;
use super::meter::StreamMeter;
use super::ticket::{HeldTicket, hold_more};
use crate::datasets::Dataset;
use crate::node::Node;
use crate::read::memory::MemoryPermit;
use crate::runtime::blocking;
use crate::service::stream::StreamSegments;
use arrow_flight::flight_descriptor::DescriptorType;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo,
    HandshakeRequest, HandshakeResponse, IpcMessage, PollInfo, PutResult, SchemaAsIpc, SchemaResult, Ticket,
};
use arrow_ipc::writer::IpcWriteOptions;
use forebay_dataset::stream::{BatchStream, PlanWalk, Reading, StreamBudget, StreamSetup};
use forebay_proto::{Error, Manifest, Result, v1};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use prost::Message as _;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::{Request, Response, Status, Streaming};

/// The Flight service.
#[derive(Clone)]
pub struct Flight {
    node: Arc<Node>,
    rest: FlightServiceServer<Descriptions>,
}

impl Flight {
    /// Serves `node`.
    pub fn new(node: Arc<Node>) -> Self {
        let rest = FlightServiceServer::new(Descriptions { node: node.clone() });
        Self { node, rest }
    }
}

impl tonic::server::NamedService for Flight {
    const NAME: &'static str = <FlightServiceServer<Descriptions> as tonic::server::NamedService>::NAME;
}

impl tower::Service<http::Request<Body>> for Flight {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, std::result::Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if !request.uri().path().ends_with("/DoGet") {
            let mut rest = self.rest.clone();
            return Box::pin(async move { tower::Service::call(&mut rest, request).await });
        }
        let node = self.node.clone();
        Box::pin(async move {
            let body = match open(&node, request).await {
                Ok(body) => Body::new(body),
                Err(e) => return Ok(Status::from(e).into_http()),
            };
            let mut response = http::Response::new(body);
            let grpc = http::HeaderValue::from_static("application/grpc");
            response.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
            Ok(response)
        })
    }
}

/// Reads the ticket of a `DoGet` request and opens the batch stream that it asks for.
#[tracing::instrument(level = "trace", skip_all)]
async fn open(node: &Node, request: http::Request<Body>) -> Result<BatchBody> {
    node.gate.check()?;
    let HeldTicket { ticket, memory } = HeldTicket::read(request.into_body(), &node.memory.tickets).await?;
    // A slow sender is not inside yet.
    let pass = node.gate.enter()?;
    let link = || StreamSegments::new(node.cache.clone(), node.memory.clone());
    let known = |manifest: &[u8]| node.datasets.get(manifest, &ticket.uri, ticket.sizes_hash);
    let (stream, manifest, memory) = match ticket.kind.ok_or_else(|| Error::invalid("the ticket is empty"))? {
        v1::ticket::Kind::Plan(ticket) => {
            let plan = ticket.plan.as_ref().map(|plan| plan.manifest.clone()).unwrap_or_default();
            open_plan(node, known(&plan)?, ticket, memory).await?
        }
        v1::ticket::Kind::Scan(ticket) => {
            let dataset = known(&ticket.manifest)?;
            let setup = setup(&dataset, &ticket.columns, link())?;
            (BatchStream::scan(setup, &ticket), dataset.manifest, memory)
        }
        v1::ticket::Kind::Rows(ticket) => {
            let dataset = known(&ticket.manifest)?;
            let setup = setup(&dataset, &ticket.columns, link())?;
            (BatchStream::rows(setup, &ticket)?, dataset.manifest, memory)
        }
    };
    let meter = StreamMeter::new(node.hot.clone(), node.events.clone(), manifest);
    BatchBody::new(stream, meter, pass, memory)
}

/// Checks a plan ticket, announces its plan and starts its stream.
async fn open_plan(
    node: &Node,
    dataset: Dataset,
    ticket: v1::PlanTicket,
    memory: MemoryPermit,
) -> Result<(BatchStream, Arc<Manifest>, MemoryPermit)> {
    let manifest = dataset.manifest.clone();
    let link = StreamSegments::new(node.cache.clone(), node.memory.clone());
    let plans = node.plans.clone();
    // An order of millions of segments takes milliseconds.
    let checked = blocking(move || {
        let walk = PlanWalk::new(&dataset.manifest, &ticket, plans.orders())?;
        let reading = Reading::new(dataset.manifest, &dataset.schema, &ticket.columns)?;
        // A reader that asks only for held segments reads by another node's plan.
        let link = match ticket.held_only {
            true => link.held_only(),
            false => link.following(plans.announce(&reading, &walk)?),
        };
        Ok::<_, Error>((walk, setup_of(reading, link)))
    });
    let (walk, setup) = checked.await??;
    let memory = hold_more(memory, walk.step_bytes(), &node.memory.tickets).await?;
    Ok((BatchStream::plan(setup, walk), manifest, memory))
}

fn setup(dataset: &Dataset, columns: &[String], link: StreamSegments) -> Result<StreamSetup> {
    Ok(setup_of(Reading::new(dataset.manifest.clone(), &dataset.schema, columns)?, link))
}

fn setup_of(reading: Reading, link: StreamSegments) -> StreamSetup {
    let link = Arc::new(link);
    // The node prefetches for all streams of a plan at once.
    let budget = StreamBudget { segments_ahead: None, ..StreamBudget::default() };
    StreamSetup { reading, segments: link.clone(), hooks: link, budget }
}

/// The methods that describe: tonic's own.
struct Descriptions {
    node: Arc<Node>,
}

impl Descriptions {
    /// The dataset of a descriptor: its path is the URI, whole or in parts.
    async fn open(&self, descriptor: &FlightDescriptor) -> Result<(Dataset, u64)> {
        if descriptor.r#type != DescriptorType::Path as i32 || descriptor.path.is_empty() {
            return Err(Error::invalid("describe a dataset by path: its URI, as in s3://bucket/prefix"));
        }
        let spec = v1::DatasetSpec { uri: descriptor.path.join("/"), ..Default::default() };
        self.node.datasets.freeze(spec, &[]).await
    }
}

fn unimplemented<T>(method: &str) -> std::result::Result<Response<T>, Status> {
    Err(Status::unimplemented(format!("{method}: this cache is read with GetFlightInfo and DoGet")))
}

#[tonic::async_trait]
impl FlightService for Descriptions {
    type HandshakeStream = BoxStream<'static, std::result::Result<HandshakeResponse, Status>>;
    type ListFlightsStream = BoxStream<'static, std::result::Result<FlightInfo, Status>>;
    type DoGetStream = BoxStream<'static, std::result::Result<FlightData, Status>>;
    type DoPutStream = BoxStream<'static, std::result::Result<PutResult, Status>>;
    type DoExchangeStream = BoxStream<'static, std::result::Result<FlightData, Status>>;
    type DoActionStream = BoxStream<'static, std::result::Result<arrow_flight::Result, Status>>;
    type ListActionsStream = BoxStream<'static, std::result::Result<ActionType, Status>>;

    async fn get_flight_info(
        &self,
        request: Request<FlightDescriptor>,
    ) -> std::result::Result<Response<FlightInfo>, Status> {
        let descriptor = request.into_inner();
        let (dataset, bytes) = self.open(&descriptor).await?;
        let scan = v1::ScanTicket {
            manifest: dataset.manifest.digest().to_bytes().to_vec().into(),
            ..Default::default()
        };
        let ticket = v1::Ticket::new(&dataset.manifest, v1::ticket::Kind::Scan(scan));
        let endpoint = FlightEndpoint::new().with_ticket(Ticket::new(ticket.encode_to_vec()));
        let info = FlightInfo::new()
            .try_with_schema(&dataset.schema)
            .map_err(|e| Status::internal(e.to_string()))?
            .with_descriptor(descriptor)
            .with_endpoint(endpoint)
            .with_total_records(dataset.manifest.rows() as i64)
            .with_total_bytes(bytes as i64)
            .with_ordered(true);
        Ok(Response::new(info))
    }

    async fn get_schema(
        &self,
        request: Request<FlightDescriptor>,
    ) -> std::result::Result<Response<SchemaResult>, Status> {
        let (dataset, _) = self.open(&request.into_inner()).await?;
        let options = IpcWriteOptions::default();
        let IpcMessage(schema) = SchemaAsIpc::new(&dataset.schema, &options)
            .try_into()
            .map_err(|e: arrow::error::ArrowError| Status::internal(e.to_string()))?;
        Ok(Response::new(SchemaResult { schema }))
    }

    async fn do_get(&self, _: Request<Ticket>) -> std::result::Result<Response<Self::DoGetStream>, Status> {
        // Answered by `Flight::call` before it comes here.
        unimplemented("DoGet")
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> std::result::Result<Response<Self::HandshakeStream>, Status> {
        unimplemented("Handshake")
    }

    async fn list_flights(
        &self,
        _: Request<Criteria>,
    ) -> std::result::Result<Response<Self::ListFlightsStream>, Status> {
        unimplemented("ListFlights")
    }

    async fn poll_flight_info(
        &self,
        _: Request<FlightDescriptor>,
    ) -> std::result::Result<Response<PollInfo>, Status> {
        unimplemented("PollFlightInfo")
    }

    async fn do_put(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> std::result::Result<Response<Self::DoPutStream>, Status> {
        unimplemented("DoPut")
    }

    async fn do_exchange(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> std::result::Result<Response<Self::DoExchangeStream>, Status> {
        unimplemented("DoExchange")
    }

    async fn do_action(
        &self,
        _: Request<Action>,
    ) -> std::result::Result<Response<Self::DoActionStream>, Status> {
        unimplemented("DoAction")
    }

    async fn list_actions(
        &self,
        _: Request<Empty>,
    ) -> std::result::Result<Response<Self::ListActionsStream>, Status> {
        unimplemented("ListActions")
    }
}
