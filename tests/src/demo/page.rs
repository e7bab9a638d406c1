//! `report.html`: the same figures for the eye, in one file that needs nothing from elsewhere.

mod chart;
mod picture;

use super::checks;
use super::job::Outcome;
use super::options::DemoOptions;
use super::table::{self, megabytes};
use crate::harness::check::Check;
use crate::harness::html::{escaped, page};
use crate::harness::report;

const STYLE: &str = include_str!("page/style.css");

/// The whole page.
pub(super) fn html(options: &DemoOptions, outcome: &Outcome, checks: &[Check]) -> String {
    let form = if options.short { " (short form)" } else { "" };
    let body = format!(
        "<header>\n<h1>Forebay: first light{form}</h1>\n<p>{story}</p>\n</header>\n\
         <section class=\"tiles\">\n{tiles}</section>\n\
         <section class=\"charts\">\n{charts}</section>\n\
         <section>\n<h2>Epoch by epoch</h2>\n{table}</section>\n\
         <section>\n<h2>With and without a cache</h2>\n{accelerated}</section>\n\
         <section>\n<h2>Checks</h2>\n{checks}</section>\n\
         <footer>\n{footer}</footer>\n",
        story = story(outcome),
        tiles = tiles(outcome),
        charts = chart::all(&outcome.training.epochs, &outcome.accelerated),
        table = epochs(outcome),
        accelerated = accelerated(outcome),
        checks = check_list(checks),
        footer = footer(options, outcome),
    );
    page("Forebay: first light", STYLE, &body)
}

/// The epochs on a fast accelerator as a picture by itself.
pub(super) fn picture(outcome: &Outcome) -> String {
    picture::svg(&outcome.accelerated, &report::commit())
}

fn story(outcome: &Outcome) -> String {
    format!(
        "{:.1} MB of MNIST as Parquet travelled from S3, {} away, through one cache node into a training run of {} \
         ranks. The first epoch reads S3 and decodes; the others come from the cache.",
        outcome.dataset_bytes as f64 / 1e6,
        "30 ms and 90 MB/s per connection",
        outcome.training.world_size,
    )
}

fn tiles(outcome: &Outcome) -> String {
    let training = &outcome.training;
    let requests: u64 = training.warm().iter().map(|epoch| epoch.s3_requests).sum();
    let wait = |epoch: &super::figures::TrainedEpoch| format!("{:.1} %", 100.0 * epoch.data_wait_share);
    let waits = (training.epochs.first().map(wait), training.epochs.last().map(wait));
    let tile = |value: String, label: &str| {
        format!("<div class=\"tile\"><b>{value}</b><span>{label}</span></div>\n")
    };
    [
        tile(format!("{:.2} %", 100.0 * training.test_accuracy), "of the test split recognised"),
        tile(
            format!("{:.3}", checks::cold_ratio(training)),
            "bytes from S3 per byte of the columns, cold epoch",
        ),
        tile(requests.to_string(), "requests to S3 in all warm epochs"),
        tile(
            waits.1.unwrap_or_default(),
            &format!("waiting for data, last epoch (first: {})", waits.0.unwrap_or_default()),
        ),
    ]
    .concat()
}

fn rows<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let cells = |tag: &str, cells: &[String]| {
        let cell = |text: &String| format!("<{tag}>{}</{tag}>", escaped(text));
        format!("<tr>{}</tr>\n", cells.iter().map(cell).collect::<String>())
    };
    let body: String = rows.map(|row| cells("td", &row)).collect();
    format!(
        "<div class=\"scroll\"><table>\n{}{body}</table></div>\n",
        cells("th", &header.map(str::to_owned))
    )
}

fn accelerated(outcome: &Outcome) -> String {
    let note = table::fast_title(&outcome.accelerated);
    rows(table::FAST_HEADER, outcome.accelerated.ways.iter().map(table::fast_cells))
        + &format!("<p class=\"note\">{}</p>\n", escaped(&note))
}

fn epochs(outcome: &Outcome) -> String {
    let mut text = rows(table::HEADER, outcome.training.epochs.iter().map(table::cells));
    let footers: u64 = outcome.training.epochs.iter().map(|epoch| epoch.s3_footer_requests).sum();
    text += &format!(
        "<p class=\"note\">Listings and footers ({footers} requests) are counted apart. In all, the test split \
         included, {} requests and {} MB passed the proxy before S3.</p>\n",
        outcome.passed.requests,
        megabytes(outcome.passed.object_bytes),
    );
    text
}

fn check_list(checks: &[Check]) -> String {
    let item = |check: &Check| {
        let word = check.verdict();
        format!(
            "<li><span class=\"{}\">{word}</span><span>{}<small>{}</small></span></li>\n",
            word.to_lowercase(),
            escaped(&check.claim),
            escaped(&check.measured)
        )
    };
    format!("<ul class=\"checks\">\n{}</ul>\n", checks.iter().map(item).collect::<String>())
}

fn footer(options: &DemoOptions, outcome: &Outcome) -> String {
    format!(
        "<p>{} epochs, {} ranks, global batch {}, {} steps per epoch, seed {}, windows of {} segments; {:.0} s in all. Commit {}. {}.</p>\n",
        options.epochs(),
        options.nproc,
        options.batch,
        outcome.training.steps_per_epoch,
        options.seed,
        options.window,
        outcome.seconds,
        escaped(&report::commit()),
        escaped(&report::machine()),
    )
}

#[cfg(test)]
mod tests {
    use super::super::checks::tests::{options, outcome};
    use super::*;

    #[test]
    fn the_page_is_whole_and_needs_nothing_from_elsewhere() {
        let mut outcome = outcome();
        outcome.training.epochs[0].source = "<S3>".into();
        let mut checks = checks::all(&options(), &outcome);
        checks[0].passed = Some(false);
        let page = html(&options(), &outcome, &checks);
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
        assert!(page.contains("&lt;S3&gt;") && !page.contains("<S3>"));
        assert_eq!(page.matches("class=\"fail\"").count(), 1);
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        for foreign in ["<script", "src=", "http://", "https://", "@import", "NaN"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }
}
