//! What a node does by itself, whoever asks it for data or not: it tries cache directories that were set aside.

use crate::cache::blocking;
use crate::store::Store;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How often directories that were set aside are looked at; how often each is tried is the store's business.
const HEAL_EVERY: Duration = Duration::from_secs(1);

/// Keeps the store in order until `stop` is called.
pub async fn run(store: Arc<Store>, stop: CancellationToken) {
    let heal = async {
        loop {
            tokio::time::sleep(HEAL_EVERY).await;
            let store = store.clone();
            if let Err(e) = blocking(move || store.heal(Instant::now())).await {
                tracing::error!(error = %e, "cache directories are no longer tried again");
                return;
            }
        }
    };
    tokio::select! {
        () = heal => {}
        () = stop.cancelled() => {}
    }
}
