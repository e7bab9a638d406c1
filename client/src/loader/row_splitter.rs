//! Packed rows out of files of a node on this host, on their way into the columns of batches.

use super::builder::BatchBuilder;
use crate::stream::SharedRows;
use forebay_dataset::RowLayout;
use forebay_dataset::pool::Pool;
use forebay_dataset::shared::RowsDone;

/// Copies packed rows out of files and splits them into the columns of batches, a few at a time.
pub(crate) struct RowSplitter<'a> {
    rows: &'a SharedRows,
    layout: &'a RowLayout,
    pool: &'a Pool,
    done: RowsDone,
    tile: Vec<u8>,
}

impl<'a> RowSplitter<'a> {
    /// Begins with the first of `rows`.
    pub fn new(rows: &'a SharedRows, layout: &'a RowLayout, pool: &'a Pool) -> Self {
        Self { rows, layout, pool, done: RowsDone::default(), tile: vec![0; layout.tile_bytes()] }
    }

    /// Passes over the next bytes.
    pub fn skip(&mut self, bytes: usize) {
        self.rows.skip(&mut self.done, bytes);
    }

    /// The next `rows` become the batch's rows from `row` on. A batch that is complete does not want them.
    pub fn split(&mut self, builder: &BatchBuilder, mut row: usize, rows: usize) {
        let Self { layout, pool, .. } = *self;
        let bytes = rows * layout.width;
        let is_split = builder.split(layout, pool, |columns| {
            self.rows.copy_tiles(&mut self.done, bytes, &mut self.tile, |tile| {
                columns.write(row, tile);
                row += tile.len() / layout.width;
            });
        });
        if !is_split {
            self.skip(bytes);
        }
    }
}
