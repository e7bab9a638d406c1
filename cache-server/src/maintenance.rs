//! Work on a timer.

pub mod stall_probe;
pub mod upkeep;
