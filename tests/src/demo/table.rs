//! The tables for people on the terminal.

use super::accelerator::{Accelerated, FASTER, FastWay};
use super::figures::TrainedEpoch;
use super::job::Outcome;
use crate::harness::check::Check;

/// The columns of the table of epochs; the first is flush left, as is the last.
pub(super) const HEADER: [&str; 10] = [
    "epoch",
    "bytes from",
    "seconds",
    "samples/s",
    "data wait",
    "S3 requests",
    "S3 MB",
    "Parquet decoded",
    "loss",
    "order digest",
];

/// One row of the table of epochs; people count epochs from 1.
pub(super) fn cells(epoch: &TrainedEpoch) -> [String; 10] {
    [
        (epoch.epoch + 1).to_string(),
        epoch.source.clone(),
        format!("{:.1}", epoch.seconds),
        format!("{:.0}", epoch.samples_per_s),
        format!("{:.1} %", 100.0 * epoch.data_wait_share),
        epoch.s3_requests.to_string(),
        megabytes(epoch.s3_bytes),
        format!("{} MB", megabytes(epoch.parquet_bytes_decoded)),
        epoch.loss.map_or_else(|| "-".to_owned(), |loss| format!("{loss:.4}")),
        epoch.order_digest.clone(),
    ]
}

/// The table of epochs, and a line on the requests that are not in it.
pub(super) fn epochs(outcome: &Outcome) -> String {
    let rows: Vec<_> = outcome.training.epochs.iter().map(cells).collect();
    let mut text = aligned(&HEADER.map(str::to_owned), &rows);
    let footers: u64 = outcome.training.epochs.iter().map(|epoch| epoch.s3_footer_requests).sum();
    let footer_bytes: u64 = outcome.training.epochs.iter().map(|epoch| epoch.s3_footer_bytes).sum();
    text += &format!(
        "apart: {footers} requests and {} MB for listings and footers, and the test split; in all {} requests and {} \
         MB passed the proxy before S3\n",
        megabytes(footer_bytes),
        outcome.passed.requests,
        megabytes(outcome.passed.object_bytes),
    );
    text += &format!(
        "test accuracy {:.2} %, {} ranks, global batch {}, {} steps per epoch, {:.0} s in all\n",
        100.0 * outcome.training.test_accuracy,
        outcome.training.world_size,
        outcome.training.global_batch,
        outcome.training.steps_per_epoch,
        outcome.seconds,
    );
    text
}

/// The columns of the table of the accelerator.
pub(super) const FAST_HEADER: [&str; 8] =
    ["way", "bytes from", "seconds", "samples/s", "data wait", "accelerator busy", "S3 MB", "order digest"];

/// One row of it.
pub(super) fn fast_cells(way: &FastWay) -> [String; 8] {
    [
        way.name.to_owned(),
        way.epoch.source.clone(),
        format!("{:.2}", way.epoch.seconds),
        format!("{:.0}", way.epoch.samples_per_s),
        format!("{:.1} %", 100.0 * way.epoch.data_wait_share),
        format!("{:.1} %", 100.0 * way.busy_share),
        megabytes(way.epoch.s3_bytes),
        way.epoch.order_digest.clone(),
    ]
}

/// What the table of the accelerator is of.
pub(super) fn fast_title(accelerated: &Accelerated) -> String {
    let ms = accelerated.step_ms;
    format!("one epoch each on an accelerator {FASTER} times as fast (emulated: {ms} ms a step)")
}

/// The table of the accelerator.
pub(super) fn accelerated(accelerated: &Accelerated) -> String {
    let rows: Vec<_> = accelerated.ways.iter().map(fast_cells).collect();
    format!("{}\n{}", fast_title(accelerated), aligned(&FAST_HEADER.map(str::to_owned), &rows))
}

/// One line per check.
pub(super) fn checks(checks: &[Check]) -> String {
    checks.iter().map(|check| format!("{check}\n")).collect()
}

/// `10.61`, in units of 10^6 bytes; `0` for none.
pub(super) fn megabytes(bytes: u64) -> String {
    if bytes == 0 { "0".to_owned() } else { format!("{:.2}", bytes as f64 / 1e6) }
}

fn aligned<const N: usize>(header: &[String; N], rows: &[[String; N]]) -> String {
    let lines = || std::iter::once(header).chain(rows);
    let widths: [usize; N] =
        std::array::from_fn(|i| lines().map(|cells| cells[i].chars().count()).max().unwrap_or_default());
    let mut text = String::new();
    for cells in lines() {
        for (i, (cell, width)) in cells.iter().zip(widths).enumerate() {
            match i {
                0 => text += &format!("{cell:<width$}"),
                1 => text += &format!("  {cell:<width$}"),
                _ if i == N - 1 => text += &format!("  {cell}"),
                _ => text += &format!("  {cell:>width$}"),
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::checks::tests::{options, outcome};
    use super::*;

    #[test]
    fn tables_are_aligned_and_complete() {
        let text = epochs(&outcome());
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert_eq!(
            lines[1],
            "1      S3             20.0       2995     12.0 %           24  10.61         10.61 MB  0.2500  aa00"
        );
        assert_eq!(
            lines[2],
            "2      cache          16.0       3744      1.0 %            0      0             0 MB  0.0700  bb11"
        );
        let text = accelerated(&outcome().accelerated);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert_eq!(
            lines[4],
            "cache, warm  cache          0.50     119808      1.0 %            90.0 %      0  bb11"
        );
        let lines = checks(&super::super::checks::all(&options(), &outcome()));
        assert!(lines.lines().all(|line| line.starts_with("PASS  ")), "{lines}");
    }
}
