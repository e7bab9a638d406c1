//! `make bench-epoch`: epochs through the cache, cold and warm, beside reading S3 directly.

use clap::Parser;
use forebay_tests::bench::epoch::{EpochOptions, run};
use forebay_tests::harness::check::exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    exit("forebay-bench-epoch", run(&EpochOptions::parse()))
}
