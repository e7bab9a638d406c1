//! `make bench-python`: the Python package measured beside the Rust loader.

use clap::Parser;
use forebay_tests::bench::python::{PythonOptions, run};
use forebay_tests::harness::check::exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    exit("forebay-bench-python", run(&PythonOptions::parse()))
}
