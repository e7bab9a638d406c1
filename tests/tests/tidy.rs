//! Rules of the repository that no compiler checks: sizes, words, who may know what, and that ARCHITECTURE.md names what
//! exists.

use std::path::{Path, PathBuf};

/// Code lines of a file at most, its tests apart.
const LINES_MAX: usize = 500;

/// The crates, and which words their sources must not contain: other crates that stand above or beside them, and
/// what would be I/O in the contract.
const CRATES: [(&str, &[&str]); 7] = [
    (
        "proto/src",
        &[
            "forebay_dataset",
            "forebay_client",
            "forebay_server",
            "std::fs",
            "std::net",
            "std::process",
            "tokio",
            "object_store",
        ],
    ),
    ("dataset/src", &["forebay_client", "forebay_server", "forebay_tests", "tonic"]),
    ("cache-server/src", &["forebay_client", "forebay_tests", "forebay_train"]),
    ("client", &["forebay_server", "forebay_tests", "forebay_train", "etcd_client"]),
    ("trainer/src", &["forebay_server", "forebay_dataset", "forebay_tests", "tonic"]),
    ("trainer/c10d/src", &["forebay_proto", "forebay_client", "forebay_dataset", "forebay_server", "tokio"]),
    ("tests/src", &["forebay_server"]),
];

/// Words that only some files of a folder may contain.
const KNOWERS: [(&str, &str, &[&str]); 4] = [
    ("cache-server/src", "etcd_client", &["cluster/membership/"]),
    ("cache-server/src", "tonic", &["service.rs", "service/", "server.rs", "cluster/peers/call.rs"]),
    ("cache-server/src", "memmap2", &["disk/map.rs"]),
    ("dataset/src", "object_store", &["source.rs", "source/"]),
];

/// A file: its path below the repository's root, and its text.
struct Source {
    path: String,
    text: String,
}

impl Source {
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()))
    }

    /// The lines that are neither empty nor comments, up to the tests inside the file.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let tests = |(_, line): &(usize, &str)| !(line.starts_with("mod ") && line.ends_with("tests {"));
        self.lines().take_while(tests).filter(|(_, line)| !line.is_empty() && !line.starts_with("//"))
    }

    /// Tests beside the module that they test: `foo/tests.rs`, and what that is made of.
    fn is_tests(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path.contains("/tests/") && self.path.contains("/src/")
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository")
}

/// All files below `folder` with one of the endings, what is built or installed left out.
fn sources(folder: &str, endings: &[&str]) -> Vec<Source> {
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

fn none(what: &str, wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
}

#[test]
fn files_are_short() {
    let too_long = |source: &Source| {
        let lines = source.code().count();
        (lines > LINES_MAX).then(|| format!("{}: {lines} lines", source.path))
    };
    none(
        &format!("files of more than {LINES_MAX} code lines"),
        sources("", &[".rs"]).iter().filter_map(too_long).collect(),
    );
}

#[test]
fn nothing_is_left_for_later() {
    // Put together here, so that this file passes.
    let words = ["todo", "unimplemented"].map(|word| format!("{word}!("));
    let words = words
        .into_iter()
        .chain(["FIX", "XX", "TO"].iter().zip(["ME", "X", "DO"]).map(|(a, b)| format!("{a}{b}")));
    let words: Vec<String> = words.collect();
    let mut wrong = Vec::new();
    for source in sources("", &[".rs", ".py", ".sh", ".cpp", ".h", ".toml", ".proto", ".md", "Makefile"]) {
        for (number, line) in source.lines() {
            wrong.extend(
                words
                    .iter()
                    .filter(|word| line.contains(word.as_str()))
                    .map(|word| format!("{}:{number}: {word}", source.path)),
            );
        }
    }
    none("left for later", wrong);
}

#[test]
fn every_module_says_what_it_is_for() {
    let says_nothing = |source: &Source| !source.is_tests() && !source.text.starts_with("//! ");
    let wrong = sources("", &[".rs"]).into_iter().filter(says_nothing).map(|source| source.path).collect();
    none("files without a `//!` at their top", wrong);
}

#[test]
fn dependencies_run_one_way() {
    let mut wrong = Vec::new();
    for (folder, forbidden) in CRATES {
        for source in sources(folder, &[".rs"]).iter().filter(|source| !source.is_tests()) {
            for (number, line) in source.code() {
                let found = forbidden.iter().filter(|word| line.contains(**word));
                wrong.extend(found.map(|word| format!("{}:{number}: {word}", source.path)));
            }
        }
        // What no source names, no manifest should either.
        let manifest = root().join(folder.trim_end_matches("/src")).join("Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).expect("read a manifest");
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or_default();
        let dependencies = dependencies.split("\n[").next().unwrap_or_default();
        for word in forbidden.iter().filter(|word| word.starts_with("forebay_")) {
            let name = word.replace('_', "-");
            wrong.extend(dependencies.contains(&name).then(|| format!("{folder}: depends on {name}")));
        }
    }
    none("crates that know what they must not", wrong);
}

#[test]
fn only_those_who_may_know_do() {
    let mut wrong = Vec::new();
    for (folder, word, knowers) in KNOWERS {
        let mut known = false;
        for source in sources(folder, &[".rs"]).iter().filter(|source| !source.is_tests()) {
            let name = source.path.trim_start_matches(folder).trim_start_matches('/');
            let may = knowers
                .iter()
                .any(|knower| name == *knower || knower.ends_with('/') && name.starts_with(knower));
            let mut lines = source.code().filter(|(_, line)| line.contains(word)).peekable();
            known |= may && lines.peek().is_some();
            if !may {
                wrong.extend(lines.map(|(number, line)| format!("{}:{number}: {line}", source.path)));
            }
        }
        assert!(known, "nobody in {folder} knows {word} any more: correct the rule");
    }
    none("files that know what is others' business", wrong);
}

#[test]
fn the_architecture_names_what_exists() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("read ARCHITECTURE.md");
    let names: Vec<&str> = text
        .split(|c: char| !(c.is_ascii_alphanumeric() || "_/.:-".contains(c)))
        .filter(|name| name.contains(".rs"))
        .collect();
    let mut wrong = Vec::new();
    let mut functions = 0;
    for name in names {
        let (path, function) = name.split_once(".rs:").map_or((name, ""), |(path, rest)| (path, rest));
        let path = format!("{}.rs", path.trim_end_matches('.').trim_end_matches(".rs"));
        // Within a crate's paragraph files go by their short names.
        let known = [&path, &format!("cache-server/src/{path}")].map(|path| root().join(path));
        let Some(source) = known.iter().find_map(|path| std::fs::read_to_string(path).ok()) else {
            wrong.push(format!("{name}: there is no {path}"));
            continue;
        };
        let function = function.trim_end_matches(['.', ':']);
        functions += usize::from(!function.is_empty());
        let defines = |line: &str| {
            let after = line.split_once(&format!("fn {function}")).map(|(_, after)| after);
            after.is_some_and(|after| after.starts_with(['(', '<']))
        };
        if !function.is_empty() && !source.lines().any(defines) {
            wrong.push(format!("{name}: {path} has no function {function}"));
        }
    }
    none("ARCHITECTURE.md names what does not exist", wrong);
    assert!(functions >= 15, "the life of a read is told in functions: only {functions} are named");
}
