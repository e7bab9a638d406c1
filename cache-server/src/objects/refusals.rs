//! What the object store says of keys that are not there, in its own words. It is asked once a second and
//! key, however many want to know.

use super::missing::LastSecond;
use crate::read::single_flight::SingleFlight;
use forebay_dataset::ObjectReader;
use forebay_dataset::source::{ObjectStoreAnswer, ObjectStoreRequest};
use forebay_proto::Result;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Semaphore;

/// Answers that are kept at most, and bytes of each: some 8 MB.
const KEPT_MAX: usize = 1024;
const KEPT_BYTES_MAX: usize = 4 << 10;

/// The refusals of the last second.
pub struct ObjectStoreRefusals {
    reader: ObjectReader,
    kept: Arc<LastSecond<ObjectStoreAnswer>>,
    asking: SingleFlight<String, ObjectStoreAnswer>,
    turns: Arc<Semaphore>,
}

impl ObjectStoreRefusals {
    /// Who asks waits for one of these turns: an answer may be long.
    pub fn new(reader: ObjectReader, turns: Arc<Semaphore>) -> Self {
        Self { reader, kept: Arc::new(LastSecond::new(KEPT_MAX)), asking: SingleFlight::default(), turns }
    }

    /// What the object store says to a request for a key. All requests for one key must be the same: they are
    /// told the same within a second, if the key is not there.
    pub async fn ask(&self, request: ObjectStoreRequest) -> Result<ObjectStoreAnswer> {
        let uri = format!("s3://{}/{}", request.bucket, request.key);
        let (reader, kept, turns) = (self.reader.clone(), self.kept.clone(), self.turns.clone());
        let key = uri.clone();
        let (_, flight) = self.asking.join_or_lead(uri, (), || async move {
            // Kept before the next one may ask.
            if let Some(answer) = kept.get(&key) {
                return Ok(answer);
            }
            let _turn = turns.acquire_owned().await;
            let asked = Instant::now();
            let answer = reader.ask(&request).await?;
            if answer.status == 404 && answer.body.len() <= KEPT_BYTES_MAX {
                kept.keep(&key, asked, answer.clone());
            }
            Ok(answer)
        });
        flight.value.await
    }

    /// Forgets what was said of some URIs.
    pub fn forget(&self, is_gone: impl Fn(&str) -> bool) {
        self.kept.forget(is_gone);
    }
}
