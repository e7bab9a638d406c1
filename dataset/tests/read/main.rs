//! Datasets, frozen and read.

mod file;
mod filters;
mod given;
mod tables;
