//! `make bench-order`: the order measured.

use clap::Parser;
use forebay_tests::bench::order::{OrderOptions, run};
use forebay_tests::harness::check::exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    exit("forebay-bench-order", run(&OrderOptions::parse()))
}
