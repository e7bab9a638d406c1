//! `make demo`: MNIST from S3 through the cache into a training run, with a table, a report and checks at the end.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match forebay_tests::demo::run(&forebay_tests::demo::Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("forebay-demo: error: {message}");
            ExitCode::FAILURE
        }
    }
}
