//! Objects by where they are and which version they have.

use super::faults::Endpoint;
use super::guard::ObjectGuard;
use super::uri::{locate, spell};
use super::verbatim::Verbatim;
use crate::off_thread::blocking;
use forebay_proto::ring::is_under;
use forebay_proto::{Error, Result};
use object_store::list::PaginatedListStore;
use object_store::path::Path;
use object_store::{GetOptions, GetResult, GetResultPayload, ObjectMeta, ObjectStore};
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

/// A bucket, or the file system.
pub(super) struct Bucket {
    pub objects: Box<dyn ObjectStore>,
    /// The same, where it lists page by page.
    pub pages: Option<Box<dyn PaginatedListStore>>,
    pub endpoint: Endpoint,
    /// The same, where it is S3.
    pub verbatim: Option<Verbatim>,
    /// Which files may be read, wherever a link leads.
    pub guard: Option<ObjectGuard>,
}

impl Bucket {
    /// Asks for an object. A name may have become a link since it was looked at, so a file is looked at again
    /// when it is open.
    pub(super) async fn get(&self, path: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        let answer = self.objects.get_opts(path, options).await?;
        let (GetResultPayload::File(file, _), Some(guard)) = (&answer.payload, &self.guard) else {
            return Ok(answer);
        };
        let (guard, file) = (guard.clone(), file.try_clone());
        let checked = blocking(move || match file.and_then(|file| path_of(&file)) {
            Ok(path) => guard(&format!("file://{path}")),
            Err(e) => Err(Error::denied(format!("it is not known where it lies: {e}"))),
        });
        match checked.await {
            Ok(()) => Ok(answer),
            Err(e) => {
                Err(object_store::Error::PermissionDenied { path: path.to_string(), source: Box::new(e) })
            }
        }
    }
}

/// Where an open file lies, all links resolved.
fn path_of(file: &File) -> std::io::Result<String> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    path.into_os_string().into_string().map_err(|_| std::io::ErrorKind::InvalidFilename.into())
}

/// An object or a prefix in its bucket.
#[derive(Clone)]
pub(crate) struct Place {
    pub(super) bucket: Arc<Bucket>,
    pub(super) path: Path,
    /// What the place was opened by.
    pub(crate) uri: String,
}

/// An object in one of its versions.
#[derive(Clone)]
pub(crate) struct SourceObject {
    pub place: Place,
    /// The tag of the version, without quotes.
    pub etag: String,
    pub size: u64,
    /// What the object store calls the version; empty where that is not known, or it keeps none.
    pub version_id: String,
}

impl SourceObject {
    /// As HTTP has it.
    pub(super) fn quoted_etag(&self) -> String {
        format!("\"{}\"", self.etag)
    }

    /// An answer that says it is of another version, or of another length, is none: some object stores know
    /// no `If-Match`.
    pub(super) fn check_answer(&self, meta: &ObjectMeta) -> object_store::Result<()> {
        let bare = |tag: &str| tag.trim_start_matches("W/").trim_matches('"').to_owned();
        let is_other = meta.e_tag.as_deref().is_some_and(|tag| bare(tag) != bare(&self.etag));
        if self.place.is_file() || !is_other && meta.size == self.size {
            return Ok(());
        }
        let tag = meta.e_tag.as_deref().unwrap_or("unknown");
        let source = format!("the answer is of the version {tag}, of {} bytes", meta.size).into();
        Err(object_store::Error::Precondition { path: self.place.path.to_string(), source })
    }
}

impl Place {
    /// The path in the bucket: a listed object's key starts with it.
    pub(crate) fn path(&self) -> &str {
        self.path.as_ref()
    }

    /// Whether the place is in the file system.
    pub(crate) fn is_file(&self) -> bool {
        self.bucket.endpoint.bucket.is_none()
    }

    /// The token of the next page of a listing. `Invalid` if it is that of the page that was just asked for:
    /// such a listing has no end.
    pub(super) fn further(&self, asked: Option<&str>, next: Option<String>) -> Result<Option<String>> {
        match next.is_some() && next.as_deref() == asked {
            false => Ok(next),
            true => Err(Error::invalid(format!(
                "{}: {} says that the page after this one is this one: its listing has no end; is the endpoint \
                 right, and sound?",
                self.uri, self.bucket.endpoint.name
            ))),
        }
    }

    /// The directory whose links must not lead out of it: the object's dataset; of an object outside of that,
    /// which a table's log names, the object itself.
    pub(crate) fn within<'a>(&'a self, dataset: &'a str) -> &'a str {
        if is_under(&self.uri, dataset) { dataset } else { &self.uri }
    }

    /// `Denied` if the object, symbolic links resolved, lies outside of its dataset's normalised URI. Not for
    /// an async thread where it is a file.
    pub(crate) fn stays_under(&self, dataset: &str) -> Result<()> {
        if !self.is_file() || is_under(&spell(&self.uri, locate(&self.uri)?)?, dataset) {
            return Ok(());
        }
        Err(Error::denied(format!(
            "{}: is a link that leads out of {dataset}: name the target itself",
            self.uri
        )))
    }

    /// The object here, in the version that a listing or an answer names.
    pub(crate) fn object(&self, meta: &ObjectMeta) -> Result<SourceObject> {
        let etag = meta.e_tag.as_deref().map(|e| e.trim_matches('"')).filter(|e| !e.is_empty());
        let etag = etag.ok_or_else(|| {
            Error::invalid(format!(
                "{}: the object store gives no ETag, so versions cannot be told apart",
                self.uri
            ))
        })?;
        let (etag, version_id) = (etag.to_owned(), String::new());
        Ok(SourceObject { place: self.clone(), etag, size: meta.size, version_id })
    }
}
