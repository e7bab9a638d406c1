//! Single flight: one fill per segment (and one freezing per dataset), however many wait for it.
//!
//! The first caller starts the work as a task of its own, so that a caller who gives up cancels nothing for the others;
//! the flight leaves the table when its task ends, however it ends.

use forebay_proto::{Error, Result};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

type Landing<V> = Shared<BoxFuture<'static, Result<V>>>;

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
        let (seat, landing) = {
            let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
            match table.get(&key) {
                Some(landing) => (Seat::Joined, landing.clone()),
                None => {
                    let departure = Departure { table: self.table.clone(), key: key.clone() };
                    let work = work();
                    let task = tokio::spawn(async move {
                        let _departure = departure;
                        work.await
                    });
                    let landing = async move {
                        task.await
                            .unwrap_or_else(|e| Err(Error::corrupt(format!("filling a segment failed: {e}"))))
                    };
                    let landing = landing.boxed().shared();
                    table.insert(key, landing.clone());
                    (Seat::Led, landing)
                }
            }
        };
        (seat, landing.await)
    }
}

/// Takes the flight off the table when its task ends.
struct Departure<K: Hash + Eq, V: Clone> {
    table: Arc<Mutex<HashMap<K, Landing<V>>>>,
    key: K,
}

impl<K: Hash + Eq, V: Clone> Drop for Departure<K, V> {
    fn drop(&mut self) {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

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
        let slow = || async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            Ok(5)
        };
        let quit = tokio::time::timeout(Duration::from_millis(5), flights.fly(1, slow)).await;
        assert!(quit.is_err());
        assert!(matches!(flights.fly(1, || async { Ok(6) }).await, (Seat::Joined, Ok(5))));
        let (_, failed) = flights.fly(2, || async { panic!("for the test") }).await;
        assert!(failed.is_err());
        assert!(matches!(flights.fly(2, || async { Ok(6) }).await, (Seat::Led, Ok(6))));
    }
}
