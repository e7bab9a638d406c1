//! The read path: a segment from the disk cache or filled once, ahead of those who will ask, within a memory budget.

pub mod budget;
pub mod cache;
pub mod memory;
pub mod plans;
pub mod prefetch;
pub mod single_flight;
