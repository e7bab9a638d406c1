//! `make bench-train`: the trainer measured.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match forebay_tests::bench::train::run(&forebay_tests::bench::train::Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("forebay-bench-train: error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
