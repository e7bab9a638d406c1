//! Work that async threads must not do: it waits for a disk, touches mapped pages, or takes a core for long.
//!
//! It runs on the runtime's other threads, a bounded number of them at once for each of two kinds of work.
//! What finds none waits in a queue. The right to a thread belongs to the work rather than to the one who
//! waits for it: a stream that its reader does not poll keeps no thread from others. The threads of a disk
//! that hangs cannot be ended; they are written off ([`write_off`]), and others take their slots.
//!
//! Work must not wait for other work: if all threads did, nothing would go on.

use forebay_proto::{Error, Result};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use std::thread::available_parallelism;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::Span;

/// Threads that wait for disks at once. Each does so most of the time; more of them would only wait together.
pub const AT_ONCE: usize = 64;

/// Those that look at files and gather rows: warm reads wait for them, and for no decoder.
static DISK: LazyLock<Threads> = LazyLock::new(|| Threads::new(AT_ONCE));

/// The others. Decoders, one for each core at most, leave as many to all else as the disks have.
static OTHERS: LazyLock<Threads> = LazyLock::new(|| Threads::new(AT_ONCE + cores()));

/// Threads that all work takes at most, but for those that were written off.
pub fn most() -> usize {
    DISK.most + OTHERS.most
}

/// Runs work that touches a disk, or pages of mapped files, off the async threads. If the future is dropped,
/// work that has begun goes on to its end, and other work is never begun.
///
/// # Errors
/// `Closed` if the runtime ends first, `Corrupt` if the work panics.
pub async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    DISK.run(work).await
}

/// The same for work that touches no disk of a cache.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    OTHERS.run(work).await?
}

/// Counts none of the work any more that is under way on disks, as one of them hangs: it may stay for long,
/// and others take its slots at once.
pub fn write_off() {
    DISK.write_off();
}

fn cores() -> usize {
    available_parallelism().map_or(2, usize::from)
}

/// Threads for one kind of work.
struct Threads {
    most: usize,
    slots: Mutex<BlockingSlots>,
}

/// Blocking jobs: one for each slot that is taken is under way, the others wait.
#[derive(Default)]
struct BlockingSlots {
    /// Those that work has, but for what was written off.
    taken: usize,
    /// How often work was written off.
    round: u64,
    waiting: VecDeque<Job>,
}

/// Work that has no thread yet.
struct Job {
    /// Where it is to run.
    runtime: Handle,
    work: Box<dyn FnOnce() + Send>,
}

/// The right to a thread. The next work has it when it is dropped.
struct BlockingSlot {
    of: &'static Threads,
    round: u64,
}

impl Threads {
    fn new(most: usize) -> Self {
        Self { most, slots: Mutex::default() }
    }

    async fn run<T: Send + 'static>(&'static self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let (told, outcome) = oneshot::channel();
        let span = Span::current();
        let work = move || {
            // Else nobody waits for it any more.
            if !told.is_closed() {
                told.send(catch_unwind(AssertUnwindSafe(|| span.in_scope(work)))).ok();
            }
        };
        self.begin(Job { runtime: Handle::current(), work: Box::new(work) });
        match outcome.await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(_)) => Err(Error::corrupt("work off the async threads panicked: the log says why")),
            Err(_) => Err(Error::closed("the runtime is ending")),
        }
    }

    fn begin(&'static self, job: Job) {
        let slot = {
            let mut slots = self.slots.lock();
            if slots.taken >= self.most {
                slots.waiting.push_back(job);
                return;
            }
            slots.taken += 1;
            BlockingSlot { of: self, round: slots.round }
        };
        slot.run(job);
    }

    fn write_off(&'static self) {
        let begun: Vec<(BlockingSlot, Job)> = {
            let mut slots = self.slots.lock();
            slots.round += 1;
            slots.taken = slots.waiting.len().min(self.most);
            let (taken, round) = (slots.taken, slots.round);
            slots.waiting.drain(..taken).map(|job| (BlockingSlot { of: self, round }, job)).collect()
        };
        begun.into_iter().for_each(|(slot, job)| slot.run(job));
    }
}

impl BlockingSlot {
    fn run(self, job: Job) {
        let Job { runtime, work } = job;
        // Dropped without being run where the runtime has ended, and so is the slot.
        runtime.spawn_blocking(move || {
            let _slot = self;
            work();
        });
    }

    /// The work that has the slot next; `None` if none waits, or the slot was written off.
    fn next(&self) -> Option<Job> {
        let mut slots = self.of.slots.lock();
        if slots.round != self.round {
            return None;
        }
        let next = slots.waiting.pop_front();
        if next.is_none() {
            slots.taken -= 1;
        }
        next
    }
}

thread_local! {
    /// While this thread gives a slot to other work: whether it came back, as that work's runtime has ended.
    static CAME_BACK: Cell<Option<bool>> = const { Cell::new(None) };
}

impl Drop for BlockingSlot {
    fn drop(&mut self) {
        if CAME_BACK.get().is_some() {
            // Inside of the loop below, which gives it to the next.
            CAME_BACK.set(Some(true));
            return;
        }
        while let Some(job) = self.next() {
            CAME_BACK.set(Some(false));
            // It panics where the system has no thread left.
            let slot = BlockingSlot { of: self.of, round: self.round };
            let begun = catch_unwind(AssertUnwindSafe(|| slot.run(job)));
            if CAME_BACK.take() == Some(false) && begun.is_ok() {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::Kind;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc::sync_channel;
    use std::sync::{Arc, Barrier};
    use std::time::{Duration, Instant};
    use tokio::runtime::{Builder, Runtime};
    use tokio::time::timeout;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn threads(most: usize) -> &'static Threads {
        Box::leak(Box::new(Threads::new(most)))
    }

    fn runtime(blocking: usize) -> Runtime {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).max_blocking_threads(blocking).enable_all().build().unwrap()
    }

    fn wait_until(what: &str, happens: impl Fn() -> bool) {
        let began = Instant::now();
        while !happens() {
            assert!(began.elapsed() < PATIENCE, "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn threads_that_hang_are_written_off_and_leave_others_for_new_work() {
        let (threads, runtime, disk) = (threads(4), runtime(8), Arc::new(Mutex::new(())));
        let begun = Arc::new(AtomicUsize::new(0));
        let hang = disk.lock();
        // More than there are threads of any kind.
        let waiters: Vec<_> = (0..20)
            .map(|_| {
                let (disk, begun) = (disk.clone(), begun.clone());
                runtime.spawn(threads.run(move || {
                    begun.fetch_add(1, SeqCst);
                    drop(disk.lock());
                }))
            })
            .collect();
        wait_until("all wait", || threads.slots.lock().waiting.len() == 16);
        wait_until("four are at it", || begun.load(SeqCst) == 4);
        waiters.iter().for_each(|waiter| waiter.abort());
        runtime.block_on(async {
            for waiter in waiters {
                assert!(waiter.await.unwrap_err().is_cancelled());
            }
        });
        threads.write_off();
        // Each waits for the other three.
        let all = Arc::new(Barrier::new(4));
        let work: Vec<_> = (0..4)
            .map(|_| {
                let all = all.clone();
                runtime.spawn(threads.run(move || {
                    all.wait();
                }))
            })
            .collect();
        runtime.block_on(async {
            for one in work {
                timeout(PATIENCE, one).await.expect("new work finds threads").unwrap().unwrap();
            }
        });
        assert_eq!(begun.load(SeqCst), 4, "what nobody waits for any more is not begun");
        wait_until("all slots are free", || threads.slots.lock().taken == 0);
        // Who was written off ends later, which counts for nothing.
        drop(hang);
        runtime.block_on(async {
            let now = Arc::new(AtomicUsize::new(0));
            let work: Vec<_> = (0..40).map(|_| tokio::spawn(threads.run(at_work(now.clone())))).collect();
            for one in work {
                timeout(PATIENCE, one).await.unwrap().unwrap().unwrap();
            }
        });
        wait_until("all slots are free", || threads.slots.lock().taken == 0);
    }

    /// Work that fails where more than four are at it.
    fn at_work(now: Arc<AtomicUsize>) -> impl FnOnce() + Send + 'static {
        move || {
            assert!(now.fetch_add(1, SeqCst) < 4);
            std::thread::sleep(Duration::from_millis(1));
            now.fetch_sub(1, SeqCst);
        }
    }

    #[tokio::test]
    async fn who_is_not_polled_keeps_no_thread_from_others() {
        let threads = threads(1);
        let (open, gate) = sync_channel::<()>(1);
        let mut first = Box::pin(threads.run(move || gate.recv().is_ok()));
        assert!(futures::poll!(&mut first).is_pending());
        let mut second = Box::pin(threads.run(|| 2));
        assert!(futures::poll!(&mut second).is_pending());
        open.send(()).unwrap();
        // Neither is polled: as streams of readers that stand still.
        assert_eq!(timeout(PATIENCE, threads.run(|| 3)).await.unwrap().unwrap(), 3);
        assert_eq!((first.await.unwrap(), second.await.unwrap()), (true, 2));
    }

    #[test]
    fn work_that_panics_or_outlives_its_runtime_gives_its_slot_back() {
        let (threads, first) = (threads(1), runtime(1));
        let panics = || -> u8 { panic!("on purpose") };
        assert_eq!(first.block_on(threads.run(panics)).unwrap_err().kind, Kind::Corrupt);
        let (open, gate) = sync_channel::<()>(1);
        let (begin, began) = sync_channel::<()>(1);
        let work = move || {
            begin.send(()).ok();
            gate.recv().ok();
        };
        first.spawn(threads.run(work));
        began.recv_timeout(PATIENCE).unwrap();
        let lost = first.spawn(threads.run(|| ()));
        wait_until("one waits", || threads.slots.lock().waiting.len() == 1);
        first.shutdown_background();
        drop(lost);
        let second = runtime(1);
        let next = second.spawn(threads.run(|| 5));
        wait_until("two wait", || threads.slots.lock().waiting.len() == 2);
        open.send(()).unwrap();
        let next = second.block_on(async { timeout(PATIENCE, next).await.unwrap().unwrap() });
        assert_eq!(next.unwrap(), 5);
    }

    #[test]
    fn all_that_waits_in_a_runtime_that_ends_is_dropped_one_after_the_other() {
        let (threads, ending) = (threads(1), runtime(1));
        let (open, gate) = sync_channel::<()>(1);
        ending.spawn(threads.run(move || gate.recv().is_ok()));
        wait_until("one is at it", || threads.slots.lock().taken == 1);
        // One inside of the other they would need more than any stack.
        let many = 100_000;
        let waiting: Vec<_> = (0..many).map(|_| ending.spawn(threads.run(|| ()))).collect();
        wait_until("all others wait", || threads.slots.lock().waiting.len() == many);
        ending.shutdown_background();
        open.send(()).unwrap();
        wait_until("all slots are free", || threads.slots.lock().taken == 0);
        assert!(threads.slots.lock().waiting.is_empty());
        drop(waiting);
        assert_eq!(runtime(1).block_on(threads.run(|| 7)).unwrap(), 7);
    }
}
