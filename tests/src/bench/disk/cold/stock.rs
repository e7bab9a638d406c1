//! The stock way to read Parquet from S3 in Rust: `object_store` under `parquet`'s asynchronous reader, row
//! groups in parallel, all columns to Arrow. Its default settings, but for the number of requests at once.

use crate::harness::s3::S3Server;
use anyhow::Context;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::aws::AmazonS3;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::ParquetRecordBatchStreamBuilder;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Rows a second, footers not counted.
pub(super) async fn read(
    s3: &S3Server,
    endpoint: &str,
    prefix: &str,
    concurrency: usize,
    rows: u64,
) -> anyhow::Result<f64> {
    let store = s3.client(endpoint)?;
    let store = Arc::new(store);
    let objects: Vec<_> = store.list(Some(&Path::from(prefix))).try_collect().await?;
    let mut groups = Vec::new();
    for object in objects {
        let mut reader = RangeReader { store: store.clone(), path: object.location, size: object.size };
        let metadata = ArrowReaderMetadata::load_async(&mut reader, ArrowReaderOptions::new()).await?;
        groups
            .extend((0..metadata.metadata().num_row_groups()).map(|g| (reader.clone(), metadata.clone(), g)));
    }
    let start = Instant::now();
    let tasks = groups.into_iter().map(|(reader, metadata, group)| async move {
        tokio::spawn(async move {
            let builder = ParquetRecordBatchStreamBuilder::new_with_metadata(reader, metadata);
            let mut batches = builder.with_row_groups(vec![group]).build()?;
            let mut rows = 0;
            while let Some(batch) = batches.try_next().await? {
                rows += batch.num_rows() as u64;
            }
            Ok::<_, ParquetError>(rows)
        })
        .await
        .context("a reader broke off")?
        .context("read a row group")
    });
    let counts: Vec<u64> = stream::iter(tasks).buffer_unordered(concurrency).try_collect().await?;
    let read: u64 = counts.iter().sum();
    anyhow::ensure!(read == rows, "{read} rows were read, not {rows}");
    Ok(rows as f64 / start.elapsed().as_secs_f64())
}

/// What the parquet crate's own `ParquetObjectReader` does.
#[derive(Debug, Clone)]
struct RangeReader {
    store: Arc<AmazonS3>,
    path: Path,
    size: u64,
}

fn failed(e: object_store::Error) -> ParquetError {
    ParquetError::External(Box::new(e))
}

impl AsyncFileReader for RangeReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ParquetError>> {
        async move { self.store.get_range(&self.path, range).await.map_err(failed) }.boxed()
    }

    fn get_byte_ranges(
        &mut self,
        ranges: Vec<Range<u64>>,
    ) -> BoxFuture<'_, Result<Vec<Bytes>, ParquetError>> {
        async move { self.store.get_ranges(&self.path, &ranges).await.map_err(failed) }.boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        _options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>, ParquetError>> {
        async move {
            let size = self.size;
            let metadata = ParquetMetaDataReader::new().load_and_finish(self, size).await?;
            Ok(Arc::new(metadata))
        }
        .boxed()
    }
}
