//! `make bench-warm`: warm epochs at the machine's limit. A node serves data that it has on disk to one, two
//! or four loaders, each in a process of its own, beside what the same machine gives in the same minute to
//! programs that only move bytes ([`floor`]).
//!
//! Nothing here is changed once figures were seen: a new measurement is a new row.

mod child;
mod decode;
mod floor;
mod marks;
mod price;
mod rank;
mod rounds;
mod shape;
mod span;
mod subject;
mod waiting;

pub(super) use child::{ChildProcess, run_when_told, say_ready, say_report};
pub(super) use rank::{MEASURED_EPOCH, SEED, touch};
pub(super) use shape::{Shape, Stored};
pub(super) use span::Span;
pub(super) use subject::{Subject, Transport};

use super::compare::FiguresOptions;
use super::stages::{Stages, wanted};
use crate::harness::report::Row;
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
    /// Only these shapes of rows, X, T, B or N, separated by commas.
    #[arg(long, value_parser = shape::named, value_delimiter = ',', conflicts_with = "store")]
    only: Vec<Shape>,
    /// Only these subjects, separated by commas: names as in the report, or their ends, as in `T.window16`.
    #[arg(long, value_delimiter = ',', conflicts_with = "store")]
    subjects: Vec<String>,
    /// Numbers of ranks that read at once by TCP, separated by commas.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4], value_parser = clap::value_parser!(u32).range(1..=64), conflicts_with = "store")]
    ranks: Vec<u32>,
    /// The same through shared memory.
    #[arg(long, value_delimiter = ',', default_values_t = [1], value_parser = clap::value_parser!(u32).range(1..=64), conflicts_with = "store")]
    fd_ranks: Vec<u32>,
    /// How often each figure is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The share of the data that there is: for a look at whether it works. Targets are judged at 1 only.
    #[arg(long, default_value_t = 1.0, conflicts_with = "store")]
    scale: f64,
    /// Also measures the memory of loaders that wait for their consumers, which takes 40 seconds; alone with
    /// `--subjects waiting`.
    #[arg(long)]
    waiting: bool,
    #[command(flatten)]
    figures: FiguresOptions,
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
    /// A rank that waits for its consumer.
    #[command(hide = true)]
    Waiting(waiting::WaitingOptions),
}

/// The parts of a run.
struct Chosen {
    subjects: Vec<Subject>,
    /// Those of them that are read with the content digest too.
    verified: Vec<Subject>,
    /// Never N.
    decoded: Vec<Shape>,
    waiting: bool,
}

/// Runs it; false if a promise was broken.
pub fn run(options: &WarmOptions) -> anyhow::Result<bool> {
    match &options.role {
        Some(ChildRole::Rank(rank)) => rank::run(rank).map(|()| true),
        Some(ChildRole::Floor(part)) => floor::run(part).map(|()| true),
        Some(ChildRole::Decode(options)) => decode::decode(options).map(|()| true),
        Some(ChildRole::Waiting(options)) => waiting::wait(options).map(|()| true),
        None => measure(options),
    }
}

impl WarmOptions {
    fn chosen(&self) -> anyhow::Result<Chosen> {
        let is_wanted = |shape: &Shape| self.only.is_empty() || self.only.contains(shape);
        let shapes: Vec<_> = Shape::ALL.into_iter().filter(is_wanted).collect();
        let mut subjects = Subject::all(&shapes, &self.ranks, &self.fd_ranks);
        let is_verified =
            |subject: &Subject| subject.verified_name().is_some_and(|name| self.is_named(&name));
        let verified: Vec<_> = subjects.iter().copied().filter(is_verified).collect();
        // The price is over the same without.
        subjects.retain(|subject| self.is_named(&subject.name()) || verified.contains(subject));
        let decoded: Vec<_> =
            wanted(&self.only).filter(|shape| self.is_named(&decode::name(*shape))).collect();
        let waiting = self.waiting || !self.subjects.is_empty() && self.is_named(waiting::NAME);
        let is_none = subjects.is_empty() && decoded.is_empty() && !waiting;
        anyhow::ensure!(!is_none, "no subject is called {}", self.subjects.join(" or "));
        Ok(Chosen { subjects, verified, decoded, waiting })
    }

    fn is_named(&self, subject: &str) -> bool {
        self.subjects.is_empty() || self.subjects.iter().any(|name| subject.ends_with(name))
    }
}

fn measure(options: &WarmOptions) -> anyhow::Result<bool> {
    let WarmOptions { rounds, scale, .. } = *options;
    anyhow::ensure!(scale > 0.0 && scale <= 1.0, "--scale {scale}: between 0 and 1");
    let Chosen { subjects, verified, decoded, waiting } = options.chosen()?;
    let settings = Settings { subjects, verified, rounds, scale };
    let mut stages = Stages::default();
    if !settings.subjects.is_empty() {
        stages.run("Warm", || rounds::run(&settings));
    }
    if !decoded.is_empty() {
        stages.run("Decode", || decode::measure(&decoded, rounds, scale));
    }
    if waiting {
        stages.run("Waiting", || waiting::measure(scale));
    }
    let is_ratio = |row: &Row| row.unit.starts_with(rounds::RATIO);
    options.figures.end(stages, &options.folder, "warm", described(&settings), is_ratio)
}

fn described(settings: &Settings) -> serde_json::Value {
    let Settings { subjects, rounds, scale, .. } = settings;
    let targets = subjects.iter().filter_map(|subject| {
        let Target { ratio, cpu_s_per_gb, first_batch_ms } = subject.target()?;
        let target = json!({"ratio": ratio, "cpu_s_per_gb": cpu_s_per_gb, "first_batch_ms": first_batch_ms});
        Some((subject.name(), target))
    });
    json!({
        "rounds": rounds,
        "scale": scale,
        "seed": rank::SEED,
        "batch_rows": settings.shapes().iter().map(|s| (format!("{s:?}"), s.batch_rows())).collect::<BTreeMap<_, _>>(),
        "targets": targets.collect::<BTreeMap<_, _>>(),
        "of_one_rank": subject::OF_ONE_RANK,
        "verify_price_by_default": price::MOST_BY_DEFAULT,
        "waiting": {
            "steps": waiting::STEPS,
            "step_us": waiting::STEP_US,
            "batch_rows": waiting::BATCH_ROWS,
            "beyond_budget_mb": waiting::BEYOND_MB,
        },
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
        let Chosen { subjects, verified, decoded, waiting } = options.chosen()?;
        let names = subjects.into_iter().map(Subject::name);
        let names = names.chain(verified.into_iter().filter_map(Subject::verified_name));
        let names = names.chain(decoded.into_iter().map(decode::name));
        let names = names.chain(waiting.then(|| waiting::NAME.to_owned()));
        anyhow::Ok(names.collect::<Vec<_>>().join(" "))
    };
    let all = chosen(&[]).expect("all");
    assert_eq!(all.split(' ').count(), 24 + 4 + 3 + 3);
    assert_eq!(chosen(&["--waiting"]).expect("all and more"), format!("{all} warm.waiting"));
    assert_eq!(chosen(&["--subjects", "waiting"]).expect("it alone"), "warm.waiting");
    assert_eq!(
        chosen(&["--subjects", "fd.T.sequential.verify"]).expect("with what it is compared with"),
        "warm.fd.T.sequential warm.fd.T.sequential.verify"
    );
    assert_eq!(chosen(&["--subjects", "fd.B.sequential"]).expect("without"), "warm.fd.B.sequential");
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
    assert_eq!(
        chosen(&["--only", "n", "--ranks", "4"]).expect("of one rank, and not decoded"),
        "warm.grpc.N.sequential warm.fd.N.sequential warm.grpc.N.window16 warm.fd.N.window16"
    );
    assert_eq!(chosen(&["--subjects", "decode.T"]).expect("no epoch"), "decode.T");
    assert!(chosen(&["--only", "B", "--subjects", "T.window16"]).is_err());
    let is_refused =
        |arguments: &[&str]| WarmOptions::try_parse_from([&["bench"], arguments].concat()).is_err();
    assert!(is_refused(&["--store", "--check"]) && is_refused(&["--store", "--scale", "0.5"]));
    assert!(!is_refused(&["--store"]) && !is_refused(&["--check", "--only", "B,N"]));
    assert!(is_refused(&["--only", "Y"]));
}
