//! Patterns over keys: `*` is any part of a name, `**` any number of directories, `{a,b}` one of several.

use crate::source::check_length;
use forebay_proto::{Error, Result};

/// Alternatives that the braces of a pattern may stand for.
const ALTERNATIVES_MAX: usize = 1000;

/// A URI that names many objects.
#[derive(Debug)]
pub(super) struct Pattern {
    /// The URI above the first name that is not literal.
    pub base: String,
    /// The names below it, one list for each alternative.
    alternatives: Vec<Vec<String>>,
}

/// How a pattern fits a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// It names the object.
    Object,
    /// It names a directory above the object.
    Directory,
}

impl Pattern {
    /// The pattern in a normalised URI; `None` if it is no pattern.
    pub fn of(uri: &str) -> Result<Option<Self>> {
        let base = base(uri);
        if base.len() == uri.len() {
            return Ok(None);
        }
        if base.ends_with(":/") {
            return Err(Error::invalid(format!("{uri}: a pattern needs a bucket or directory before it")));
        }
        check_length(uri)?;
        let rest = uri[base.len()..].trim_start_matches('/');
        let parts = |text: &String| text.split('/').map(str::to_owned).collect();
        let alternatives = alternatives(uri, rest)?.iter().map(parts).collect();
        Ok(Some(Self { base: base.to_owned(), alternatives }))
    }

    /// Whether the pattern names a key below [`Pattern::base`], or a directory that it lies in.
    pub fn fit(&self, key: &str) -> Option<Fit> {
        let key: Vec<&str> = key.split('/').collect();
        let fits: Vec<Fit> = self.alternatives.iter().filter_map(|parts| fit(parts, &key)).collect();
        fits.iter().find(|fit| **fit == Fit::Object).or(fits.first()).copied()
    }
}

/// What a URI has above the first name that is not literal; all of it if it is no pattern.
pub(crate) fn base(uri: &str) -> &str {
    let Some(first) = uri.find(['*', '{']) else { return uri };
    match uri[..first].rfind('/').map(|slash| &uri[..slash]) {
        Some("file://") => "file:///",
        Some(base) => base,
        None => "",
    }
}

/// The pattern `rest` of a URI, once for each way to read its braces.
fn alternatives(uri: &str, mut rest: &str) -> Result<Vec<String>> {
    let mut texts = vec![String::new()];
    while let Some((before, braced)) = rest.split_once('{') {
        let inside = braced.split_once('}').filter(|(inside, _)| !inside.contains('{'));
        let (inside, after) = inside.ok_or_else(|| {
            Error::invalid(format!("{uri}: braces in a pattern stand as in {{a,b}}, and not in each other"))
        })?;
        let choices: Vec<&str> = inside.split(',').collect();
        if texts.len() * choices.len() > ALTERNATIVES_MAX {
            return Err(Error::invalid(format!("{uri}: a pattern may stand for {ALTERNATIVES_MAX} at most")));
        }
        texts =
            texts.iter().flat_map(|text| choices.iter().map(move |c| format!("{text}{before}{c}"))).collect();
        rest = after;
    }
    texts.iter_mut().for_each(|text| text.push_str(rest));
    Ok(texts)
}

/// Takes time by the product of both lengths, however many `**` there are.
fn fit(pattern: &[String], key: &[&str]) -> Option<Fit> {
    // Whether the pattern so far may end before each name of the key, and at its end.
    let mut ends = vec![false; key.len() + 1];
    ends[0] = true;
    for part in pattern {
        if part == "**" {
            for at in 1..ends.len() {
                ends[at] |= ends[at - 1];
            }
        } else {
            let fits = key.iter().zip(&ends).map(|(name, ends)| *ends && fits_name(part, name));
            ends = std::iter::once(false).chain(fits).collect();
        }
    }
    match ends.pop() {
        Some(true) => Some(Fit::Object),
        _ => ends.contains(&true).then_some(Fit::Directory),
    }
}

/// Whether a name is as `pattern` says, whose `*` are any text.
fn fits_name(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let last = pieces.pop().unwrap_or_default();
    for piece in pieces {
        match name.find(piece) {
            Some(at) => name = &name[at + piece.len()..],
            None => return false,
        }
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(uri: &str, key: &str) -> Option<Fit> {
        Pattern::of(uri).unwrap().unwrap().fit(key)
    }

    #[test]
    fn stars_and_braces() {
        for (uri, key, want) in [
            ("s3://b/*", "x", Some(Fit::Object)),
            ("s3://b/*", "x/y", Some(Fit::Directory)),
            ("s3://b/t/*.parquet", "x/y.parquet", None),
            ("s3://b/t/**/*.parquet", "x/y.parquet", Some(Fit::Object)),
            ("s3://b/t/**/*.parquet", "y.parquet", Some(Fit::Object)),
            ("s3://b/t/**", "x/y", Some(Fit::Object)),
            ("s3://b/*/month=01/*.parquet", "year=1/month=01/a.parquet", Some(Fit::Object)),
            ("s3://b/*/month=01/*.parquet", "year=1/month=02/a.parquet", None),
            ("s3://b/t/month={01,03}", "month=03/a", Some(Fit::Directory)),
            ("s3://b/t/month={01,03}", "month=02/a", None),
            ("s3://b/t/a*b*c", "a-b-b-c", Some(Fit::Object)),
            ("s3://b/t/a*b*c", "a-c-b", None),
            ("s3://b/t/ab*ba", "aba", None),
            ("s3://b/t/**/**/x/**", "a/x/b", Some(Fit::Object)),
            ("s3://b/t/**/x/*", "a/x/b/c", Some(Fit::Directory)),
            ("s3://b/t/**/x/*", "a/b/c", None),
        ] {
            assert_eq!(fit(uri, key), want, "{uri} {key}");
        }
    }

    /// Each star may stand for any of the names.
    #[test]
    fn a_pattern_of_very_many_stars_is_soon_looked_at() {
        let key = vec!["a"; 300].join("/");
        for stars in ["**/", "**/*/"] {
            assert_eq!(fit(&format!("s3://b/t/{}x", stars.repeat(2000)), &key), None);
        }
        assert_eq!(fit(&format!("s3://b/t/{}a", "**/".repeat(2000)), &key), Some(Fit::Object));
    }

    #[test]
    fn the_base_is_what_is_literal() {
        let base = |uri| Pattern::of(uri).map(|p| p.map(|p| p.base));
        assert_eq!(base("s3://b/t/x*/y").unwrap().as_deref(), Some("s3://b/t"));
        assert_eq!(base("s3://b/*").unwrap().as_deref(), Some("s3://b"));
        assert_eq!(base("file:///*").unwrap().as_deref(), Some("file:///"));
        assert_eq!(base("s3://b/t").unwrap(), None);
        for bad in ["s3://*", "s3://b/{a", "s3://b/{a,{b,c}}"] {
            assert!(base(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn braces_may_be_many_but_not_of_any_number() {
        let many = Pattern::of(&format!("s3://b/{}", "{a}".repeat(5000))).unwrap().unwrap();
        assert_eq!(many.fit(&"a".repeat(5000)), Some(Fit::Object));
        let e = Pattern::of(&format!("s3://b/{}", "{a}".repeat(100_000))).unwrap_err();
        assert!(e.message.contains("300007 bytes") && e.message.len() < 300, "{e}");
        let e = Pattern::of(&format!("s3://b/{}", "{a,b}".repeat(10))).unwrap_err();
        assert!(e.message.contains("1000 at most"), "{e}");
    }
}
