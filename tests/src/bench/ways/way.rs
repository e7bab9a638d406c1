//! One way of a training, and the figures of its epochs.

use crate::bench::train::utilisation::Utilisation;
use crate::harness::report;
use forebay_proto::units::told_bytes;
use serde_json::Value;

/// The heads of the columns: the way's name, and [`cells`].
pub const HEADS: [&str; 9] = [
    "epoch",
    "seconds",
    "samples/s",
    "data wait",
    "AU (DLIO)",
    "AU (nominal)",
    "AU (all steps)",
    "S3 requests",
    "S3 bytes",
];

/// What the three columns of utilisation say.
pub const UTILISATION_WORDS: [&str; 3] = [
    "AU (DLIO): the time that steps compute over the time of the epoch, both without the first step and its wait",
    "AU (nominal): the same with the step that --emulate-step-ms asks for, as MLPerf Storage counts",
    "AU (all steps): the time that all steps compute over the whole epoch, with the wait for its first batch",
];

/// A definition of utilisation.
type Definition = fn(&Utilisation) -> Option<f64>;

/// The definitions in the order of their columns, and what their rows are called.
pub const DEFINITIONS: [(&str, Definition); 3] = [
    ("au", |utilisation| Some(utilisation.dlio)),
    ("au_nominal", |utilisation| utilisation.nominal),
    ("au_all_steps", |utilisation| Some(utilisation.all_steps)),
];

/// One way, and the epochs that were timed on it.
#[derive(Debug)]
pub struct Way {
    pub name: &'static str,
    /// What that means, for the page.
    pub what: &'static str,
    pub epochs: Vec<Epoch>,
}

/// What the report of a training says of an epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Epoch {
    pub seconds: f64,
    pub samples_per_s: f64,
    pub wait_share: f64,
    pub utilisation: Option<Utilisation>,
    pub s3_requests: f64,
    pub s3_bytes: f64,
}

impl Epoch {
    /// `steps` of the epoch; `asked_ms` is the emulated step, if there is one.
    pub fn of(report: &Value, steps: f64, asked_ms: Option<f64>) -> Option<Self> {
        let number = |name: &str| report[name].as_f64();
        Some(Self {
            seconds: number("seconds")?,
            samples_per_s: number("samples_per_s")?,
            wait_share: number("data_wait_share")?,
            utilisation: Utilisation::of(report, steps, asked_ms),
            s3_requests: number("s3_requests")?,
            s3_bytes: number("s3_bytes")?,
        })
    }
}

impl Way {
    /// The median of a figure.
    pub fn median(&self, figure: impl Fn(&Epoch) -> f64) -> Option<f64> {
        median(self.epochs.iter().map(figure).collect())
    }

    /// The utilisation of each epoch by one definition; none if an epoch has none.
    pub fn utilisations(&self, definition: Definition) -> Option<Vec<f64>> {
        self.epochs.iter().map(|epoch| epoch.utilisation.as_ref().and_then(definition)).collect()
    }
}

/// A way's figures in the table's order.
pub fn cells(way: &Way) -> [String; HEADS.len() - 1] {
    let show = |value: Option<f64>, form: &dyn Fn(f64) -> String| value.map_or_else(|| "-".to_owned(), form);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let utilisation = |(_, definition)| show(way.utilisations(definition).and_then(median), &percent);
    let [dlio, nominal, all_steps] = DEFINITIONS.map(utilisation);
    [
        show(way.median(|epoch| epoch.seconds), &|seconds| format!("{seconds:.2}")),
        show(way.median(|epoch| epoch.samples_per_s), &|speed| format!("{speed:.0}")),
        show(way.median(|epoch| epoch.wait_share), &percent),
        dlio,
        nominal,
        all_steps,
        show(way.median(|epoch| epoch.s3_requests), &|count| format!("{count:.0}")),
        show(way.median(|epoch| epoch.s3_bytes), &|count| told_bytes(count as u64)),
    ]
}

fn median(values: Vec<f64>) -> Option<f64> {
    (!values.is_empty()).then(|| report::median(&values))
}
