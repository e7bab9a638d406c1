use super::*;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest,
    HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket,
};
use futures::stream::BoxStream;
use prost::Message as _;
use prost_types::FileDescriptorSet;
use std::collections::BTreeSet;
use tonic::{Request, Response, Status, Streaming};

/// The methods that file descriptors name.
fn methods(descriptors: &[u8]) -> Vec<String> {
    let set = FileDescriptorSet::decode(descriptors).unwrap();
    let mut all = Vec::new();
    for file in &set.file {
        for service in &file.service {
            let path = |method: &str| format!("/{}.{}/{method}", file.package(), service.name());
            all.extend(service.method.iter().map(|method| path(method.name())));
        }
    }
    all
}

#[test]
fn every_call_is_in_the_table_and_nothing_else() {
    let mut wanted = methods(forebay_proto::v1::DESCRIPTORS);
    assert!(wanted.len() > 20);
    wanted.extend(methods(tonic_health::pb::FILE_DESCRIPTOR_SET));
    wanted.extend(methods(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET));
    let service = tonic_flight_methods();
    wanted.extend(service.iter().map(|method| format!("/{}/{method}", arrow_flight_name())));
    let operations = [
        S3Operation::ListBuckets,
        S3Operation::HeadBucket,
        S3Operation::GetBucketLocation,
        S3Operation::ListObjects,
        S3Operation::HeadObject,
        S3Operation::GetObject,
        S3Operation::GetObjectAttributes,
    ];
    wanted.extend(operations.map(|operation| operation.name().to_owned()));
    wanted.push(METRICS_CALL.to_owned());
    let wanted: BTreeSet<&str> = wanted.iter().map(String::as_str).collect();
    let table: BTreeSet<&str> = CALLS.iter().map(|call| call.name).collect();
    assert_eq!(table.len(), CALLS.len(), "a call is there twice");
    // Newer versions of the health service list all services; this one may not yet.
    let optional = "/grpc.health.v1.Health/List";
    let without = |set: &BTreeSet<&str>| {
        set.iter().filter(|n| **n != optional).map(|n| (*n).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(without(&wanted), without(&table));
}

#[test]
fn only_health_is_for_anybody() {
    let open: Vec<_> = CALLS.iter().filter(|call| call.roles.is_empty()).map(|call| call.name).collect();
    assert_eq!(open, ["/grpc.health.v1.Health/Check"]);
    for call in CALLS.iter().filter(|call| call.roles.contains(&CallerRole::Peer)) {
        assert!(call.name.starts_with("/forebay.v1.Peer/") && call.roles.len() == 1, "{}", call.name);
    }
    let operators = CALLS.iter().filter(|call| call.is_of_operators()).count();
    assert!(operators >= 4 && Call::of("/forebay.v1.Cache/Drain").unwrap().is_of_operators());
    assert_eq!(Call::of("/forebay.v1.Cache/Nothing"), None);
}

/// All methods of Flight: a version with more of them does not compile here.
struct FlightMethods;

type Never<T> = Result<Response<T>, Status>;

fn never<T>() -> Never<T> {
    Err(Status::unimplemented(""))
}

#[tonic::async_trait]
impl FlightService for FlightMethods {
    type HandshakeStream = BoxStream<'static, Result<HandshakeResponse, Status>>;
    type ListFlightsStream = BoxStream<'static, Result<FlightInfo, Status>>;
    type DoGetStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoPutStream = BoxStream<'static, Result<PutResult, Status>>;
    type DoExchangeStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoActionStream = BoxStream<'static, Result<arrow_flight::Result, Status>>;
    type ListActionsStream = BoxStream<'static, Result<ActionType, Status>>;

    async fn handshake(&self, _: Request<Streaming<HandshakeRequest>>) -> Never<Self::HandshakeStream> {
        never()
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Never<Self::ListFlightsStream> {
        never()
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Never<FlightInfo> {
        never()
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Never<PollInfo> {
        never()
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Never<SchemaResult> {
        never()
    }

    async fn do_get(&self, _: Request<Ticket>) -> Never<Self::DoGetStream> {
        never()
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Never<Self::DoPutStream> {
        never()
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Never<Self::DoExchangeStream> {
        never()
    }

    async fn do_action(&self, _: Request<Action>) -> Never<Self::DoActionStream> {
        never()
    }

    async fn list_actions(&self, _: Request<Empty>) -> Never<Self::ListActionsStream> {
        never()
    }
}

fn tonic_flight_methods() -> [&'static str; 10] {
    [
        "Handshake",
        "ListFlights",
        "GetFlightInfo",
        "PollFlightInfo",
        "GetSchema",
        "DoGet",
        "DoPut",
        "DoExchange",
        "DoAction",
        "ListActions",
    ]
}

fn arrow_flight_name() -> &'static str {
    <FlightServiceServer<FlightMethods> as tonic::server::NamedService>::NAME
}
