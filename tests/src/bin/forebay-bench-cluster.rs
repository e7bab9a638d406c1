//! `make bench-cluster`: what readers notice of faults.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match forebay_tests::bench::cluster::run(&forebay_tests::bench::cluster::Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("forebay-bench-cluster: error: {e:#}");
            ExitCode::FAILURE
        }
    }
}
