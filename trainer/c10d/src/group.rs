//! Collectives over `c10d::ProcessGroup` with the Gloo backend (CPU tensors).

use std::rc::Rc;
use std::time::Duration;

use tch::{Device, Kind, Tensor};

use crate::error::{Error, Result};
use crate::ffi::{FfiResult, GroupHandle};
use crate::store::{Store, count};

/// How `all_reduce` combines the ranks' values, element by element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Their sum.
    Sum,
    /// Their mean; floating point only.
    Avg,
    /// The smallest.
    Min,
    /// The largest.
    Max,
}

/// This process's membership in a group of ranks. A clone is the same membership.
///
/// Collectives block until every rank has made the same call, and return an error when a peer's connection breaks or
/// the group's timeout passes. After an error the group is of no more use.
#[derive(Debug, Clone)]
pub struct ProcessGroup {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    // Before `_store`: the group goes first.
    handle: GroupHandle,
    _store: Store,
    rank: usize,
    world: usize,
}

impl ProcessGroup {
    /// Joins as `rank` of `world` and connects to all peers, which takes every rank. `timeout` bounds this and each
    /// collective later. Gloo picks its address by the host name or by `GLOO_SOCKET_IFNAME`.
    pub fn gloo(store: Store, rank: usize, world: usize, timeout: Duration) -> Result<Self> {
        let world_count = count("world", world)?;
        if rank >= world {
            return Err(Error::new("rank", None, &format!("{rank} is not below the world size {world}")));
        }
        let handle = GroupHandle::gloo(&store.handle, rank as i32, world_count, timeout)
            .map_err(|text| Error::new("join the group", Some((rank, world)), &text))?;
        Ok(Self { inner: Rc::new(Inner { handle, _store: store, rank, world }) })
    }

    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.inner.rank
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.inner.world
    }

    /// Replaces `tensor`, on every rank, by the combination of all ranks' values.
    pub fn all_reduce(&self, tensor: &mut Tensor, op: Op) -> Result<()> {
        let code = match op {
            Op::Sum => 0,
            Op::Avg => 1,
            Op::Min => 2,
            Op::Max => 3,
        };
        self.named("all_reduce", self.inner.handle.all_reduce(tensor, code))
    }

    /// Replaces `tensor`, on every rank, by that of `root`.
    pub fn broadcast(&self, tensor: &mut Tensor, root: usize) -> Result<()> {
        if root >= self.world() {
            let text = format!("root {root} is not below the world size {}", self.world());
            return Err(self.error("broadcast", &text));
        }
        self.named("broadcast", self.inner.handle.broadcast(tensor, root as i32))
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<()> {
        self.named("barrier", self.inner.handle.barrier())
    }

    /// Every rank's `values`, in the order of ranks. All ranks must pass the same number of values.
    pub fn all_gather_i64(&self, values: &[i64]) -> Result<Vec<Vec<i64>>> {
        let mine = Tensor::from_slice(values);
        let mut all: Vec<_> = (0..self.world()).map(|_| mine.zeros_like()).collect();
        self.named("all_gather", self.inner.handle.all_gather(&mine, &mut all))?;
        all.iter().map(|tensor| self.values("all_gather", tensor)).collect()
    }

    /// Every rank's `bytes`, in the order of ranks. The lengths may differ.
    pub fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lengths = self.all_gather_i64(&[bytes.len() as i64])?;
        let lengths: Vec<_> = lengths.iter().map(|length| length[0] as usize).collect();
        // Gloo wants equal sizes and at least one byte.
        let longest = lengths.iter().copied().max().unwrap_or(0).max(1);
        let mut padded = bytes.to_vec();
        padded.resize(longest, 0);
        let mine = Tensor::from_slice(&padded);
        let mut all: Vec<_> =
            (0..self.world()).map(|_| Tensor::zeros([longest as i64], (Kind::Uint8, Device::Cpu))).collect();
        self.named("all_gather", self.inner.handle.all_gather(&mine, &mut all))?;
        let cut = |(tensor, length): (&Tensor, &usize)| -> Result<Vec<u8>> {
            let mut value: Vec<u8> = self.values("all_gather", tensor)?;
            value.truncate(*length);
            Ok(value)
        };
        all.iter().zip(&lengths).map(cut).collect()
    }

    pub(crate) fn handle(&self) -> &GroupHandle {
        &self.inner.handle
    }

    pub(crate) fn error(&self, operation: &'static str, text: &str) -> Error {
        Error::new(operation, Some((self.rank(), self.world())), text)
    }

    pub(crate) fn named<T>(&self, operation: &'static str, result: FfiResult<T>) -> Result<T> {
        result.map_err(|text| self.error(operation, &text))
    }

    fn values<'a, T: TryFrom<&'a Tensor, Error = tch::TchError>>(
        &self,
        operation: &'static str,
        tensor: &'a Tensor,
    ) -> Result<T> {
        T::try_from(tensor).map_err(|error| self.error(operation, &error.to_string()))
    }
}
