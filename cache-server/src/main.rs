//! `forebay-server`: settings, logs, signals; the rest is the library.
#![expect(
    unsafe_code,
    reason = "the allocator reads its settings from a symbol of a given name; files are closed by number"
)]

use anyhow::Context;
use forebay_proto::LogVariable;
use forebay_server::{Server, Settings};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Segments are decoded on many threads, in pieces of all sizes, and freed on others. glibc keeps freed
/// memory in each thread's arena: several times `--memory-bytes`. jemalloc gives it back, and reuses memory
/// that was just freed while its pages are still there.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Free pages go back to the kernel within half a second, on a thread of their own, and come from it 2 MiB at
/// once: page by page the memory for decoding cost 15 % of a cold epoch. Few arenas: each keeps its own.
#[unsafe(export_name = "_rjem_malloc_conf")]
static ALLOCATOR_SETTINGS: &[u8; 80] =
    b"narenas:4,thp:always,dirty_decay_ms:500,muzzy_decay_ms:0,background_thread:true\0";

/// How long work that cannot be cancelled may take to end, once all else has.
const END: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("forebay-server: error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> anyhow::Result<()> {
    write_no_core_dumps();
    let settings = Settings::load(std::env::args_os())?;
    let value = std::env::var_os(LOG.name).map(|value| value.to_string_lossy().into_owned());
    logs(LOG.filter(value)?, settings.log_json);
    if settings.detach {
        detach();
    }
    let runtime = forebay_server::runtime().context("start threads")?;
    let served = runtime.block_on(run(settings));
    // A thread may hang in a disk that does not answer.
    runtime.shutdown_timeout(END);
    served
}

/// A core dump would have all secrets of the node, and rows that belong to others. `prlimit --core` turns
/// them on again.
fn write_no_core_dumps() {
    let limit = getrlimit(Resource::Core);
    if let Err(e) = setrlimit(Resource::Core, Rlimit { current: Some(0), ..limit }) {
        eprintln!("forebay-server: core dumps cannot be turned off: {e}");
    }
}

/// Leaves the session of the program that started this one, so that Ctrl-C there does not end this one, and
/// closes what was open there: a port that a trainer listens on must be free when the trainer has gone.
fn detach() {
    // It fails only where this process leads a session or group already.
    rustix::process::setsid().ok();
    // Not by the C library's function, which is younger than the oldest one that the wheel is for.
    // SAFETY: nothing was opened in this process yet, so nothing of it owns a file of these numbers.
    unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
}

async fn run(settings: Settings) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    ignore_hangups()?;
    let told = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        told.cancel();
    });
    let server = tokio::select! {
        server = Server::bind(settings) => server?,
        () = stop.cancelled() => return Ok(()),
    };
    // The program that started this one learns the ports from these lines.
    println!("listening {}", server.address());
    if let Some(at) = server.metrics_address()? {
        println!("metrics {at}");
    }
    if let Some(at) = server.s3_address()? {
        println!("s3 {at}");
    }
    server.run(stop).await.context("serve")
}

/// Files are read again when they change, so SIGHUP, by which other servers are told to, has nothing to do.
/// But it would end the node, and with it the streams of its readers. Where a terminal closes it does.
fn ignore_hangups() -> std::io::Result<()> {
    if std::io::stderr().is_terminal() {
        return Ok(());
    }
    let mut hangups = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            tracing::info!(
                "SIGHUP changes nothing: policies, tokens and certificates are read again by themselves"
            );
        }
    });
    Ok(())
}

/// What to log. HTTP/2 has a warning for each connection that misbehaves, and strangers may open very many.
const LOG: LogVariable = LogVariable {
    name: "FOREBAY_LOG",
    default: "info,h2=error",
    examples: "debug or info,forebay_server=debug",
};

/// Logs to stderr.
fn logs(filter: EnvFilter, json: bool) {
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match json {
        true => builder.json().init(),
        false => builder.with_ansi(std::io::stderr().is_terminal()).init(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_cannot_be_understood_is_told() {
        let told = |value: &str| LOG.filter(Some(value.to_owned())).map(|filter| filter.to_string());
        let e = told("forebay_server=debgu").unwrap_err().to_string();
        assert!(e.starts_with("FOREBAY_LOG=forebay_server=debgu: "), "{e}");
        assert_eq!(told("forebay_server=debug").unwrap(), "forebay_server=debug");
        let default = LOG.filter(None).unwrap().to_string();
        assert!(default.contains("info") && default.contains("h2=error"), "{default}");
        assert_eq!(told("").unwrap(), default);
    }
}
