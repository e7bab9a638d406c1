//! What a stream is given to work with.

use super::reading::Reading;
use super::source::{SegmentSource, StreamBudget, StreamHooks, Unwatched};
use crate::pool::Pool;
use crate::shared::MessagePool;
use std::sync::Arc;

/// Messages of a stream that nobody watches whose buffers are kept to be used again.
const MESSAGES_POOLED: usize = 8;

/// What a stream reads, from where, and within which bounds.
#[derive(Clone)]
pub struct StreamSetup {
    /// The dataset and the columns that are read.
    pub reading: Reading,
    /// Where its segments come from.
    pub segments: Arc<dyn SegmentSource>,
    /// Hears of progress and grants memory.
    pub hooks: Arc<dyn StreamHooks>,
    /// Bounds what the stream holds.
    pub budget: StreamBudget,
    /// Where the messages' buffers come from.
    pub pool: MessagePool,
}

impl StreamSetup {
    /// A stream that nobody watches, within the default budget.
    pub fn new(reading: Reading, segments: Arc<dyn SegmentSource>) -> Self {
        let budget = StreamBudget::default();
        let pool = Pool::new(MESSAGES_POOLED * budget.message_bytes).into();
        Self { reading, segments, hooks: Arc::new(Unwatched(usize::MAX)), budget, pool }
    }
}
