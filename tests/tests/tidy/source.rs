//! The repository's files, and what counts as code, test or comment in them.

use std::path::{Path, PathBuf};

/// Files of the product: its crates without their tests, and without the tests crate.
const PRODUCT: [&str; 11] = [
    "proto/src/",
    "tls/src/",
    "dataset/src/",
    "cache-server/src/",
    "client/src/",
    "client/cli/src/",
    "images/src/",
    "trainer/src/",
    "trainer/c10d/src/",
    "trainer/c10d-nccl/src/",
    "python/src/",
];

/// A file: its path below the repository's root, and its text.
pub struct Source {
    pub path: String,
    pub text: String,
}

impl Source {
    /// The lines with their numbers, without indentation.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()))
    }

    /// The lines that are neither empty nor comments, up to the tests inside the file.
    pub fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let tests = |(_, line): &(usize, &str)| !is_test_module(line);
        self.lines().take_while(tests).filter(|(_, line)| !line.is_empty() && !line.starts_with("//"))
    }

    /// The text up to the tests inside the file.
    pub fn without_tests(&self) -> &str {
        let mut end = 0;
        for line in self.text.split_inclusive('\n') {
            if is_test_module(line.trim()) {
                break;
            }
            end += line.len();
        }
        &self.text[..end]
    }

    /// Tests beside the module that they test (`foo/tests.rs`, and what that is made of), and a crate's
    /// `tests` folder.
    pub fn is_tests(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path.contains("/tests/") || self.path.contains("/benches/")
    }

    pub fn is_product(&self) -> bool {
        PRODUCT.iter().any(|folder| self.path.starts_with(folder)) && !self.is_tests()
    }
}

fn is_test_module(line: &str) -> bool {
    let line = line.strip_prefix("pub(super) ").unwrap_or(line);
    line.starts_with("mod ") && line.ends_with("tests {")
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository")
}

/// All files below `folder` with one of the endings, without those that are built or installed.
pub fn sources(folder: &str, endings: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    collect(&root(), &root().join(folder), endings, &mut found);
    assert!(!found.is_empty(), "no {endings:?} in {folder}");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn collect(root: &Path, folder: &Path, endings: &[&str], found: &mut Vec<Source>) {
    for entry in std::fs::read_dir(folder).expect("list a folder").flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            collect(root, &path, endings, found);
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            let text = std::fs::read_to_string(&path).expect("read a source");
            let path = path.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
            found.push(Source { path, text });
        }
    }
}
