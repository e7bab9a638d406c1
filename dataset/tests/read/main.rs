//! Datasets, frozen and read.

mod delta;
mod file;
mod filters;
mod given;
mod tables;
