//! `make bench-epoch`: epochs through the cache, cold and warm, beside reading S3 directly.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match forebay_tests::bench::epoch::run(&forebay_tests::bench::epoch::Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("forebay-bench-epoch: error: {message}");
            ExitCode::FAILURE
        }
    }
}
