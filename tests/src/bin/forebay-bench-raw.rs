//! `make bench-raw`: the S3 endpoint measured.

use clap::Parser;
use forebay_tests::bench::raw::{RawOptions, run};
use forebay_tests::harness::check::exit;
use std::process::ExitCode;

/// As in `forebay` and `forebay-train`: what arrives comes and goes by the megabyte, and glibc gives its
/// pages back to the kernel each time.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    exit("forebay-bench-raw", run(&RawOptions::parse()))
}
