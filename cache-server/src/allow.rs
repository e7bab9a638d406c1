//! Which URIs a node may read: those under the roots that its settings allow.

use forebay_dataset::source;
use forebay_proto::{Error, Result};
use std::collections::BTreeSet;

/// Roots that are all buckets of a kind of object store. `file:///` is a root as any other.
const ALL_BUCKETS: [&str; 3] = ["s3://", "gs://", "az://"];

/// The roots, in normal form.
#[derive(Debug)]
pub struct Allowed(Vec<String>);

/// Whether a root is every bucket of a kind of object store.
pub fn is_all_buckets(root: &str) -> bool {
    ALL_BUCKETS.contains(&root)
}

impl Allowed {
    /// `Invalid` when a root cannot be one.
    pub fn new(roots: &[String]) -> Result<Self> {
        let root = |root: &String| match is_all_buckets(root) {
            true => Ok(root.clone()),
            false => source::normalise(root).map_err(|e| e.context(format!("--allow {root}"))),
        };
        roots.iter().map(root).collect::<Result<_>>().map(Self)
    }

    /// The normal form of a URI under one of the roots, or of a table there; `Denied` for any other. Follows
    /// links where it names a file: not for an async thread.
    pub fn check(&self, uri: &str) -> Result<String> {
        self.check_spelled(source::normalise(uri)?)
    }

    /// The same of an object, whose key may have any characters.
    pub fn check_object(&self, uri: &str) -> Result<String> {
        self.check_spelled(source::normalise_object(uri)?)
    }

    /// Whether all keys of an S3 bucket that begin with `prefix` lie under the roots.
    pub fn allows_prefix(&self, bucket: &str, prefix: &str) -> bool {
        let is_below = |root: &str| {
            root.is_empty() || prefix.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'))
        };
        self.roots_in(bucket).any(is_below)
    }

    /// Whether a key of an S3 bucket lies under the roots.
    pub fn allows_key(&self, bucket: &str, key: &str) -> bool {
        self.allows_prefix(bucket, key) || self.roots_in(bucket).any(|root| root == key)
    }

    /// Whether any key of an S3 bucket may.
    pub fn allows_bucket(&self, bucket: &str) -> bool {
        self.roots_in(bucket).next().is_some()
    }

    /// The S3 buckets that the roots name.
    pub fn buckets(&self) -> BTreeSet<String> {
        let of_s3 = self.0.iter().filter_map(|root| root.strip_prefix("s3://"));
        let names = of_s3.map(|rest| rest.split_once('/').map_or(rest, |(bucket, _)| bucket).to_owned());
        names.filter(|name| !name.is_empty()).collect()
    }

    /// The roots, in normal form.
    pub fn roots(&self) -> &[String] {
        &self.0
    }

    /// Whether a URI in normal form lies under one of the roots, or names a table there.
    pub fn covers(&self, uri: &str) -> bool {
        let place = source::place_of(uri);
        let is_under = |root: &String| match is_all_buckets(root) {
            true => place.starts_with(root.as_str()),
            false => source::is_under(place, root),
        };
        self.0.iter().any(is_under)
    }

    /// The keys that the roots name in an S3 bucket; an empty one is all of it.
    fn roots_in<'a>(&'a self, bucket: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter_map(move |root| match root.strip_prefix("s3://")? {
            "" => Some(""),
            root => match root.split_once('/').unwrap_or((root, "")) {
                (name, key) if name == bucket => Some(key),
                _ => None,
            },
        })
    }

    fn check_spelled(&self, uri: String) -> Result<String> {
        match self.covers(&uri) {
            true => Ok(uri),
            false => Err(Error::denied(format!(
                "{uri}: this server may not read it; it reads under {} (see --allow)",
                self.0.join(", ")
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_cover_what_lies_under_them() {
        let allowed = |roots: &[&str], uri: &str| {
            let roots: Vec<String> = roots.iter().map(|root| (*root).to_owned()).collect();
            Allowed::new(&roots).unwrap().check(uri).map_err(|e| e.message)
        };
        assert_eq!(allowed(&["s3://b/x/"], "s3://b/x/y/").unwrap(), "s3://b/x/y");
        assert!(allowed(&["s3://b/x"], "s3://b/xy").unwrap_err().contains("it reads under s3://b/x"));
        assert_eq!(allowed(&["s3://"], "s3a://any/key").unwrap(), "s3://any/key");
        assert!(allowed(&["s3://"], "gs://any/key").is_err());
        assert_eq!(allowed(&["s3://b/x"], "delta+s3a://b/x/t@3").unwrap(), "delta+s3://b/x/t@3");
        assert!(allowed(&["s3://b/x"], "delta+s3://b/y").is_err());
        assert!(allowed(&["s3://"], "s3://").is_err(), "a root is no dataset");
        assert!(Allowed::new(&["s3:".into()]).is_err());
    }

    #[test]
    fn keys_of_s3_are_allowed_by_their_first_letters() {
        let roots = ["s3://b/x", "s3://c", "gs://d"].map(String::from);
        let allowed = Allowed::new(&roots).unwrap();
        for (prefix, is_allowed) in [("", false), ("x", false), ("x/", true), ("x//y", true), ("xy/", false)]
        {
            assert_eq!(allowed.allows_prefix("b", prefix), is_allowed, "{prefix}");
        }
        assert!(
            allowed.allows_key("b", "x") && allowed.allows_key("b", "x/") && !allowed.allows_key("b", "xy")
        );
        assert!(allowed.allows_prefix("c", "") && !allowed.allows_prefix("d", "x/"));
        assert!(allowed.allows_bucket("b") && !allowed.allows_bucket("bb"));
        assert_eq!(allowed.buckets().into_iter().collect::<Vec<_>>(), ["b", "c"]);
        let all = Allowed::new(&["s3://".into()]).unwrap();
        assert!(all.allows_key("any", "key") && all.buckets().is_empty());
    }
}
