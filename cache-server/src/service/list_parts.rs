//! Lists of objects that come in parts: the largest things that a stranger can have a node hold. So there are
//! few at once, and none waits long for its next part.

use forebay_proto::{Error, Result};
use futures::{Stream, TryStreamExt as _};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tonic::Status;

/// Lists that a method receives and works on at once.
const AT_ONCE: usize = 2;

/// How long the next part of a list may take.
const PART_PATIENCE: Duration = Duration::from_secs(30);

/// The turns of one method's lists. Each method has its own: who saves a snapshot keeps no reader waiting.
#[derive(Debug)]
pub struct ListTurns(Semaphore);

impl Default for ListTurns {
    fn default() -> Self {
        Self(Semaphore::new(AT_ONCE))
    }
}

impl ListTurns {
    /// Waits for a turn, and has all `parts` added. The turn is held until the list has been dealt with.
    /// Where the next part takes too long, the error says that `what` did not come.
    pub async fn receive<P>(
        &self,
        mut parts: impl Stream<Item = Result<P, Status>> + Unpin,
        what: &str,
        mut add: impl FnMut(P) -> Result<()>,
    ) -> Result<SemaphorePermit<'_>, Status> {
        let turn = self.0.acquire().await.map_err(|_| Error::closed("this node is shutting down"))?;
        loop {
            let part = timeout(PART_PATIENCE, parts.try_next()).await;
            match part.map_err(|_| Error::retry(format!("{what} did not come")))?? {
                Some(part) => add(part)?,
                None => return Ok(turn),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use tonic::Code;

    #[tokio::test]
    async fn a_list_waits_until_one_of_those_before_it_is_dealt_with() {
        let turns = ListTurns::default();
        let list = || stream::iter([Ok(1), Ok::<_, Status>(2)]);
        let mut added = Vec::new();
        let add = |part| {
            added.push(part);
            Ok(())
        };
        let first = turns.receive(list(), "a list", add).await.unwrap();
        let _second = turns.receive(list(), "a list", |_| Ok(())).await.unwrap();
        assert_eq!(added, [1, 2]);
        let soon = Duration::from_millis(50);
        assert!(timeout(soon, turns.receive(list(), "a list", |_| Ok(()))).await.is_err());
        drop(first);
        let wrong = turns.receive(list(), "a list", |_| Err(Error::invalid("no list"))).await.unwrap_err();
        assert_eq!(wrong.code(), Code::InvalidArgument);
        let _third = turns.receive(list(), "a list", |_| Ok(())).await.unwrap();
    }
}
