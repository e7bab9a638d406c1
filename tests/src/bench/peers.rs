//! `make bench-peers`: warm epochs beside other ways to feed the same training, in the same minutes on the
//! same machine: the same Parquet, the same batches, the same consumer.
//!
//! Each measurement is a process of its own that reads epochs 1 to 3 and reports them: a script of
//! `tests/peers` in Python, or our own reader ([`reader`]). Rows and a checksum are compared, so nobody
//! leaves data out. Nothing here is changed once figures were seen: a new measurement is a new row.

mod consumer;
mod judge;
mod measured;
mod peer;
mod reader;
mod resume;
mod rounds;
mod settings;
mod stage;

pub(super) use consumer::Content;

use super::compare::FiguresOptions;
use super::stages::{Stages, wanted};
use super::warm::Shape;
use crate::harness::report::Row;
use clap::{Parser, Subcommand};
use peer::Peer;
use serde_json::json;
use settings::PeerSettings;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Measures warm epochs of Forebay beside those of pyarrow, PyTorch's DataLoader, Hugging Face `datasets`,
/// LitData, Mosaic Streaming, DuckDB and nginx.
#[derive(Debug, Clone, Parser)]
#[command(name = "forebay-bench-peers", version)]
pub struct PeersOptions {
    /// Only these shapes of rows, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', conflicts_with = "store")]
    only: Vec<Shape>,
    /// Only these subjects, separated by commas: names as in the report without `peers.X.`, or their
    /// beginnings, as in `forebay` or `torch.2`.
    #[arg(long, value_delimiter = ',')]
    subjects: Vec<String>,
    /// How often each figure is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The share of the data that there is: for a look at whether it works. Targets are judged at 1 only.
    #[arg(long, default_value_t = 1.0, conflicts_with = "store")]
    scale: f64,
    /// The folder with the peers' environments; `tests/peers/setup.sh` makes them.
    #[arg(long, default_value = ".peers")]
    environments: PathBuf,
    /// The folder with the peers' scripts.
    #[arg(long, default_value = "tests/peers")]
    scripts: PathBuf,
    /// The repository, for its Python package.
    #[arg(long, default_value = ".")]
    repository: PathBuf,
    #[command(flatten)]
    figures: FiguresOptions,
    /// Where the report goes.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
    #[command(subcommand)]
    role: Option<PeerRole>,
}

/// The processes that the benchmark itself starts.
#[derive(Debug, Clone, Subcommand)]
enum PeerRole {
    /// A reader through Forebay.
    #[command(hide = true)]
    Reader(reader::PeerReaderOptions),
}

/// Runs it; false if a promise was broken.
pub fn run(options: &PeersOptions) -> anyhow::Result<bool> {
    match &options.role {
        Some(PeerRole::Reader(job)) => reader::run(job).map(|()| true),
        None => measure(options),
    }
}

impl PeersOptions {
    fn chosen(&self) -> anyhow::Result<Vec<Peer>> {
        let is_named = |peer: &Peer| self.subjects.iter().any(|name| peer.name.starts_with(name.as_str()));
        let chosen: Vec<Peer> =
            peer::ALL.iter().filter(|peer| self.subjects.is_empty() || is_named(peer)).copied().collect();
        anyhow::ensure!(!chosen.is_empty(), "no subject is called {}", self.subjects.join(" or "));
        Ok(chosen)
    }
}

fn measure(options: &PeersOptions) -> anyhow::Result<bool> {
    let PeersOptions { rounds, scale, .. } = *options;
    anyhow::ensure!(scale > 0.0 && scale <= 1.0, "--scale {scale}: between 0 and 1");
    let settings = PeerSettings {
        shapes: wanted(&options.only).collect(),
        peers: options.chosen()?,
        rounds,
        scale,
        environments: std::path::absolute(&options.environments)?,
        scripts: std::path::absolute(&options.scripts)?,
        repository: std::path::absolute(&options.repository)?,
    };
    let mut stages = Stages::default();
    let mut reasons = BTreeMap::new();
    stages.run("Peers", || rounds::run(&settings, &mut reasons));
    let is_ratio = |row: &Row| row.unit == judge::OF_PEER;
    options.figures.end(stages, &options.folder, "peers", described(&settings, &reasons), is_ratio)
}

fn described(settings: &PeerSettings, reasons: &BTreeMap<String, String>) -> serde_json::Value {
    let PeerSettings { shapes, peers, rounds, scale, .. } = settings;
    let names = |is_told: fn(&Peer) -> bool| -> Vec<&'static str> {
        peers.iter().filter(|peer| is_told(peer)).map(|peer| peer.name).collect()
    };
    json!({
        "rounds": rounds,
        "scale": scale,
        "seed": reader::SEED,
        "epochs": peer::EPOCHS,
        "window_row_groups": peer::WINDOW,
        "batch_rows": shapes.iter().map(|s| (format!("{s:?}"), s.batch_rows())).collect::<BTreeMap<_, _>>(),
        "subjects": names(|_| true),
        "targets": shapes.iter().map(|s| (format!("{s:?}"), judge::least_speed(*s))).collect::<BTreeMap<_, _>>(),
        "cpu_at_most": judge::CPU_AT_MOST,
        "python_targets": shapes.iter().map(|s| (format!("{s:?}"), judge::least_speed_in_python(*s))).collect::<BTreeMap<_, _>>(),
        "in_order": names(|peer| !peer.shuffle),
        "read_a_part": names(|peer| peer.by_rows),
        "cannot": reasons,
    })
}

#[test]
fn subjects_go_by_the_beginnings_of_their_names() {
    let chosen = |arguments: &[&str]| {
        let options = PeersOptions::parse_from([&["bench"], arguments].concat());
        anyhow::Ok(options.chosen()?.into_iter().map(|peer| peer.name).collect::<Vec<_>>().join(" "))
    };
    assert_eq!(chosen(&[]).expect("all").split(' ').count(), peer::ALL.len());
    assert_eq!(
        chosen(&["--subjects", "torch.2,pyarrow.window16"]).expect("three"),
        "pyarrow.window16 torch.2.sequential torch.2.window16"
    );
    assert!(chosen(&["--subjects", "no-such"]).is_err());
    assert!(PeersOptions::try_parse_from(["bench", "--store", "--only", "X"]).is_err());
    assert!(PeersOptions::try_parse_from(["bench", "--store", "--subjects", "forebay"]).is_ok());
}
