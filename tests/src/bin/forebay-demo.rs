//! `make demo`: MNIST from S3 through the cache into a training run, with a table, a report and checks at the
//! end.

use clap::Parser;
use forebay_tests::demo::{DemoOptions, run};
use forebay_tests::harness::check::exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    exit("forebay-demo", run(&DemoOptions::parse()))
}
