//! `make bench-real`: tables of real writers, and what growth and filters cost.

use clap::Parser;
use forebay_tests::bench::real::{RealOptions, run};
use forebay_tests::harness::check::exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    exit("forebay-bench-real", run(&RealOptions::parse()))
}
