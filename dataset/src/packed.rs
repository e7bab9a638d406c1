//! Row-packed columns: the narrow columns of a table, row by row in one buffer.
//!
//! A shuffled batch takes a few rows from each of many segments. Column by column that is a cache miss for
//! every value; row by row it is one for every row. So segments hold their narrow columns packed, a gather
//! copies whole rows, and the reader splits its batch into columns while that lies in the processor's cache.
//!
//! A packed row holds the values of all narrow columns in the schema's order, without gaps, and then one bit
//! for each of them that may be null: set when the value is there. The value of a null is zero. Numbers lie
//! as Arrow has them in memory: little endian. Narrow are numbers, dates, times and decimals, and binaries of
//! up to 32 fixed bytes. The schema alone decides which columns are packed; a schema with fewer than
//! two narrow columns has no packed rows.

mod copy;
mod form;
mod layout;
mod place;
mod split;
mod transpose;

pub(crate) use copy::RowSource;
pub use form::{Form, PackedSchema};
pub use layout::RowLayout;
pub(crate) use layout::{PackedColumn, value_buffer};
pub(crate) use place::{ColumnPlace, RowBlock};
pub use split::SplitRows;

#[cfg(test)]
mod tests;
