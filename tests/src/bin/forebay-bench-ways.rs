//! One training four ways, timed: see `forebay_tests::bench::ways`.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match forebay_tests::bench::ways::run(&forebay_tests::bench::ways::Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay-bench-ways: {error:#}");
            ExitCode::FAILURE
        }
    }
}
