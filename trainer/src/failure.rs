//! How a rank tells why it ended.
//!
//! A rank that fails writes its message where `TORCHELASTIC_ERROR_FILE` says, in torchrun's format, and ends with an
//! exit code: [`PEER_LOST`] when all it knows is that another rank went away, 1 otherwise. The launcher (ours, or
//! torchrun's agent) so finds the rank whose failure came first among those that merely noticed.

use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Result;
use serde_json::{Value, json};

use crate::place::Place;

/// Exit code of a rank that ended because a peer did.
pub const PEER_LOST: u8 = 3;

/// Names the file that a failing rank writes its message to.
pub const ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";

/// How every error line begins.
pub const PREFIX: &str = "forebay-train: ";

/// Ends a rank: reports the error, if any, and gives the exit code.
pub fn end_rank(place: &Place, result: Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    let message = one_line(&error);
    if let Some(file) = std::env::var_os(ERROR_FILE) {
        // Nobody is left to be told if this fails; the exit code still says that the rank failed.
        let _ = write(Path::new(&file), &message);
    }
    if place.launcher.is_none() {
        eprintln!("forebay-train: {}: {message}", rank_name(place.rank, place.world));
    }
    ExitCode::from(if peer_lost(&error) { PEER_LOST } else { 1 })
}

/// Ends the launcher, which speaks for all ranks.
pub fn end_launcher(result: Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("forebay-train: {}", one_line(&error));
    ExitCode::FAILURE
}

/// `rank 1 of 2`.
pub fn rank_name(rank: usize, world: usize) -> String {
    format!("rank {rank} of {world}")
}

/// The message that a rank left in `file`.
pub fn read(file: &Path) -> Option<String> {
    let value: Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    Some(value["message"]["message"].as_str()?.to_owned())
}

fn write(file: &Path, message: &str) -> std::io::Result<()> {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let extra = json!({"py_callstack": "", "timestamp": seconds.to_string()});
    std::fs::write(file, json!({"message": {"message": message, "extraInfo": extra}}).to_string())
}

fn peer_lost(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<forebay_c10d::Error>().is_some_and(|error| error.peer_lost()))
}

/// The error with its causes, whatever they contain, on one line.
fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_message_survives_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rank0.json");
        assert_eq!(read(&file), None);
        write(&file, "epoch 1 step 2: the loss is NaN").unwrap();
        assert_eq!(read(&file).as_deref(), Some("epoch 1 step 2: the loss is NaN"));
    }

    #[test]
    fn a_lost_peer_is_told_from_a_failure_of_ones_own() {
        let store = forebay_c10d::Store::serve(1, std::time::Duration::from_millis(50)).unwrap();
        let lost = store.get("never").unwrap_err();
        let lost = Err::<(), _>(lost).context("epoch 1\nstep 2").unwrap_err();
        assert!(peer_lost(&lost));
        assert!(one_line(&lost).starts_with("epoch 1 step 2: store get: "), "{}", one_line(&lost));
        assert!(!peer_lost(&anyhow::anyhow!("the loss is NaN")));
    }
}
