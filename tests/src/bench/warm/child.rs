//! Measured processes: this program in another role, so that each has processor time of its own.
//!
//! A child makes everything ready, says so in a line on stdout (which may hold its address), waits for a line
//! on stdin, runs, and leaves its report in another line.

use super::span::Span;
use crate::harness::process::{run, tie};
use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// How long a child may take for each of its lines.
const PATIENCE: Duration = Duration::from_secs(300);

/// A child; killed when dropped.
pub struct ChildProcess {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    name: String,
}

impl ChildProcess {
    /// Starts this program with these arguments.
    pub fn start<S: AsRef<str>>(arguments: impl IntoIterator<Item = S>) -> anyhow::Result<Self> {
        let arguments: Vec<String> = arguments.into_iter().map(|a| a.as_ref().to_owned()).collect();
        let mut command = Command::new(run::find("forebay-bench-warm")?);
        run::scrub(&mut command);
        command.args(&arguments);
        Self::of(command, arguments.join(" "))
    }

    /// Starts another program that keeps to the same lines.
    pub fn of(mut command: Command, name: String) -> anyhow::Result<Self> {
        tie::tie(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("start a child")?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let lines = follow(stdout.context("a child has stdout")?);
        Ok(Self { child, stdin: stdin.context("a child has stdin")?, lines, name })
    }

    /// Waits until it is ready, and returns what it says then.
    pub fn ready(&self) -> anyhow::Result<String> {
        self.line().context("wait until it is ready")
    }

    /// Lets it run.
    pub fn go(&mut self) -> anyhow::Result<()> {
        self.stdin.write_all(b"go\n").with_context(|| format!("start `{}`", self.name))
    }

    /// Waits until it has run.
    pub fn report<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        let line = self.line().context("wait for its report")?;
        serde_json::from_str(&line).with_context(|| format!("`{}` reported {line}", self.name))
    }

    fn line(&self) -> anyhow::Result<String> {
        self.lines.recv_timeout(PATIENCE).with_context(|| format!("`{}` says nothing more", self.name))
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lets children that are ready run at the same time; the reports are in their order.
pub fn run_together<T: DeserializeOwned>(children: &mut [ChildProcess]) -> anyhow::Result<Vec<T>> {
    children.iter_mut().try_for_each(ChildProcess::go)?;
    children.iter().map(ChildProcess::report).collect()
}

fn follow(stdout: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = sync_channel(4);
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// In a child: says that it is ready.
pub fn say_ready(address: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout();
    stdout.write_all(format!("{address}\n").as_bytes())?;
    stdout.flush()
}

/// In a child: waits for the word to go, and measures `run`.
pub fn run_when_told<T>(run: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(Span, T)> {
    let mut word = String::new();
    std::io::stdin().read_line(&mut word)?;
    anyhow::ensure!(!word.is_empty(), "the benchmark has gone");
    let (span, done) = Span::of(run);
    Ok((span, done?))
}

/// In a child: its last line.
pub fn say_report(report: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(report)?);
    Ok(())
}
