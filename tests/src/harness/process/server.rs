//! A `forebay-server` of one's own: started on free ports, watched, killed.

use super::{log, run, tie};
use crate::harness::s3::{REGION, S3Server};
use anyhow::Context;
use rustix::process::Signal;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// How long a server may take until it listens, and until it has ended after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server about to be started.
#[derive(Clone)]
pub struct ServerOptions {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    folder: Option<PathBuf>,
    allowed: Vec<String>,
    /// The command that runs it, such as `ip netns exec NAME`; empty: none.
    wrapper: Vec<String>,
    /// Another program than that beside the tests.
    program: Option<PathBuf>,
}

impl ServerOptions {
    /// A server that reads from anywhere in the bucket of `s3`.
    pub fn for_s3(s3: &S3Server) -> Self {
        Self::for_endpoint(s3, &s3.endpoint)
    }

    /// The same, through `endpoint` (a proxy before `s3`).
    pub fn for_endpoint(s3: &S3Server, endpoint: &str) -> Self {
        let mut options = Self::bare().args(["--allow", &format!("s3://{}/", s3.bucket)]);
        options = options.args(["--s3-endpoint", endpoint, "--s3-region", REGION]);
        options.environment = s3.credentials();
        options
    }

    /// A server with no settings but its ports and its cache directory.
    pub fn bare() -> Self {
        Self {
            arguments: Vec::new(),
            environment: Vec::new(),
            folder: None,
            allowed: Vec::new(),
            wrapper: Vec::new(),
            program: None,
        }
    }

    /// Adds one argument.
    pub fn arg(self, argument: impl Into<String>) -> Self {
        self.args([argument.into()])
    }

    /// Adds arguments.
    pub fn args<S: AsRef<str>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Keeps cache and log in this folder, which outlives the server (default: a temporary one).
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Runs it by a command that becomes it, such as `ip netns exec NAME`.
    pub fn within<S: AsRef<str>>(mut self, command: impl IntoIterator<Item = S>) -> Self {
        self.wrapper = command.into_iter().map(|word| word.as_ref().to_owned()).collect();
        self
    }

    /// Starts this program, of an older commit say.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// WARN and ERROR lines that contain `text` are expected.
    pub fn allow_log(mut self, text: &str) -> Self {
        self.allowed.push(text.to_owned());
        self
    }

    /// A disk that answers late while gigabytes are written to it is no fault here: data that are not on it
    /// would be read from the object store, at which those look that use this.
    pub fn slow_disk(self) -> Self {
        self.allow_log("a cache directory hangs and is set aside")
    }

    /// Starts the server and waits until it listens.
    ///
    /// # Panics
    /// If it ends or does not listen in time; the message holds its log.
    pub fn start(self) -> Server {
        self.try_start().unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Like [`start`](Self::start), for servers that are expected to refuse: the error holds status and log.
    pub fn try_start(self) -> anyhow::Result<Server> {
        let temporary = tempfile::tempdir().context("make a temporary folder")?;
        let folder = self.folder.clone().unwrap_or_else(|| temporary.path().to_owned());
        let log = folder.join("server.log");
        let mut child = self.spawn(&folder, &log).context("start forebay-server")?;
        let lines = follow(child.stdout.take().context("forebay-server has no stdout")?, &log);
        let has_tls = self.arguments.iter().any(|argument| argument == "--tls-cert");
        let mut server = Server {
            scheme: if has_tls { "https" } else { "http" },
            endpoint: String::new(),
            metrics: None,
            s3: None,
            folder,
            log,
            allowed: self.allowed,
            child,
            ended: false,
            _temporary: temporary,
        };
        server.wait_until_ready(&lines, self.arguments.iter().any(|argument| argument == "--s3-listen"))?;
        Ok(server)
    }

    fn spawn(&self, folder: &Path, log: &Path) -> anyhow::Result<Child> {
        std::fs::create_dir_all(folder)?;
        let errors = File::options().create(true).append(true).open(log)?;
        let server = self.program.clone().map_or_else(|| run::find("forebay-server"), Ok)?;
        let mut command = match self.wrapper.split_first() {
            Some((program, words)) => {
                let mut command = Command::new(program);
                command.args(words).arg(server);
                command
            }
            None => Command::new(server),
        };
        let ports = ["--listen", "--metrics-listen"];
        for flag in ports.into_iter().filter(|flag| !self.arguments.iter().any(|argument| argument == flag)) {
            command.args([flag, "127.0.0.1:0"]);
        }
        if !self.arguments.iter().any(|argument| argument == "--cache-dir") {
            command.arg("--cache-dir").arg(folder.join("cache"));
        }
        run::scrub(&mut command);
        tie::tie(&mut command);
        // Tests count requests; those of this look say so.
        command.env("FOREBAY_CHECK_AT_START", "false");
        // And look at the figures of now. Programs of before may not know this setting.
        if self.program.is_none() {
            command.env("FOREBAY_LIMITS__METRICS_AGE_S", "0");
        }
        command.args(&self.arguments).envs(self.environment.iter().cloned());
        Ok(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).spawn()?)
    }
}

/// A running `forebay-server`; killed when dropped.
pub struct Server {
    scheme: &'static str,
    /// `http://127.0.0.1:PORT` (`https` with TLS) or `unix:/PATH`, where it listens.
    pub endpoint: String,
    /// `http://127.0.0.1:PORT`, where its metrics are, if it said so.
    pub metrics: Option<String>,
    /// `http://127.0.0.1:PORT`, where S3 clients are served, if it was told to.
    pub s3: Option<String>,
    /// Where its cache and log are.
    pub folder: PathBuf,
    log: PathBuf,
    allowed: Vec<String>,
    child: Child,
    ended: bool,
    _temporary: tempfile::TempDir,
}

impl Server {
    /// A figure of its metrics, which it tells without TLS.
    pub fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let address = self.metrics.as_deref().context("a node has metrics")?.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address)?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value.with_context(|| format!("the node has no metric {name}"))?.trim().parse()?)
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Seconds of processor time that it has used (`utime` and `stime` of proc(5), in hundredths).
    pub fn cpu_s(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()))?;
        let after = stat.rsplit_once(')').context("a name in /proc/PID/stat")?.1;
        let ticks = after.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
        Ok(ticks.sum::<Result<u64, _>>()? as f64 / 100.0)
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// kill -9, and gone.
    pub fn kill(&mut self) {
        // Fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.ended = true;
    }

    /// Stops it silently (SIGSTOP): it is silent, not dead.
    pub fn pause(&self) {
        run::send_signal(self.child.id(), Signal::STOP);
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&self) {
        run::send_signal(self.child.id(), Signal::CONT);
    }

    /// SIGTERM; waits for the end and checks status and log.
    ///
    /// # Panics
    /// If it does not end in time, ends with an error, or has logged something unexpected.
    pub fn stop(self) {
        self.try_stop().unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Like [`stop`](Self::stop), for callers that are not tests.
    pub fn try_stop(mut self) -> anyhow::Result<()> {
        let status = self.terminate();
        let is_clean = status.is_some_and(|status| status.success());
        anyhow::ensure!(is_clean, "forebay-server ended with {status:?}; its log:\n{}", self.log());
        match self.unexpected_log() {
            Some(message) => anyhow::bail!(message),
            None => Ok(()),
        }
    }

    fn terminate(&mut self) -> Option<ExitStatus> {
        run::send_signal(self.child.id(), Signal::TERM);
        let status = run::wait(&mut self.child, PATIENCE);
        if status.is_none() {
            self.kill();
        }
        self.ended = true;
        status
    }

    /// The complaint about its log, the first time it is asked for.
    fn unexpected_log(&mut self) -> Option<String> {
        let unexpected = log::unexpected(&self.log(), &self.allowed);
        // The empty text is in every line: from now on all are allowed.
        self.allowed.push(String::new());
        let message = format!("unexpected lines in the log of forebay-server:\n{}", unexpected.join("\n"));
        (!unexpected.is_empty()).then_some(message)
    }

    fn wait_until_ready(&mut self, lines: &Receiver<String>, has_s3: bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Where metrics are is said before or right after where it listens; stalls may part them.
            let patience = if self.endpoint.is_empty() { left } else { left.min(Duration::from_secs(10)) };
            match lines.recv_timeout(patience) {
                Ok(line) => {
                    if let Some(address) = line.strip_prefix("listening ") {
                        self.endpoint = match address.trim() {
                            socket if socket.starts_with("unix:") => socket.to_owned(),
                            address => format!("{}://{address}", self.scheme),
                        };
                    } else if let Some(address) = line.strip_prefix("metrics ") {
                        self.metrics = Some(format!("{}://{}", self.scheme, address.trim()));
                    } else if let Some(address) = line.strip_prefix("s3 ") {
                        self.s3 = Some(format!("{}://{}", self.scheme, address.trim()));
                    }
                    let is_all = self.metrics.is_some() && self.s3.is_some() == has_s3;
                    if !self.endpoint.is_empty() && is_all {
                        return Ok(());
                    }
                }
                Err(_) if !self.endpoint.is_empty() => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {
                    self.kill();
                    anyhow::bail!(
                        "forebay-server does not listen after {PATIENCE:?}; its log:\n{}",
                        self.log()
                    );
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = run::wait(&mut self.child, PATIENCE);
                    self.kill();
                    anyhow::bail!("forebay-server ended with {status:?}; its log:\n{}", self.log());
                }
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.ended {
            self.kill();
        }
        if std::thread::panicking() {
            eprintln!("--- log of forebay-server {}\n{}", self.endpoint, self.log());
        } else if let Some(message) = self.unexpected_log() {
            panic!("{message}");
        }
    }
}

/// Lines of stdout that may wait to be received. A server says where it listens in its first two.
const LINES_KEPT: usize = 64;

/// Copies the server's stdout to its log, and hands the lines on while there is room for them.
fn follow(stdout: ChildStdout, log: &Path) -> Receiver<String> {
    let (sender, receiver) = sync_channel(LINES_KEPT);
    let log = File::options().append(true).open(log);
    std::thread::spawn(move || {
        let mut log = log.ok();
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Some(log) = &mut log {
                // In one piece, for the server appends to the same file.
                let _ = log.write_all(format!("{line}\n").as_bytes());
            }
            let _ = sender.try_send(line);
        }
    });
    receiver
}
