//! `make bench-warm`: warm epochs measured.

use clap::Parser;
use forebay_tests::bench::warm::{WarmOptions, run};
use forebay_tests::harness::check::exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    exit("forebay-bench-warm", run(&WarmOptions::parse()))
}
