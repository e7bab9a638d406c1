//! `make bench-tls`: what TLS costs.

use clap::Parser;
use forebay_tests::bench::tls::{TlsOptions, run};
use forebay_tests::harness::check::exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    exit("forebay-bench-tls", run(&TlsOptions::parse()))
}
