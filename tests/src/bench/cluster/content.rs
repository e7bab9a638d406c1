//! `forebay-bench-content`: one dataset read in every way, and the content digest of each beside the one that
//! pyarrow computes from the same files. A way that hands out one wrong value, or one row at a wrong place,
//! has another digest.
//!
//! Digests are over positions and rows, so each epoch has its own. Under a fault a job reads on; those epochs
//! count that were under way during it, all of them from their first row to their last.

mod disturbed;
mod resumed;
mod stage;
mod undisturbed;

use crate::bench::stages::{Stages, wanted};
use crate::harness::check::{Check, Findings};
use clap::{Parser, ValueEnum};
use serde_json::json;
use stage::{ContentRead, ContentStage};
use std::path::PathBuf;

/// Reads one dataset in every way and compares the content digests with pyarrow's.
#[derive(Debug, Clone, Parser)]
#[command(name = "forebay-bench-content", version)]
pub struct ContentOptions {
    /// Only these ways, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<ContentWay>,
    /// How often a node is killed.
    #[arg(long, default_value_t = 20)]
    kills: u32,
    /// For how long a node is silent, in seconds.
    #[arg(long, default_value_t = 20)]
    silence_s: u64,
    /// What the order, the moments and the victims depend on.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the report goes.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
}

/// The ways to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ContentWay {
    /// Without a cache.
    Direct,
    /// One node, cold and warm, by 1 to 16 ranks.
    OneNode,
    /// Three nodes, cold and warm.
    ThreeNodes,
    /// Nodes killed.
    Kills,
    /// A node that falls silent.
    Silence,
    /// A node joins.
    Join,
    /// A node is drained and comes back.
    Drain,
    /// All nodes are restarted one after the other.
    RollingRestart,
    /// A job goes on with other numbers of ranks.
    Resume,
}

/// One line of the table.
struct ContentLine {
    way: String,
    /// How many epochs were compared.
    epochs: usize,
    /// The last of them: its number, its digest and pyarrow's.
    last: (u64, String, String),
    unequal: usize,
}

/// Runs it; false if a digest is another one than pyarrow's.
pub fn run(options: &ContentOptions) -> anyhow::Result<bool> {
    let stage = ContentStage::start(options.seed)?;
    let (mut stages, mut lines) = (Stages::default(), Vec::new());
    for way in wanted(&options.only) {
        stages.run(way, || {
            let mut found = Findings::default();
            for read in one(way, &stage, options, &mut found)? {
                lines.push(compared(&stage, read, &mut found)?);
            }
            Ok(found)
        });
    }
    print_table(&lines);
    let found = stages.found();
    let kept = !lines.is_empty() && !found.checks.iter().any(Check::is_broken);
    let epochs: usize = lines.iter().map(|line| line.epochs).sum();
    let text =
        format!("{} ways to read, {epochs} epochs: the content digest is pyarrow's in all", lines.len());
    found.check(kept, text);
    let digests: Vec<_> = lines
        .iter()
        .map(|ContentLine { way, last: (epoch, digest, pyarrow), .. }| {
            json!({"way": way, "epoch": epoch, "digest": digest, "pyarrow": pyarrow})
        })
        .collect();
    let settings = json!({
        "seed": options.seed, "kills": options.kills, "silence_s": options.silence_s, "digests": digests,
    });
    stages.end(&options.folder, "content", settings)
}

fn one(
    way: ContentWay,
    stage: &ContentStage,
    options: &ContentOptions,
    found: &mut Findings,
) -> anyhow::Result<Vec<ContentRead>> {
    let under = match way {
        ContentWay::Direct => return Ok(vec![undisturbed::direct(stage)?]),
        ContentWay::OneNode => return undisturbed::one_node(stage, found),
        ContentWay::ThreeNodes => return undisturbed::three_nodes(stage, found),
        ContentWay::Resume => return Ok(vec![resumed::read(stage)?]),
        ContentWay::Kills => disturbed::kills(stage, options.kills, options.seed, found),
        ContentWay::Silence => disturbed::silence(stage, options.silence_s, options.seed, found),
        ContentWay::Join => disturbed::join(stage, found),
        ContentWay::Drain => disturbed::drain(stage, options.seed, found),
        ContentWay::RollingRestart => disturbed::rolling_restart(stage, found),
    };
    Ok(vec![under?])
}

/// Compares each epoch with pyarrow's.
fn compared(stage: &ContentStage, read: ContentRead, found: &mut Findings) -> anyhow::Result<ContentLine> {
    let ContentRead { name, way, digests } = read;
    let (mut last, mut unequal) = ((0, String::new(), String::new()), 0);
    for (epoch, digest) in &digests {
        let pyarrow = stage.by_pyarrow(*epoch)?;
        unequal += usize::from(*digest != pyarrow);
        last = (*epoch, digest.clone(), pyarrow);
    }
    let epochs = digests.len();
    found.value(format!("content_{name}_epochs"), "epochs", epochs as f64);
    found.value(format!("content_{name}_unequal"), "epochs", unequal as f64);
    let text = format!("{way}: {epochs} epochs, {unequal} with another content digest than pyarrow's");
    found.check(epochs > 0 && unequal == 0, text);
    Ok(ContentLine { way, epochs, last, unequal })
}

/// As docs/benchmarks.md shows it.
fn print_table(lines: &[ContentLine]) {
    println!("\n| way | epochs compared | content digest of the last one | pyarrow's | |");
    println!("|---|---|---|---|---|");
    for ContentLine { way, epochs, last: (number, digest, pyarrow), unequal } in lines {
        let verdict = if *unequal == 0 { "equal" } else { "**UNEQUAL**" };
        println!("| {way} | {epochs} | {number}: `{digest}` | `{pyarrow}` | {verdict} |");
    }
    println!();
}
