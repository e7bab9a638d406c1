use super::*;
use rustix::process::Signal;
use std::process::Command;
use std::time::{Duration, Instant};

fn shell(script: &str) -> Run {
    Run::program("sh", "sh").args(["-c", script])
}

#[test]
fn run_collects_what_a_command_says_and_how_it_ends() {
    assert_eq!(shell("echo out; echo err >&2").end().expect_success(), b"out\n");
    assert_eq!(shell("echo first >&2; echo last >&2; exit 3").end().expect_failure(), "last");
}

#[test]
#[should_panic(expected = "not done after")]
fn run_has_a_time_limit() {
    shell("exec sleep 60").limit(Duration::from_millis(50)).end();
}

#[test]
fn run_hides_the_settings_of_the_caller() {
    let command = shell("env").envs([("AWS_ACCESS_KEY_ID", "given")]);
    let seen = String::from_utf8(command.end().expect_success()).expect("text");
    assert!(seen.contains("AWS_ACCESS_KEY_ID=given") && seen.contains("NO_COLOR=1"));
}

#[test]
fn a_signal_ends_a_child() {
    let mut child = Command::new("sleep").arg("60").spawn().expect("start sleep");
    let start = Instant::now();
    run::send_signal(child.id(), Signal::TERM);
    let status = run::wait(&mut child, Duration::from_secs(40)).expect("ended");
    assert!(!status.success() && start.elapsed() < Duration::from_secs(40), "it does not sleep to its end");
}
