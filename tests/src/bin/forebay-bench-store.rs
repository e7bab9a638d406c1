//! `make bench-store`: the store and the plan measured.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match forebay_tests::bench::disk::run(&forebay_tests::bench::disk::Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("forebay-bench-store: error: {e:#}");
            ExitCode::FAILURE
        }
    }
}
