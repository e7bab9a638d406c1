//! `make attack`: a node attacked, and what its readers notice.

use clap::Parser;
use forebay_tests::bench::attack::{AttackOptions, run};
use forebay_tests::harness::check::exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    exit("forebay-attack", run(&AttackOptions::parse()))
}
