//! The Parquet files that data tests read, and pyarrow, which says their values.
//!
//! `scripts/make_fixtures.py` writes the files, once for all tests of this executable.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use forebay_tests::harness::mnist::upload_folder;
use forebay_tests::harness::process::Run;
use forebay_tests::harness::s3::S3Server;

/// Names of the datasets that must be read as pyarrow reads them, as in `good/nested`.
pub fn good() -> Vec<String> {
    names("good")
}

/// Names of the datasets that must give an error, as in `bad/truncated`.
pub fn bad() -> Vec<String> {
    names("bad")
}

fn names(kind: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root().join(kind)).expect("list the fixtures");
    let name = |entry: std::fs::DirEntry| format!("{kind}/{}", entry.file_name().to_string_lossy());
    let mut names: Vec<String> = entries.map(|entry| name(entry.expect("list the fixtures"))).collect();
    names.sort();
    assert!(names.len() > 10, "the fixtures are not all there: {names:?}");
    names
}

/// The folder of a dataset, as in `good/nested` or `bad/truncated`.
pub fn folder(name: &str) -> PathBuf {
    let folder = root().join(name);
    assert!(folder.is_dir(), "{} is no fixture", folder.display());
    folder
}

/// Puts a dataset under its own name into the server's bucket, and gives its URI.
pub fn upload(s3: &S3Server, name: &str) -> String {
    upload_folder(s3, &folder(name), name).expect("read the fixture");
    s3.uri(name)
}

/// Puts all good datasets into the server's bucket; gives name and URI of each.
pub fn upload_good(s3: &S3Server) -> Vec<(String, String)> {
    good().into_iter().map(|name| (name.clone(), upload(s3, &name))).collect()
}

/// Arrow IPC streams beside the folders of Parquet files that they should equal.
pub struct Comparison {
    streams: tempfile::TempDir,
    pairs: Vec<PathBuf>,
}

impl Comparison {
    /// Nothing yet.
    pub fn new() -> Self {
        Self { streams: tempfile::tempdir().expect("make a folder"), pairs: Vec::new() }
    }

    /// Adds a stream and the folder with what it should hold, or the stream that it should equal.
    pub fn add(&mut self, folder: PathBuf, stream: &[u8]) {
        let file = self.streams.path().join(self.pairs.len().to_string());
        std::fs::write(&file, stream).expect("write a stream");
        self.pairs.extend([folder, file]);
    }

    /// Compares all of them, value by value.
    ///
    /// # Panics
    /// If one differs; the message says where.
    pub fn check(self, options: &[&str]) {
        let count = self.pairs.len() / 2;
        let ended = script("compare.py").args(options).args(&self.pairs).end();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(said.lines().count(), count, "each pair has its line:\n{said}");
    }
}

/// A script of `scripts/`, run by the Python that has pyarrow.
///
/// # Panics
/// If that is not set up.
pub fn script(name: &str) -> Run {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let python = project.join(".venv/bin/python");
    assert!(python.exists(), "there is no {}: run `make test`, which sets it up", python.display());
    Run::program(python, name).arg(project.join("scripts").join(name))
}

/// Where the tables are that `scripts/make_real_tables.py` writes, once for all tests of this executable.
pub fn real_tables() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("real-tables");
        script("make_real_tables.py").arg(&root).end().expect_success();
        root
    })
}

/// Where the tables are that `scripts/make_delta_tables.py` writes, once for all tests of this executable.
pub fn delta_tables() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("delta-tables");
        script("make_delta_tables.py").arg(&root).end().expect_success();
        root
    })
}

/// Where the tables are that `scripts/make_filters.py` writes, once for all tests of this executable.
pub fn filters() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("filters");
        script("make_filters.py").arg(&root).end().expect_success();
        root
    })
}

/// Where the fixtures are.
fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fixtures");
        script("make_fixtures.py").arg(&root).end().expect_success();
        root
    })
}
