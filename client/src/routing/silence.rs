//! Waiting for a node that is silent.
//!
//! A worker asks for the next rows only when there is room for them, so silence is a reason to ask the node
//! whether it lives. One that says so is slow (it may be fetching from the object store) and gets all the
//! time it needs; one that does not is dead to this worker.

use super::policy::{Failure, FailureKind};
use crate::node::Node;
use forebay_proto::{Error, Result};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Silence after which a node is asked whether it lives; and again after that each time.
pub(crate) const SUSPICION: Duration = Duration::from_millis(300);

/// How long its answer may take. Together with the suspicion this bounds the stall that a silent node causes.
const PROBE: Duration = Duration::from_millis(700);

/// Waits for `what` the node owes: as long as the node answers probes, and `patience` at most.
pub(crate) async fn owed<T>(
    node: Option<&Node>,
    patience: Duration,
    what: impl Future<Output = Result<T>>,
) -> Result<T, Failure> {
    tokio::pin!(what);
    let since = Instant::now();
    while since.elapsed() < patience {
        let left = patience.saturating_sub(since.elapsed());
        if let Ok(done) = timeout(SUSPICION.min(left), &mut what).await {
            return Ok(done?);
        }
        let Some(node) = node else { continue };
        let serves = tokio::select! {
            biased;
            done = &mut what => return Ok(done?),
            serves = node.is_serving(PROBE.min(left)) => serves,
        };
        if !serves {
            let ms = since.elapsed().as_millis();
            let error = format!("{} has been silent for {ms} ms and does not answer", node.url());
            return Err(Failure {
                error: Error::retry(error),
                kind: FailureKind::NodeDead,
                silent: since.elapsed(),
            });
        }
    }
    let error = Error::retry(format!("no data for {} s", patience.as_secs_f32()));
    Err(Failure { silent: since.elapsed(), ..Failure::from(error) })
}
