//! The table of all calls: which roles may make them, and what else is checked. A call that is not in it is
//! refused where there is a policy.
//!
//! The roles are checked before a request's body is read, [`Checked`] by the method itself, from what it was
//! asked for.

use super::principal::CallerRole;
use CallerRole::{Loader, Metrics, Operator, Peer, Reader};
use Checked::{EveryPart, EveryUri, Nothing, Shown};

/// A call, and who may make it.
#[derive(Debug, PartialEq, Eq)]
pub struct Call {
    /// The path of a gRPC method, or `s3:` and the name of an operation of S3.
    pub name: &'static str,
    /// One of them is needed; none: anybody may, known or not.
    pub roles: &'static [CallerRole],
    pub checked: Checked,
}

/// Checks beside the role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    /// Nothing: the call names no data, or its callers may read all that `--allow` names.
    Nothing,
    /// Every URI that the request names, all parts of a mix and all objects of a list.
    EveryUri,
    /// Every part of the manifest whose digest the request names, each time.
    EveryPart,
    /// Nothing is refused; what lies elsewhere is left out of the answer.
    Shown,
}

/// Readers, and those who see to it that they find what they read.
const USERS: &[CallerRole] = &[Reader, Loader];
const READER: &[CallerRole] = &[Reader];
const LOADER: &[CallerRole] = &[Loader];
const OPERATOR: &[CallerRole] = &[Operator];
const PEER: &[CallerRole] = &[Peer];
const ANYBODY: &[CallerRole] = &[];

const fn call(name: &'static str, roles: &'static [CallerRole], checked: Checked) -> Call {
    Call { name, roles, checked }
}

/// All calls: who may make each, and which URIs of its request are checked.
pub const CALLS: &[Call] = &[
    call("/forebay.v1.Cache/Open", USERS, EveryUri),
    call("/forebay.v1.Cache/OpenParts", USERS, EveryUri),
    call("/forebay.v1.Cache/Load", LOADER, EveryUri),
    call("/forebay.v1.Cache/Free", OPERATOR, EveryUri),
    call("/forebay.v1.Cache/Pin", LOADER, EveryUri),
    call("/forebay.v1.Cache/Unpin", LOADER, EveryUri),
    call("/forebay.v1.Cache/Status", &[Reader, Loader, Operator, Metrics], Shown),
    call("/forebay.v1.Cache/WatchTopology", &[Reader, Loader, Operator, Metrics], Shown),
    call("/forebay.v1.Cache/SameHost", READER, Nothing),
    call("/forebay.v1.Cache/Drain", OPERATOR, Nothing),
    call("/forebay.v1.Cache/SetReplicas", OPERATOR, EveryUri),
    call("/forebay.v1.Objects/Head", USERS, EveryUri),
    call("/forebay.v1.Objects/Read", READER, EveryUri),
    call("/forebay.v1.Objects/Fill", LOADER, EveryUri),
    call("/forebay.v1.Objects/List", USERS, EveryUri),
    call("/forebay.v1.Snapshots/Save", LOADER, EveryUri),
    call("/forebay.v1.Snapshots/SaveParts", LOADER, EveryUri),
    call("/forebay.v1.Snapshots/Get", USERS, Shown),
    call("/forebay.v1.Snapshots/List", USERS, Shown),
    call("/forebay.v1.Snapshots/Remove", LOADER, Shown),
    call("/forebay.v1.Peer/Holds", PEER, Nothing),
    call("/forebay.v1.Peer/Fetch", PEER, Nothing),
    call("/forebay.v1.Peer/Copy", PEER, Nothing),
    call("/forebay.v1.Peer/Learn", PEER, Nothing),
    call("/forebay.v1.Peer/Version", PEER, Nothing),
    call("/forebay.v1.Peer/Load", PEER, Nothing),
    call("/arrow.flight.protocol.FlightService/GetFlightInfo", READER, EveryUri),
    call("/arrow.flight.protocol.FlightService/GetSchema", READER, EveryUri),
    call("/arrow.flight.protocol.FlightService/DoGet", READER, EveryPart),
    // The rest of Flight is not served, and says so.
    call("/arrow.flight.protocol.FlightService/Handshake", READER, Nothing),
    call("/arrow.flight.protocol.FlightService/ListFlights", READER, Nothing),
    call("/arrow.flight.protocol.FlightService/PollFlightInfo", READER, Nothing),
    call("/arrow.flight.protocol.FlightService/DoPut", READER, Nothing),
    call("/arrow.flight.protocol.FlightService/DoExchange", READER, Nothing),
    call("/arrow.flight.protocol.FlightService/DoAction", READER, Nothing),
    call("/arrow.flight.protocol.FlightService/ListActions", READER, Nothing),
    // It says whether the node serves, and nothing else.
    call("/grpc.health.v1.Health/Check", ANYBODY, Nothing),
    call("/grpc.health.v1.Health/Watch", OPERATOR, Nothing),
    call("/grpc.health.v1.Health/List", OPERATOR, Nothing),
    call("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", OPERATOR, Nothing),
    call("metrics", &[Metrics, Operator], Nothing),
    call("s3:ListBuckets", READER, Shown),
    call("s3:HeadBucket", READER, EveryUri),
    call("s3:GetBucketLocation", READER, EveryUri),
    call("s3:ListObjects", READER, EveryUri),
    call("s3:HeadObject", READER, EveryUri),
    call("s3:GetObject", READER, EveryUri),
    call("s3:GetObjectAttributes", READER, EveryUri),
];

/// The call of `/metrics`.
pub const METRICS_CALL: &str = "metrics";

/// What S3 clients may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum S3Operation {
    ListBuckets,
    HeadBucket,
    GetBucketLocation,
    ListObjects,
    HeadObject,
    GetObject,
    GetObjectAttributes,
}

impl S3Operation {
    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::ListBuckets => "s3:ListBuckets",
            Self::HeadBucket => "s3:HeadBucket",
            Self::GetBucketLocation => "s3:GetBucketLocation",
            Self::ListObjects => "s3:ListObjects",
            Self::HeadObject => "s3:HeadObject",
            Self::GetObject => "s3:GetObject",
            Self::GetObjectAttributes => "s3:GetObjectAttributes",
        }
    }
}

impl Call {
    /// The call of a name, if the table has it.
    pub fn of(name: &str) -> Option<&'static Self> {
        CALLS.iter().find(|call| call.name == name)
    }

    /// Whether it is for operators alone: each is written down.
    pub fn is_of_operators(&self) -> bool {
        self.roles == OPERATOR
    }
}

#[cfg(test)]
mod tests;
