//! The name of a node: a digest of what it may read with and where it keeps what it read.
//!
//! Processes with the same name share a node. So everything goes in that could make one read what another
//! could not: settings, and every variable that names credentials, endpoints or proxies. Contents of files
//! that these name do not: keys in them change while a node runs, and it reads them again.

use super::variables::variables;
use forebay_dataset::SourceSettings;
use forebay_proto::hash::Hash128;
use rustix::system::uname;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What the variables begin with that say how to reach object stores.
const PREFIXES: [&str; 5] = ["AWS_", "GOOGLE_", "AZURE_", "MSI_", "IDENTITY_"];

/// Others that do. Those of proxies are written in either case.
const OTHERS: [&str; 7] =
    ["HOME", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"];

/// The name of the node of this version, on this machine, that reads with `source` and this process's
/// environment, and keeps segments under `cache_dir`: 32 hexadecimal digits.
pub(super) fn name(source: &SourceSettings, cache_dir: &Path) -> String {
    name_with(source, cache_dir, variables())
}

fn name_with(
    source: &SourceSettings,
    cache_dir: &Path,
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> String {
    let mut hash = Hash128::default();
    // Each part with its length: no two lists of parts are hashed alike.
    let mut add = |part: &[u8]| {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    };
    add(env!("CARGO_PKG_VERSION").as_bytes());
    // Homes are shared between machines.
    add(uname().nodename().to_bytes());
    add(cache_dir.as_os_str().as_bytes());
    add(serde_json::to_string(source).unwrap_or_default().as_bytes());
    // Secrets are not serialised.
    for secret in [&source.s3_secret_access_key, &source.s3_session_token] {
        add(&[u8::from(secret.is_some())]);
        add(secret.as_deref().unwrap_or_default().as_bytes());
    }
    let variables: BTreeMap<_, _> = variables.filter(|(name, _)| counts(&name.to_string_lossy())).collect();
    for (name, value) in &variables {
        add(name.as_bytes());
        add(value.as_bytes());
    }
    format!("{:032x}", hash.digest())
}

fn counts(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || OTHERS.iter().any(|other| name.eq_ignore_ascii_case(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_could_make_a_difference_makes_another_name() {
        let settings = |endpoint: &str, secret: &str| SourceSettings {
            s3_endpoint: Some(endpoint.into()),
            s3_secret_access_key: Some(secret.into()),
            ..Default::default()
        };
        let of = |source: &SourceSettings, dir: &str, variables: &[(&str, &str)]| {
            let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
            name_with(source, Path::new(dir), variables)
        };
        let plain = of(&settings("http://a", "x"), "/c", &[("AWS_PROFILE", "p"), ("HOME", "/h")]);
        assert_eq!(plain.len(), 32);
        let again = [("HOME", "/h"), ("AWS_PROFILE", "p"), ("RANK", "7"), ("FOREBAY_IDLE_S", "1")];
        assert_eq!(of(&settings("http://a", "x"), "/c", &again), plain, "nothing else counts");
        for other in [
            of(&settings("http://b", "x"), "/c", &again),
            of(&settings("http://a", "y"), "/c", &again),
            of(&settings("http://a", "x"), "/d", &again),
            of(&settings("http://a", "x"), "/c", &again[..1]),
            of(&settings("http://a", "x"), "/c", &[("AWS_PROFILE", "q"), ("HOME", "/h")]),
            of(&settings("http://a", "x"), "/c", &[("AWS_PROFILE", "p"), ("HOME", "/i")]),
            of(&settings("http://a", "x"), "/c", &[&again[..], &[("https_proxy", "http://p")]].concat()),
        ] {
            assert_ne!(other, plain);
        }
    }
}
