//! A group of ranks and its collectives: `c10d::ProcessGroup`, with Gloo for tensors in main memory and, from
//! the plugin, NCCL for those on a GPU.

use std::marker::PhantomData;
use std::rc::Rc;
use std::time::{Duration, Instant};

use cxx::UniquePtr;
use tch::Tensor;

use crate::error::{Error, Failure, Result};
use crate::ffi::bridge::{self, GroupHandle, Op, WorkHandle};
use crate::ffi::{FfiResult, at, list, milliseconds};
use crate::heartbeat::{Absent, Heartbeat};
use crate::store::{Store, count};

/// A collective that has begun, or why it has not.
type Started = std::result::Result<UniquePtr<WorkHandle>, cxx::Exception>;

/// How long a failed operation looks for the rank that is to blame.
const BLAME: Duration = Duration::from_secs(2);
/// How long a rank that others wait for may give no sign of life.
const SILENCE: Duration = Duration::from_secs(5);
/// A request to the store that waits ends after so long, so that the wait can be looked at.
const TURN: Duration = Duration::from_secs(1);

/// This process's membership in a group of ranks. A clone is the same membership.
///
/// Collectives block until every rank has made the same call, and return an error when a peer's connection
/// breaks or the group's timeout passes; the error names the ranks to blame, as far as their heartbeats tell.
/// After an error the group is of no more use. All ranks make the same calls in the same order, with tensors
/// of the same shape and kind unless a method says otherwise.
#[derive(Debug, Clone)]
pub struct ProcessGroup {
    inner: Rc<Inner>,
}

#[derive(Debug)]
struct Inner {
    // Before `store`: the group goes first.
    handle: UniquePtr<GroupHandle>,
    /// None in a group of one.
    heartbeat: Option<Heartbeat>,
    store: Store,
    /// Calls of [`ProcessGroup::only`].
    turns: std::cell::Cell<u64>,
    rank: usize,
    world: usize,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A panic is a failure too: peers may never come to the collectives under way.
        if std::thread::panicking() {
            self.handle.fail();
        }
    }
}

impl ProcessGroup {
    /// Joins as `rank` of `world` and connects to all peers, which takes every rank. `timeout` bounds this
    /// and each collective later. Gloo picks its address by the host name or by `GLOO_SOCKET_IFNAME`.
    pub fn gloo(store: Store, rank: usize, world: usize, timeout: Duration) -> Result<Self> {
        let world_count = count("world", world)?;
        if rank >= world {
            return Err(Error::new("rank", None, format!("{rank} is not below the world size {world}")));
        }
        let failed = |failure: Failure| Error::new("join the group", Some((rank, world)), failure);
        let beats = || {
            let connection = store.handle.connect_again()?;
            Heartbeat::start(Store { handle: connection, served_by: store.served_by }, rank, world)
        };
        let heartbeat = if world > 1 { Some(beats().map_err(failed)?) } else { None };
        let joined = bridge::gloo_group(&store.handle, rank as i32, world_count, milliseconds(timeout));
        let handle = joined.map_err(|thrown| {
            let error = failed(thrown.into());
            match heartbeat.as_ref().map(|heartbeat| heartbeat.absent(None, BLAME)) {
                Some(Ok(absent)) => error.blaming(&absent),
                _ => error,
            }
        })?;
        let turns = std::cell::Cell::new(0);
        Ok(Self { inner: Rc::new(Inner { handle, heartbeat, store, turns, rank, world }) })
    }

    /// This process's number among those of the group, from 0.
    pub fn rank(&self) -> usize {
        self.inner.rank
    }

    /// How many processes the group has, this one included.
    pub fn world(&self) -> usize {
        self.inner.world
    }

    /// The store that the ranks met at; keys that begin with `forebay/` are this crate's.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// Replaces `tensor`, on every rank, by the combination of all ranks' values.
    pub fn all_reduce(&self, tensor: &mut Tensor, op: Op) -> Result<()> {
        self.all_reduce_async(tensor, op)?.wait()
    }

    /// Begins an [`ProcessGroup::all_reduce`], which runs beside what the caller does until [`Work::wait`].
    pub fn all_reduce_async<'t>(&self, tensor: &'t mut Tensor, op: Op) -> Result<Work<'t>> {
        self.begin("all_reduce", |handle| handle.all_reduce(at(tensor), op))
    }

    /// Combines all ranks' `input` of shape `[world * n, ..]` and gives each its part: rows `rank * n` and
    /// the `n - 1` after it, as `[n, ..]`.
    pub fn reduce_scatter(&self, input: &Tensor, op: Op) -> Result<Tensor> {
        let operation = "reduce_scatter";
        let (rows, world) = (input.size().first().copied().unwrap_or(0), self.world() as i64);
        if rows == 0 || rows % world != 0 {
            let text = format!("{:?} has no rows that {world} ranks could share evenly", input.size());
            return Err(self.error(operation, text));
        }
        let output = input.detach().f_narrow(0, 0, rows / world).and_then(|part| part.f_zeros_like());
        let output = output.map_err(|error| self.error(operation, error))?;
        let input = input.detach().contiguous();
        self.begin(operation, |handle| handle.reduce_scatter(at(&input), at(&output), op))?.wait()?;
        Ok(output)
    }

    /// Replaces `tensor`, on every rank, by that of `root`.
    pub fn broadcast(&self, tensor: &mut Tensor, root: usize) -> Result<()> {
        self.broadcast_async(tensor, root)?.wait()
    }

    /// Begins a [`ProcessGroup::broadcast`]; `tensor` is right once the work was waited for.
    pub fn broadcast_async<'t>(&self, tensor: &'t mut Tensor, root: usize) -> Result<Work<'t>> {
        let root = self.peer("broadcast", "root", root)?;
        self.begin("broadcast", |handle| handle.broadcast(at(tensor), root))
    }

    /// Every rank's `tensor`, in the order of ranks.
    pub fn all_gather(&self, tensor: &Tensor) -> Result<Vec<Tensor>> {
        let outputs = self.places("all_gather", tensor)?;
        self.begin("all_gather", |handle| handle.all_gather(at(tensor), &list(&outputs)))?.wait()?;
        Ok(outputs)
    }

    /// Every rank's `tensor`, in the order of ranks, on `root`; `None` on the others.
    pub fn gather(&self, tensor: &Tensor, root: usize) -> Result<Option<Vec<Tensor>>> {
        let code = self.peer("gather", "root", root)?;
        let here = root == self.rank();
        let outputs = if here { self.places("gather", tensor)? } else { Vec::new() };
        self.begin("gather", |handle| handle.gather(at(tensor), &list(&outputs), code))?.wait()?;
        Ok(here.then_some(outputs))
    }

    /// Sends `tensor` to the rank `to`, which calls [`ProcessGroup::recv`] with the same `tag`. Only the two
    /// take part.
    pub fn send(&self, tensor: &Tensor, to: usize, tag: i32) -> Result<()> {
        let to = self.peer("send", "receiver", to)?;
        self.start("send", |handle| handle.send(at(tensor), to, tag))?.wait()
    }

    /// Replaces `tensor` by what the rank `from` sends.
    pub fn recv(&self, tensor: &mut Tensor, from: usize, tag: i32) -> Result<()> {
        let from = self.peer("recv", "sender", from)?;
        self.start("recv", |handle| handle.recv(at(tensor), from, tag))?.wait()
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<()> {
        self.begin("barrier", GroupHandle::barrier)?.wait()
    }

    /// Runs `work` on `rank` alone; the others wait for it as long as that rank gives signs of life, however
    /// long that is: the group's timeout is for collectives. Collective; `Some` on `rank`.
    ///
    /// The others go on whatever came of the work. An error names a rank that died over it.
    pub fn only<R>(&self, rank: usize, work: impl FnOnce() -> R) -> Result<Option<R>> {
        let operation = "wait for one rank";
        self.peer(operation, "rank", rank)?;
        let store = &self.inner.store.handle;
        let number = self.inner.turns.replace(self.inner.turns.get() + 1);
        let key = format!("forebay/only/{number}");
        if rank == self.rank() {
            let done = work();
            if self.world() > 1 {
                self.named(operation, store.set(&key, b""))?;
            }
            return Ok(Some(done));
        }
        loop {
            let began = Instant::now();
            let Err(failure) = store.wait(&[&key], milliseconds(TURN)) else { return Ok(None) };
            let lives =
                self.absent(Some(rank), SILENCE).is_ok_and(|absent| !absent.dead || absent.ranks.is_empty());
            // A wait that failed at once will not do better.
            if !lives || began.elapsed() < TURN / 2 {
                return Err(self.failed(operation, failure.into()));
            }
        }
    }

    /// From now on the others' signs of life are watched, whatever this rank does: when one has given none
    /// for `silence`, when another rank says that it has found one dead, and when the store has not answered
    /// for as long, `lost` is called, once, on a thread of its own. For groups whose operations do not fail
    /// over a lost peer: with NCCL the host waits for the GPU, and the GPU for ever.
    ///
    /// A rank that is only slow is no cause. Ends by itself when an operation of the group has failed over a
    /// peer.
    pub fn watch(&self, silence: Duration, lost: impl FnOnce(Error) + Send + 'static) {
        let Some(heartbeat) = &self.inner.heartbeat else { return };
        let (rank, world) = (self.rank(), self.world());
        let alarm = move |absent: Absent| {
            let text =
                verdict(&absent).unwrap_or_else(|| "no answer over the connection to the store".to_owned());
            let error = Error::new("watch over the ranks", Some((rank, world)), Failure::peers(text));
            lost(Error { missing: absent.ranks.clone(), ..error });
        };
        heartbeat.watch(silence, Box::new(alarm));
    }

    /// Ends [`ProcessGroup::watch`]: the ranks are through, and may go one after the other.
    pub fn rest(&self) {
        self.inner.heartbeat.iter().for_each(Heartbeat::rest);
    }

    /// This rank ends by an error: when the group goes, it is not to wait for its peers, and they are not
    /// watched.
    pub fn abandon(&self) {
        self.rest();
        self.inner.handle.fail();
    }

    /// Every rank's `values`, in the order of ranks. All ranks must pass the same number of values.
    pub fn all_gather_i64(&self, values: &[i64]) -> Result<Vec<Vec<i64>>> {
        let all = self.all_gather(&Tensor::from_slice(values))?;
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
        let all = self.all_gather(&Tensor::from_slice(&padded))?;
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

    /// Counts a collective, so that a rank that has not come to it can be told.
    pub(crate) fn count(&self) {
        if let Some(heartbeat) = &self.inner.heartbeat {
            heartbeat.begin();
        }
    }

    /// A failure that is the caller's own.
    pub(crate) fn error(&self, operation: &'static str, failure: impl Into<Failure>) -> Error {
        Error::new(operation, Some((self.rank(), self.world())), failure)
    }

    /// A failure of c10d: when it speaks of a lost peer, those to blame are looked for and named.
    pub(crate) fn failed(&self, operation: &'static str, failure: Failure) -> Error {
        let mut error = self.error(operation, failure);
        self.inner.handle.fail();
        if self.inner.heartbeat.is_none() || !error.peer_lost() {
            return error;
        }
        match self.absent(None, BLAME) {
            Ok(absent) => error = error.blaming(&absent),
            Err(_) => match self.store_rank() {
                Some(rank) => {
                    error.message =
                        format!("{}; rank {rank}, which serves the store, is gone", error.message);
                    error.missing = vec![rank];
                }
                None => error.message = format!("{}; the store is gone as well", error.message),
            },
        }
        error
    }

    pub(crate) fn named<T, F: Into<Failure>>(
        &self,
        operation: &'static str,
        result: std::result::Result<T, F>,
    ) -> Result<T> {
        result.map_err(|failure| self.failed(operation, failure.into()))
    }

    fn absent(&self, of: Option<usize>, timeout: Duration) -> FfiResult<Absent> {
        self.inner.heartbeat.as_ref().map_or(Ok(Absent::default()), |heartbeat| heartbeat.absent(of, timeout))
    }

    fn store_rank(&self) -> Option<usize> {
        self.inner.store.served_by.filter(|rank| *rank != self.rank())
    }

    /// Begins what all ranks take part in.
    fn begin<'t>(
        &self,
        operation: &'static str,
        start: impl FnOnce(&GroupHandle) -> Started,
    ) -> Result<Work<'t>> {
        self.count();
        self.start(operation, start)
    }

    fn start<'t>(
        &self,
        operation: &'static str,
        start: impl FnOnce(&GroupHandle) -> Started,
    ) -> Result<Work<'t>> {
        let handle = self.named(operation, start(&self.inner.handle))?;
        Ok(Work { handle, group: self.clone(), operation, open: true, tensor: PhantomData })
    }

    fn peer(&self, operation: &'static str, what: &str, rank: usize) -> Result<i32> {
        if rank >= self.world() {
            let text = format!("{what} {rank} is not below the world size {}", self.world());
            return Err(self.error(operation, text));
        }
        Ok(rank as i32)
    }

    /// A tensor like `tensor` for each rank.
    fn places(&self, operation: &'static str, tensor: &Tensor) -> Result<Vec<Tensor>> {
        let place = |_| tensor.detach().f_zeros_like();
        let places = (0..self.world()).map(place).collect::<std::result::Result<_, tch::TchError>>();
        places.map_err(|error| self.error(operation, error))
    }

    fn values<'a, T: TryFrom<&'a Tensor, Error = tch::TchError>>(
        &self,
        operation: &'static str,
        tensor: &'a Tensor,
    ) -> Result<T> {
        T::try_from(tensor).map_err(|error| self.error(operation, error))
    }
}

/// A collective under way; its tensor belongs to it until it is through.
///
/// Dropped, it is waited for all the same, for as long as the group's timeout lets it: libtorch's threads
/// write into the tensor until then. How it ended nobody learns, but after a failure the next call on the
/// group fails as well.
#[must_use = "dropped, it is waited for, and nobody learns how it ended"]
#[derive(Debug)]
pub struct Work<'t> {
    handle: UniquePtr<WorkHandle>,
    group: ProcessGroup,
    operation: &'static str,
    /// Nobody has waited for it yet.
    open: bool,
    tensor: PhantomData<&'t mut Tensor>,
}

impl Work<'_> {
    /// Waits until the result is there; on a GPU, until the current stream will find it there.
    pub fn wait(mut self) -> Result<()> {
        self.end(None)
    }

    /// Waits for at most `timeout`, less than the group's. An error leaves the group unusable, as any other
    /// does, and the tensor without a value: libtorch keeps its memory for as long as it may still write into
    /// it.
    pub fn wait_for(mut self, timeout: Duration) -> Result<()> {
        self.end(Some(timeout))
    }

    fn end(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.open = false;
        self.group.named(self.operation, self.handle.wait(timeout.map_or(-1, milliseconds)))
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        if self.open {
            // The group remembers a failure.
            let _ = self.end(None);
        }
    }
}

impl Error {
    /// The same with those who are to blame.
    fn blaming(mut self, absent: &Absent) -> Self {
        if let Some(verdict) = verdict(absent) {
            self.message = format!("{}; {verdict}", self.message);
        }
        self.missing = absent.ranks.clone();
        self
    }
}

/// The missing ranks and their state, in words.
fn verdict(absent: &Absent) -> Option<String> {
    match (absent.given_up, absent.ranks.is_empty(), absent.dead) {
        (true, ..) => Some("the other ranks had given this one up".to_owned()),
        (_, true, _) => None,
        (_, _, true) => Some(format!("{} gave no sign of life", names(&absent.ranks))),
        (_, _, false) => Some(format!("{} had not come to it", names(&absent.ranks))),
    }
}

/// `rank 1`, `ranks 1, 2`.
fn names(ranks: &[usize]) -> String {
    let list = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    format!("{} {list}", if ranks.len() == 1 { "rank" } else { "ranks" })
}
