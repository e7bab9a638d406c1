//! The modules of a crate, and which of them uses which.

use crate::source::{Source, root, sources};
use crate::tokens::{Token, tokens};
use std::collections::{BTreeMap, BTreeSet};

/// Roots of the crates, with the names by which other crates use them.
pub const CRATES: [(&str, &str); 11] = [
    ("proto/src", "forebay_proto"),
    ("tls/src", "forebay_tls"),
    ("dataset/src", "forebay_dataset"),
    ("cache-server/src", "forebay_server"),
    ("client/src", "forebay_client"),
    ("client/cli/src", "forebay_cli"),
    ("images/src", "forebay_images"),
    ("trainer/src", "forebay_train"),
    ("trainer/c10d/src", "forebay_c10d"),
    ("python/src", "_forebay"),
    ("tests/src", "forebay_tests"),
];

/// A path in code, such as `crate::disk::Index`.
pub type Path = Vec<String>;

/// A module: what it declares and names.
#[derive(Debug, Default)]
pub struct Module {
    /// Modules directly inside it.
    pub children: BTreeSet<String>,
    /// Those of them that are `pub`.
    pub public: BTreeSet<String>,
    /// Names that `use` brings in, and the paths behind them.
    pub imports: BTreeMap<String, Path>,
    /// All paths that its code mentions, those of `use` included.
    pub paths: BTreeSet<Path>,
    /// Types that it defines.
    pub types: Vec<String>,
    /// Other names that it gives types.
    pub aliases: Vec<String>,
}

/// The modules of a crate by their paths; the crate itself has the empty one.
pub type Modules = BTreeMap<Path, Module>;

/// Reads a crate's modules, tests left out. Programs beside a library are no modules.
pub fn modules(folder: &str) -> Modules {
    let mut all = Modules::new();
    if !root().join(folder).exists() {
        return all;
    }
    let files = sources(folder, &[".rs"]);
    let has_library = files.iter().any(|file| file.path == format!("{folder}/lib.rs"));
    for file in files.iter().filter(|file| !file.is_tests()) {
        let name = file.path[folder.len() + 1..].trim_end_matches(".rs");
        if name.starts_with("bin/") || name == "main" && has_library {
            continue;
        }
        let path: Path = match name {
            "lib" | "main" => Path::new(),
            name => name.split('/').map(str::to_owned).collect(),
        };
        read(file, path, &mut all);
    }
    all
}

/// The modules in a single file, as if it were a crate.
pub fn of(file: &Source) -> Modules {
    let mut all = Modules::new();
    read(file, Path::new(), &mut all);
    all
}

fn read(file: &Source, path: Path, all: &mut Modules) {
    let tokens = tokens(file.without_tests());
    let (mut at, mut depth) = (0, 0usize);
    // The module that the code is in: a file's own, or one inside it with the depth at which it ends.
    let mut inside: Vec<(Path, usize)> = vec![(path, 0)];
    while let Some(token) = tokens.get(at) {
        let (path, _) = inside.last().expect("the file itself").clone();
        let module = all.entry(path.clone()).or_default();
        let next = |n: usize| tokens.get(at + n).map_or("", |token| token.text);
        match token.text {
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                if inside.len() > 1 && inside.last().is_some_and(|(_, end)| *end == depth) {
                    inside.pop();
                }
            }
            "mod" if [";", "{"].contains(&next(2)) => {
                let name = next(1).to_owned();
                if at > 0 && tokens[at - 1].text == "pub" {
                    module.public.insert(name.clone());
                }
                module.children.insert(name.clone());
                if next(2) == "{" {
                    inside.push(([path, vec![name]].concat(), depth));
                }
                at += 1;
            }
            "use" => {
                let end = tokens[at..].iter().position(|t| t.text == ";").map_or(tokens.len(), |n| at + n);
                tree(&tokens[at + 1..end], &mut Path::new(), module);
                at = end;
            }
            "struct" | "enum" | "trait" if tokens.get(at + 1).is_some_and(Token::is_word) => {
                module.types.push(next(1).to_owned());
            }
            // Deeper they are those of a trait or a function.
            "type" if depth == 0 && tokens.get(at + 1).is_some_and(Token::is_word) => {
                module.aliases.push(next(1).to_owned());
            }
            _ if token.is_word() && next(1) == "::" && (at == 0 || tokens[at - 1].text != "::") => {
                let mut path = vec![token.text.to_owned()];
                while tokens.get(at + 1).is_some_and(|t| t.text == "::")
                    && tokens.get(at + 2).is_some_and(Token::is_word)
                {
                    path.push(tokens[at + 2].text.to_owned());
                    at += 2;
                }
                module.paths.insert(path);
            }
            _ => {}
        }
        at += 1;
    }
}

/// Takes the tree of a `use` apart.
fn tree(tokens: &[Token<'_>], before: &mut Path, module: &mut Module) {
    let mut path = before.clone();
    let mut alias = None;
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.text {
            "{" => {
                let inner = &tokens[at + 1..closing(tokens, at)];
                split(inner).into_iter().for_each(|branch| tree(branch, &mut path, module));
                return;
            }
            "as" => {
                alias = tokens.get(at + 1).map(|token| token.text.to_owned());
                break;
            }
            "self" if !path.is_empty() => {}
            text if token.is_word() || text == "*" => path.push(text.to_owned()),
            _ => {}
        }
        at += 1;
    }
    if let Some(name) = alias.or_else(|| path.last().cloned()) {
        module.imports.insert(name, path.clone());
        module.paths.insert(path);
    }
}

/// Where the brace at `open` closes.
fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "{" => depth += 1,
            "}" if depth == 1 => return at,
            "}" => depth -= 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Branches between commas that are in no inner braces.
fn split<'a, 'b>(tokens: &'a [Token<'b>]) -> Vec<&'a [Token<'b>]> {
    let mut depth = 0;
    tokens
        .split(|token| {
            match token.text {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            token.text == "," && depth == 0
        })
        .filter(|branch| !branch.is_empty())
        .collect()
}

/// The module in which the item behind a path is defined, seen from the module `from`; `None` if another
/// crate has it.
pub fn home(all: &Modules, from: &Path, path: &[String]) -> Option<Path> {
    follow(all, from, path, 0)
}

fn follow(all: &Modules, from: &Path, path: &[String], hops: usize) -> Option<Path> {
    let (first, rest) = path.split_first()?;
    let (mut at, mut rest) = match first.as_str() {
        "crate" => (Path::new(), rest),
        "self" => (from.clone(), rest),
        "super" => (from[..from.len().checked_sub(1)?].to_vec(), rest),
        name if all.get(from)?.children.contains(name) => (from.clone(), path),
        _ => return None,
    };
    while let Some((name, after)) = rest.split_first() {
        let module = all.get(&at)?;
        if name == "super" {
            at.pop()?;
        } else if module.children.contains(name) {
            at.push(name.clone());
            // A module of tests, or one that is generated.
            all.get(&at)?;
        } else if let Some(import) = module.imports.get(name).filter(|_| hops < 8) {
            let import = [&import[..], after].concat();
            return follow(all, &at, &import, hops + 1);
        } else {
            return Some(at);
        }
        rest = after;
    }
    Some(at)
}
