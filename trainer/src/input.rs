//! A batch as tensors, sharing the loader's memory where it can.
//!
//! A model says by [`Columns`] what it takes of which column. That is checked once against the dataset's
//! schema; values and nulls are checked in every batch, for a label outside the classes would otherwise end
//! the process deep inside the loss.
//!
//! * [`rows`]: rows as tensors. [`schema`]: what a column is.
//! * [`columns`]: which columns, and whether they fit. [`tensors`]: from Arrow to tensors, for which
//!   [`numbers`], [`tokens`] and [`sequences`] know their types and [`fill`] what stands for nulls.
//!   [`prepare`]: of a batch.
//! * [`ahead`]: inputs made ahead of their step.
//! * [`image`]: images, their flags and shapes.

pub(crate) mod ahead;
pub(crate) mod columns;
pub(crate) mod feed;
pub(crate) mod fill;
pub(crate) mod image;
pub(crate) mod numbers;
pub(crate) mod prepare;
pub(crate) mod rows;
pub(crate) mod schema;
mod sequences;
pub(crate) mod tensors;
pub(crate) mod tokens;
pub(crate) mod transfer;

pub use columns::{Columns, Takes};
pub use prepare::Preparer;
pub use rows::Input;
pub use schema::Role;
