//! Datasets, frozen and read.

mod delta;
mod deltas;
mod file;
mod filters;
mod given;
mod tables;
