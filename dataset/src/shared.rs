//! Memory that a node shares with a reader on its host, instead of sending bytes.
//!
//! For each reader that asks, the node makes a [`SharedRegion`]: a sealed memory file, whose descriptor goes
//! over a Unix socket ([`channel`]). The node gathers messages right into it; what travels is where they lie.
//! The reader maps the region read-only ([`SharedMap`]) and gives each message back when it has copied it.
//! Rows that lie in segment files the node does not gather at all: the reader gets the files' descriptors
//! ([`FileMaps`]), and of each message which rows of them it has ([`LentRows`]); or, where the message holds
//! whole steps of the plan, of which segments they are ([`LentSegments`]).
//!
//! Who may use which bytes is decided by ownership alone: a range is free again when its [`SharedBuffer`] is
//! dropped, and for a message that was sent the node keeps that until the reader has given it back, or is
//! gone. So no byte changes under a reader. The seals see to it that the file keeps its length and that the
//! reader cannot write to it.

pub mod channel;
mod file_maps;
mod file_rows;
mod files;
mod map;
mod message_pool;
mod ranges;
mod region;
mod row_runs;
#[cfg(test)]
pub(crate) mod tests;

pub use file_maps::{FileMaps, LentRows, LentSegments};
pub use map::SharedMap;
pub use message_pool::MessagePool;
pub use region::{SharedBuffer, SharedLease, SharedRegion};
pub use row_runs::{RUN_BYTES, RowRuns, RowsDone};

/// What tells this host from others: processes with equal answers may share memory if one reaches the other's
/// socket. Empty where it is not known. Containers on one machine have the same.
pub fn host_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}
