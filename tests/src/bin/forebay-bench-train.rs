//! `make bench-train`: the trainer measured.

use clap::Parser;
use forebay_tests::bench::train::{TrainOptions, run};
use forebay_tests::harness::check::exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    exit("forebay-bench-train", run(&TrainOptions::parse()))
}
