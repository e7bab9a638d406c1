//! The training: the loop, the step, and the settings of both.
//!
//! * [`run`]: one rank from its start to its report. [`data`]: the datasets, opened. [`survey`]: what they
//!   say where the flags say nothing. [`fit`]: the loop over epochs and steps. [`step`]: forward, backward,
//!   optimizer. [`evaluate`]: a model's quality.
//! * [`hyperparams`]: how a run learns: [`optim`], [`schedule`], [`precision`]. [`gradients`]: how gradients
//!   travel.
//! * [`batch_finder`]: `--batch auto`. [`bad_step`]: the samples of a step whose loss is no number.
//! * [`run_state`]: how far a run has come, over all its restarts.

pub(crate) mod bad_step;
pub(crate) mod batch_finder;
pub(crate) mod data;
pub(crate) mod evaluate;
pub(crate) mod fit;
pub(crate) mod gradients;
pub(crate) mod hyperparams;
pub(crate) mod optim;
pub(crate) mod precision;
pub(crate) mod run;
pub(crate) mod run_state;
pub(crate) mod schedule;
pub(crate) mod step;
mod survey;
