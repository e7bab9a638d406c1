//! A dataset: opened through a cache or directly, its rows and what the cache holds of it.

use crate::errors;
use crate::place::Place;
use crate::process::OfProcess;
use crate::rows::RecordBatchReader;
use crate::runtime::{runtime, wait, wait_and};
use crate::schema::Schema;
use forebay_client::survey::{Surveyed, survey};
use forebay_client::{Access, DatasetSpec, Endpoints, fan_out, fill, rows};
use forebay_proto::{Error, Result, v1};
use parking_lot::Mutex;
use pyo3::prelude::*;
use serde_json::json;

/// A dataset, open for reading.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Dataset(OfProcess<forebay_client::Dataset>);

/// Opens a dataset.
#[pyfunction]
#[pyo3(signature = (uri, *, columns, split, mix, segment_bytes, schema_of, partitions, r#where, place))]
#[expect(clippy::too_many_arguments, reason = "keywords, named at the one call")]
pub(crate) fn open(
    py: Python<'_>,
    uri: String,
    columns: Option<Vec<String>>,
    split: Option<&str>,
    mix: Vec<String>,
    segment_bytes: Option<u64>,
    schema_of: Option<String>,
    partitions: bool,
    r#where: Option<String>,
    place: Place,
) -> PyResult<Dataset> {
    let opened = || -> Result<(Access, DatasetSpec)> {
        let parse = |text: &str| text.parse().map_err(|e| Error::invalid(format!("split: {e}")));
        let split = split.map(parse).transpose()?;
        let part = |text: &String| text.parse().map_err(|e| Error::invalid(format!("mix: {e}")));
        let mix = mix.iter().map(part).collect::<Result<_>>()?;
        let _entered = runtime()?.enter();
        let mut spec = DatasetSpec::new(uri);
        (spec.split, spec.mix, spec.columns, spec.segment_bytes) = (split, mix, columns, segment_bytes);
        (spec.schema_of, spec.no_partitions, spec.filter) = (schema_of, !partitions, r#where);
        Ok((place.access()?, spec))
    };
    let (access, spec) = opened().map_err(|e| errors::raise(py, e))?;
    let dataset = wait(py, forebay_client::Dataset::open(&access, &spec))?;
    Ok(Dataset(OfProcess::new(dataset)))
}

impl Dataset {
    pub fn get(&self) -> Result<&forebay_client::Dataset> {
        self.0.get()
    }

    fn here(&self, py: Python<'_>) -> PyResult<&forebay_client::Dataset> {
        self.get().map_err(|e| errors::raise(py, e))
    }

    /// The cache behind it, for what only a cache can do.
    fn cache(&self, py: Python<'_>, what: &str) -> PyResult<(&forebay_client::Dataset, &Endpoints)> {
        let dataset = self.here(py)?;
        match &dataset.access {
            Access::Endpoint(endpoints) => Ok((dataset, endpoints)),
            Access::Direct(_) => {
                let uri = dataset.manifest.uri();
                let why = format!("{uri}: there is no cache to {what}: it was opened with direct=True");
                Err(errors::raise(py, Error::invalid(why)))
            }
        }
    }
}

#[pymethods]
impl Dataset {
    #[getter]
    fn uri(&self, py: Python<'_>) -> PyResult<&str> {
        Ok(self.here(py)?.manifest.uri())
    }

    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.here(py)?.manifest.digest().to_string())
    }

    #[getter]
    fn num_rows(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.here(py)?.manifest.rows())
    }

    /// Bytes of all segments, decoded, with all columns: as the manifest estimates them.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.here(py)?.manifest.decoded_bytes())
    }

    #[getter]
    fn epoch_samples(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.here(py)?.epoch_samples())
    }

    #[getter]
    fn num_segments(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.here(py)?.manifest.segments().len())
    }

    /// Objects that were left out, and what else a reader may not expect.
    #[getter]
    fn notes(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(self.here(py)?.notes.clone())
    }

    /// URI, version and bytes of each object.
    #[getter]
    fn objects(&self, py: Python<'_>) -> PyResult<Vec<(String, String, u64)>> {
        let manifest = &self.here(py)?.manifest;
        Ok(manifest.objects().iter().map(|o| (manifest.object_uri(o), o.etag.clone(), o.size)).collect())
    }

    #[getter]
    fn schema(&self, py: Python<'_>) -> PyResult<Schema> {
        rows::schema(self.here(py)?).map(Schema).map_err(|e| errors::raise(py, e))
    }

    /// The first `limit` rows in file order, or all.
    fn scan(&self, py: Python<'_>, limit: Option<u64>) -> PyResult<RecordBatchReader> {
        let dataset = self.here(py)?;
        Ok(RecordBatchReader::new(self.schema(py)?.0, wait(py, rows::scan(dataset, limit))?))
    }

    /// Rows by their numbers, in this order.
    fn take(&self, py: Python<'_>, numbers: Vec<u64>) -> PyResult<RecordBatchReader> {
        let dataset = self.here(py)?;
        Ok(RecordBatchReader::new(self.schema(py)?.0, wait(py, rows::take(dataset, &numbers))?))
    }

    /// Has the cache fill itself with the dataset; calls `progress` now and then with segments held and in
    /// all, decoded bytes held and in all, and bytes from the object store; returns the same.
    fn load(
        &self,
        py: Python<'_>,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(u64, u64, u64, u64, u64)> {
        let (dataset, endpoints) = self.cache(py, "load it into")?;
        let latest = Mutex::new(None);
        let filling = fill::fill(endpoints, dataset, |now| *latest.lock() = Some(*now));
        let filled = wait_and(py, filling, |_| {
            let now = latest.lock().take();
            match (progress, now) {
                (Some(progress), Some(now)) => progress.call1((numbers(&now),)).map(drop),
                _ => Ok(()),
            }
        })?;
        filled.check(dataset.manifest.uri()).map_err(|e| errors::raise(py, e))?;
        if let Some(progress) = progress {
            progress.call1((numbers(&filled.progress),))?;
        }
        Ok(numbers(&filled.progress))
    }

    /// Drops it from the cache; returns segments and bytes.
    fn free(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let (dataset, endpoints) = self.cache(py, "free it from")?;
        let done = wait(py, fan_out::free(endpoints, dataset.manifest.uri()))?;
        fan_out::check("freed", done.replies, &done.failed).map_err(|e| errors::raise(py, e))?;
        Ok((done.files, done.bytes))
    }

    /// Keeps it in the cache, or no longer; returns files and bytes that are held.
    fn pin(&self, py: Python<'_>, pinned: bool) -> PyResult<(u64, u64)> {
        let (dataset, endpoints) = self.cache(py, "pin it in")?;
        let done = wait(py, fan_out::pin(endpoints, dataset.manifest.uri(), pinned))?;
        let what = if pinned { "pinned" } else { "unpinned" };
        fan_out::check(what, done.replies, &done.failed).map_err(|e| errors::raise(py, e))?;
        Ok((done.files, done.bytes))
    }

    /// Of each node, what it holds of the dataset, or why it does not say: as JSON.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        let (dataset, endpoints) = self.cache(py, "ask")?;
        let (_, nodes) = wait(py, survey(endpoints))?;
        let digest = dataset.manifest.digest().to_bytes();
        let report = |node: &Surveyed| match &node.status {
            Err(e) => json!({"node": node.node.name, "address": node.node.address, "error": e.message}),
            Ok(status) => {
                let held =
                    status.datasets.iter().filter(|d| d.digest[..] == digest[..]).map(|d| d.segments_held);
                json!({
                    "node": node.node.name,
                    "address": node.node.address,
                    "segments_held": held.sum::<u64>(),
                    "cache_bytes_used": status.cache_bytes_used,
                    "cache_bytes_limit": status.cache_bytes_limit,
                    "version": status.version,
                })
            }
        };
        Ok(json!(nodes.iter().map(report).collect::<Vec<_>>()).to_string())
    }
}

fn numbers(p: &v1::LoadProgress) -> (u64, u64, u64, u64, u64) {
    (p.segments_held, p.segments_total, p.decoded_bytes_held, p.decoded_bytes_total, p.s3_bytes)
}
