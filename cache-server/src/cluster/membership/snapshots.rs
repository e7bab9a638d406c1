//! Snapshots of datasets in etcd, for the whole cluster: which objects a dataset had, in which versions.
//!
//! A snapshot is two keys, written and removed together: a head of some hundred bytes, and its objects,
//! compressed. They lie beside the keys that nodes follow, not among them: nobody is told of a new snapshot.
//! A name is given once: of two savers at the same time one is refused, unless both save the same.

use super::etcd::{call, connect};
use crate::settings::ClusterSettings;
use etcd_client::{Compare, CompareOp, GetOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};
use forebay_proto::{Error, Result, v1};
use prost::Message;

/// Compressed bytes of a snapshot's objects: etcd takes requests of 1.5 MiB unless it is told otherwise.
const OBJECTS_BYTES_MAX: usize = 1 << 20;

/// Bytes that these may become again.
const PLAIN_BYTES_MAX: usize = 256 << 20;

/// How much zstd works: objects' keys are much alike at any level, their tags are random.
const LEVEL: i32 = 3;

/// Saves, finds and forgets snapshots, each in one transaction with any member of etcd.
pub struct ClusterSnapshots<'a>(pub(super) &'a ClusterSettings);

/// The keys of a snapshot.
struct Keys {
    head: String,
    objects: String,
}

impl Keys {
    fn new(settings: &ClusterSettings, name: &str) -> Self {
        let of = |kind| format!("{}-snapshots/{kind}/{name}", settings.etcd_prefix);
        Self { head: of("heads"), objects: of("objects") }
    }
}

impl ClusterSnapshots<'_> {
    /// Keeps a snapshot. `Invalid` if the name has another one, or it is larger than etcd takes.
    pub async fn save(&self, snapshot: v1::Snapshot) -> Result<()> {
        let name = &snapshot.name;
        let keys = Keys::new(self.0, name);
        // 0: there is none.
        let is_free = Compare::create_revision(keys.head.as_str(), CompareOp::Equal, 0);
        let put = [
            TxnOp::put(keys.head.as_str(), head(&snapshot).encode_to_vec(), None),
            TxnOp::put(keys.objects.as_str(), pack(&snapshot)?, None),
        ];
        let look = [TxnOp::get(keys.head.as_str(), None)];
        let answer = self.ask(Txn::new().when([is_free]).and_then(put).or_else(look)).await?;
        // One that is the same was saved by this very call, if an answer was lost, or by another.
        match values(&answer).first().map(|other| decode::<v1::Snapshot>(name, other)).transpose()? {
            Some(other) if (&other.digest, uri(&other)) != (&snapshot.digest, uri(&snapshot)) => {
                Err(Error::invalid(format!(
                    "there is a snapshot `{name}` of {} already: choose another name, or remove that one first",
                    uri(&other)
                )))
            }
            _ => Ok(()),
        }
    }

    /// A snapshot with its objects. `NotFound` if there is none of that name.
    pub async fn get(&self, name: &str) -> Result<v1::Snapshot> {
        let keys = Keys::new(self.0, name);
        let both = [TxnOp::get(keys.head.as_str(), None), TxnOp::get(keys.objects.as_str(), None)];
        let answer = self.ask(Txn::new().and_then(both)).await?;
        let [head, objects] = &values(&answer)[..] else { return Err(missing(name)) };
        let plain = zstd::bulk::decompress(objects, PLAIN_BYTES_MAX)
            .map_err(|e| Error::corrupt(format!("snapshot `{name}`: its objects do not decompress: {e}")))?;
        let mut snapshot: v1::Snapshot = decode(name, head)?;
        let objects = decode::<v1::DatasetSpec>(name, &plain)?.objects;
        snapshot.dataset.get_or_insert_default().objects = objects;
        Ok(snapshot)
    }

    /// All snapshots, by name, without their objects.
    pub async fn list(&self) -> Result<Vec<v1::Snapshot>> {
        let all = Some(GetOptions::new().with_prefix());
        let answer = self.ask(Txn::new().and_then([TxnOp::get(Keys::new(self.0, "").head, all)])).await?;
        values(&answer).iter().map(|head| decode("of the list", head)).collect()
    }

    /// Forgets a snapshot. `NotFound` if there is none of that name.
    pub async fn remove(&self, name: &str) -> Result<()> {
        let keys = Keys::new(self.0, name);
        let is_there = Compare::create_revision(keys.head.as_str(), CompareOp::Greater, 0);
        let both = [TxnOp::delete(keys.head.as_str(), None), TxnOp::delete(keys.objects.as_str(), None)];
        match self.ask(Txn::new().when([is_there]).and_then(both)).await?.succeeded() {
            true => Ok(()),
            false => Err(missing(name)),
        }
    }

    /// What the first member of etcd that answers says.
    async fn ask(&self, txn: Txn) -> Result<TxnResponse> {
        let mut failed = String::new();
        for attempt in 0..self.0.etcd.len() {
            let asked = async {
                let (mut client, url) = connect(self.0, attempt).await?;
                call(&url, client.txn(txn.clone())).await
            };
            match asked.await {
                Ok(answer) => return Ok(answer),
                Err(e) => failed = e,
            }
        }
        Err(Error::retry(format!("etcd, which keeps the snapshots, does not answer: {failed}")))
    }
}

/// The values that a transaction read.
fn values(answer: &TxnResponse) -> Vec<Vec<u8>> {
    let found = |response| match response {
        TxnOpResponse::Get(found) => found.kvs().iter().map(|kv| kv.value().to_vec()).collect(),
        _ => Vec::new(),
    };
    answer.op_responses().into_iter().flat_map(found).collect()
}

/// All but its objects.
fn head(snapshot: &v1::Snapshot) -> v1::Snapshot {
    let dataset = snapshot.dataset.as_ref();
    let dataset = dataset.map(|dataset| v1::DatasetSpec { objects: Vec::new(), ..dataset.clone() });
    v1::Snapshot { dataset, ..snapshot.clone() }
}

/// Its objects, compressed. `Invalid` if etcd would not take them.
fn pack(snapshot: &v1::Snapshot) -> Result<Vec<u8>> {
    let objects = snapshot.dataset.as_ref().map(|dataset| dataset.objects.clone()).unwrap_or_default();
    let plain = v1::DatasetSpec { objects, ..Default::default() }.encode_to_vec();
    let name = &snapshot.name;
    let packed = zstd::bulk::compress(&plain, LEVEL)
        .map_err(|e| Error::invalid(format!("snapshot `{name}`: its objects do not compress: {e}")))?;
    match packed.len() {
        ..=OBJECTS_BYTES_MAX => Ok(packed),
        bytes => Err(Error::invalid(format!(
            "snapshot `{name}`: its {} objects take {bytes} bytes, and etcd takes {OBJECTS_BYTES_MAX}: keep it in a file, \
             with --dir DIR",
            snapshot.objects
        ))),
    }
}

fn uri(snapshot: &v1::Snapshot) -> &str {
    snapshot.dataset.as_ref().map_or("", |dataset| &dataset.uri)
}

fn decode<T: Message + Default>(name: &str, value: &[u8]) -> Result<T> {
    T::decode(value).map_err(|e| Error::corrupt(format!("snapshot `{name}` is damaged in etcd: {e}")))
}

fn missing(name: &str) -> Error {
    Error::not_found(format!(
        "the cluster has no snapshot `{name}`: `forebay snapshot list` shows those that it has"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::Kind;
    use forebay_proto::manifest::Object;

    fn snapshot(objects: u64) -> v1::Snapshot {
        let object = |i| Object {
            key: format!("part-{i:05}.parquet"),
            etag: format!(
                "{:032x}",
                u128::from(i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
            ),
            size: i,
        };
        let dataset = v1::DatasetSpec {
            uri: "s3://b/d".into(),
            objects: (0..objects).map(object).collect(),
            ..Default::default()
        };
        v1::Snapshot { name: "july".into(), dataset: Some(dataset), objects, ..Default::default() }
    }

    #[test]
    fn objects_lie_apart_from_the_head_and_beside_what_nodes_follow() {
        let head = head(&snapshot(1000));
        assert_eq!((uri(&head), head.objects), ("s3://b/d", 1000));
        assert!(head.encoded_len() < 100);
        let keys = Keys::new(&ClusterSettings { etcd_prefix: "/x".into(), ..Default::default() }, "july");
        assert_eq!(keys.head, "/x-snapshots/heads/july");
        assert!(!keys.objects.starts_with("/x/"));
    }

    #[test]
    fn a_snapshot_that_etcd_would_refuse_is_refused_with_advice() {
        assert!(pack(&snapshot(30_000)).unwrap().len() < OBJECTS_BYTES_MAX);
        let e = pack(&snapshot(100_000)).unwrap_err();
        assert_eq!(e.kind, Kind::Invalid);
        for part in ["`july`", "100000 objects", "--dir"] {
            assert!(e.message.contains(part), "{e}");
        }
    }
}
