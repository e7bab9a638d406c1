//! An accelerator's utilisation by three definitions, from the trainer's report of an epoch.
//!
//! The report has what DLIO's code counts. The others follow from it: exactly with one rank; with several
//! ranks as far as their steps take equal times, as steps of DDP do.

use serde_json::Value;

/// The share of the time in which the accelerator computes, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Utilisation {
    /// By DLIO's code: the measured computation over the time of the epoch, the first step left out of both.
    pub dlio: f64,
    /// As MLPerf Storage counts: the step that was asked for in place of the measured one. Only with an
    /// emulated accelerator.
    pub nominal: Option<f64>,
    /// The measured computation of all steps over the whole epoch, from its start: the wait for the first
    /// batch is in it. The report does not tell the first step's computation, which counts as the others'
    /// mean.
    pub all_steps: f64,
}

impl Utilisation {
    /// Of an epoch of this many steps; `asked_ms` is the emulated step. `None` if the report does not tell,
    /// as of an epoch of one step.
    pub fn of(epoch: &Value, steps: f64, asked_ms: Option<f64>) -> Option<Self> {
        let times = &epoch["times"];
        let dlio = times["accelerator_utilisation"].as_f64()?;
        let compute_ms = times["compute_ms_mean"].as_f64()?;
        let seconds = epoch["seconds"].as_f64()?;
        Some(Self {
            dlio,
            nominal: asked_ms.filter(|_| compute_ms > 0.0).map(|asked_ms| dlio * asked_ms / compute_ms),
            all_steps: steps * compute_ms / 1e3 / seconds,
        })
    }
}

#[test]
fn an_epoch_is_judged_in_three_ways() {
    // 0.5 s until the first batch. Five steps of 100 ms, of which 80 ms compute where 76 ms were asked for.
    let times = serde_json::json!({"accelerator_utilisation": 0.8, "compute_ms_mean": 80.0});
    let epoch = serde_json::json!({"seconds": 1.0, "times": times});
    let close = |found: f64, wanted: f64| assert!((found - wanted).abs() < 1e-9, "{found}, not {wanted}");
    let emulated = Utilisation::of(&epoch, 5.0, Some(76.0)).expect("three figures");
    close(emulated.dlio, 0.8);
    close(emulated.nominal.expect("a step was asked for"), 0.76);
    close(emulated.all_steps, 0.4);
    let trained = Utilisation::of(&epoch, 5.0, None).expect("two figures");
    assert_eq!(trained, Utilisation { nominal: None, ..emulated });
    let one_step = serde_json::json!({"accelerator_utilisation": null, "compute_ms_mean": 0.0});
    let one_step = serde_json::json!({"seconds": 1.0, "times": one_step});
    assert_eq!(Utilisation::of(&one_step, 1.0, Some(76.0)), None);
}
