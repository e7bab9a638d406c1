//! The rounds: each shape by both sides in each, one right after the other, the first of the last round last.

use super::settings::PythonSettings;
use super::stage::{LIST, PythonStage, RAW, VIEWS};
use crate::bench::warm::Shape;
use crate::harness::check::Findings;
use crate::harness::report::Row;
use serde::Deserialize;
use std::iter::zip;
use std::time::Instant;

/// Rows a second over the Rust loader's, at least.
pub const VS_RUST: f64 = 0.95;

/// Microseconds that a batch of 3 MB which is ready may take to the loop, at most.
pub const HANDOVER_US: f64 = 50.0;

/// Growth of the resident memory after the second epoch, at most: a few batches of 3 MB.
pub const RSS_GROWTH_MB: f64 = 32.0;

/// Rows a second, one figure for each round.
#[derive(Default)]
struct Speeds {
    rust: Vec<f64>,
    python: Vec<f64>,
    /// Of B, with binaries as one tensor.
    raw: Vec<f64>,
    /// Of B, with binaries as views.
    views: Vec<f64>,
}

#[derive(Deserialize)]
struct Handover {
    handover_us: f64,
}

#[derive(Deserialize)]
struct Memory {
    rss_growth_mb: f64,
    own_growth_mb: f64,
}

/// Runs it.
pub fn run(settings: &PythonSettings) -> anyhow::Result<Findings> {
    let began = Instant::now();
    let stage = PythonStage::new(settings)?;
    let mut found = Findings::default();
    // Fills the node's disk; then nothing is left to be written to it.
    stage.data.iter().try_for_each(|data| stage.rust(data).map(drop))?;
    rustix::fs::sync();
    println!("  data made and read once: {:.0} s", began.elapsed().as_secs_f64());
    let mut speeds: Vec<Speeds> = stage.data.iter().map(|_| Speeds::default()).collect();
    let mut handovers = Vec::new();
    // The batches whose size the target names.
    let large = stage.data.iter().find(|data| data.stored.shape == Shape::X);
    for round in 1..=settings.rounds {
        let began = Instant::now();
        for (data, speeds) in zip(&stage.data, &mut speeds) {
            if round % 2 == 0 {
                speeds.python.push(stage.python(data, LIST)?);
            }
            speeds.rust.push(stage.rust(data)?);
            if round % 2 == 1 {
                speeds.python.push(stage.python(data, LIST)?);
            }
            if data.stored.shape == Shape::B {
                speeds.raw.push(stage.python(data, RAW)?);
                speeds.views.push(stage.python(data, VIEWS)?);
            }
        }
        if let Some(data) = large {
            handovers.push(stage.one::<Handover>(data, "handover", 0)?.handover_us);
        }
        println!("  round {round} of {}: {:.0} s", settings.rounds, began.elapsed().as_secs_f64());
    }
    for (data, Speeds { rust, python, raw, views }) in zip(&stage.data, &speeds) {
        let shape = data.stored.shape;
        add_speeds(&mut found, settings, &format!("python.{shape:?}"), rust, python);
        for (name, read) in [("raw", raw), ("views", views)] {
            if !read.is_empty() {
                add_speeds(&mut found, settings, &format!("python.{shape:?}.{name}"), rust, read);
            }
        }
        let rust = Row::of(format!("python.{shape:?}.rust_rows_per_s"), "rows/s", rust);
        found.rows.push(rust);
    }
    if let Some(data) = large {
        let memory: Memory = stage.one(data, "memory", settings.epochs)?;
        let handover = Row::of("python.handover_us", "us", &handovers);
        at_most(&mut found, settings, handover, HANDOVER_US);
        for (name, growth) in [("rss", memory.rss_growth_mb), ("own", memory.own_growth_mb)] {
            let growth = Row::of(format!("python.{name}_growth_mb"), "MB", &[growth]);
            at_most(&mut found, settings, growth, RSS_GROWTH_MB);
        }
    }
    stage.end()?;
    Ok(found)
}

/// Each round is compared by itself.
fn add_speeds(found: &mut Findings, settings: &PythonSettings, name: &str, rust: &[f64], python: &[f64]) {
    let ratios: Vec<f64> = zip(python, rust).map(|(python, rust)| python / rust).collect();
    let ratio = Row::of(format!("{name}.vs_rust"), "of the Rust loader", &ratios);
    let text = format!("{} = {:.3}, at least {VS_RUST} wanted", ratio.name, ratio.value);
    promise(found, settings, ratio.value >= VS_RUST, text);
    let rust = Row::of("rust", "rows/s", rust);
    let python = Row::of(format!("{name}.rows_per_s"), "rows/s", python);
    found.rows.extend([ratio, python.against("the Rust loader beside it", rust.value)]);
}

fn at_most(found: &mut Findings, settings: &PythonSettings, row: Row, most: f64) {
    let text = format!("{} = {:.1} {}, at most {most} wanted", row.name, row.value, row.unit);
    promise(found, settings, row.value <= most, text);
    found.rows.push(row);
}

fn promise(found: &mut Findings, settings: &PythonSettings, kept: bool, text: String) {
    if settings.scale < 1.0 { found.leave_out(text) } else { found.check(kept, text) }
}
