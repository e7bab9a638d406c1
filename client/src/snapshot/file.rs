//! Snapshots as files: JSON in the form of `forebay inspect --json`, which `@FILE` reads too.

use forebay_dataset::source::{is_version, normalise};
use forebay_proto::manifest::{Digest, Object};
use forebay_proto::{Error, Kind, Result, v1};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

/// What the names of files end in.
const SUFFIX: &str = ".json";

/// The JSON of a version. What `forebay inspect --json` prints has more fields, and neither of the first two.
#[derive(Serialize, Deserialize)]
struct VersionFile {
    #[serde(default)]
    name: String,
    #[serde(default)]
    saved_unix_s: u64,
    uri: String,
    #[serde(default)]
    digest: String,
    #[serde(default)]
    rows: u64,
    segment_bytes: u64,
    schema_of: Option<String>,
    #[serde(default)]
    no_partitions: bool,
    #[serde(rename = "where")]
    filter: Option<String>,
    objects: Vec<ObjectEntry>,
}

#[derive(Serialize, Deserialize)]
struct ObjectEntry {
    key: String,
    etag: String,
    bytes: u64,
    /// The object store's, where it keeps versions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    version_id: String,
}

/// The version that a text is. Follows links: not for an async thread.
pub(crate) fn parse(text: &str) -> Result<v1::Snapshot> {
    let bad = |e| Error::invalid(format!("is not JSON of `forebay inspect --json` or of a snapshot: {e}"));
    let f: VersionFile = serde_json::from_str(text).map_err(bad)?;
    // The log of a table keeps which objects a version has.
    let is_table = is_version(&f.uri);
    if !is_table && f.objects.is_empty() || f.objects.iter().any(|o| o.etag.is_empty()) {
        return Err(Error::invalid("it names no objects, or some without their versions"));
    }
    let digest = match f.digest.as_str() {
        "" => Vec::new(),
        digest => digest.parse::<Digest>()?.to_bytes().to_vec(),
    };
    let object =
        |o: ObjectEntry| Object { key: o.key, etag: o.etag, size: o.bytes, version_id: o.version_id };
    let (count, bytes) = (f.objects.len() as u64, f.objects.iter().map(|o| o.bytes).sum());
    let dataset = v1::DatasetSpec {
        uri: normalise(&f.uri)?,
        segment_bytes: f.segment_bytes,
        schema_of: f.schema_of.unwrap_or_default(),
        no_partitions: f.no_partitions,
        filter: f.filter.unwrap_or_default(),
        objects: f.objects.into_iter().filter(|_| !is_table).map(object).collect(),
        ..Default::default()
    };
    Ok(v1::Snapshot {
        name: f.name,
        digest: digest.into(),
        rows: f.rows,
        objects: count,
        object_bytes: bytes,
        saved_unix_s: f.saved_unix_s,
        dataset: Some(dataset),
        ..Default::default()
    })
}

/// What [`parse`] reads.
pub(super) fn json(snapshot: &v1::Snapshot) -> serde_json::Value {
    let dataset = snapshot.dataset.clone().unwrap_or_default();
    let text = |text: String| Some(text).filter(|text| !text.is_empty());
    let entry = |o: Object| ObjectEntry { key: o.key, etag: o.etag, bytes: o.size, version_id: o.version_id };
    let file = VersionFile {
        name: snapshot.name.clone(),
        saved_unix_s: snapshot.saved_unix_s,
        uri: dataset.uri,
        digest: Digest::from_bytes(&snapshot.digest).map(|d| d.to_string()).unwrap_or_default(),
        rows: snapshot.rows,
        segment_bytes: dataset.segment_bytes,
        schema_of: text(dataset.schema_of),
        no_partitions: dataset.no_partitions,
        filter: text(dataset.filter),
        objects: dataset.objects.into_iter().map(entry).collect(),
    };
    // Texts, numbers and lists always become JSON.
    serde_json::to_value(file).unwrap_or_default()
}

/// A directory of snapshots. Not for async threads.
pub(super) struct Folder(pub PathBuf);

impl Folder {
    fn file(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}{SUFFIX}"))
    }

    /// Never writes over a file: of two savers at the same time one finds the other's.
    pub fn save(&self, snapshot: &v1::Snapshot) -> Result<()> {
        let file = self.file(&snapshot.name);
        let failed =
            |e: io::Error| Error::new(kind(&e), format!("{}: cannot be written: {e}", file.display()));
        fs::create_dir_all(&self.0).map_err(failed)?;
        // Written aside first, so that nobody reads half of it.
        let aside = self.0.join(format!(".{}.{}.{:x}", snapshot.name, std::process::id(), fastrand::u64(..)));
        let text = format!("{:#}\n", json(snapshot));
        let written = fs::File::create_new(&aside).and_then(|mut out| {
            out.write_all(text.as_bytes())?;
            out.sync_all()?;
            fs::hard_link(&aside, &file)
        });
        fs::remove_file(&aside).ok();
        match written {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => self.is_same(snapshot),
            written => written.map_err(failed),
        }
    }

    /// `Invalid` if the snapshot of that name is another one.
    fn is_same(&self, snapshot: &v1::Snapshot) -> Result<()> {
        let other = self.get(&snapshot.name)?;
        let uri = |s: &v1::Snapshot| s.dataset.as_ref().map(|d| d.uri.clone()).unwrap_or_default();
        match (&other.digest, uri(&other)) == (&snapshot.digest, uri(snapshot)) {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "{}: is a snapshot of {} already: choose another name, or remove that one first",
                self.file(&snapshot.name).display(),
                uri(&other)
            ))),
        }
    }

    pub fn get(&self, name: &str) -> Result<v1::Snapshot> {
        let file = self.file(name);
        let missing = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => Error::not_found(format!(
                "there is no snapshot `{name}` in {}: `forebay snapshot list --dir` shows those that it has",
                self.0.display()
            )),
            _ => Error::new(kind(&e), format!("{}: cannot be read: {e}", file.display())),
        };
        let text = fs::read_to_string(&file).map_err(missing)?;
        let snapshot = parse(&text).map_err(|e| e.context(file.display()))?;
        Ok(v1::Snapshot { name: name.to_owned(), ..snapshot })
    }

    /// Files that are none are left out.
    pub fn list(&self) -> Result<Vec<v1::Snapshot>> {
        let failed =
            |e: io::Error| Error::new(kind(&e), format!("{}: cannot be read: {e}", self.0.display()));
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.0).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let name = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            all.extend(name.filter(|name| !name.starts_with('.')).and_then(|name| self.get(name).ok()));
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    pub fn remove(&self, name: &str) -> Result<()> {
        // Other files are left alone.
        self.get(name)?;
        let file = self.file(name);
        let failed =
            |e: io::Error| Error::new(kind(&e), format!("{}: cannot be removed: {e}", file.display()));
        fs::remove_file(&file).map_err(failed)
    }
}

/// What the caller must do about a file that cannot be used.
fn kind(e: &io::Error) -> Kind {
    match e.kind() {
        io::ErrorKind::NotFound => Kind::NotFound,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Kind::Denied,
        io::ErrorKind::StorageFull => Kind::Full,
        _ => Kind::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn snapshot(name: &str, digest: u128) -> v1::Snapshot {
        let dataset = v1::DatasetSpec {
            uri: "s3://b/t".into(),
            segment_bytes: 5,
            no_partitions: true,
            filter: "x > 3".into(),
            objects: vec![Object { key: "a".into(), etag: "e".into(), size: 9, version_id: "v".into() }],
            ..Default::default()
        };
        v1::Snapshot {
            name: name.into(),
            dataset: Some(dataset),
            digest: digest.to_be_bytes().to_vec().into(),
            rows: 7,
            objects: 1,
            object_bytes: 9,
            saved_unix_s: 1_700_000_000,
            ..Default::default()
        }
    }

    #[test]
    fn what_was_saved_is_read_listed_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder(dir.path().join("made"));
        for name in ["b", "a"] {
            folder.save(&snapshot(name, 1)).unwrap();
        }
        folder.save(&snapshot("a", 1)).expect("the same again");
        let e = folder.save(&snapshot("a", 2)).unwrap_err();
        assert!(e.message.contains("a.json: is a snapshot of s3://b/t already"), "{e}");
        assert_eq!(folder.get("a").unwrap(), snapshot("a", 1));
        fs::write(folder.file("other"), "{}").unwrap();
        let names = |all: Vec<v1::Snapshot>| all.into_iter().map(|s| s.name).collect::<Vec<_>>();
        assert_eq!(names(folder.list().unwrap()), ["a", "b"]);
        assert!(folder.remove("other").unwrap_err().message.contains("other.json: is not JSON of"));
        folder.remove("a").unwrap();
        let e = folder.get("a").unwrap_err();
        assert_eq!(e.kind, Kind::NotFound);
        assert!(e.message.contains("no snapshot `a` in ") && e.message.contains("snapshot list"), "{e}");
        assert!(Folder("/no/such".into()).list().unwrap_err().message.contains("/no/such"));
    }

    #[test]
    fn of_many_savers_at_once_one_wins_whole() {
        let dir = tempfile::tempdir().unwrap();
        let save = |digest: u128| Folder(dir.path().to_owned()).save(&snapshot("a", digest));
        let saved: Vec<_> = thread::scope(|scope| {
            let savers: Vec<_> = (0..8).map(|digest| scope.spawn(move || save(digest))).collect();
            savers.into_iter().map(|saver| saver.join().unwrap()).collect()
        });
        assert_eq!(saved.iter().filter(|saved| saved.is_ok()).count(), 1, "{saved:?}");
        let winner = saved.iter().position(Result::is_ok).unwrap() as u128;
        assert_eq!(Folder(dir.path().to_owned()).get("a").unwrap(), snapshot("a", winner));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left aside");
    }
}
