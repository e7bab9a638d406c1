//! How a run learns: the settings that decide, besides model, data and seed, what becomes of its parameters.
//!
//! They are part of a checkpoint, so that a run that goes on with others says so ([`Hyperparams::changes`]),
//! and one whose optimizer could make nothing of what the checkpoint holds is refused
//! ([`Hyperparams::check_state`]).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::train::optim::OptimizerSettings;
use crate::train::precision::Precision;
use crate::train::schedule::Schedule;

/// How a model is trained.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hyperparams {
    /// The rule by which gradients change the parameters, and its numbers.
    pub optimizer: OptimizerSettings,
    /// The learning rate of each step.
    pub schedule: Schedule,
    /// Gradients are shrunk to this norm if they are above it.
    pub clip_norm: Option<f64>,
    /// Passes that share the rows of a step.
    pub accumulate: u64,
    /// What the network computes in.
    pub precision: Precision,
}

impl Hyperparams {
    /// Refuses to go on as `now` from the state that an optimizer of these settings has left.
    pub fn check_state(&self, now: &Self) -> Result<()> {
        let (own, other) = (self.optimizer, now.optimizer);
        ensure!(
            own.name() == other.name(),
            "it is of --optimizer {}, but this run has --optimizer {}, to which what the first one kept means nothing: \
             use the same, or start over with --fresh",
            own.name(),
            other.name()
        );
        let kept = |settings: &OptimizerSettings| match settings.buffers() {
            [] => "nothing".to_owned(),
            names => names.join(", "),
        };
        ensure!(
            own.buffers() == other.buffers(),
            "its optimizer kept {} for each parameter, this run's keeps {}: use the same --momentum, or start over with \
             --fresh",
            kept(&own),
            kept(&other)
        );
        Ok(())
    }

    /// The differences to `now`, on one line: `schedule.lr 0.1 -> 0.05, clip_norm none -> 1.0`; `None` if
    /// nothing is.
    pub fn changes(&self, now: &Self) -> Option<String> {
        let (mut own, mut other) = (BTreeMap::new(), BTreeMap::new());
        flat("", &serde_json::to_value(self).unwrap_or_default(), &mut own);
        flat("", &serde_json::to_value(now).unwrap_or_default(), &mut other);
        let names: BTreeSet<_> = own.keys().chain(other.keys()).collect();
        let value = |of: &BTreeMap<String, String>, name| of.get(name).cloned().unwrap_or("none".to_owned());
        let changed = names.into_iter().filter_map(|name| {
            let (old, new) = (value(&own, name), value(&other, name));
            (old != new).then(|| format!("{name} {old} -> {new}"))
        });
        let changed: Vec<_> = changed.collect();
        (!changed.is_empty()).then(|| changed.join(", "))
    }
}

/// Each value with the names that lead to it.
fn flat(name: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    let text = match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let separator = if name.is_empty() { "" } else { "." };
                flat(&format!("{name}{separator}{field}"), value, into);
            }
            return;
        }
        Value::Null => return,
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    into.insert(name.to_owned(), text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::schedule::Shape;

    fn settings() -> Hyperparams {
        Hyperparams {
            optimizer: OptimizerSettings::Sgd { momentum: 0.9, nesterov: true, weight_decay: 1e-4 },
            schedule: Schedule { lr: 0.1, shape: Shape::OneCycle, warmup_steps: None, steps: 300 },
            clip_norm: None,
            accumulate: 1,
            precision: Precision::Fp32,
        }
    }

    #[test]
    fn changes_are_told_on_one_line() {
        let own = settings();
        assert_eq!(own.changes(&own), None);
        let schedule = Schedule { lr: 0.05, shape: Shape::Cosine, warmup_steps: Some(7), ..own.schedule };
        let now = Hyperparams { schedule, clip_norm: Some(1.5), precision: Precision::Bf16, ..own };
        let said = "clip_norm none -> 1.5, precision fp32 -> bf16, schedule.lr 0.1 -> 0.05, \
                    schedule.shape one-cycle -> cosine, schedule.warmup_steps none -> 7";
        assert_eq!(own.changes(&now).unwrap(), said);
        assert_eq!(serde_json::from_value::<Hyperparams>(serde_json::to_value(now).unwrap()).unwrap(), now);
    }

    #[test]
    fn a_state_that_means_nothing_is_refused() {
        let own = settings();
        let of = |optimizer| Hyperparams { optimizer, ..own };
        let adam = of(OptimizerSettings::Adam { betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0 });
        let error = own.check_state(&adam).unwrap_err().to_string();
        assert!(error.starts_with("it is of --optimizer sgd, but this run has --optimizer adam"), "{error}");
        let plain = of(OptimizerSettings::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 });
        let error = own.check_state(&plain).unwrap_err().to_string();
        assert!(
            error.starts_with("its optimizer kept momentum for each parameter, this run's keeps nothing"),
            "{error}"
        );
        let other = of(OptimizerSettings::Sgd { momentum: 0.5, nesterov: false, weight_decay: 0.0 });
        own.check_state(&other).unwrap();
    }
}
