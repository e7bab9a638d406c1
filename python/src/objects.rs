//! Any object, byte for byte: what `forebay.fs` is made of.

use crate::errors;
use crate::place::Place;
use crate::process::OfProcess;
use crate::runtime::{runtime, wait};
use bytes::Bytes;
use forebay_proto::{Error, Result, v1};
use futures::stream::{FuturesOrdered, FuturesUnordered};
use futures::{StreamExt, TryStreamExt};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Objects that are asked after at once, and ranges that are read at once.
const AT_ONCE: usize = 32;

/// Objects, through a cache or from the object store.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct Objects(OfProcess<forebay_client::objects::Objects>);

/// An object in one of its versions.
#[pyclass(frozen, module = "forebay._forebay")]
pub(crate) struct ObjectVersion(Version);

type Version = Arc<forebay_proto::object::ObjectVersion>;

/// What lies under a prefix, and what the next page is asked for with: URI, size, ETag and milliseconds since
/// 1970 of each object; URIs with objects below.
type Page = (Vec<(String, u64, String, i64)>, Vec<String>, String);

/// Bytes of a range as they came.
type Pieces = Vec<Bytes>;

#[pymethods]
impl ObjectVersion {
    #[getter]
    fn uri(&self) -> &str {
        &self.0.uri
    }

    #[getter]
    fn etag(&self) -> &str {
        &self.0.etag
    }

    #[getter]
    fn size(&self) -> u64 {
        self.0.size
    }

    /// When it was written, in milliseconds since 1970.
    #[getter]
    fn modified_ms(&self) -> i64 {
        self.0.modified_ms
    }
}

#[pymethods]
impl Objects {
    #[new]
    fn new(py: Python<'_>, place: Place) -> PyResult<Self> {
        let made = || {
            let _entered = runtime()?.enter();
            Ok(forebay_client::objects::Objects::new(&place.access()?))
        };
        Ok(Self(OfProcess::new(made().map_err(|e| errors::raise(py, e))?)))
    }

    /// The object in its version of now.
    fn version(&self, py: Python<'_>, uri: &str) -> PyResult<ObjectVersion> {
        wait(py, self.here(py)?.version(uri)).map(ObjectVersion)
    }

    /// A page of what lies directly below a URI, or of all objects below it.
    fn list(&self, py: Python<'_>, uri: String, recursive: bool, token: String) -> PyResult<Page> {
        let request = v1::ListObjectsRequest { uri, recursive, token, limit: 0 };
        let page = wait(py, self.here(py)?.list(&request))?;
        let objects = page.objects.into_iter().map(|o| (o.uri, o.size, o.etag, o.modified_ms));
        Ok((objects.collect(), page.prefixes, page.token))
    }

    /// Bytes `start .. end` of a version, which must have them.
    fn read<'py>(
        &self,
        py: Python<'py>,
        version: &ObjectVersion,
        start: u64,
        end: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let pieces = wait(py, range(self.here(py)?, &version.0, start, end))?;
        joined(py, &pieces)
    }

    /// Ranges of objects in their versions of now, all at once: the bytes, or the exception, of each.
    /// Numbers below 0 count from an object's end, None is its start or end; what lies beyond is left out.
    fn cat<'py>(
        &self,
        py: Python<'py>,
        wanted: Vec<(String, Option<i64>, Option<i64>)>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let read = cat(self.here(py)?, wanted);
        let result = |read: Result<Pieces>| match read {
            Ok(pieces) => Ok(joined(py, &pieces)?.into_any()),
            Err(e) => Ok(errors::raise(py, e).into_value(py).into_bound(py).into_any()),
        };
        wait(py, read)?.into_iter().map(result).collect()
    }
}

impl Objects {
    fn here(&self, py: Python<'_>) -> PyResult<&forebay_client::objects::Objects> {
        self.0.get().map_err(|e| errors::raise(py, e))
    }
}

/// The pieces of each range; an object that is named several times is asked after once.
async fn cat(
    objects: &forebay_client::objects::Objects,
    wanted: Vec<(String, Option<i64>, Option<i64>)>,
) -> Result<Vec<Result<Pieces>>> {
    let uris: BTreeSet<String> = wanted.iter().map(|(uri, ..)| uri.clone()).collect();
    let mut asked = FuturesUnordered::new();
    let (mut uris, mut versions) = (uris.into_iter(), HashMap::new());
    loop {
        asked.extend(uris.by_ref().take(AT_ONCE - asked.len()).map(|uri| ask(objects, uri)));
        let Some((uri, version)) = asked.next().await else { break };
        versions.insert(uri, version);
    }
    let mut ranges = wanted.into_iter().map(|(uri, start, end)| (versions[&uri].clone(), start, end));
    let (mut reading, mut read) = (FuturesOrdered::new(), Vec::new());
    loop {
        reading.extend(ranges.by_ref().take(AT_ONCE - reading.len()).map(|part| cut(objects, part)));
        let Some(pieces) = reading.next().await else { return Ok(read) };
        read.push(pieces);
    }
}

async fn ask(objects: &forebay_client::objects::Objects, uri: String) -> (String, Result<Version>) {
    let version = objects.version(&uri).await;
    (uri, version)
}

async fn cut(
    objects: &forebay_client::objects::Objects,
    (version, start, end): (Result<Version>, Option<i64>, Option<i64>),
) -> Result<Pieces> {
    let version = version?;
    let (start, end) = (place(start, 0, version.size), place(end, version.size, version.size));
    range(objects, &version, start, end.max(start)).await
}

async fn range(
    objects: &forebay_client::objects::Objects,
    version: &Version,
    start: u64,
    end: u64,
) -> Result<Pieces> {
    if end < start {
        return Err(Error::invalid(format!("{}: a range from {start} to {end}", version.uri)));
    }
    objects.read(version, start..end)?.try_collect().await
}

/// Where a number of Python's slices points to in an object of `size` bytes.
fn place(number: Option<i64>, none: u64, size: u64) -> u64 {
    match number {
        None => none,
        Some(number) if number < 0 => size.saturating_sub(number.unsigned_abs()),
        Some(number) => size.min(number.unsigned_abs()),
    }
}

/// Pieces in one object of Python's; other threads go on meanwhile.
fn joined<'py>(py: Python<'py>, pieces: &[Bytes]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, pieces.iter().map(Bytes::len).sum(), |to| {
        py.detach(move || {
            let mut to = to;
            for piece in pieces {
                let (now, rest) = to.split_at_mut(piece.len());
                now.copy_from_slice(piece);
                to = rest;
            }
        });
        Ok(())
    })
}
