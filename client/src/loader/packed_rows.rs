//! A batch's packed rows on their way into columns.
//!
//! Rows that the reader copies out of files by itself become columns a few at a time, while they lie in the
//! processor's first cache and the next ones are on their way from memory. Rows that come as bytes lie
//! together, until the batch is complete: they may be cut anywhere.

use arrow::array::{Array, ArrayRef, AsArray};
use forebay_dataset::pool::{Pool, PoolBuffer};
use forebay_dataset::{PackedSchema, RowLayout, SplitRows};
use forebay_proto::{Error, Result};
use std::ops::Range;

/// What has become of a batch's packed rows.
#[derive(Debug, Default)]
pub(crate) struct PackedRows {
    /// The columns, if any rows were split as they came.
    columns: Option<PoolBuffer>,
    /// Rows that have arrived and were not.
    together: Vec<Range<u32>>,
}

/// The packed rows that were not split as they came.
pub(crate) struct Together {
    /// Room for all rows of the batch, if some came as bytes.
    pub plain: Option<PoolBuffer>,
    /// First row and rows.
    pub odd: Vec<(u32, ArrayRef)>,
}

impl PackedRows {
    /// The columns of a batch of `rows` rows, to be written.
    pub fn columns<'a>(&'a mut self, layout: &'a RowLayout, rows: usize, pool: &Pool) -> SplitRows<'a> {
        let columns = self.columns.get_or_insert_with(|| pool.take(layout.split_bytes(rows)));
        layout.split(rows, columns.as_slice_mut())
    }

    /// These rows have arrived and were not split.
    pub fn push_together(&mut self, rows: Range<u32>) {
        self.together.push(rows);
    }

    /// The columns of a batch of `rows` rows, all of which have arrived; none if nothing is packed.
    pub fn finish(
        self,
        Together { plain, odd }: Together,
        schema: &PackedSchema,
        rows: usize,
        pool: &Pool,
    ) -> Result<Vec<ArrayRef>> {
        let Some(layout) = &schema.layout else { return Ok(Vec::new()) };
        let all = std::iter::once(0..rows as u32);
        let together = if self.columns.is_some() { self.together } else { all.collect() };
        let missing: usize = together.iter().map(|rows| rows.len()).sum();
        let arrived: usize = odd.iter().map(|(_, array)| array.len()).sum();
        if plain.is_none() && missing > arrived {
            return Err(Error::corrupt("packed rows of a batch have no data"));
        }
        let plain = plain.map(|plain| pool.share(plain, rows * layout.width));
        let bytes = layout.split_bytes(rows);
        let mut values = self.columns.unwrap_or_else(|| pool.take(bytes));
        {
            let mut columns = layout.split(rows, values.as_slice_mut());
            if let Some(plain) = &plain {
                for Range { start, end } in together {
                    let bytes = start as usize * layout.width..end as usize * layout.width;
                    columns.write(start as usize, &plain[bytes]);
                }
            }
            // Last, as these rows have no bytes of their own among the others.
            for (first, array) in odd {
                let packed = array.as_fixed_size_binary_opt();
                let packed = packed.ok_or_else(|| Error::corrupt("there are no packed rows"))?;
                columns.write(first as usize, packed.value_data());
            }
        }
        layout.arrays(&schema.schema, rows, &pool.share(values, bytes))
    }
}
