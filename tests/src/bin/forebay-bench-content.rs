//! `make bench-content`: one dataset read in every way, and its content digest beside pyarrow's.

use clap::Parser;
use forebay_tests::bench::cluster::content::{ContentOptions, run};
use forebay_tests::harness::check::exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    exit("forebay-bench-content", run(&ContentOptions::parse()))
}
