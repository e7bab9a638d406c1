//! `make bench-peers`: warm epochs beside other ways to feed the same training.

use clap::Parser;
use forebay_tests::bench::peers::{PeersOptions, run};
use forebay_tests::harness::check::exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    exit("forebay-bench-peers", run(&PeersOptions::parse()))
}
