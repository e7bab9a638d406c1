//! Which objects a dataset has.
//!
//! * Those under a prefix, or that a pattern names, in byte order of their keys; the one object that a URI
//!   names; or those of a list, in its order.
//! * Under a prefix a name counts that ends in `.parquet`, `.parq` or `.pq`, in upper or lower case. Where
//!   none does, those without any ending count that begin as Parquet does (`000000_0` of Hive and Spark).
//! * Hidden names (`_SUCCESS`, `_temporary/..`, `.crc`) do not count, and neither do objects without bytes.

use super::pattern::{Fit, Pattern};
use crate::delta::{TableFile, TableLog};
use crate::off_thread::blocking;
use crate::selection::Selection;
use crate::source::{Place, Source, SourceObject};
use crate::urgency::Urgency;
use forebay_proto::manifest::{object_uri, uri_below};
use forebay_proto::{Error, Kind, Result};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// What names of Parquet objects end in.
const ENDINGS: [&str; 3] = [".parquet", ".parq", ".pq"];

/// What Parquet objects begin with.
const MAGIC: &[u8] = b"PAR1";

/// An object's key below the dataset's URI (or its full URI, if the dataset's is a pattern), and the object.
pub(super) type Listed = (String, SourceObject);

/// The objects of a dataset, and what to tell people of those left out.
pub(super) struct Found {
    pub objects: Vec<Listed>,
    pub notes: Vec<String>,
    /// What the log of a table says of them.
    pub log: Option<TableLog>,
}

/// What lies under a URI.
#[derive(Default)]
struct Listing {
    /// Of names that count.
    counted: Vec<Listed>,
    /// Of names that do not say what they are.
    unsaid: Vec<Listed>,
    empty: Left,
    hidden: Left,
    other: Left,
}

/// Objects that are left out.
#[derive(Default)]
struct Left {
    count: usize,
    /// One of them.
    such_as: String,
}

/// The objects of a dataset, whose URI is normalised.
pub(super) async fn find(source: &Source, selection: &Selection) -> Result<Found> {
    if !selection.objects.is_empty() {
        return Ok(Found { objects: listed(source, selection).await?, notes: Vec::new(), log: None });
    }
    let uri = &selection.uri;
    if let Some(pattern) = Pattern::of(uri)? {
        let root = source.place(&pattern.base)?;
        let mut listing = under(source, &root, Some(&pattern)).await?;
        if root.is_file() {
            listing = stay(listing, &pattern.base).await?;
        }
        return listing.found(source, uri).await;
    }
    let root = source.place(uri)?;
    let single = |object| Found { objects: vec![(String::new(), object)], notes: Vec::new(), log: None };
    // An object, by its name or by what the file system says. The error of a request names a fault best.
    let is_object = match root.is_file() {
        true => !tokio::fs::metadata(format!("/{}", root.path())).await.is_ok_and(|m| !m.is_file()),
        false => counts(root.path()),
    };
    if is_object {
        match source.head(&root).await {
            Err(e) if e.kind == Kind::NotFound && !root.is_file() => {}
            head => return head.map(single),
        }
    }
    let mut listing = under(source, &root, None).await?;
    if root.is_file() {
        listing = stay(listing, uri).await?;
    }
    if listing.is_nothing() && !root.is_file() && !root.path().is_empty() && !is_object {
        // It may name an object with another ending.
        match source.head(&root).await {
            Err(e) if e.kind == Kind::NotFound => {}
            head => return head.map(single),
        }
    }
    listing.found(source, uri).await
}

/// The objects that a list names, in its order.
async fn listed(source: &Source, selection: &Selection) -> Result<Vec<Listed>> {
    let mut seen = HashSet::new();
    if let Some(twice) = selection.objects.iter().find(|object| !seen.insert(&object.key)) {
        return Err(Error::invalid(format!("{}: the list names it twice", selection.object_uri(&twice.key))));
    }
    let named: Vec<BoxFuture<'_, Result<Listed>>> = selection
        .objects
        .iter()
        .map(|named| {
            async {
                let place = source.place(&selection.object_uri(&named.key))?;
                let object = match named.etag.as_str() {
                    "" => source.head(&place).await?,
                    etag => SourceObject {
                        place,
                        etag: etag.to_owned(),
                        size: named.size,
                        version_id: named.version_id.clone(),
                    },
                };
                Ok((named.key.clone(), object))
            }
            .boxed()
        })
        .collect();
    stream::iter(named).buffered(source.settings().s3_max_requests).try_collect().await
}

/// The objects that the log of the table under `root` names.
pub(super) async fn logged(source: &Source, root: &str, log: TableLog) -> Result<Found> {
    let place = source.place(root)?;
    let is_outside = |file: &TableFile| file.key.contains("://");
    let listed = match log.files.iter().all(is_outside) {
        true => Vec::new(),
        false => source.list(&place).await?,
    };
    let keyed = listed.into_iter().map(|meta| {
        let key = meta.location.as_ref().strip_prefix(place.path()).unwrap_or_default();
        (key.trim_start_matches('/').to_owned(), meta)
    });
    let listed: HashMap<String, _> = keyed.collect();
    let all: Vec<BoxFuture<'_, Result<Listed>>> = log
        .files
        .iter()
        .map(|file| {
            let listed = &listed;
            async move {
                let uri = object_uri(root, &file.key);
                let object = match (is_outside(file), listed.get(&file.key)) {
                    (true, _) => outside(source, root, &uri).await?,
                    (false, Some(meta)) => Some(source.place(&uri)?.object(meta)?),
                    (false, None) => None,
                };
                let object = object.ok_or_else(|| {
                    let place = match is_outside(file) {
                        true => format!(" (outside of {root}, as a shallow clone has)"),
                        false => String::new(),
                    };
                    Error::not_found(format!(
                        "{uri}{place}: is gone, and version {} of the table has it (was it vacuumed?): name another version",
                        log.version.number
                    ))
                })?;
                as_logged(file, object)
            }
            .boxed()
        })
        .collect();
    let all = stream::iter(all).buffered(source.settings().s3_max_requests);
    let found = Found { objects: all.try_collect().await?, notes: Vec::new(), log: Some(log) };
    if !place.is_file() {
        return Ok(found);
    }
    let directory = root.to_owned();
    blocking(move || {
        let within = |place: &Place| place.stays_under(place.within(&directory));
        found.objects.iter().try_for_each(|(_, object)| within(&object.place))?;
        Ok(found)
    })
    .await
}

/// An object of another table, which a shallow clone shares with it; none if it is gone.
async fn outside(source: &Source, root: &str, uri: &str) -> Result<Option<SourceObject>> {
    let (guard, object) = (source.clone(), uri.to_owned());
    let clone = |e: Error| {
        let what = "its log names an object outside of it, as a shallow clone has";
        Error::new(e.kind, format!("{root}: {what}: {}", e.message))
    };
    blocking(move || guard.check_outside(&object)).await.map_err(clone)?;
    match source.head(&source.place(uri)?).await {
        Ok(object) => Ok(Some(object)),
        Err(e) if e.kind == Kind::NotFound => Ok(None),
        Err(e) => Err(clone(e)),
    }
}

/// `Corrupt` unless the object has the size that the log says.
fn as_logged(file: &TableFile, object: SourceObject) -> Result<Listed> {
    match object.size == file.size {
        true => Ok((file.key.clone(), object)),
        false => Err(Error::corrupt(format!(
            "{}: has {} bytes, the table's log says {}: it was overwritten",
            object.place.uri, object.size, file.size
        ))),
    }
}

/// All objects under `root`, sorted out; with a pattern those that it names.
async fn under(source: &Source, root: &Place, pattern: Option<&Pattern>) -> Result<Listing> {
    let mut listing = Listing::default();
    let listed = match source.list(root).await {
        Err(e) if root.is_file() => return Err(not_text(root).await?.unwrap_or(e)),
        listed => listed?,
    };
    for meta in listed {
        let full: &str = meta.location.as_ref();
        let Some(key) = full.strip_prefix(root.path()).map(|k| k.trim_start_matches('/')) else {
            continue;
        };
        let fit = match pattern.map(|pattern| pattern.fit(key)) {
            Some(None) => continue,
            fit => fit.flatten(),
        };
        if key.split('/').any(|part| part.starts_with(['_', '.'])) {
            listing.hidden.add(key);
            continue;
        }
        let (is_counted, is_unsaid) = (counts(key), fit == Some(Fit::Object) || says_nothing(key));
        if !is_counted && !is_unsaid {
            listing.other.add(key);
            continue;
        }
        let uri = uri_below(&root.uri, key);
        let object = source.place(&uri)?.object(&meta)?;
        let key = if pattern.is_some() { uri } else { key.to_owned() };
        if is_counted { &mut listing.counted } else { &mut listing.unsaid }.push((key, object));
    }
    for objects in [&mut listing.counted, &mut listing.unsaid] {
        objects.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        drop_markers(objects);
    }
    let empty = &mut listing.empty;
    listing.counted.retain(|(key, object)| object.size > 0 || empty.skip(key));
    listing.unsaid.retain(|(_, object)| object.size > 0);
    Ok(listing)
}

/// The listing of a directory, whose files must not be links that lead out of it.
async fn stay(listing: Listing, directory: &str) -> Result<Listing> {
    let directory = directory.to_owned();
    blocking(move || {
        let mut all = listing.counted.iter().chain(&listing.unsaid);
        all.try_for_each(|(_, object)| object.place.stays_under(&directory))?;
        Ok(listing)
    })
    .await
}

/// The error of a directory that has a name which is not UTF-8.
async fn not_text(root: &Place) -> Result<Option<Error>> {
    fn first(directory: &Path) -> Option<PathBuf> {
        let entries = std::fs::read_dir(directory).ok()?.flatten();
        let bad = |path: PathBuf| match path.file_name()?.to_str() {
            None => Some(path),
            Some(_) if path.is_symlink() => None,
            Some(_) => first(&path),
        };
        entries.map(|entry| entry.path()).find_map(bad)
    }
    let directory = PathBuf::from(format!("/{}", root.path()));
    let found = blocking(move || Ok(first(&directory))).await?;
    Ok(found
        .map(|path| Error::invalid(format!("file://{}: its name is not UTF-8: rename it", path.display()))))
}

impl Listing {
    fn is_nothing(&self) -> bool {
        self.counted.is_empty() && self.unsaid.is_empty()
    }

    /// The objects of the dataset; `NotFound` says what there is instead.
    async fn found(mut self, source: &Source, uri: &str) -> Result<Found> {
        if self.counted.is_empty() {
            for (key, object) in std::mem::take(&mut self.unsaid) {
                match is_parquet(source, &object).await? {
                    true => self.counted.push((key, object)),
                    false => self.other.add(&key),
                }
            }
        }
        if self.counted.is_empty() {
            return Err(Error::not_found(format!("{uri}: no Parquet objects under it: {}", self.instead())));
        }
        let notes = self.empty.text("without bytes").map(|left| format!("{uri}: left out: {left}"));
        Ok(Found { objects: self.counted, notes: notes.into_iter().collect(), log: None })
    }

    /// What there is besides Parquet.
    fn instead(&self) -> String {
        let kinds = [
            self.other.text("of other kinds"),
            self.empty.text("without bytes"),
            self.hidden.text("with hidden names"),
        ];
        match kinds.into_iter().flatten().collect::<Vec<_>>() {
            kinds if kinds.is_empty() => "nothing lies there".to_owned(),
            kinds => format!(
                "there are {}; names that count end in .parquet, .parq or .pq, or have no ending and Parquet's content",
                kinds.join(", ")
            ),
        }
    }
}

impl Left {
    fn add(&mut self, key: &str) {
        self.count += 1;
        if self.such_as.is_empty() {
            key.clone_into(&mut self.such_as);
        }
    }

    /// Adds an object that is not to be retained.
    fn skip(&mut self, key: &str) -> bool {
        self.add(key);
        false
    }

    fn text(&self, what: &str) -> Option<String> {
        let noun = if self.count == 1 { "object" } else { "objects" };
        (self.count > 0).then(|| format!("{} {noun} {what} ({})", self.count, self.such_as))
    }
}

/// Whether the name of a key says that it is Parquet.
fn counts(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ENDINGS.iter().any(|ending| key.ends_with(ending))
}

/// Whether the name of a key does not say what it is.
fn says_nothing(key: &str) -> bool {
    !key.rsplit('/').next().unwrap_or(key).contains('.')
}

async fn is_parquet(source: &Source, object: &SourceObject) -> Result<bool> {
    let length = MAGIC.len() as u64;
    Ok(object.size > 2 * length && source.get(object, 0..length, &Urgency::demand()).await? == MAGIC)
}

/// Drops what some tools leave to mark a directory `x.parquet/`: an object without bytes, whose key others go
/// on from.
fn drop_markers(objects: &mut Vec<Listed>) {
    let markers: Vec<bool> = objects
        .iter()
        .map(|(key, object)| {
            let inside = format!("{key}/");
            let next = objects.partition_point(|(other, _)| *other < inside);
            object.size == 0 && objects.get(next).is_some_and(|(other, _)| other.starts_with(&inside))
        })
        .collect();
    let mut markers = markers.into_iter();
    objects.retain(|_| !markers.next().unwrap_or(false));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_they_are() {
        for key in ["a.parquet", "x=1/a.PARQUET", "a.snappy.parquet", "a.parq", "a.pq"] {
            assert!(counts(key), "{key}");
        }
        assert!(!counts("a.csv") && !counts("a.parquet/") && !counts("parquet") && !counts(""));
        assert!(says_nothing("x.y/000000_0") && says_nothing("part-0") && !says_nothing("a.csv"));
    }
}
