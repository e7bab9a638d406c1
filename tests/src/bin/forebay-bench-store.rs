//! `make bench-store`: the disk cache and the plan measured.

use clap::Parser;
use forebay_tests::bench::disk::{DiskOptions, run};
use forebay_tests::harness::check::exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    exit("forebay-bench-store", run(&DiskOptions::parse()))
}
