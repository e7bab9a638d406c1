//! The node's threads: a few async ones, which must never stand still, and a bounded number of others, which
//! read disks, decode and gather.
//!
//! The others take every core they can get, so they yield: their priority is lower, and a stream that has
//! something to send does not wait for a segment to be decoded. Without a bound each of them would keep a
//! stack and a share of the allocator's memory. How many work at once is the business of [`off_thread`].

use forebay_dataset::off_thread;
use forebay_proto::{Error, Kind, Result};
use std::cell::Cell;
use std::io;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

/// Threads beside those that work at once: for those that wait for disks which hang, until they answer (of
/// eight, one after the other), and for work that is short or rare enough to need no slot.
const SPARE: usize = 8 * off_thread::AT_ONCE;

/// By how much their priority is lower: a tenth of an async thread's share of a core that both want.
const BLOCKING_NICE: i32 = 10;

/// Tasks that an async thread runs before it looks for what has become due. Tasks here send by the megabyte:
/// with tokio's 61 a timer may be 20 ms late on a busy node.
const TASKS_BETWEEN_LOOKS: u32 = 8;

const ASYNC: &str = "forebay-async";
const BLOCKING: &str = "forebay-work";

/// How long the async threads may take to be there. Without them the node would still run: one that comes
/// later may have the lower priority of the others.
const START: Duration = Duration::from_secs(5);

/// A runtime with an async thread for each core, and others of lower priority for work that blocks.
pub fn runtime() -> io::Result<Runtime> {
    let cores = available_parallelism().map_or(2, usize::from);
    let begun = AtomicUsize::new(0);
    let name = move || (if begun.fetch_add(1, Relaxed) < cores { ASYNC } else { BLOCKING }).to_owned();
    let others = off_thread::most() + SPARE;
    let (idle, idled) = sync_channel(cores + others);
    let runtime = Builder::new_multi_thread()
        .worker_threads(cores)
        .max_blocking_threads(others)
        .event_interval(TASKS_BETWEEN_LOOKS)
        .thread_name_fn(name)
        .on_thread_start(yield_to_async)
        .on_thread_park(move || tell_once(&idle))
        .enable_all()
        .build()?;
    // tokio takes all its threads from one pool: those begun first are the async ones only if they are at it
    // before there is anything to do for others. Each has nothing to do yet, so it soon says that it is idle.
    let start = Instant::now();
    for _ in 0..cores {
        if idled.recv_timeout(START.saturating_sub(start.elapsed())).is_err() {
            break;
        }
    }
    Ok(runtime)
}

/// Tells that this thread is an async one; the others never call it.
fn tell_once(idle: &SyncSender<()>) {
    thread_local!(static HAS_TOLD: Cell<bool> = const { Cell::new(false) });
    if !HAS_TOLD.replace(true) {
        // Nobody listens after the start.
        idle.try_send(()).ok();
    }
}

fn yield_to_async() {
    if std::thread::current().name() == Some(BLOCKING) {
        // On Linux "this process" is this thread. Where it is not allowed, all are equal.
        rustix::process::setpriority_process(None, BLOCKING_NICE).ok();
    }
}

/// How often a disk was found to hang.
static HANGS: LazyLock<watch::Sender<u64>> = LazyLock::new(|| watch::Sender::new(0));

/// What still comes of a disk that hangs must come within this time.
const LAST_WORD: Duration = Duration::from_millis(100);

/// Has all who wait for work on a disk give it up, unless it ends at once, and other work take its slots: a
/// disk hangs.
pub fn give_up_disk_work() {
    HANGS.send_modify(|hangs| *hangs += 1);
    off_thread::write_off();
}

/// Resolves when work that is under way now is to be given up, as a disk hangs. A thread that waits for a
/// disk cannot be ended: it is left to itself, and there are [`SPARE`] more.
pub async fn disk_hangs() {
    let mut hangs = HANGS.subscribe();
    // The sender lives as long as the process.
    hangs.changed().await.ok();
    tokio::time::sleep(LAST_WORD).await;
}

/// What [`blocking`] work came to, or `instead` where it was given up.
pub fn given_up<T>(done: Result<T>, instead: T) -> Result<T> {
    match done {
        Err(e) if e.kind == Kind::Retry => Ok(instead),
        done => done,
    }
}

/// Runs work that touches the disk off the async threads. `Retry` if a disk hangs meanwhile.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::select! {
        biased;
        done = off_thread::on_disk(work) => done,
        () = disk_hangs() => Err(Error::retry("a cache directory hangs: try again")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_dataset::off_thread::AT_ONCE;
    use std::sync::{Arc, Barrier};

    #[test]
    fn starting_never_waits_for_what_does_not_come() {
        // A start whose threads had to meet hung about once in 300.
        for n in 0..2000 {
            let start = Instant::now();
            runtime().unwrap().shutdown_background();
            assert!(start.elapsed() < START, "start {n} took {:?}", start.elapsed());
        }
    }

    #[test]
    fn async_threads_go_first_and_the_others_are_few() {
        fn me() -> (Option<String>, i32) {
            let name = std::thread::current().name().map(str::to_owned);
            (name, rustix::process::getpriority_process(None).unwrap())
        }
        let before = me().1;
        let runtime = runtime().unwrap();
        let on_async = runtime.block_on(async { tokio::spawn(async { me() }).await.unwrap() });
        assert_eq!(on_async, (Some(ASYNC.into()), before));
        let barrier = Arc::new(Barrier::new(AT_ONCE));
        let all: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let barrier = barrier.clone();
                runtime.spawn_blocking(move || {
                    barrier.wait();
                    me()
                })
            })
            .collect();
        for one in all {
            let expected = BLOCKING_NICE.max(before);
            assert_eq!(runtime.block_on(one).unwrap(), (Some(BLOCKING.into()), expected));
        }
    }
}
