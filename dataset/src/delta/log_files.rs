//! The files of a table's log, as the kernel asks for them: read whole, a few at once.
//!
//! The kernel calls from a blocking thread and waits. What goes wrong in the object store is kept for the
//! error message ([`LogEngine::fault`]).

use super::recent_files::{RECENT_BYTES, RecentFiles};
use super::url;
use crate::off_thread::blocking;
use crate::parquet::footer_claims::check_object;
use crate::source::{Source, SourceObject};
use crate::urgency::Urgency;
use ::url::Url;
use arrow_json::ReaderBuilder;
use bytes::Bytes;
use delta_kernel::engine::arrow_conversion::TryFromArrow as _;
use delta_kernel::engine::arrow_data::ArrowEngineData;
use delta_kernel::engine::arrow_expression::ArrowEvaluationHandler;
use delta_kernel::engine::arrow_utils::{
    RowIndexBuilder, build_json_reorder_indices, fixup_json_read, fixup_parquet_read, json_arrow_schema,
    ordering_needs_row_indexes, parquet_read_plan, parse_json,
};
use delta_kernel::engine::reader_options;
use delta_kernel::engine_data::FilteredEngineData;
use delta_kernel::schema::{SchemaRef, StructType};
use delta_kernel::{
    Engine, EngineData, EvaluationHandler, FileDataReadResultIterator, FileMeta, FileSize, FileSlice,
    JsonHandler, KernelError, KernelResult, KernelResultIterator, KernelResultIteratorStatic, ParquetFooter,
    ParquetHandler, PredicateRef, StorageHandler,
};
use forebay_proto::ring::is_under;
use forebay_proto::{Error, Kind, Result};
use futures::future::try_join_all;
use parking_lot::Mutex;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReaderBuilder};
use std::collections::HashMap;
use std::io::Cursor;
use std::ops::Range;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Bytes of a file of the log at most: it is held in memory.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// Files that are read at once, and bytes of all of them but one.
const FILES_AT_ONCE: usize = 16;
const BYTES_AT_ONCE: u64 = 32 << 20;

/// What the kernel reads a log with.
pub(super) struct LogEngine {
    files: Arc<LogFiles>,
    evaluation: Arc<ArrowEvaluationHandler>,
}

struct LogFiles {
    source: Source,
    root: String,
    runtime: Handle,
    /// Versions of the files that were listed.
    listed: Mutex<HashMap<String, SourceObject>>,
    /// What was read last of others.
    recent: Mutex<RecentFiles>,
    fault: Mutex<Option<Error>>,
}

/// Batches of a file.
type Batches = Box<dyn Iterator<Item = KernelResult<ArrowEngineData>> + Send>;

impl LogEngine {
    pub(super) fn new(source: Source, root: String, runtime: Handle) -> Self {
        let (listed, recent, fault) = (Mutex::default(), Mutex::default(), Mutex::default());
        let files = Arc::new(LogFiles { source, root, runtime, listed, recent, fault });
        Self { files, evaluation: Arc::new(ArrowEvaluationHandler) }
    }

    /// Where the table lies.
    pub(super) fn root(&self) -> &str {
        &self.files.root
    }

    /// Reads files that will be asked for one after the other, as many as are kept. What fails is told to
    /// those who ask.
    pub(super) fn prepare(&self, urls: Vec<Url>) {
        if urls.is_empty() {
            return;
        }
        let files = self.files.clone();
        let read = async move {
            let mut left = RECENT_BYTES;
            for urls in urls.chunks(FILES_AT_ONCE) {
                let (mut heads, mut reads) = (Vec::new(), Vec::new());
                for url in urls {
                    heads.push(files.size(url));
                }
                for (url, size) in urls.iter().zip(try_join_all(heads).await?) {
                    if size > left {
                        break;
                    }
                    left -= size;
                    reads.push(files.kept(url));
                }
                let is_full = reads.len() < urls.len();
                try_join_all(reads).await?;
                if is_full {
                    break;
                }
            }
            Ok::<(), Error>(())
        };
        self.files.wait(read).ok();
    }

    /// What the object store refused.
    pub(super) fn fault(&self) -> Option<Error> {
        self.files.fault.lock().take()
    }
}

impl Engine for LogEngine {
    fn evaluation_handler(&self) -> Arc<dyn EvaluationHandler> {
        self.evaluation.clone()
    }

    fn storage_handler(&self) -> Arc<dyn StorageHandler> {
        Arc::new(Handler(self.files.clone()))
    }

    fn json_handler(&self) -> Arc<dyn JsonHandler> {
        Arc::new(Handler(self.files.clone()))
    }

    fn parquet_handler(&self) -> Arc<dyn ParquetHandler> {
        Arc::new(Handler(self.files.clone()))
    }
}

impl LogFiles {
    /// An error as the kernel has it. It goes on without some files, such as hints.
    fn fault(&self, e: Error) -> KernelError {
        if e.kind == Kind::NotFound {
            return KernelError::FileNotFound(e.message);
        }
        let message = e.message.clone();
        *self.fault.lock() = Some(e);
        KernelError::generic(message)
    }

    /// Waits on a thread that may block. The work itself is a task: it ends with the runtime, whose timers
    /// must not be polled from this thread then.
    fn wait<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let task = self.runtime.spawn(work);
        self.runtime.block_on(task).unwrap_or_else(|e| match e.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::closed("the runtime is ending")),
        })
    }

    async fn object(&self, uri: &str) -> Result<SourceObject> {
        let listed = self.listed.lock().get(uri).cloned();
        match listed {
            Some(object) => Ok(object),
            None => self.source.head(&self.source.place(uri)?).await,
        }
    }

    /// The URI of a file that the log names. The deletion vectors of a shallow clone lie elsewhere.
    async fn allowed(&self, url: &Url) -> Result<String> {
        let uri = url::uri(url)?;
        if !is_under(&uri, &self.root) {
            url::check_store(&self.root, &uri)?;
            let (source, outside) = (self.source.clone(), uri.clone());
            blocking(move || source.check_outside(&outside)).await?;
        }
        Ok(uri)
    }

    /// The size of a file, whose version is known from then on.
    async fn size(&self, url: &Url) -> Result<u64> {
        let uri = self.allowed(url).await?;
        let object = self.object(&uri).await?;
        let size = object.size;
        self.listed.lock().insert(uri, object);
        Ok(size)
    }

    /// A whole file, which is kept as long as there is room.
    async fn kept(&self, url: &Url) -> Result<Bytes> {
        let uri = url::uri(url)?;
        let kept = self.recent.lock().get(&uri);
        if let Some(content) = kept {
            return Ok(content);
        }
        self.size(url).await?;
        let content = self.read(url, None).await?;
        self.recent.lock().put(uri, content.clone());
        Ok(content)
    }

    async fn read(&self, url: &Url, range: Option<Range<u64>>) -> Result<Bytes> {
        let uri = self.allowed(url).await?;
        let object = self.object(&uri).await?;
        let range = range.unwrap_or(0..object.size);
        if range.end > object.size || range.start > range.end {
            return Err(Error::corrupt(format!("{uri}: has {} bytes, no {range:?}", object.size)));
        }
        if range.end - range.start > FILE_BYTES_MAX {
            return Err(Error::invalid(format!(
                "{uri}: has {} bytes, a file of the log may have {FILE_BYTES_MAX}: write checkpoints in parts",
                object.size
            )));
        }
        let place = object.place.clone();
        let root = place.within(&self.root).to_owned();
        blocking(move || place.stays_under(&root)).await?;
        match range.is_empty() {
            true => Ok(Bytes::new()),
            false => self.source.get(&object, range, &Urgency::demand()).await,
        }
    }

    fn list(&self, from: &Url) -> Result<Vec<FileMeta>> {
        let after = url::uri(from)?;
        let directory = match from.path().ends_with('/') {
            true => after.clone(),
            false => after.rsplit_once('/').map_or("", |(directory, _)| directory).to_owned(),
        };
        let place = self.source.place(&directory)?;
        let after = self.source.place(&after)?;
        let (source, of) = (self.source.clone(), place.clone());
        let listed = self.wait(async move { source.list_after(&of, Some(&after)).await })?;
        let mut files = Vec::with_capacity(listed.len());
        for meta in listed {
            let full: &str = meta.location.as_ref();
            let Some(key) = full.strip_prefix(place.path()).map(|key| key.trim_start_matches('/')) else {
                continue;
            };
            let uri = format!("{directory}/{key}");
            let object = self.source.place(&uri)?.object(&meta)?;
            let mut location = url::of_directory(&uri)?;
            location.path_segments_mut().map_err(|()| Error::invalid(uri.clone()))?.pop_if_empty();
            files.push(FileMeta {
                location,
                last_modified: meta.last_modified.timestamp_millis(),
                size: object.size,
            });
            self.listed.lock().insert(uri, object);
        }
        files.sort_unstable();
        Ok(files)
    }
}

/// All handlers that read, of an engine.
#[derive(Clone)]
struct Handler(Arc<LogFiles>);

impl Handler {
    /// The contents of files, in order.
    fn contents(
        &self,
        slices: Vec<FileSlice>,
    ) -> impl Iterator<Item = KernelResult<(Url, Bytes)>> + Send + use<> {
        let files = self.0.clone();
        self.groups(slices).into_iter().flat_map(move |group| {
            let (owned, reads) = (files.clone(), group.clone());
            let read = async move {
                try_join_all(reads.iter().map(|(url, range)| owned.read(url, range.clone()))).await
            };
            match files.wait(read) {
                Ok(read) => group.into_iter().zip(read).map(|((url, _), bytes)| Ok((url, bytes))).collect(),
                Err(e) => vec![Err(files.fault(e))],
            }
        })
    }

    /// Files to be read at once. One whose size is not known is small, as hints are.
    fn groups(&self, slices: Vec<FileSlice>) -> Vec<Vec<FileSlice>> {
        let listed = self.0.listed.lock();
        let size = |url: &Url| {
            let uri = url::uri(url).ok();
            uri.and_then(|uri| Some(listed.get(&uri)?.size)).unwrap_or(0)
        };
        let (mut groups, mut bytes) = (Vec::<Vec<FileSlice>>::new(), 0u64);
        for slice in slices {
            let more = size(&slice.0);
            let fits = |group: &&mut Vec<FileSlice>| {
                group.len() < FILES_AT_ONCE && bytes.saturating_add(more) <= BYTES_AT_ONCE
            };
            match groups.last_mut().filter(fits) {
                Some(group) => {
                    group.push(slice);
                    bytes = bytes.saturating_add(more);
                }
                None => {
                    groups.push(vec![slice]);
                    bytes = more;
                }
            }
        }
        groups
    }

    fn batches(
        &self,
        files: &[FileMeta],
        parse: impl Fn(&Url, Bytes) -> KernelResult<Batches> + Send + 'static,
    ) -> FileDataReadResultIterator {
        let slices = files.iter().map(|file| (file.location.clone(), None)).collect();
        let parsed = self.contents(slices).flat_map(move |content| -> Batches {
            match content.and_then(|(url, bytes)| parse(&url, bytes)) {
                Ok(batches) => batches,
                Err(e) => Box::new(std::iter::once(Err(e))),
            }
        });
        Box::new(parsed.map(|batch| Ok(Box::new(batch?) as Box<dyn EngineData>)))
    }
}

impl StorageHandler for Handler {
    fn list_from(&self, path: &Url) -> KernelResult<KernelResultIteratorStatic<FileMeta>> {
        let listed = self.0.list(path).map_err(|e| self.0.fault(e))?;
        Ok(Box::new(listed.into_iter().map(Ok)))
    }

    fn read_files(&self, files: Vec<FileSlice>) -> KernelResult<KernelResultIteratorStatic<Bytes>> {
        // Whole files are those of deletion vectors, one at a time.
        let owned = self.0.clone();
        let read = move |(url, range): FileSlice| {
            let files = owned.clone();
            let read = async move {
                match range {
                    None => files.kept(&url).await,
                    range => files.read(&url, range).await,
                }
            };
            owned.wait(read).map_err(|e| owned.fault(e))
        };
        Ok(Box::new(files.into_iter().map(read)))
    }

    fn head(&self, path: &Url) -> KernelResult<FileMeta> {
        let uri = url::uri(path).map_err(|e| self.0.fault(e))?;
        let files = self.0.clone();
        let object = self.0.wait(async move { files.object(&uri).await }).map_err(|e| self.0.fault(e))?;
        Ok(FileMeta { location: path.clone(), last_modified: 0, size: object.size })
    }

    fn copy_atomic(&self, _: &Url, _: &Url) -> KernelResult<()> {
        Err(read_only())
    }

    fn put(&self, _: &Url, _: Bytes, _: bool) -> KernelResult<()> {
        Err(read_only())
    }

    fn delete(&self, _: &Url) -> KernelResult<()> {
        Err(read_only())
    }
}

impl JsonHandler for Handler {
    fn parse_json(&self, texts: Box<dyn EngineData>, schema: SchemaRef) -> KernelResult<Box<dyn EngineData>> {
        parse_json(texts, schema)
    }

    fn read_json_files(
        &self,
        files: &[FileMeta],
        schema: SchemaRef,
        _: Option<PredicateRef>,
    ) -> KernelResult<FileDataReadResultIterator> {
        let arrow = Arc::new(json_arrow_schema(&schema)?);
        let order = Arc::new(build_json_reorder_indices(&schema)?);
        Ok(self.batches(files, move |url, bytes| {
            let reader = ReaderBuilder::new(arrow.clone()).with_coerce_primitive(true);
            let (order, name) = (order.clone(), url.to_string());
            let batches = reader.build(Cursor::new(bytes))?;
            Ok(Box::new(batches.map(move |batch| fixup_json_read(batch?, &order, &name))))
        }))
    }

    fn write_json_file(
        &self,
        _: &Url,
        _: KernelResultIterator<'_, FilteredEngineData>,
        _: bool,
    ) -> KernelResult<FileSize> {
        Err(read_only())
    }
}

impl ParquetHandler for Handler {
    fn read_parquet_files(
        &self,
        files: &[FileMeta],
        schema: SchemaRef,
        _: Option<PredicateRef>,
    ) -> KernelResult<FileDataReadResultIterator> {
        Ok(self.batches(files, move |url, bytes| {
            check_object(&bytes).map_err(|why| KernelError::generic(format!("{url}: {why}")))?;
            let metadata = ArrowReaderMetadata::load(&bytes, reader_options())?;
            let (order, mask) = parquet_read_plan(&schema, &metadata)?;
            let rows = ordering_needs_row_indexes(&order)
                .then(|| RowIndexBuilder::new(metadata.metadata().row_groups()).build());
            let mut rows = rows.transpose()?;
            let mut builder = ParquetRecordBatchReaderBuilder::new_with_metadata(bytes, metadata);
            if let Some(mask) = mask {
                builder = builder.with_projection(mask);
            }
            let (name, schema) = (url.to_string(), schema.clone());
            Ok(Box::new(builder.build()?.map(move |batch| {
                fixup_parquet_read(batch?, &order, rows.as_mut(), Some(&name), Some(&schema))
            })))
        }))
    }

    fn write_parquet_file(
        &self,
        _: Url,
        _: KernelResultIteratorStatic<Box<dyn EngineData>>,
    ) -> KernelResult<FileSize> {
        Err(read_only())
    }

    fn read_parquet_footer(&self, file: &FileMeta) -> KernelResult<ParquetFooter> {
        let (files, location) = (self.0.clone(), file.location.clone());
        let read = self.0.wait(async move { files.read(&location, None).await });
        let bytes = read.map_err(|e| self.0.fault(e))?;
        check_object(&bytes).map_err(|why| KernelError::generic(format!("{}: {why}", file.location)))?;
        let metadata = ArrowReaderMetadata::load(&bytes, reader_options())?;
        Ok(ParquetFooter { schema: Arc::new(StructType::try_from_arrow(metadata.schema().as_ref())?) })
    }
}

fn read_only() -> KernelError {
    KernelError::generic("tables are read and never written")
}
