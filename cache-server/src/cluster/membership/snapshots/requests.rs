//! Transactions about snapshots with any member of etcd, and what they find.

use crate::cluster::membership::etcd::{call, connect};
use crate::settings::ClusterSettings;
use etcd_client::{KeyValue, Txn, TxnOpResponse, TxnResponse};
use forebay_proto::{Error, Result, v1};
use prost::Message;

/// What the first member of etcd that answers says.
pub(super) async fn ask(settings: &ClusterSettings, txn: Txn) -> Result<TxnResponse> {
    let mut failed = String::new();
    for attempt in 0..settings.etcd.len() {
        let asked = async {
            let (mut client, url) = connect(settings, attempt).await?;
            call(&url, client.txn(txn.clone())).await
        };
        match asked.await {
            Ok(answer) => return Ok(answer),
            Err(e) => failed = e,
        }
    }
    Err(silent(&failed))
}

/// What the operation `index` of a transaction read.
pub(super) fn found(answer: &TxnResponse, index: usize) -> Vec<KeyValue> {
    match answer.op_responses().into_iter().nth(index) {
        Some(TxnOpResponse::Get(mut found)) => found.take_kvs(),
        _ => Vec::new(),
    }
}

/// No member does.
pub(super) fn silent(failed: &str) -> Error {
    Error::retry(format!("etcd, which keeps the snapshots, does not answer: {failed}"))
}

/// `Invalid` if `other`, which has the name, is not what was to be saved.
pub(super) fn is_same(snapshot: &v1::Snapshot, other: &v1::Snapshot) -> Result<()> {
    match (&other.digest, uri(other)) == (&snapshot.digest, uri(snapshot)) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "there is a snapshot `{}` of {} already: choose another name, or remove that one first",
            snapshot.name,
            uri(other)
        ))),
    }
}

/// All but its objects.
pub(super) fn head(snapshot: &v1::Snapshot) -> v1::Snapshot {
    let dataset = snapshot.dataset.as_ref();
    let dataset = dataset.map(|dataset| v1::DatasetSpec { objects: Vec::new(), ..dataset.clone() });
    v1::Snapshot { dataset, parts_id: 0, parts: 0, ..snapshot.clone() }
}

/// Of its dataset.
pub(super) fn uri(snapshot: &v1::Snapshot) -> &str {
    snapshot.dataset.as_ref().map_or("", |dataset| &dataset.uri)
}

/// A message out of etcd.
pub(super) fn decode<T: Message + Default>(name: &str, value: &[u8]) -> Result<T> {
    T::decode(value).map_err(|e| Error::corrupt(format!("snapshot `{name}` is damaged in etcd: {e}")))
}

/// There is none of that name.
pub(super) fn missing(name: &str) -> Error {
    Error::not_found(format!(
        "the cluster has no snapshot `{name}`: `forebay snapshot list` shows those that it has"
    ))
}
