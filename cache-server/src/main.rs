//! `forebay-server`: settings, logs, signals; the rest is the library.
#![expect(unsafe_code, reason = "the allocator is told at the start how to treat large blocks")]

use anyhow::Context;
use clap::Parser;
use forebay_server::{Flags, Server, Settings};
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Blocks of this size and more are the kernel's again as soon as they are freed. glibc would raise the bound to 32 MiB by
/// itself and keep what segments took when they were decoded: several times `--memory-bytes`. Messages stay below it.
const OWN_BLOCK_BYTES: i32 = 2 << 20;

fn main() -> ExitCode {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number of the allocator, before there is a second thread.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_BLOCK_BYTES);
    }
    match run(&Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("forebay-server: error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(flags: &Flags) -> anyhow::Result<()> {
    let settings = Settings::load(flags)?;
    logs(settings.log_json);
    let stop = CancellationToken::new();
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let server = Server::bind(settings).await?;
    // Whoever started us learns the ports from these lines.
    println!("listening {}", server.address()?);
    if let Some(at) = server.metrics_address()? {
        println!("metrics {at}");
    }
    let told = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        told.cancel();
    });
    server.run(stop).await.context("serve")
}

/// Logs to stderr; `FOREBAY_LOG` filters, as in `FOREBAY_LOG=debug`.
fn logs(json: bool) {
    let filter = EnvFilter::try_from_env("FOREBAY_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match json {
        true => builder.json().init(),
        false => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
    }
}
