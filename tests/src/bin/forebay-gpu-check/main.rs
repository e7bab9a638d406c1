//! `forebay-gpu-check [NAME..]`: what this crate does on a GPU, checked on a machine that has one.
//!
//! Prints a line for each check: `PASS`, `FAIL` or `SKIP`, the name, and what was seen; exits with 1 if one
//! failed. Without names it makes all checks; `list` lists them. `tests/gpu/run.sh` makes them one by one,
//! each in a process of its own, because a fault on a GPU can end or hang the process.
//!
//! `nccl` and `ddp` start one process per GPU, two at most, which meet at a store as training ranks do.

mod device;
mod ranks;

use std::process::ExitCode;

use forebay_c10d::{Cuda, Result};

/// What a check has seen.
enum Outcome {
    Pass(String),
    Fail(String),
    Skip(String),
}

impl Outcome {
    /// Passes if `condition` holds.
    fn of(condition: bool, seen: String) -> Self {
        if condition { Self::Pass(seen) } else { Self::Fail(seen) }
    }
}

type Check = fn(Cuda) -> Result<Outcome>;

const CHECKS: [(&str, Check); 6] = [
    ("matmul", device::matmul),
    ("bf16", device::bf16),
    ("pinned", device::pinned_copies_overlap),
    ("trace", device::trace),
    ("nccl", ranks::nccl),
    ("ddp", ranks::ddp),
];

fn main() -> ExitCode {
    if let Some(rank) = ranks::Rank::from_env() {
        return rank.run();
    }
    let names: Vec<String> = std::env::args().skip(1).collect();
    if names == ["list"] {
        CHECKS.iter().for_each(|(name, _)| println!("{name}"));
        return ExitCode::SUCCESS;
    }
    let known = |name: &String| CHECKS.iter().any(|(check, _)| check == name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        eprintln!("forebay-gpu-check: there is no check `{unknown}`: `forebay-gpu-check list` lists them");
        return ExitCode::from(2);
    }
    let wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    let cuda = Cuda::load();
    let mut failed = false;
    for (name, check) in CHECKS.into_iter().filter(|(name, _)| wanted(name)) {
        let outcome = match &cuda {
            Ok(cuda) => check(*cuda).unwrap_or_else(|error| Outcome::Fail(error.to_string())),
            // No GPU is no fault; a plugin that does not load is one.
            Err(error) if error.message.starts_with("no CUDA device") => Outcome::Skip(error.message.clone()),
            Err(error) => Outcome::Fail(error.to_string()),
        };
        let (word, seen) = match &outcome {
            Outcome::Pass(seen) => ("PASS", seen),
            Outcome::Fail(seen) => ("FAIL", seen),
            Outcome::Skip(why) => ("SKIP", why),
        };
        println!("{word} {name}: {seen}");
        failed |= word == "FAIL";
    }
    ExitCode::from(u8::from(failed))
}
