//! What a rank has once it has joined the others: its settings, its peers, its device and its way to the
//! data.
//!
//! The functions of a run take it by reference: [`crate::train::data::open`], [`crate::train::fit`],
//! [`crate::train::evaluate`].

use std::time::Duration;

use anyhow::{Context, Result};
use forebay_c10d::ProcessGroup;
use forebay_client::counters::Readings;
use forebay_client::{Access, survey};
use forebay_proto::Kind;
use tokio::runtime::Handle;

use crate::input::transfer::Compute;
use crate::rank::env::RankEnv;
use crate::rank::{device, failure, rendezvous};
use crate::report::progress;
use crate::settings::Settings;

/// How long a peer may give no sign of life. The host of a GPU that waits for a lost peer waits as well, and
/// so notices in no other way; elsewhere the connections to a process break when it dies, though not when its
/// machine does.
const GPU_SILENCE_S: u64 = 5;
const SILENCE_S: u64 = 30;

/// A rank among its peers.
pub struct Session {
    pub settings: Settings,
    pub env: RankEnv,
    pub group: ProcessGroup,
    pub compute: Compute,
    /// The loaders' runtime.
    pub runtime: Handle,
    pub access: Access,
}

impl Session {
    /// Meets the other ranks, takes the device and watches the peers from then on. Collective.
    pub fn join(settings: &Settings, env: &RankEnv, runtime: &Handle) -> Result<Self> {
        let (settings, env, runtime) = (settings.clone(), env.clone(), runtime.clone());
        let access = {
            let _inside = runtime.enter();
            settings.access.access()?
        };
        let timeout = Duration::from_secs(settings.peer_timeout_s);
        let joining = "join the other ranks";
        let store = rendezvous::join(&env, timeout).context(joining)?;
        let compute = device::open(settings.device, &env, &store)?;
        let group = ProcessGroup::gloo(store, env.rank, env.world, timeout).context(joining)?;
        let silence =
            settings.peer_silence_s.unwrap_or(if compute.copies() { GPU_SILENCE_S } else { SILENCE_S });
        if silence > 0 {
            let env = env.clone();
            group.watch(Duration::from_secs(silence), move |lost| failure::end_now(&env, lost));
        }
        if let Some(cuda) = compute.cuda {
            cuda.nccl(&group, env.local_rank, timeout, &settings.gradients.nccl()).context(joining)?;
        }
        Ok(Self { settings, env, compute, group, runtime, access })
    }

    /// Prints a line, on rank 0.
    pub fn say(&self, line: &str) {
        if self.env.is_first() {
            progress::say(line);
        }
    }

    /// What this rank has to add to the cost of an epoch: its own counters when it reads the object store
    /// itself; the cache's on the first rank alone, as all ranks share them. The cache may be away for as
    /// long as `patience`; after that the cost is not known, which is no reason to lose the epoch. Without
    /// patience that is an error.
    pub fn counters(&self, patience: Duration) -> Result<Readings> {
        if !self.env.is_first() && !self.reads_itself() {
            return Ok(Readings::default());
        }
        match self.runtime.block_on(survey::readings_within(&self.access, patience)) {
            Err(error) if error.kind == Kind::Retry && !patience.is_zero() => {
                tracing::warn!("the cost of the epoch is not known, and not counted: {error}");
                Ok(Readings::default())
            }
            readings => Ok(readings?),
        }
    }

    /// Whether each rank reads the object store itself, without a cache.
    pub fn reads_itself(&self) -> bool {
        matches!(self.access, Access::Direct(_))
    }
}
