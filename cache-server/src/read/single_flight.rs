//! Single flight: one fill per segment (and one freezing per dataset), however many wait for it.
//!
//! The first caller starts the work as a task of its own, so that a caller who gives up cancels nothing for
//! the others. The work leaves the table before its value is told, however it ends.

use forebay_proto::{Error, Result};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Work under way, for all who wait for it.
#[derive(Debug, Clone)]
pub struct InFlight<V: Clone, T> {
    pub value: Shared<BoxFuture<'static, Result<V>>>,
    /// What its leader said of it.
    pub about: T,
}

type Table<K, V, T> = Arc<Mutex<HashMap<K, InFlight<V, T>>>>;

/// Work under way, by key.
#[derive(Debug)]
pub struct SingleFlight<K, V: Clone, T = ()> {
    table: Table<K, V, T>,
}

/// How a caller came by its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turnout {
    /// It started the work.
    Leader,
    /// It waited for work under way.
    Follower,
}

impl<K, V: Clone, T> Default for SingleFlight<K, V, T> {
    fn default() -> Self {
        Self { table: Arc::default() }
    }
}

impl<K, V, T> SingleFlight<K, V, T>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + Sync + 'static,
    T: Clone + Send + 'static,
{
    /// The work under way for `key`, if there is any.
    pub fn under_way(&self, key: &K) -> Option<InFlight<V, T>> {
        self.table.lock().get(key).cloned()
    }

    /// Joins the work under way for `key`, or starts `work` where there is none, and says `about` it.
    pub fn join_or_lead<F>(&self, key: K, about: T, work: impl FnOnce() -> F) -> (Turnout, InFlight<V, T>)
    where
        F: Future<Output = Result<V>> + Send + 'static,
    {
        let mut table = self.table.lock();
        if let Some(joined) = table.get(&key) {
            return (Turnout::Follower, joined.clone());
        }
        let (sender, receiver) = oneshot::channel();
        let broken = |_| Err(Error::corrupt("the work broke off: the log of the process says why"));
        let value = receiver.map(move |value| value.unwrap_or_else(broken)).boxed().shared();
        let led = InFlight { value, about };
        table.insert(key.clone(), led.clone());
        drop(table);
        let mut lead = Lead { table: self.table.clone(), key, sender: Some(sender) };
        let work = work();
        // A runtime that is being shut down drops the task at once, and the task takes its work off the
        // table.
        tokio::spawn(async move {
            let value = work.await;
            let sender = lead.sender.take();
            drop(lead);
            sender.map(|sender| sender.send(value).ok())
        });
        (Turnout::Leader, led)
    }
}

/// Takes the work off the table when its task ends, and only then lets its waiters go.
struct Lead<K: Hash + Eq, V: Clone, T> {
    table: Table<K, V, T>,
    key: K,
    sender: Option<oneshot::Sender<Result<V>>>,
}

impl<K: Hash + Eq, V: Clone, T> Drop for Lead<K, V, T> {
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

    async fn value_of<V: Clone>((turnout, joined): (Turnout, InFlight<V, ()>)) -> (Turnout, Result<V>) {
        (turnout, joined.value.await)
    }

    #[tokio::test]
    async fn one_flight_for_many_and_a_new_one_after() {
        let flights = Arc::new(SingleFlight::<u32, u32>::default());
        let count = Arc::new(AtomicU32::new(0));
        let go = |ms| {
            let (flights, count) = (flights.clone(), count.clone());
            async move {
                let work = || async move {
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    Ok(count.fetch_add(1, Ordering::SeqCst))
                };
                value_of(flights.join_or_lead(7, (), work)).await
            }
        };
        let all = futures::future::join_all((0..50).map(|_| go(20))).await;
        assert!(all.iter().all(|(_, v)| matches!(v, Ok(0))));
        assert_eq!(all.iter().filter(|(s, _)| *s == Turnout::Leader).count(), 1);
        assert!(matches!(go(0).await, (Turnout::Leader, Ok(1))));
    }

    #[tokio::test]
    async fn a_leader_that_gives_up_and_a_panic_leave_nothing_behind() {
        let flights = Arc::new(SingleFlight::<u32, u32>::default());
        let gate = Arc::new(Notify::new());
        let opened = gate.clone();
        let slow = || async move {
            opened.notified().await;
            Ok(5)
        };
        let quit =
            tokio::time::timeout(Duration::from_millis(5), value_of(flights.join_or_lead(1, (), slow))).await;
        assert!(quit.is_err());
        // The second one is aboard before the work can end.
        let again = value_of(flights.join_or_lead(1, (), || async { Ok(6) }));
        let (again, ()) = futures::future::join(again, async { gate.notify_one() }).await;
        assert!(matches!(again, (Turnout::Follower, Ok(5))));
        let (_, failed) = value_of(flights.join_or_lead(2, (), || async { panic!("for the test") })).await;
        assert!(failed.is_err());
        assert!(matches!(
            value_of(flights.join_or_lead(2, (), || async { Ok(6) })).await,
            (Turnout::Leader, Ok(6))
        ));
    }

    /// Boards as it is dropped: with the tasks of a runtime that is being shut down.
    struct Late(Arc<SingleFlight<u32, u32>>, tokio::runtime::Handle);

    impl Drop for Late {
        fn drop(&mut self) {
            let _inside = self.1.enter();
            drop(self.0.join_or_lead(1, (), || async { Ok(1) }));
        }
    }

    #[test]
    fn boarding_while_the_runtime_ends_neither_hangs_nor_leaves_a_flight_behind() {
        let flights = Arc::new(SingleFlight::<u32, u32>::default());
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
