//! Large snapshots: their objects in parts, each of which fits into a request to etcd.
//!
//! Parts are written first, under an id of their own, then the head that names them, in a transaction that
//! fails if the name was taken meanwhile. So a reader finds all parts of a head, or no head. A saver that
//! dies leaves parts behind: while it lives a mark under a lease says so, and who saves or removes a large
//! snapshot later sweeps what has neither mark nor head.

use super::keys::Keys;
use super::requests::{self, ask, decode, found, is_same, missing, silent};
use crate::cluster::membership::etcd::{call, connect};
use crate::settings::ClusterSettings;
use etcd_client::{Compare, CompareOp, DeleteOptions, GetOptions, KeyValue, PutOptions, Txn, TxnOp};
use forebay_proto::{Error, Result, v1};
use prost::Message;
use std::collections::{HashMap, HashSet};

/// Bytes of a part: etcd takes requests of 1.5 MiB unless it is told otherwise.
pub(super) const PART_BYTES: usize = 1 << 20;

/// Parts of a snapshot at most.
pub(super) const PARTS_MAX: usize = 64;

/// How long a saver may take to write its parts, in seconds: each takes 3 s at most.
const SAVING_S: i64 = 300;

/// Large snapshots, and heads of any size.
pub(super) struct PartedSnapshots<'a>(pub &'a ClusterSettings);

impl PartedSnapshots<'_> {
    /// Keeps a snapshot whose objects are `packed`. `Invalid` if another one has its name.
    pub async fn save(&self, snapshot: v1::Snapshot, packed: &[u8]) -> Result<()> {
        let keys = Keys::new(self.0, &snapshot.name);
        if let Some((other, _)) = self.head(&snapshot.name).await? {
            return is_same(&snapshot, &other);
        }
        self.sweep().await?;
        let id = self.begin().await?;
        for (number, part) in packed.chunks(PART_BYTES).enumerate() {
            let put = TxnOp::put(keys.part(id, number as u32), part, None);
            if let Err(e) = ask(self.0, Txn::new().and_then([put])).await {
                self.forget(&keys, id).await.ok();
                return Err(e);
            }
        }
        let parts = packed.len().div_ceil(PART_BYTES) as u32;
        let head = v1::Snapshot { parts_id: id as u64, parts, ..requests::head(&snapshot) };
        // If there is no answer the head may be there: then its parts have to stay.
        match self.name_parts(&keys, &head).await? {
            None => Ok(()),
            // It was named, but the answer was lost.
            Some(other) if other.parts_id == head.parts_id => Ok(()),
            Some(other) if other.name.is_empty() => {
                self.forget(&keys, id).await.ok();
                Err(Error::retry(format!(
                    "snapshot `{}`: its {parts} parts took etcd more than {SAVING_S} s: try again",
                    snapshot.name
                )))
            }
            Some(other) => {
                self.forget(&keys, id).await.ok();
                is_same(&snapshot, &other)
            }
        }
    }

    /// The objects, compressed, that a head names; `None` if a part is not there.
    pub async fn objects(&self, head: &v1::Snapshot) -> Result<Option<Vec<u8>>> {
        let keys = Keys::new(self.0, &head.name);
        if head.parts as usize > PARTS_MAX {
            return Err(Error::corrupt(format!(
                "snapshot `{}` is damaged in etcd: too many parts",
                head.name
            )));
        }
        let mut packed = Vec::new();
        for number in 0..head.parts {
            let get = TxnOp::get(keys.part(head.parts_id as i64, number), None);
            let answer = ask(self.0, Txn::new().and_then([get])).await?;
            let Some(part) = found(&answer, 0).into_iter().next() else { return Ok(None) };
            packed.extend_from_slice(part.value());
        }
        Ok(Some(packed))
    }

    /// The head of a name, and the revision at which it was written.
    async fn head(&self, name: &str) -> Result<Option<(v1::Snapshot, i64)>> {
        let get = TxnOp::get(Keys::new(self.0, name).head, None);
        let answer = ask(self.0, Txn::new().and_then([get])).await?;
        let head = found(&answer, 0).into_iter().next();
        head.map(|kv| Ok((decode(name, kv.value())?, kv.mod_revision()))).transpose()
    }

    /// Removes a head and what it names. `NotFound` if there is none of that name.
    pub async fn remove(&self, name: &str) -> Result<()> {
        let keys = Keys::new(self.0, name);
        loop {
            let Some((head, revision)) = self.head(name).await? else { return Err(missing(name)) };
            let mut gone =
                vec![TxnOp::delete(keys.head.as_str(), None), TxnOp::delete(keys.objects.as_str(), None)];
            if head.parts > 0 {
                let below = Some(DeleteOptions::new().with_prefix());
                gone.push(TxnOp::delete(keys.parts(head.parts_id as i64), below));
            }
            let is_it = Compare::mod_revision(keys.head.as_str(), CompareOp::Equal, revision);
            // Else it was removed meanwhile, and perhaps saved once more.
            if ask(self.0, Txn::new().when([is_it]).and_then(gone)).await?.succeeded() {
                break;
            }
        }
        // What savers left behind is in nobody's way.
        self.sweep().await.or(Ok(()))
    }

    /// The id of parts that are about to be written, which etcd gives once, and their mark.
    async fn begin(&self) -> Result<i64> {
        let mut failed = String::new();
        for attempt in 0..self.0.etcd.len() {
            let asked = async {
                let (mut client, url) = connect(self.0, attempt).await?;
                let id = call(&url, client.lease_grant(SAVING_S, None)).await?.id();
                let (mark, lease) = (Keys::mark(self.0, id), PutOptions::new().with_lease(id));
                call(&url, client.put(mark, "", Some(lease))).await?;
                Ok(id)
            };
            match asked.await {
                Ok(id) => return Ok(id),
                Err(e) => failed = e,
            }
        }
        Err(silent(&failed))
    }

    /// Writes the head of parts that are there. If it cannot: the head that is there, or an empty one where
    /// there is none and the saver's time is up.
    async fn name_parts(&self, keys: &Keys, head: &v1::Snapshot) -> Result<Option<v1::Snapshot>> {
        let mark = Keys::mark(self.0, head.parts_id as i64);
        let is_free = Compare::create_revision(keys.head.as_str(), CompareOp::Equal, 0);
        let is_marked = Compare::create_revision(mark.as_str(), CompareOp::Greater, 0);
        let put =
            [TxnOp::put(keys.head.as_str(), head.encode_to_vec(), None), TxnOp::delete(mark.as_str(), None)];
        let look = [TxnOp::get(keys.head.as_str(), None)];
        let answer = ask(self.0, Txn::new().when([is_free, is_marked]).and_then(put).or_else(look)).await?;
        if answer.succeeded() {
            return Ok(None);
        }
        let other = found(&answer, 0).into_iter().next();
        other.map_or(Ok(Some(v1::Snapshot::default())), |kv| decode(&head.name, kv.value()).map(Some))
    }

    /// Removes parts that nothing names.
    async fn forget(&self, keys: &Keys, id: i64) -> Result<()> {
        let below = Some(DeleteOptions::new().with_prefix());
        let gone = [TxnOp::delete(keys.parts(id), below), TxnOp::delete(Keys::mark(self.0, id), None)];
        ask(self.0, Txn::new().and_then(gone)).await.map(drop)
    }

    /// Removes the parts of savers that died.
    async fn sweep(&self) -> Result<()> {
        let (all, none) = (Keys::new(self.0, ""), GetOptions::new().with_prefix());
        let names = || Some(none.clone().with_keys_only());
        let marks = Keys::marks(self.0);
        let look = [
            TxnOp::get(all.head.as_str(), Some(none.clone())),
            TxnOp::get(all.objects.as_str(), names()),
            TxnOp::get(marks.as_str(), names()),
        ];
        let answer = ask(self.0, Txn::new().and_then(look)).await?;
        let key = |kv: &KeyValue, below: &str| Some(kv.key_str().ok()?.strip_prefix(below)?.to_owned());
        let mut heads = HashMap::new();
        for kv in found(&answer, 0) {
            let Some(name) = key(&kv, &all.head) else { continue };
            let head: v1::Snapshot = decode(&name, kv.value())?;
            heads.insert(name, (head.parts_id, kv.mod_revision()));
        }
        let marked: HashSet<String> = found(&answer, 2).iter().filter_map(|kv| key(kv, &marks)).collect();
        let parts: HashSet<(String, i64)> = found(&answer, 1)
            .iter()
            .filter_map(|kv| Keys::of_part(&key(kv, &all.objects)?))
            .filter(|(_, id)| !marked.contains(&Keys::id(*id)))
            .filter(|(name, id)| heads.get(name).is_none_or(|(named, _)| *named != *id as u64))
            .collect();
        for (name, id) in parts {
            let keys = Keys::new(self.0, &name);
            let is_dead = Compare::create_revision(Keys::mark(self.0, id), CompareOp::Equal, 0);
            let revision = heads.get(&name).map_or(0, |(_, revision)| *revision);
            let is_unnamed = Compare::mod_revision(keys.head.as_str(), CompareOp::Equal, revision);
            let below = Some(DeleteOptions::new().with_prefix());
            let gone = [TxnOp::delete(keys.parts(id), below)];
            ask(self.0, Txn::new().when([is_dead, is_unnamed]).and_then(gone)).await?;
        }
        Ok(())
    }
}
