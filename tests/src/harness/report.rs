//! The one form of all benchmark reports: rows with a value and, where there is one, the floor taken in the
//! same run.

pub use crate::harness::origin::{commit, machine};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::path::Path;

/// One figure: the median of `n` runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Its name; names are literal, programs look for them.
    pub name: String,
    /// The median.
    pub value: f64,
    /// Its unit.
    pub unit: Cow<'static, str>,
    /// How many runs.
    pub n: usize,
    /// The least and the greatest.
    pub min: f64,
    /// See `min`.
    pub max: f64,
    /// What it is measured against, if there is something.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub floor: Option<Floor>,
}

/// What a figure would be if nothing were in the way, taken in the same run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Floor {
    /// In words.
    pub floor: Cow<'static, str>,
    /// In the figure's unit.
    pub floor_value: f64,
    /// The figure over the floor.
    pub ratio: f64,
}

impl Row {
    /// The median of some runs. No run at all yields NaN, which JSON shows as null.
    pub fn of(name: impl Into<String>, unit: &'static str, runs: &[f64]) -> Self {
        let mut sorted = runs.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |i: usize| sorted.get(i).copied().unwrap_or(f64::NAN);
        let last = sorted.len().saturating_sub(1);
        Self {
            name: name.into(),
            value: median(runs),
            unit: unit.into(),
            n: runs.len(),
            min: at(0),
            max: at(last),
            floor: None,
        }
    }

    /// The same figure with the floor under it.
    pub fn against(self, floor: &'static str, floor_value: f64) -> Self {
        let ratio = self.value / floor_value;
        Self { floor: Some(Floor { floor: floor.into(), floor_value, ratio }), ..self }
    }
}

/// The median; of an even number of values the upper one of the two in the middle. NaN of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A report: who measured what, where, with which settings.
pub fn json(name: &str, settings: Value, rows: &[Row]) -> Value {
    json!({"name": name, "commit": commit(), "machine": machine(), "settings": settings, "rows": rows})
}

/// Writes the report to `FOLDER/NAME.json`, prints the rows.
pub fn write(folder: &Path, name: &str, settings: Value, rows: &[Row]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let report = json(name, settings, rows);
    let path = folder.join(format!("{name}.json"));
    std::fs::write(&path, format!("{report:#}\n"))?;
    let width = rows.iter().map(|r| r.name.len()).max().unwrap_or(0);
    for r in rows {
        let spread = if r.n > 1 {
            format!("   n {}, {} to {}", r.n, short(r.min), short(r.max))
        } else {
            String::new()
        };
        let floor = match &r.floor {
            Some(f) => format!("   {:.0} % of {} ({})", 100.0 * f.ratio, short(f.floor_value), f.floor),
            None => String::new(),
        };
        println!("{:width$}  {:>10} {}{spread}{floor}", r.name, short(r.value), r.unit);
    }
    println!("report: {}", path.display());
    Ok(())
}

/// A figure with as many digits as a person reads.
fn short(value: f64) -> String {
    match value.abs() {
        x if x >= 1e6 => format!("{:.1} M", value / 1e6),
        x if x >= 100.0 => format!("{value:.0}"),
        x if x >= 1.0 || x == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let r = Row::of("x", "s", &[3.0, 1.0, 2.0]);
        assert_eq!((r.value, r.min, r.max, r.n), (2.0, 1.0, 3.0, 3));
        assert!(Row::of("x", "s", &[]).value.is_nan());
        assert_eq!((median(&[4.0, 1.0]), median(&[4.0, 1.0, 3.0, 2.0])), (4.0, 3.0));
        let bare = serde_json::to_value(&r).expect("JSON");
        assert!(bare.get("floor").is_none() && bare["max"] == 3.0);
        let floored = serde_json::to_value(r.against("memcpy", 4.0)).expect("JSON");
        assert_eq!((&floored["floor"], &floored["ratio"]), (&json!("memcpy"), &json!(0.5)));
    }
}
