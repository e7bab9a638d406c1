//! `make bench-warm`: warm epochs at the machine's limit. A node serves data that it has on disk to one, two
//! or four loaders, each in a process of its own, beside what the same machine gives in the same minute to
//! programs that only move bytes ([`floor`]).
//!
//! Nothing here is changed once figures were seen: a new measurement is a new row.

mod child;
mod compare;
mod decode;
mod floor;
mod marks;
mod rank;
mod rounds;
mod shape;
mod span;
mod subject;

pub(super) use child::{ChildProcess, run_when_told, say_ready, say_report};
pub(super) use rank::{MEASURED_EPOCH, SEED, touch};
pub(super) use shape::{Shape, Stored};
pub(super) use span::Span;
pub(super) use subject::{Subject, Transport};

use super::stages::{Stages, wanted};
use clap::{Parser, Subcommand};
use rounds::Settings;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use subject::Target;

/// Measures warm epochs beside raw TCP, a Unix socket, memcpy, reads of a file and batches in memory.
#[derive(Debug, Clone, Parser)]
#[command(name = "forebay-bench-warm", version)]
pub struct WarmOptions {
    /// Only these shapes of rows, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Shape>,
    /// Only these subjects, separated by commas: names as in the report, or their ends, as in `T.window16`.
    #[arg(long, value_delimiter = ',')]
    subjects: Vec<String>,
    /// Numbers of ranks that read at once by TCP, separated by commas.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4], value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: Vec<u32>,
    /// The same through shared memory.
    #[arg(long, value_delimiter = ',', default_values_t = [1], value_parser = clap::value_parser!(u32).range(1..=64))]
    fd_ranks: Vec<u32>,
    /// How often each figure is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The share of the data that there is: for a look at whether it works. Targets are judged at 1 only.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Compares ratios with the stored ones, and fails if one has lost more than 10 %.
    #[arg(long)]
    check: bool,
    /// Stores the ratios for `--check`.
    #[arg(long, conflicts_with_all = ["check", "only", "subjects", "scale", "ranks", "fd_ranks"])]
    store: bool,
    /// Where the ratios are stored.
    #[arg(long, default_value = "tests/figures/warm.json")]
    figures: PathBuf,
    /// Where the report goes.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
    #[command(subcommand)]
    role: Option<ChildRole>,
}

/// The processes that the benchmark itself starts.
#[derive(Debug, Clone, Subcommand)]
enum ChildRole {
    /// A rank.
    #[command(hide = true)]
    Rank(rank::RankOptions),
    /// A process of a floor.
    #[command(hide = true)]
    Floor(floor::PartOptions),
    /// A process that decodes.
    #[command(hide = true)]
    Decode(decode::DecodeOptions),
}

/// Runs it; false if a promise was broken.
pub fn run(options: &WarmOptions) -> anyhow::Result<bool> {
    match &options.role {
        Some(ChildRole::Rank(rank)) => rank::run(rank).map(|()| true),
        Some(ChildRole::Floor(part)) => floor::run(part).map(|()| true),
        Some(ChildRole::Decode(options)) => decode::decode(options).map(|()| true),
        None => measure(options),
    }
}

impl WarmOptions {
    /// The epochs to measure, and the shapes to decode.
    fn chosen(&self) -> anyhow::Result<(Vec<Subject>, Vec<Shape>)> {
        let mut shapes: Vec<_> = wanted(&self.only).collect();
        let mut chosen = Subject::all(&shapes, &self.ranks, &self.fd_ranks);
        chosen.retain(|subject| self.is_named(&subject.name()));
        shapes.retain(|shape| self.is_named(&decode::name(*shape)));
        let is_none = chosen.is_empty() && shapes.is_empty();
        anyhow::ensure!(!is_none, "no subject is called {}", self.subjects.join(" or "));
        Ok((chosen, shapes))
    }

    fn is_named(&self, subject: &str) -> bool {
        self.subjects.is_empty() || self.subjects.iter().any(|name| subject.ends_with(name))
    }
}

fn measure(options: &WarmOptions) -> anyhow::Result<bool> {
    let WarmOptions { rounds, scale, .. } = *options;
    anyhow::ensure!(scale > 0.0 && scale <= 1.0, "--scale {scale}: between 0 and 1");
    let (subjects, decoded) = options.chosen()?;
    let settings = Settings { subjects, rounds, scale };
    let mut stages = Stages::default();
    if !settings.subjects.is_empty() {
        stages.run("Warm", || rounds::run(&settings));
    }
    if !decoded.is_empty() {
        stages.run("Decode", || decode::measure(&decoded, rounds, scale));
    }
    let rows = stages.found().rows.clone();
    if options.check {
        stages.run("Compare", || compare::check(&options.figures, &rows));
    }
    let kept = stages.end(&options.folder, "warm", described(&settings))?;
    if options.store {
        compare::store(&options.figures, &rows)?;
    }
    Ok(kept)
}

fn described(settings: &Settings) -> serde_json::Value {
    let Settings { subjects, rounds, scale } = settings;
    let targets = subjects.iter().filter_map(|subject| {
        let Target { ratio, cpu_s_per_gb } = subject.target()?;
        Some((subject.name(), json!({"ratio": ratio, "cpu_s_per_gb": cpu_s_per_gb})))
    });
    json!({
        "rounds": rounds,
        "scale": scale,
        "seed": rank::SEED,
        "batch_rows": settings.shapes().iter().map(|s| (format!("{s:?}"), s.batch_rows())).collect::<BTreeMap<_, _>>(),
        "targets": targets.collect::<BTreeMap<_, _>>(),
        "of_one_rank": subject::OF_ONE_RANK,
        "floor_bytes": floor::FILE,
        "floor_piece_bytes": floor::PIECE,
        "floor_ring_bytes": floor::RING,
        "decode_targets": wanted(&[]).map(|s| (decode::name(s), decode::target(s))).collect::<BTreeMap<_, _>>(),
    })
}

#[test]
fn subjects_go_by_the_ends_of_their_names() {
    let chosen = |arguments: &[&str]| {
        let options = WarmOptions::parse_from([&["bench"], arguments].concat());
        let (subjects, decoded) = options.chosen()?;
        let names = subjects.into_iter().map(Subject::name).chain(decoded.into_iter().map(decode::name));
        anyhow::Ok(names.collect::<Vec<_>>().join(" "))
    };
    assert_eq!(chosen(&[]).expect("all").split(' ').count(), 24 + 3);
    assert_eq!(
        chosen(&["--subjects", "T.window16,X.sequential.4ranks"]).expect("by the ends"),
        "warm.grpc.X.sequential.4ranks warm.grpc.T.window16 warm.fd.T.window16"
    );
    assert_eq!(
        chosen(&["--only", "B", "--subjects", "window16"]).expect("both ways"),
        "warm.grpc.B.window16 warm.fd.B.window16"
    );
    assert_eq!(
        chosen(&["--subjects", "B.window16.8ranks", "--ranks", "1,8", "--fd-ranks", "8"])
            .expect("of 8 ranks"),
        "warm.grpc.B.window16.8ranks warm.fd.B.window16.8ranks"
    );
    assert_eq!(chosen(&["--subjects", "decode.T"]).expect("no epoch"), "decode.T");
    assert!(chosen(&["--only", "B", "--subjects", "T.window16"]).is_err());
}
