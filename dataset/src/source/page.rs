//! A listing page by page: as the object store gives them, or of a folder, which is looked through for each.

use super::object::Bucket;
use futures::TryStreamExt;
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{ListResult, ObjectMeta, Result};

/// Which page of a listing is wanted.
#[derive(Debug, Clone)]
pub(crate) struct PageRequest {
    /// All that lies below, rather than what lies directly below.
    pub is_recursive: bool,
    /// What the page before said.
    pub token: Option<String>,
    /// Entries at most.
    pub limit: usize,
}

/// A page of a listing: objects, and the prefixes that more of them lie under.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub objects: Vec<FoundObject>,
    /// Keys, without the slash at their end.
    pub prefixes: Vec<String>,
    /// For the next page; none on the last.
    pub token: Option<String>,
}

/// An object as a listing or a HEAD tells it.
#[derive(Debug, Clone)]
pub(crate) struct FoundObject {
    pub key: String,
    /// Without quotes; empty if there is none.
    pub etag: String,
    pub size: u64,
    /// In milliseconds since 1970.
    pub modified_ms: i64,
    /// Other headers, as lines; a HEAD tells them.
    pub headers: String,
}

impl From<&ObjectMeta> for FoundObject {
    fn from(meta: &ObjectMeta) -> Self {
        let etag = meta.e_tag.as_deref().unwrap_or_default();
        Self {
            key: meta.location.to_string(),
            etag: etag.strip_prefix('"').and_then(|etag| etag.strip_suffix('"')).unwrap_or(etag).to_owned(),
            size: meta.size,
            modified_ms: meta.last_modified.timestamp_millis(),
            headers: String::new(),
        }
    }
}

impl Page {
    fn new(objects: &[ObjectMeta], prefixes: &[Path], token: Option<String>) -> Self {
        let prefixes = prefixes.iter().map(Path::to_string).collect();
        Self { objects: objects.iter().map(FoundObject::from).collect(), prefixes, token }
    }
}

impl Bucket {
    /// A page of what lies under a prefix, on a `/` boundary.
    pub(super) async fn page(&self, prefix: &Path, wanted: &PageRequest) -> Result<Page> {
        let Some(pages) = &self.pages else { return self.folder_page(prefix, wanted).await };
        let prefix = format!("{prefix}/");
        let options = PaginatedListOptions {
            delimiter: (!wanted.is_recursive).then(|| "/".into()),
            max_keys: Some(wanted.limit),
            page_token: wanted.token.clone(),
            ..Default::default()
        };
        let listed = pages.list_paginated(Some(&prefix).filter(|p| *p != "/").map(|p| &**p), options).await?;
        let ListResult { objects, common_prefixes, .. } = listed.result;
        Ok(Page::new(&objects, &common_prefixes, listed.page_token))
    }

    /// A page of the objects below a prefix, on a `/` boundary, that come after a key, and the token of the
    /// next page; of a folder all.
    pub(super) async fn objects_after(
        &self,
        prefix: &Path,
        after: Option<&Path>,
        token: Option<String>,
    ) -> Result<(Vec<ObjectMeta>, Option<String>)> {
        let prefix = Some(prefix).filter(|prefix| !prefix.as_ref().is_empty());
        let Some(pages) = &self.pages else {
            let listed = match after {
                Some(after) => self.objects.list_with_offset(prefix, after),
                None => self.objects.list(prefix),
            };
            return Ok((listed.try_collect().await?, None));
        };
        let (prefix, offset) = (prefix.map(|prefix| format!("{prefix}/")), after.map(Path::to_string));
        let options = PaginatedListOptions { offset, page_token: token, ..Default::default() };
        let listed = pages.list_paginated(prefix.as_deref(), options).await?;
        Ok((listed.result.objects, listed.page_token))
    }

    /// In the order of names; the token is the last one of the page before.
    async fn folder_page(&self, prefix: &Path, wanted: &PageRequest) -> Result<Page> {
        let prefix = Some(prefix).filter(|prefix| !prefix.as_ref().is_empty());
        let ListResult { mut objects, mut common_prefixes, .. } = match wanted.is_recursive {
            false => self.objects.list_with_delimiter(prefix).await?,
            true => {
                let objects = self.objects.list(prefix).try_collect().await?;
                ListResult { objects, common_prefixes: Vec::new(), extensions: Default::default() }
            }
        };
        let is_next = |path: &Path| wanted.token.as_ref().is_none_or(|token| path.as_ref() > token.as_str());
        objects.retain(|object| is_next(&object.location));
        common_prefixes.retain(is_next);
        let mut names: Vec<&str> =
            objects.iter().map(|o| &o.location).chain(&common_prefixes).map(AsRef::as_ref).collect();
        names.sort_unstable();
        let token = (names.len() > wanted.limit).then(|| names[wanted.limit - 1].to_owned());
        let is_here = |path: &Path| token.as_ref().is_none_or(|token| path.as_ref() <= token.as_str());
        objects.retain(|object| is_here(&object.location));
        common_prefixes.retain(is_here);
        objects.sort_by(|a, b| a.location.cmp(&b.location));
        common_prefixes.sort();
        Ok(Page::new(&objects, &common_prefixes, token))
    }
}
