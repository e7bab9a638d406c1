//! How fields of messages look as JSON where the derived form would not do.

use crate::manifest::Digest;
use crate::v1::membership_status::Kind;
use prost::bytes::Bytes;
use serde::Serializer;

/// 32 hex digits; empty if the node sent none.
pub(crate) fn digest<S: Serializer>(digest: &Bytes, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&Digest::from_bytes(digest).map(|d| d.to_string()).unwrap_or_default())
}

/// `alone`, `fixed` or `etcd`.
pub(crate) fn membership_kind<S: Serializer>(kind: &i32, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&Kind::try_from(*kind).unwrap_or_default().as_str_name().to_lowercase())
}
