//! How a command that cannot succeed must end: soon, with a status other than 0, and with one line that says
//! why.

use std::time::{Duration, Instant};

use forebay_tests::harness::process::{Ended, Run, ServerOptions};

/// How long a refusal may take, slow builds on a busy machine included.
const SOON: Duration = Duration::from_secs(55);

/// Text that must never come out of anything: tests use it as the secret.
pub const SECRET: &str = "hunter2-hunter2-hunter2";

/// Runs a command that must be refused by one line that contains all of `says`; gives the line.
pub fn refused(run: Run, says: &[&str]) -> String {
    let start = Instant::now();
    let ended = run.limit(Duration::from_secs(60)).end();
    assert!(start.elapsed() < SOON, "it took {:?}: {}", start.elapsed(), ended.stderr);
    check(ended, says)
}

/// Whether a command says on a line that data is late, or how far it is, as it may on a slow machine: that
/// is no error.
pub fn is_about_waiting(line: &str) -> bool {
    let is_progress =
        line.starts_with("forebay: epoch ") && line.contains(" of ") && line.ends_with(" samples");
    is_progress || line.starts_with("forebay: no data for ")
}

/// The same as [`refused`] of a command that has ended.
pub fn check(ended: Ended, says: &[&str]) -> String {
    let is_told = |line: &&str| !line.trim().is_empty() && !is_about_waiting(line);
    let lines: Vec<&str> = ended.stderr.lines().filter(is_told).collect();
    assert!(lines.len() == 1, "{:?} and {} lines about {says:?}:\n{}", ended.code, lines.len(), ended.stderr);
    assert!(!String::from_utf8_lossy(&ended.stdout).contains(SECRET));
    let line = ended.expect_failure();
    told(&line, says);
    line
}

/// Runs a command that must be refused with this status, by one line that contains all of `says`.
pub fn status_of(run: Run, status: i32, says: &[&str]) {
    let ended = run.limit(SOON).end();
    assert_eq!(ended.code, Some(status), "{}", ended.stderr);
    check(ended, says);
}

/// Refusals of wrong command lines have a hint at the end, but name the mistake on the first line.
pub fn misused(run: Run, says: &[&str]) {
    let ended = run.limit(SOON).end();
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stdout.is_empty());
    told(ended.stderr.lines().next().expect("a message"), says);
}

/// Starts a server that must refuse to by one line that contains all of `says`.
pub fn server_refused(options: ServerOptions, says: &[&str]) {
    let start = Instant::now();
    let message = match options.try_start() {
        Ok(server) => panic!("it starts, though it should say {says:?}: {}", server.endpoint),
        Err(error) => error.to_string(),
    };
    assert!(start.elapsed() < SOON, "it took {:?}: {message}", start.elapsed());
    assert!(message.contains("unix_wait_status(256)"), "status 1: {message}");
    let errors: Vec<&str> =
        message.lines().skip(1).filter(|line| !line.contains(" INFO ") && !line.is_empty()).collect();
    assert!(errors.len() == 1, "one line, not {}: {message}", errors.len());
    assert!(errors[0].starts_with("forebay-server: error: "), "{message}");
    told(errors[0], says);
}

fn told(line: &str, says: &[&str]) {
    assert!(!line.contains("panicked") && !line.contains(SECRET), "{line}");
    for text in says {
        assert!(line.contains(text), "it should say `{text}`: {line}");
    }
}
