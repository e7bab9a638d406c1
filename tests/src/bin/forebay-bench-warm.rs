//! `make bench-warm`: warm epochs measured.

use clap::Parser;
use forebay_tests::bench::stages::exit;
use forebay_tests::bench::warm::{WarmOptions, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    exit("forebay-bench-warm", run(&WarmOptions::parse()))
}
