//! One way of a training, and the figures of its epochs.

use forebay_train::bytes;
use serde_json::Value;

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
    pub utilisation: Option<f64>,
    pub s3_requests: f64,
    pub s3_bytes: f64,
}

impl Epoch {
    pub fn of(report: &Value) -> Option<Self> {
        let number = |name: &str| report[name].as_f64();
        Some(Self {
            seconds: number("seconds")?,
            samples_per_s: number("samples_per_s")?,
            wait_share: number("data_wait_share")?,
            utilisation: report["times"]["accelerator_utilisation"].as_f64(),
            s3_requests: number("s3_requests")?,
            s3_bytes: number("s3_bytes")?,
        })
    }
}

impl Way {
    /// The median of a figure.
    pub fn median(&self, figure: impl Fn(&Epoch) -> f64) -> Option<f64> {
        let mut values: Vec<_> = self.epochs.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }
}

/// A way's figures in the table's order.
pub fn cells(way: &Way) -> [String; 6] {
    let show = |value: Option<f64>, form: &dyn Fn(f64) -> String| value.map_or_else(|| "-".to_owned(), form);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let utilisation = way.median(|epoch| epoch.utilisation.unwrap_or(f64::NAN)).filter(|au| !au.is_nan());
    [
        show(way.median(|epoch| epoch.seconds), &|seconds| format!("{seconds:.2}")),
        show(way.median(|epoch| epoch.samples_per_s), &|speed| format!("{speed:.0}")),
        show(way.median(|epoch| epoch.wait_share), &percent),
        show(utilisation, &percent),
        show(way.median(|epoch| epoch.s3_requests), &|count| format!("{count:.0}")),
        show(way.median(|epoch| epoch.s3_bytes), &|count| bytes(count as u64)),
    ]
}
