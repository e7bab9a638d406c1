//! The demo: real MNIST travels from S3 through one cache node into a training run of two ranks.
//!
//! It starts an S3 server behind a proxy that makes it remote, one `forebay-server` with an empty cache, then
//! `forebay-train`; then it reads the same epochs by one rank, and for an emulated accelerator without a
//! cache, cold and warm. It prints two tables and the checks, and leaves `report.json`, `report.html` and
//! the picture `epochs.svg`. Everything it starts, it stops.

mod accelerator;
mod checks;
mod figures;
mod job;
mod options;
mod page;
mod parts;
mod report;
mod table;

use std::path::PathBuf;

use anyhow::Context;

use crate::harness::check::Check;
pub use options::DemoOptions;

/// Runs the demo and tells whether all checks passed; an error says why it could not be run to its end.
pub fn run(options: &DemoOptions) -> anyhow::Result<bool> {
    let outcome = job::run(options)?;
    let checks = checks::all(options, &outcome);
    println!("\n{}", table::epochs(&outcome));
    println!("{}", table::accelerated(&outcome.accelerated));
    println!("{}", table::checks(&checks));
    let json = options.folder.join("report.json");
    let html = options.folder.join("report.html");
    let svg = options.folder.join("epochs.svg");
    let report = report::json(options, &outcome, &checks);
    let write = |path: &PathBuf, text: String| {
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
    };
    write(&json, format!("{report:#}\n"))?;
    write(&html, page::html(options, &outcome, &checks))?;
    write(&svg, page::picture(&outcome))?;
    println!("reports: {}, {} and {}", json.display(), html.display(), svg.display());
    Ok(!checks.iter().any(Check::is_broken))
}
