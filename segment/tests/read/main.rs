//! Datasets, frozen and read from files and from S3.

mod file;
mod given;
mod s3;
