//! Inputs made ahead of the step that takes them.
//!
//! A thread takes the loader's batches and makes inputs of them (decoding and varying images, staging them
//! for a GPU), so that the training waits only where that is slower than the training itself. Inputs that are
//! ready and not yet taken are bounded in bytes. Each item carries the loader's state after it, for a
//! checkpoint must not skip what was made but not trained.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use forebay_client::loader::LoaderState;
use forebay_client::{Batch, Event, Loader};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::rows::Input;

/// A batch or an epoch's end, the input of the batch, and the loader's state after it.
#[derive(Debug)]
pub struct Item {
    /// What the loader said.
    pub event: Event,
    /// The batch as a model's input.
    pub input: Option<Input>,
    /// Where the loader stood.
    pub state: LoaderState,
}

/// The thread and what it has ready.
#[derive(Debug)]
pub struct Ahead {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Bytes of inputs that are ready, with their batches. One is made even if it is larger.
    ready_bytes: u64,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Wakes the thread where it waits for the loader.
    closed: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<(Item, u64)>,
    bytes: u64,
    /// How it ended, until that is told; the items before it come first.
    end: Option<Result<()>>,
    ended: bool,
    closed: bool,
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
        let shared = Arc::new(Shared { ready_bytes, ..Default::default() });
        let (theirs, runtime) = (shared.clone(), runtime.clone());
        let work = move || {
            // Whatever happens here, nobody must wait for it in vain.
            let end = catch_unwind(AssertUnwindSafe(|| fill(&runtime, loader, &make, &theirs)));
            let end = end.unwrap_or_else(|_| Err(anyhow!("the thread that prepares inputs panicked")));
            let mut queue = theirs.lock();
            (queue.end, queue.ended) = (Some(end), true);
            theirs.changed.notify_all();
        };
        let thread = std::thread::Builder::new().name("input".to_owned()).spawn(work);
        Ok(Self { shared, thread: Some(thread.context("start the thread that prepares inputs")?) })
    }

    /// The next item, waited for; `None` when the loader has no more.
    pub fn next_item(&mut self) -> Result<Option<Item>> {
        let mut queue = self.shared.lock();
        loop {
            if let Some(item) = self.shared.pop(&mut queue) {
                return Ok(Some(item));
            }
            if queue.ended {
                return queue.end.take().unwrap_or(Ok(())).map(|()| None);
            }
            self.shared.changed.wait(&mut queue);
        }
    }

    /// The next item if it is there already.
    pub fn ready_item(&mut self) -> Option<Item> {
        let mut queue = self.shared.lock();
        self.shared.pop(&mut queue)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        self.shared.closed.notify_one();
        // It ends with the image that it is at; nothing it could still say matters.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    fn pop(&self, queue: &mut Queue) -> Option<Item> {
        let (item, bytes) = queue.items.pop_front()?;
        queue.bytes -= bytes;
        self.changed.notify_all();
        Some(item)
    }

    /// Waits for room; `false` if nobody wants more.
    fn push(&self, item: Item, bytes: u64) -> bool {
        let mut queue = self.lock();
        while !queue.closed && !queue.items.is_empty() && queue.bytes + bytes > self.ready_bytes {
            self.changed.wait(&mut queue);
        }
        queue.items.push_back((item, bytes));
        queue.bytes += bytes;
        self.changed.notify_all();
        !queue.closed
    }
}

fn fill(
    runtime: &Handle,
    mut loader: Loader,
    make: &dyn Fn(&Batch) -> Result<Input>,
    shared: &Shared,
) -> Result<()> {
    loop {
        let next = runtime.block_on(async {
            tokio::select! {
                event = loader.next() => Some(event),
                () = shared.closed.notified() => None,
            }
        });
        let Some(event) = next else { return Ok(()) };
        let Some(event) = event? else { return Ok(()) };
        let (mut input, mut bytes) = (None, 0);
        if let Event::Batch(batch) = &event {
            let place = || format!("epoch {} step {}", batch.epoch() + 1, batch.step() + 1);
            let made = make(batch).with_context(place)?;
            bytes = made.bytes() + batch.bytes() as u64;
            input = Some(made);
        }
        let state = loader.state();
        if !shared.push(Item { event, input, state }, bytes) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use forebay_client::EpochSummary;
    use forebay_client::loader::Shuffle;
    use forebay_proto::digest::OrderDigest;
    use forebay_proto::manifest::Digest;
    use forebay_proto::plan::PlanKey;

    use super::*;

    fn item(epoch: u64) -> Item {
        let key = PlanKey { manifest: Digest(7), seed: 5, epoch, shuffle: Shuffle::None };
        let summary = EpochSummary { epoch, digest: OrderDigest::default(), samples: 0, steps: 0 };
        Item { event: Event::EpochEnd(summary), input: None, state: LoaderState { key, samples_done: 0 } }
    }

    #[test]
    fn what_is_ready_keeps_to_its_bytes() {
        let shared = Arc::new(Shared { ready_bytes: 100, ..Default::default() });
        let theirs = shared.clone();
        // The first is larger than all, and is made all the same.
        let making =
            std::thread::spawn(move || [150, 60, 40, 10].map(|bytes| theirs.push(item(bytes), bytes)));
        let ready = || {
            let queue = shared.lock();
            (queue.items.len(), queue.bytes)
        };
        let settles_at = |expected: (usize, u64)| {
            let began = Instant::now();
            while ready() != expected && began.elapsed() < Duration::from_secs(30) {
                std::thread::sleep(Duration::from_millis(5));
            }
            // And no more is made.
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(ready(), expected);
        };
        settles_at((1, 150));
        shared.pop(&mut shared.lock());
        settles_at((2, 100));
        shared.pop(&mut shared.lock());
        settles_at((2, 50));
        assert_eq!(making.join().unwrap(), [true; 4]);
    }
}
