//! Datasets, frozen and read.

mod file;
mod given;
