//! Single flight: one fill per segment (and one freezing per dataset), however many wait for it.
//!
//! The first caller starts the work as a task of its own, so that a caller who gives up cancels nothing for the others;
//! the flight leaves the table when its task ends, however it ends.

use forebay_proto::{Error, Result};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// What a flight brings, for all who wait for it.
pub type Landing<V> = Shared<BoxFuture<'static, Result<V>>>;

/// Work under way, by key.
#[derive(Debug)]
pub struct Flights<K, V: Clone> {
    table: Arc<Mutex<HashMap<K, Landing<V>>>>,
}

/// How a caller came by its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seat {
    /// It started the work.
    Led,
    /// It waited for work under way.
    Joined,
}

impl<K, V: Clone> Default for Flights<K, V> {
    fn default() -> Self {
        Self { table: Arc::default() }
    }
}

impl<K, V> Flights<K, V>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// The value of the work under way for `key`, or of `work`, which is then started.
    pub async fn fly<F>(&self, key: K, work: impl FnOnce() -> F) -> (Seat, Result<V>)
    where
        F: Future<Output = Result<V>> + Send + 'static,
    {
        let (seat, landing) = self.board(key, work);
        (seat, landing.await)
    }

    /// The same, for those who have something to do before they wait.
    pub fn board<F>(&self, key: K, work: impl FnOnce() -> F) -> (Seat, Landing<V>)
    where
        F: Future<Output = Result<V>> + Send + 'static,
    {
        let mut table = self.table.lock();
        if let Some(landing) = table.get(&key) {
            return (Seat::Joined, landing.clone());
        }
        let departure = Departure { table: self.table.clone(), key: key.clone() };
        let (started, start) = oneshot::channel::<JoinHandle<Result<V>>>();
        let landing = async move {
            let task = start.await.map_err(|_| failed(&"it was never started"))?;
            task.await.unwrap_or_else(|e| Err(failed(&e)))
        };
        let landing = landing.boxed().shared();
        table.insert(key, landing.clone());
        drop(table);
        let work = work();
        // A runtime that is being shut down drops the task at once, here, and the task takes its flight off the table.
        let task = tokio::spawn(async move {
            let _departure = departure;
            work.await
        });
        started.send(task).ok();
        (Seat::Led, landing)
    }
}

fn failed(why: &dyn std::fmt::Display) -> Error {
    Error::corrupt(format!("filling a segment failed: {why}"))
}

/// Takes the flight off the table when its task ends.
struct Departure<K: Hash + Eq, V: Clone> {
    table: Arc<Mutex<HashMap<K, Landing<V>>>>,
    key: K,
}

impl<K: Hash + Eq, V: Clone> Drop for Departure<K, V> {
    fn drop(&mut self) {
        self.table.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;
    use tokio::sync::Notify;

    #[tokio::test]
    async fn one_flight_for_many_and_a_new_one_after() {
        let flights = Arc::new(Flights::<u32, u32>::default());
        let count = Arc::new(AtomicU32::new(0));
        let go = |ms| {
            let (flights, count) = (flights.clone(), count.clone());
            async move {
                let work = || async move {
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    Ok(count.fetch_add(1, Ordering::SeqCst))
                };
                flights.fly(7, work).await
            }
        };
        let all = futures::future::join_all((0..50).map(|_| go(20))).await;
        assert!(all.iter().all(|(_, v)| matches!(v, Ok(0))));
        assert_eq!(all.iter().filter(|(s, _)| *s == Seat::Led).count(), 1);
        assert!(matches!(go(0).await, (Seat::Led, Ok(1))));
    }

    #[tokio::test]
    async fn a_leader_that_gives_up_and_a_panic_leave_nothing_behind() {
        let flights = Arc::new(Flights::<u32, u32>::default());
        let gate = Arc::new(Notify::new());
        let opened = gate.clone();
        let slow = || async move {
            opened.notified().await;
            Ok(5)
        };
        let quit = tokio::time::timeout(Duration::from_millis(5), flights.fly(1, slow)).await;
        assert!(quit.is_err());
        // The second one is aboard before the work can end.
        let again = flights.fly(1, || async { Ok(6) });
        let (again, ()) = futures::future::join(again, async { gate.notify_one() }).await;
        assert!(matches!(again, (Seat::Joined, Ok(5))));
        let (_, failed) = flights.fly(2, || async { panic!("for the test") }).await;
        assert!(failed.is_err());
        assert!(matches!(flights.fly(2, || async { Ok(6) }).await, (Seat::Led, Ok(6))));
    }

    /// Boards as it is dropped: with the tasks of a runtime that is being shut down.
    struct Late(Arc<Flights<u32, u32>>, tokio::runtime::Handle);

    impl Drop for Late {
        fn drop(&mut self) {
            let _inside = self.1.enter();
            drop(self.0.board(1, || async { Ok(1) }));
        }
    }

    #[test]
    fn boarding_while_the_runtime_ends_neither_hangs_nor_leaves_a_flight_behind() {
        let flights = Arc::new(Flights::<u32, u32>::default());
        let late = flights.clone();
        let (ended, end) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let late = Late(late, runtime.handle().clone());
            runtime.spawn(async move {
                let _late = late;
                std::future::pending::<()>().await;
            });
            runtime.block_on(tokio::task::yield_now());
            drop(runtime);
            ended.send(()).unwrap();
        });
        end.recv_timeout(Duration::from_secs(30)).expect("the runtime's end");
        assert!(flights.table.lock().is_empty());
    }
}
