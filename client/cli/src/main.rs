//! The command `forebay`: look into datasets and caches, warm them, and read epochs without a trainer.
//!
//! Each command is a file. Answers go to standard output, everything else to standard error. Errors are one
//! line, `forebay: error: ...`, with exit status 1 (2 for a wrong command line, 130 after Ctrl-C); a reader
//! that stops reading ends a command quietly.

mod cat;
mod cert;
mod copies;
mod drain;
mod epoch;
mod failure;
mod figures;
mod free;
mod get;
mod inspect;
mod load;
mod ls;
mod nodes;
mod open;
mod output;
mod pin;
mod plan;
mod presence;
mod replicas;
mod run_args;
mod snapshot;
mod status;
mod token;
mod top;

use clap::{CommandFactory, Parser, Subcommand};
use failure::Failure;
use forebay_client::variable;
use forebay_proto::LogVariable;
use output::Out;
use std::io::{BufWriter, IsTerminal as _, Write};

/// What arrives comes and goes by the megabyte: glibc gives its pages back to the kernel each time.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The exit status after an error.
const FAILED: i32 = 1;

/// The exit status after a wrong command line, as clap has it.
const MISUSED: i32 = 2;

/// The exit status after Ctrl-C, as shells expect it.
const INTERRUPTED: i32 = 130;

/// What to log.
const LOG: LogVariable =
    LogVariable { name: "RUST_LOG", default: "off", examples: "debug or forebay_client=debug" };

/// Forebay: training data from object storage through a cache of decoded Arrow.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the contents and the counters of the cache, node by node
    Status(status::Status),
    /// Show the nodes, live
    Top(top::Top),
    /// Show a dataset's schema, objects, row groups and segments
    Inspect(inspect::Inspect),
    /// Fill the cache with a dataset
    Load(load::Load),
    /// Drop a dataset from the cache
    Free(free::Free),
    /// Keep everything under a URI in the cache, now and in future
    Pin(pin::Pin),
    /// Allow pinned data to be evicted again
    Unpin(pin::Unpin),
    /// Keep a dataset's version under a name, and read exactly that later
    Snapshot(snapshot::Snapshot),
    /// Set how many nodes hold each segment under a URI
    Replicas(replicas::Replicas),
    /// Take a node out of service without an error to anyone: its readers go on with the others
    Drain(drain::Drain),
    /// Bring a drained node back
    Undrain(drain::Drain),
    /// Read epochs without a trainer, and report where the bytes came from and how fast
    Epoch(epoch::Epoch),
    /// Print rows in file order
    Cat(cat::Cat),
    /// Write an object, or ranges of its bytes
    Get(get::Get),
    /// List objects
    Ls(ls::Ls),
    /// Show which rows a step holds
    Plan(plan::Plan),
    /// Give a principal of a policy a token, or take one away
    Token(token::Token),
    /// Make an authority and certificates for a small cluster
    Cert(cert::Cert),
    /// Print completions for a shell
    #[command(hide = true)]
    Completions { shell: clap_complete::Shell },
}

/// Runs the command line of this process.
#[tokio::main]
async fn main() {
    let cli = Cli::parse();
    match LOG.filter(variable(LOG.name)) {
        Ok(filter) => {
            let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
            logs.with_ansi(std::io::stderr().is_terminal()).init();
        }
        Err(why) => std::process::exit(report(why, FAILED)),
    }
    // A task of its own: writing to a slow pipe must not keep Ctrl-C from being heard.
    let command = tokio::spawn(async move {
        let mut out = BufWriter::with_capacity(1 << 16, std::io::stdout());
        let done = run(cli.command, &mut out).await;
        done.and_then(|()| Ok(out.flush()?))
    });
    let status = tokio::select! {
        done = command => match done {
            Ok(Ok(())) | Ok(Err(Failure::ReaderGone)) => 0,
            Ok(Err(Failure::Error(e))) => report(e, FAILED),
            Ok(Err(Failure::Usage(e))) => report(e, MISUSED),
            Err(e) => report(format_args!("the command broke off: {e}"), FAILED),
        },
        _ = tokio::signal::ctrl_c() => INTERRUPTED,
    };
    // At once, whatever a thread still waits for: a key, or the reader of a slow pipe.
    std::process::exit(status)
}

async fn run(command: Command, out: Out<'_>) -> Result<(), Failure> {
    match command {
        Command::Status(c) => c.run(out).await,
        Command::Inspect(c) => c.run(out).await,
        Command::Load(c) => c.run(out).await,
        Command::Free(c) => c.run(out).await,
        Command::Pin(c) => c.run(out).await,
        Command::Unpin(c) => c.run(out).await,
        Command::Snapshot(c) => c.run(out).await,
        Command::Replicas(c) => c.run(out).await,
        Command::Drain(c) => c.run(out, false).await,
        Command::Undrain(c) => c.run(out, true).await,
        Command::Token(c) => c.run(out),
        Command::Cert(c) => c.run(out),
        Command::Top(c) => c.run(out).await,
        Command::Epoch(c) => c.run(out).await,
        Command::Cat(c) => c.run(out).await,
        Command::Get(c) => c.run(out).await,
        Command::Ls(c) => c.run(out).await,
        Command::Plan(c) => c.run(out).await,
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "forebay", out);
            Ok(())
        }
    }
}

/// Says what went wrong; gives the status to exit with.
fn report(message: impl std::fmt::Display, status: i32) -> i32 {
    // Standard error may be closed: then there is nobody to tell.
    writeln!(std::io::stderr(), "forebay: error: {message}").ok();
    status
}

#[cfg(test)]
mod tests;
