//! What a loader reads and how.

use crate::stream;
use forebay_proto::Result;
use forebay_proto::plan::Shuffle;
use forebay_proto::plan::packing::Packing;
use forebay_proto::plan::steps::{Ending, Layout};
use forebay_proto::state::LoaderState;
use std::time::Duration;

/// What a loader reads and how.
#[derive(Debug, Clone, PartialEq)]
pub struct LoaderSettings {
    /// What the order is drawn from. All ranks of a run need the same.
    pub seed: u64,
    /// How far rows may move from the order of the files, on all ranks alike.
    pub shuffle: Shuffle,
    /// What to do with the last, incomplete step.
    pub ending: Ending,
    /// Where rows lie in a batch.
    pub layout: Layout,
    /// Samples of one step over all ranks, or sequences of a run that packs; a multiple of `world`.
    pub global_batch: u64,
    /// Which rank this is, from 0.
    pub rank: u32,
    /// Number of ranks.
    pub world: u32,
    /// The epoch to begin with, from 0.
    pub first_epoch: u64,
    /// How many epochs, counted from `first_epoch` even when resumed; `None` = without end.
    pub epochs: Option<u64>,
    /// Bytes of batches that are ready or being filled. One batch is prepared even if it is larger.
    pub prefetch_bytes: u64,
    /// How long the rows may fail to come, however often it is tried, before that is an error.
    pub patience: Duration,
    /// How long no node of the cache may answer before rows are read from the object store, if the access has
    /// that fallback. Each reader adds up to half of it at random: all readers of a cache that dies must not
    /// come at once.
    pub fallback_after: Duration,
    /// Go on from here instead of the first epoch's beginning.
    pub resume: Option<LoaderState>,
    /// Bytes that a node may send ahead on each stream, beyond `prefetch_bytes`; 64 KiB to 16 MiB.
    /// From a node on this host also the length of the memory that it shares, for each stream.
    pub window_bytes: u32,
    /// Cut steps by tokens: batches hold the documents of a number of sequences, in the order of the epoch.
    /// The last step is filled up then, and rows lie by position.
    pub pack: Option<Packing>,
    /// Whether batches have their content digest, which costs about a second of processor time per GB.
    pub content_digest: bool,
    /// Whether batches of a node on this host come through shared memory, where its Unix socket can be
    /// reached.
    pub same_host: bool,
}

impl Default for LoaderSettings {
    fn default() -> Self {
        Self {
            seed: 0,
            shuffle: Shuffle::Window(4),
            ending: Ending::Pad,
            layout: Layout::default(),
            global_batch: 256,
            rank: 0,
            world: 1,
            first_epoch: 0,
            epochs: None,
            prefetch_bytes: 256 << 20,
            patience: Duration::from_secs(60),
            fallback_after: Duration::from_secs(5),
            resume: None,
            window_bytes: stream::WINDOW_BYTES,
            pack: None,
            content_digest: false,
            same_host: true,
        }
    }
}

impl LoaderSettings {
    /// Goes on where [`Loader::state_dict`](crate::Loader::state_dict) was taken, on any number of ranks.
    /// `Corrupt` if the bytes are damaged; that they belong to the dataset is checked by
    /// [`Loader::start`](crate::Loader::start).
    pub fn load_state_dict(&mut self, bytes: &[u8]) -> Result<()> {
        let state = LoaderState::from_bytes(bytes)?;
        (self.seed, self.shuffle, self.resume) = (state.key.seed, state.key.shuffle, Some(state));
        Ok(())
    }
}
