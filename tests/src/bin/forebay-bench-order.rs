//! `make bench-order`: the order measured.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match forebay_tests::bench::order::run(&forebay_tests::bench::order::Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("forebay-bench-order: error: {e:#}");
            ExitCode::FAILURE
        }
    }
}
