//! Principals for whom only some bytes of objects are fetched in a second (`s3_bytes_per_s`).
//!
//! Segments and blocks that are not held here are fetched for such a principal one after the other, each when
//! those before are paid for, and nothing is fetched ahead for it. It waits before the fill begins: others
//! who read the same have a fill of their own, and do not wait for it.

use crate::auth::limiter::{FetchTurn, Limiter};
use crate::objects::Toll;
use crate::read::cache::Cache;
use forebay_dataset::stream::Reading;
use forebay_proto::Result;
use futures::FutureExt;
use std::sync::Arc;

/// The limiter, if it limits fetches.
pub fn throttle(limiter: Option<&Arc<Limiter>>) -> Option<Arc<Limiter>> {
    limiter.filter(|limiter| limiter.limits_fetches()).cloned()
}

/// Waits until a segment may be fetched; `None` if it is held. While the turn is held the principal's other
/// fetches wait: they may be of the same segment.
pub async fn segment_turn(
    limiter: &Arc<Limiter>,
    cache: &Cache,
    reading: &Reading,
    segment: u32,
) -> Result<Option<FetchTurn>> {
    let id = reading.manifest.segment_id(segment)?;
    if cache.has(reading, id) {
        return Ok(None);
    }
    let turn = limiter.fetch_turn().await;
    if cache.has(reading, id) {
        return Ok(None);
    }
    turn.pay(cache.fetch_bytes(reading, segment).await?);
    Ok(Some(turn))
}

/// To be asked before blocks of objects are fetched.
pub fn toll(limiter: Option<&Arc<Limiter>>) -> Option<Toll> {
    let limiter = throttle(limiter)?;
    Some(Arc::new(move |bytes| {
        let limiter = limiter.clone();
        async move { limiter.fetch_turn().await.pay(bytes) }.boxed()
    }))
}
