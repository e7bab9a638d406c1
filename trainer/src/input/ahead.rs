//! Inputs made ahead of the step that takes them.
//!
//! A thread takes the loader's batches and makes inputs of them (decoding and varying images, staging them
//! for a GPU), so that the training waits only where that is slower than the training itself. Inputs that are
//! ready and not yet taken are bounded in bytes. Each item carries the loader's state after it, for a
//! checkpoint must not skip what was made but not trained.

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use forebay_client::loader::LoaderState;
use forebay_client::{Batch, Event, Loader};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::rows::Input;

/// Items that are ready at most, however small they are.
const ITEMS_MAX: usize = 1024;

/// A batch or an epoch's end, the input of the batch, and the loader's state after it.
#[derive(Debug)]
pub struct Item<I> {
    /// The batch, or the end of an epoch.
    pub event: Event,
    /// The batch as a model's input.
    pub input: Option<I>,
    /// The loader's state after it, from which a run can go on.
    pub state: LoaderState,
}

/// An item with the room that it takes.
type Ready = (Item<Input>, OwnedSemaphorePermit);

/// The thread and what it has ready.
#[derive(Debug)]
pub struct Ahead {
    /// `None` when no more is wanted.
    ready: Option<Receiver<Ready>>,
    /// `None` once its end has been told.
    thread: Option<JoinHandle<Result<()>>>,
}

/// Where the thread puts items that are ready.
#[derive(Debug)]
struct ReadyQueue {
    items: Sender<Ready>,
    /// A permit for each KiB of inputs that are ready, with their batches.
    room: Arc<Semaphore>,
    room_kib: u32,
}

impl Ahead {
    /// Starts to work; `make` makes the input of a batch. The ready inputs have at most `ready_bytes` with
    /// their batches, or are a single one.
    pub fn start(
        runtime: &Handle,
        loader: Loader,
        ready_bytes: u64,
        make: impl Fn(&Batch) -> Result<Input> + Send + 'static,
    ) -> Result<Self> {
        let (queue, ready) = ReadyQueue::new(ready_bytes);
        let runtime = runtime.clone();
        let work = move || runtime.block_on(fill(loader, &make, &queue));
        let thread = std::thread::Builder::new().name("input".to_owned()).spawn(work);
        let thread = Some(thread.context("start the thread that prepares inputs")?);
        Ok(Self { ready: Some(ready), thread })
    }

    /// The next item, for which `wait` waits; `None` when the loader has no more.
    pub(super) fn next_item(
        &mut self,
        wait: impl FnOnce(&mut Receiver<Ready>) -> Option<Ready>,
    ) -> Result<Option<Item<Input>>> {
        if let Some((item, _)) = self.ready.as_mut().and_then(wait) {
            return Ok(Some(item));
        }
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(None),
            Some(Ok(end)) => end.map(|()| None),
            Some(Err(_)) => bail!("the thread that prepares inputs panicked"),
        }
    }

    /// The next item if it is there already.
    pub fn ready_item(&mut self) -> Option<Item<Input>> {
        Some(self.ready.as_mut()?.try_recv().ok()?.0)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.ready = None;
        // It ends with the image that it is at; nothing it could still say matters.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl ReadyQueue {
    fn new(ready_bytes: u64) -> (Self, Receiver<Ready>) {
        let (items, ready) = channel(ITEMS_MAX);
        // Without any room each item would need none.
        let room_kib = u32::try_from((ready_bytes / 1024).max(1)).unwrap_or(u32::MAX >> 3);
        (Self { items, room: Arc::new(Semaphore::new(room_kib as usize)), room_kib }, ready)
    }

    /// Waits for room; `false` if nobody wants more. One that is larger than the room takes all of it.
    async fn push(&self, item: Item<Input>, bytes: u64) -> bool {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(self.room_kib);
        tokio::select! {
            () = self.items.closed() => false,
            Ok(room) = self.room.clone().acquire_many_owned(kib) => self.items.send((item, room)).await.is_ok(),
        }
    }
}

async fn fill(
    mut loader: Loader,
    make: &(dyn Fn(&Batch) -> Result<Input> + Send),
    queue: &ReadyQueue,
) -> Result<()> {
    loop {
        let event = tokio::select! {
            event = loader.next() => event?,
            () = queue.items.closed() => None,
        };
        let Some(event) = event else { return Ok(()) };
        let (mut input, mut bytes) = (None, 0);
        if let Event::Batch(batch) = &event {
            let place = || format!("epoch {} step {}", batch.epoch + 1, batch.step + 1);
            let made = make(batch).with_context(place)?;
            bytes = made.bytes() + batch.bytes() as u64;
            input = Some(made);
        }
        let state = loader.state();
        if !queue.push(Item { event, input, state }, bytes).await {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use forebay_client::EpochSummary;
    use forebay_client::loader::Shuffle;
    use forebay_proto::manifest::Digest;
    use forebay_proto::plan::PlanKey;

    use super::*;

    fn item(epoch: u64) -> Item<Input> {
        let key = PlanKey { manifest: Digest(7), seed: 5, epoch, shuffle: Shuffle::None };
        let summary = EpochSummary { epoch, ..EpochSummary::default() };
        Item {
            event: Event::EpochEnd(summary),
            input: None,
            state: LoaderState { key, samples_done: 0, tokens_done: None },
        }
    }

    #[test]
    fn what_is_ready_keeps_to_its_bytes() {
        let (queue, mut taken) = ReadyQueue::new(100 << 10);
        let (queue, runtime) = (Arc::new(queue), tokio::runtime::Runtime::new().unwrap());
        let (theirs, handle) = (queue.clone(), runtime.handle().clone());
        // The first is larger than all, and is made all the same.
        let push = move |kib: u64| handle.block_on(theirs.push(item(kib), kib << 10));
        let making = std::thread::spawn(move || [150, 60, 40, 10].map(push));
        let settles_at = |taken: &Receiver<Ready>, expected: (usize, usize)| {
            let ready = || (taken.len(), 100 - queue.room.available_permits());
            let began = Instant::now();
            while ready() != expected && began.elapsed() < Duration::from_secs(30) {
                std::thread::sleep(Duration::from_millis(5));
            }
            // And no more is made.
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(ready(), expected);
        };
        settles_at(&taken, (1, 100));
        drop(taken.blocking_recv());
        settles_at(&taken, (2, 100));
        drop(taken.blocking_recv());
        settles_at(&taken, (2, 50));
        assert_eq!(making.join().unwrap(), [true; 4]);
    }
}
