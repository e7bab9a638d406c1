//! How many connections of readers and other nodes are open, and since when none is.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// How many connections are open. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Connections(Arc<watch::Sender<usize>>);

/// Counts as open until dropped.
#[derive(Debug)]
pub struct OpenConnection(Connections);

impl Connections {
    /// Counts one until dropped.
    pub fn open(&self) -> OpenConnection {
        self.0.send_modify(|open| *open += 1);
        OpenConnection(self.clone())
    }

    /// Waits until none has been open for `time`.
    pub async fn idle_for(&self, time: Duration) {
        let mut open = self.0.subscribe();
        loop {
            let is_open = *open.borrow_and_update() > 0;
            tokio::select! {
                () = sleep(time), if !is_open => return,
                // The sender is here: it cannot have gone.
                _ = open.changed() => {}
            }
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.0.send_modify(|open| *open -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, timeout};

    #[tokio::test]
    async fn idle_is_counted_from_the_last_connection() {
        let connections = Connections::default();
        let (short, long) = (Duration::from_millis(10), Duration::from_millis(100));
        let (one, two) = (connections.open(), connections.open());
        assert!(timeout(long, connections.idle_for(short)).await.is_err(), "two are open");
        drop(one);
        assert!(timeout(long, connections.idle_for(short)).await.is_err(), "one is open");
        drop(two);
        connections.idle_for(short).await;
    }

    #[tokio::test]
    async fn a_short_visit_begins_the_time_again() {
        let (connections, time) = (Connections::default(), Duration::from_secs(1));
        let waiting = connections.clone();
        let idle = tokio::spawn(async move { waiting.idle_for(time).await });
        sleep(time / 10).await;
        let visit = Instant::now();
        drop(connections.open());
        idle.await.unwrap();
        assert!(visit.elapsed() >= time);
    }
}
