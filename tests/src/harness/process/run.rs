//! Any binary, run to its end under a time limit.

use super::tie;
use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A command about to be run.
pub struct Run {
    command: Command,
    name: String,
    limit: Duration,
    show: bool,
}

/// A command that runs; killed when dropped.
pub struct Running {
    child: Child,
    stdout: Option<Pipe>,
    stderr: Option<Pipe>,
    name: String,
    limit: Duration,
}

/// Collects what a pipe brings.
type Pipe = std::thread::JoinHandle<Vec<u8>>;

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    name: String,
    /// The exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// Everything it wrote to stdout.
    pub stdout: Vec<u8>,
    /// Everything it wrote to stderr (empty if it was shown instead).
    pub stderr: String,
}

impl Run {
    /// A binary of this workspace.
    ///
    /// # Panics
    /// If it has not been built.
    pub fn new(name: &str) -> Self {
        Self::program(binary(name), name)
    }

    /// Like [`new`](Self::new), for callers that are not tests.
    pub fn find(name: &str) -> anyhow::Result<Self> {
        Ok(Self::program(find(name)?, name))
    }

    /// Any program, called `name` in messages.
    pub fn program(program: impl AsRef<OsStr>, name: &str) -> Self {
        let mut command = Command::new(program);
        scrub(&mut command);
        tie::tie(&mut command);
        Self { command, name: name.to_owned(), limit: Duration::from_secs(300), show: false }
    }

    /// Adds one argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Sets environment variables.
    pub fn envs<N: AsRef<OsStr>, V: AsRef<OsStr>>(
        mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        self.command.envs(variables);
        self
    }

    /// Kills it after `limit` (default: five minutes).
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Lets people see its stderr as it runs.
    pub fn show_progress(mut self) -> Self {
        self.show = true;
        self
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// If it cannot be started, or is not done in time.
    pub fn end(self) -> Ended {
        self.try_end().unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Like [`end`](Self::end), for callers that are not tests.
    pub fn try_end(self) -> anyhow::Result<Ended> {
        self.try_start()?.try_end()
    }

    /// Runs it to its end, which must be a good one, and gives what it wrote to stdout.
    pub fn stdout(self) -> anyhow::Result<Vec<u8>> {
        self.try_end()?.success()
    }

    /// Runs it with `--json`, and reads what it says.
    pub fn json<T: DeserializeOwned>(self) -> anyhow::Result<T> {
        let name = self.name.clone();
        let text = self.arg("--json").stdout()?;
        serde_json::from_slice(&text).with_context(|| format!("{name}: {}", String::from_utf8_lossy(&text)))
    }

    /// Starts it, for tests that do something to it while it runs.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(self) -> Running {
        self.try_start().unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Like [`start`](Self::start), for callers that are not tests.
    pub fn try_start(mut self) -> anyhow::Result<Running> {
        let stderr = if self.show { Stdio::inherit() } else { Stdio::piped() };
        self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = self.command.spawn().with_context(|| format!("cannot start {}", self.name))?;
        let (stdout, stderr) = (child.stdout.take().map(drain), child.stderr.take().map(drain));
        Ok(Running { child, stdout, stderr, name: self.name, limit: self.limit })
    }
}

impl Running {
    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end, for as long as the time limit says from now on.
    ///
    /// # Panics
    /// If it is not done in time.
    pub fn end(self) -> Ended {
        self.try_end().unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Like [`end`](Self::end), for callers that are not tests.
    pub fn try_end(mut self) -> anyhow::Result<Ended> {
        let status = wait(&mut self.child, self.limit);
        if status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let collect = |pipe: Option<Pipe>| pipe.and_then(|pipe| pipe.join().ok()).unwrap_or_default();
        let stderr = String::from_utf8_lossy(&collect(self.stderr.take())).into_owned();
        let stdout = collect(self.stdout.take());
        match status {
            Some(status) => Ok(Ended { name: self.name.clone(), code: status.code(), stdout, stderr }),
            None => anyhow::bail!("{} is not done after {:?}; its stderr:\n{stderr}", self.name, self.limit),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// The stdout of a command that succeeded, or its status and stderr.
    pub fn success(self) -> anyhow::Result<Vec<u8>> {
        let Self { name, code, stdout, stderr } = self;
        anyhow::ensure!(code == Some(0), "{name} ended with {code:?}; its stderr:\n{stderr}");
        Ok(stdout)
    }

    /// The stdout of a command that succeeded.
    ///
    /// # Panics
    /// If it did not succeed; the message holds its stderr.
    pub fn expect_success(self) -> Vec<u8> {
        assert_eq!(self.code, Some(0), "stderr:\n{}", self.stderr);
        self.stdout
    }

    /// The last line on stderr of a command that was to fail.
    ///
    /// # Panics
    /// If it succeeded, was ended by a signal, panicked or said nothing.
    pub fn expect_failure(self) -> String {
        assert!(
            self.code.is_some_and(|code| code != 0),
            "a clean failure, not {:?}: {}",
            self.code,
            self.stderr
        );
        assert!(!self.stderr.contains("panicked at"), "a message, not a panic:\n{}", self.stderr);
        let last = self.stderr.lines().rfind(|line| !line.trim().is_empty());
        last.expect("a message on stderr").to_owned()
    }
}

/// The path of a binary of this workspace: beside the running executable, or one folder up for test binaries.
///
/// # Panics
/// If it has not been built.
pub fn binary(name: &str) -> PathBuf {
    find(name).unwrap_or_else(|error| panic!("{error:#}"))
}

/// Like [`binary`], for callers that are not tests.
pub(crate) fn find(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("find this executable")?;
    let mut folder = own.parent().unwrap_or(&own);
    if folder.ends_with("deps") {
        folder = folder.parent().unwrap_or(folder);
    }
    let path = folder.join(name);
    anyhow::ensure!(
        path.is_file(),
        "{} does not exist: use `make`, which builds all binaries, or `cargo build --workspace --bins`",
        path.display()
    );
    Ok(path)
}

/// Waits for the end, at most `limit`.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            _ => return None,
        }
    }
}

/// Sends a signal to a child, which may have ended.
pub(crate) fn send_signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Hides the settings of the person who runs the tests: credentials, endpoints, proxies, colours.
pub(crate) fn scrub(command: &mut Command) {
    // Hosts that need no proxy would be asked past the proxy of a test.
    let proxies = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"];
    let ours = |name: &str| {
        ["FOREBAY_", "AWS_"].iter().any(|prefix| name.starts_with(prefix))
            || proxies.iter().any(|proxy| name.eq_ignore_ascii_case(proxy))
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| ours(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command.env("NO_COLOR", "1").env("AWS_EC2_METADATA_DISABLED", "true");
}

fn drain(mut pipe: impl Read + Send + 'static) -> Pipe {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}
