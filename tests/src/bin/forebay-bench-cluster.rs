//! `make bench-cluster`: what readers notice of faults.

use clap::Parser;
use forebay_tests::bench::cluster::{ClusterOptions, run};
use forebay_tests::harness::check::exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    exit("forebay-bench-cluster", run(&ClusterOptions::parse()))
}
