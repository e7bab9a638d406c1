//! The footer of a Parquet object, parsed and checked: its column chunks lie inside the object and its row
//! counts add up, so code that builds on it need not check again.

use crate::parquet::footer_claims::check_schema;
use crate::schema::{plain, with_zones};
use arrow::datatypes::{Schema, SchemaRef};
use arrow_ipc::convert::try_schema_from_ipc_buffer;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use parquet::arrow::ARROW_SCHEMA_META_KEY;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::errors::ParquetError;
use parquet::file::FOOTER_SIZE;
use parquet::file::metadata::page_index::PageIndex;
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataBuilder, ParquetMetaDataReader, RowGroupMetaData,
};
use std::ops::Range;
use std::sync::Arc;

/// An object's Parquet footer, decoded, with the Arrow schema that follows from it.
#[derive(Debug)]
pub(crate) struct Footer {
    /// As the parquet crate has it, for reading with [`Footer::schema`].
    pub arrow: ArrowReaderMetadata,
    /// The plain Arrow schema of the object.
    pub schema: SchemaRef,
    /// The leaf columns of each column.
    pub leaves: Vec<Range<usize>>,
}

impl Footer {
    pub(crate) fn row_groups(&self) -> &[RowGroupMetaData] {
        self.arrow.metadata().row_groups()
    }

    /// The chunks of `column` in `group`, leaf by leaf.
    pub(crate) fn chunks<'a>(
        &self,
        group: &'a RowGroupMetaData,
        column: usize,
    ) -> impl Iterator<Item = &'a ColumnChunkMetaData> + use<'a> {
        let leaves = self.leaves.get(column).cloned().unwrap_or_default();
        leaves.filter_map(|leaf| group.columns().get(leaf))
    }

    /// Parses and checks `metadata`, the Thrift bytes before the last 8 of an object of `size` bytes. Where
    /// its schema is written as that of `like`, that one's is taken: working it out again takes time.
    pub(crate) fn parse(metadata: &[u8], size: u64, like: Option<&Self>) -> Result<Self, String> {
        let bad = |e: ParquetError| e.to_string();
        check_schema(metadata)?;
        let meta = Arc::new(ParquetMetaDataReader::decode_metadata(metadata).map_err(bad)?);
        let end = size - metadata.len() as u64 - FOOTER_SIZE as u64;
        check(&meta, end)?;
        let descriptor = meta.file_metadata().schema_descr_ptr();
        let schema = match like.filter(|like| is_written_alike(like.arrow.metadata(), &meta)) {
            Some(like) => like.schema.clone(),
            None => Arc::new(plain_schema(&meta).map_err(bad)?),
        };
        let options = ArrowReaderOptions::new().with_schema(schema.clone());
        let arrow = ArrowReaderMetadata::try_new(meta, options).map_err(bad)?;
        let mut leaves: Vec<Range<usize>> = Vec::new();
        for leaf in 0..descriptor.num_columns() {
            let root = descriptor.get_column_root_idx(leaf);
            match leaves.get_mut(root) {
                Some(range) => range.end = leaf + 1,
                None => leaves.push(leaf..leaf + 1),
            }
        }
        if leaves.len() != schema.fields().len() {
            return Err("it has a column that Arrow cannot express".into());
        }
        repeated(&schema)?;
        Ok(Self { arrow, schema, leaves })
    }

    /// The names of columns, and the ids that their writer gave them.
    pub(crate) fn field_ids(&self) -> Vec<(&str, Option<i64>)> {
        let columns = self.arrow.parquet_schema().root_schema().get_fields().iter();
        columns
            .map(|column| {
                let info = column.get_basic_info();
                (info.name(), info.has_id().then(|| i64::from(info.id())))
            })
            .collect()
    }

    /// The same, as if `group` were all that the object has, with an index of its pages.
    pub(crate) fn of_group(&self, group: usize, index: PageIndex) -> Result<Self, ParquetError> {
        let meta = self.arrow.metadata();
        let only = ParquetMetaDataBuilder::new(meta.file_metadata().clone())
            .add_row_group(meta.row_group(group).clone())
            .set_page_index(Some(Arc::new(index)));
        let options = ArrowReaderOptions::new().with_schema(self.schema.clone());
        let arrow = ArrowReaderMetadata::try_new(Arc::new(only.build()), options)?;
        Ok(Self { arrow, schema: self.schema.clone(), leaves: self.leaves.clone() })
    }

    /// Bytes of memory that it takes, about.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.arrow.metadata().memory_size() + 256 * self.schema.fields().len() + 256
    }
}

/// Chunks must lie before `end`, and rows must add up.
fn check(meta: &ParquetMetaData, end: u64) -> Result<(), String> {
    let mut rows = 0i64;
    for (i, group) in meta.row_groups().iter().enumerate() {
        if group.num_rows() < 0 {
            return Err(format!("row group {i} has {} rows", group.num_rows()));
        }
        rows = rows.checked_add(group.num_rows()).ok_or("its rows overflow")?;
        for chunk in group.columns() {
            let start = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
            let (start, len) = (u64::try_from(start), u64::try_from(chunk.compressed_size()));
            let inside = match (start, len) {
                (Ok(start), Ok(len)) => start.checked_add(len).is_some_and(|e| e <= end),
                _ => false,
            };
            if !inside || chunk.uncompressed_size() < 0 {
                return Err(format!(
                    "column '{}' of row group {i} lies outside the object",
                    chunk.column_path()
                ));
            }
            // A flat column has a value or a null for every row, a repeated one at least a level.
            let flat = chunk.column_descr().max_rep_level() == 0;
            let values = chunk.num_values();
            if values < group.num_rows() || flat && values != group.num_rows() {
                let (path, rows) = (chunk.column_path(), group.num_rows());
                return Err(format!("column '{path}' of row group {i} has {values} values for {rows} rows"));
            }
            if chunk.file_path().is_some() {
                return Err(format!("column '{}' lies in another file", chunk.column_path()));
            }
        }
    }
    match meta.file_metadata().num_rows() {
        n if n == rows => Ok(()),
        n => Err(format!("its footer claims {n} rows but its row groups have {rows}")),
    }
}

/// The plain Arrow schema of an object.
fn plain_schema(meta: &Arc<ParquetMetaData>) -> Result<Schema, ParquetError> {
    let derived = ArrowReaderMetadata::try_new(meta.clone(), ArrowReaderOptions::new()).or_else(|_| {
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        ArrowReaderMetadata::try_new(meta.clone(), options)
    });
    let schema = plain(derived?.schema());
    Ok(match written_schema(meta) {
        Some(written) => with_zones(schema, &plain(&written)),
        None => schema,
    })
}

/// Whether all that [`plain_schema`] looks at is the same.
fn is_written_alike(a: &ParquetMetaData, b: &ParquetMetaData) -> bool {
    let schema = |meta: &ParquetMetaData| meta.file_metadata().schema_descr().root_schema_ptr();
    written_text(a) == written_text(b) && schema(a) == schema(b)
}

/// The Arrow schema that an Arrow writer left beside Parquet's own, if there is one that can be read.
fn written_schema(meta: &ParquetMetaData) -> Option<Schema> {
    let bytes = BASE64_STANDARD.decode(written_text(meta)?).ok()?;
    try_schema_from_ipc_buffer(&bytes).ok()
}

/// The same as it stands there.
fn written_text(meta: &ParquetMetaData) -> Option<&str> {
    let pairs = meta.file_metadata().key_value_metadata()?;
    pairs.iter().find(|pair| pair.key == ARROW_SCHEMA_META_KEY)?.value.as_deref()
}

fn repeated(schema: &Schema) -> Result<(), String> {
    let mut names: Vec<_> = schema.fields().iter().map(|f| f.name()).collect();
    names.sort_unstable();
    match names.windows(2).find(|w| w[0] == w[1]) {
        Some(w) => Err(format!("it has two columns named '{}'", w[0])),
        None => Ok(()),
    }
}

/// The row groups of an object that make up a segment.
pub(crate) struct RowGroups {
    pub footer: Arc<Footer>,
    pub range: Range<usize>,
    /// Rows of all of them.
    pub rows: u64,
}

impl RowGroups {
    /// Empty if the footer has no such row groups.
    pub(crate) fn metadata(&self) -> &[RowGroupMetaData] {
        self.footer.row_groups().get(self.range.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, TimestampMicrosecondArray};
    use parquet::arrow::ArrowWriter;

    /// An object with one column.
    fn written(column: ArrayRef, rows_twice: bool) -> Vec<u8> {
        let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
        (0..=u8::from(rows_twice)).for_each(|_| writer.write(&batch).unwrap());
        writer.into_inner().unwrap()
    }

    fn parsed(object: &[u8], like: Option<&Footer>) -> Footer {
        let end = object.len() - FOOTER_SIZE;
        let length = u32::from_le_bytes(*object[end..].first_chunk().unwrap()) as usize;
        Footer::parse(&object[end - length..end], object.len() as u64, like).unwrap()
    }

    #[test]
    fn a_schema_is_taken_from_another_object_only_where_it_is_written_alike() {
        let zone = |zone: &str| Arc::new(TimestampMicrosecondArray::from(vec![7]).with_timezone(zone));
        // The last two differ in what Arrow wrote, not in Parquet's schema.
        let columns: [ArrayRef; 4] = [
            Arc::new(Int32Array::from(vec![7])),
            Arc::new(Int64Array::from(vec![7])),
            zone("UTC"),
            zone("+01:00"),
        ];
        for (i, a) in columns.iter().enumerate() {
            let like = parsed(&written(a.clone(), false), None);
            for (j, b) in columns.iter().enumerate() {
                let b = written(b.clone(), true);
                let footer = parsed(&b, Some(&like));
                assert_eq!(footer.schema, parsed(&b, None).schema, "{i}, {j}");
                assert_eq!(Arc::ptr_eq(&footer.schema, &like.schema), i == j, "{i}, {j}");
                assert_eq!(footer.row_groups()[0].num_rows(), 2);
            }
        }
    }
}
