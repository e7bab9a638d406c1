//! Snapshots of datasets in etcd, for the whole cluster: which objects a dataset had, in which versions.
//!
//! A snapshot is a head of some hundred bytes and its objects, compressed: a second key, written and removed
//! together with the head, or [`parts`] where they are larger than etcd takes. They lie beside the keys that
//! nodes follow, not among them: nobody is told of a new snapshot. A name is given once: of two savers at the
//! same time one is refused, unless both save the same.

mod keys;
mod parts;
mod requests;

use crate::runtime::blocking;
use crate::settings::ClusterSettings;
use etcd_client::{Compare, CompareOp, GetOptions, Txn, TxnOp};
use forebay_proto::manifest::Object;
use forebay_proto::{Error, Result, v1};
use keys::Keys;
use parts::{PART_BYTES, PARTS_MAX, PartedSnapshots};
use prost::Message;
use requests::{ask, decode, found, head, is_same, missing};

/// A snapshot that is removed and saved again while it is read is looked up so often.
const READINGS: usize = 3;

/// Bytes that these may become again.
const PLAIN_BYTES_MAX: usize = 256 << 20;

/// How much zstd works: objects' keys are much alike at any level, their tags are random.
const LEVEL: i32 = 3;

/// Saves, finds and forgets snapshots, by any member of etcd; all but the large ones in one transaction each.
pub struct ClusterSnapshots<'a>(pub(super) &'a ClusterSettings);

impl ClusterSnapshots<'_> {
    /// Keeps a snapshot. `Invalid` if the name has another one, or it is larger than a cluster keeps.
    pub async fn save(&self, snapshot: v1::Snapshot) -> Result<()> {
        let packing = move || pack(&snapshot).map(|packed| (snapshot, packed));
        let (snapshot, packed) = blocking(packing).await??;
        if packed.len() > PART_BYTES {
            return PartedSnapshots(self.0).save(snapshot, &packed).await;
        }
        let name = &snapshot.name;
        let keys = Keys::new(self.0, name);
        // 0: there is none.
        let is_free = Compare::create_revision(keys.head.as_str(), CompareOp::Equal, 0);
        let put = [
            TxnOp::put(keys.head.as_str(), head(&snapshot).encode_to_vec(), None),
            TxnOp::put(keys.objects.as_str(), packed, None),
        ];
        let look = [TxnOp::get(keys.head.as_str(), None)];
        let answer = ask(self.0, Txn::new().when([is_free]).and_then(put).or_else(look)).await?;
        // One that is the same was saved by this very call, if an answer was lost, or by another.
        match found(&answer, 0).first() {
            Some(other) => is_same(&snapshot, &decode(name, other.value())?),
            None => Ok(()),
        }
    }

    /// A snapshot with its objects. `NotFound` if there is none of that name.
    pub async fn get(&self, name: &str) -> Result<v1::Snapshot> {
        let keys = Keys::new(self.0, name);
        for _ in 0..READINGS {
            let both = [TxnOp::get(keys.head.as_str(), None), TxnOp::get(keys.objects.as_str(), None)];
            let answer = ask(self.0, Txn::new().and_then(both)).await?;
            let head = found(&answer, 0).into_iter().next().ok_or_else(|| missing(name))?;
            let mut snapshot: v1::Snapshot = decode(name, head.value())?;
            let packed = match snapshot.parts {
                0 => found(&answer, 1).first().map(|objects| objects.value().to_vec()),
                _ => PartedSnapshots(self.0).objects(&snapshot).await?,
            };
            // Else it was removed between.
            let Some(packed) = packed else { continue };
            let of = name.to_owned();
            let objects = blocking(move || unpack(&of, &packed)).await??;
            snapshot.dataset.get_or_insert_default().objects = objects;
            return Ok(v1::Snapshot { parts_id: 0, parts: 0, ..snapshot });
        }
        Err(Error::corrupt(format!(
            "snapshot `{name}` is damaged in etcd: some of its objects are not there: remove it, and save it again"
        )))
    }

    /// The error that says that there is none of a name.
    pub fn missing(&self, name: &str) -> Error {
        missing(name)
    }

    /// All snapshots, by name, without their objects.
    pub async fn list(&self) -> Result<Vec<v1::Snapshot>> {
        let all = Some(GetOptions::new().with_prefix());
        let answer = ask(self.0, Txn::new().and_then([TxnOp::get(Keys::new(self.0, "").head, all)])).await?;
        let whole = |head: v1::Snapshot| v1::Snapshot { parts_id: 0, parts: 0, ..head };
        found(&answer, 0).iter().map(|head| decode("of the list", head.value()).map(whole)).collect()
    }

    /// Forgets a snapshot. `NotFound` if there is none of that name.
    pub async fn remove(&self, name: &str) -> Result<()> {
        PartedSnapshots(self.0).remove(name).await
    }
}

/// The objects that [`pack`] compressed.
fn unpack(name: &str, packed: &[u8]) -> Result<Vec<Object>> {
    let plain = zstd::bulk::decompress(packed, PLAIN_BYTES_MAX)
        .map_err(|e| Error::corrupt(format!("snapshot `{name}`: its objects do not decompress: {e}")))?;
    Ok(decode::<v1::DatasetSpec>(name, &plain)?.objects)
}

/// Its objects, compressed. `Invalid` if they are too many.
fn pack(snapshot: &v1::Snapshot) -> Result<Vec<u8>> {
    let objects = snapshot.dataset.as_ref().map(|dataset| dataset.objects.clone()).unwrap_or_default();
    let plain = v1::DatasetSpec { objects, ..Default::default() }.encode_to_vec();
    let name = &snapshot.name;
    let packed = zstd::bulk::compress(&plain, LEVEL)
        .map_err(|e| Error::invalid(format!("snapshot `{name}`: its objects do not compress: {e}")))?;
    let max = PARTS_MAX * PART_BYTES;
    match packed.len() {
        bytes if bytes <= max && plain.len() <= PLAIN_BYTES_MAX => Ok(packed),
        bytes => Err(Error::invalid(format!(
            "snapshot `{name}`: its {} objects take {bytes} bytes compressed and {} as they are, and a cluster keeps {max} \
             and {PLAIN_BYTES_MAX}: keep it in a file, with --dir DIR",
            snapshot.objects,
            plain.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::membership::snapshots::requests::uri;
    use forebay_proto::Kind;

    fn snapshot(objects: u64) -> v1::Snapshot {
        let object = |i| Object {
            key: format!("part-{i:05}.parquet"),
            etag: format!(
                "{:032x}",
                u128::from(i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
            ),
            size: i,
            ..Object::default()
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
    fn a_snapshot_that_is_too_large_is_refused_with_advice() {
        assert!(pack(&snapshot(30_000)).unwrap().len() < PART_BYTES);
        assert!(pack(&snapshot(100_000)).unwrap().len() > PART_BYTES);
        let mut huge = snapshot(1);
        let dataset = huge.dataset.as_mut().unwrap();
        dataset.objects[0].key = "x".repeat(PLAIN_BYTES_MAX);
        let e = pack(&huge).unwrap_err();
        assert_eq!(e.kind, Kind::Invalid);
        for part in ["`july`", "1 objects", "--dir"] {
            assert!(e.message.contains(part), "{e}");
        }
    }
}
