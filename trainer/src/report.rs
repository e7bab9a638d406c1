//! What people and programs see of a run.
//!
//! * [`observer`]: what people see while it goes on: [`progress`], the line on the terminal, and [`events`],
//!   for TensorBoard. [`args`]: the flags.
//! * [`timing`]: where the time of a step goes. [`epoch_stats`]: what an epoch cost. [`summary`]: the report.

pub(crate) mod args;
pub(crate) mod epoch_stats;
pub(crate) mod events;
pub(crate) mod observer;
pub(crate) mod progress;
pub(crate) mod summary;
pub(crate) mod timing;
