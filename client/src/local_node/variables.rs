//! The variables that a node gets: those of this process.
//!
//! A node runs in another directory, and processes in several directories share one. So the files that
//! variables name are named by full paths.

use std::env::{join_paths, split_paths, vars_os};
use std::ffi::{OsStr, OsString};
use std::path::{PathBuf, absolute};

/// Those that name files.
const FILES: [&str; 10] = [
    "AWS_CA_BUNDLE",
    "AWS_CONFIG_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "SSL_CERT_FILE",
];

/// One that names folders, with `:` between them.
const FOLDERS: &str = "SSL_CERT_DIR";

/// All variables of this process.
pub(super) fn variables() -> impl Iterator<Item = (OsString, OsString)> {
    vars_os().map(|(name, value)| {
        let value = full(&name, value);
        (name, value)
    })
}

fn full(name: &OsStr, value: OsString) -> OsString {
    // Tools put the home in the place of a `~`. A path that cannot be made a full one stays as it is.
    let path = |path: PathBuf| match path.starts_with("~") {
        true => path,
        false => absolute(&path).unwrap_or(path),
    };
    if FILES.iter().any(|file| name == *file) {
        return path(value.into()).into();
    }
    match name == FOLDERS {
        true => join_paths(split_paths(&value).map(path)).unwrap_or(value),
        false => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_full_paths() {
        let here = std::env::current_dir().unwrap().display().to_string();
        let of = |name: &str, value: &str| full(OsStr::new(name), value.into()).into_string().unwrap();
        for file in ["GOOGLE_APPLICATION_CREDENTIALS", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"] {
            assert_eq!(of(file, "keys/mine.json"), format!("{here}/keys/mine.json"));
            assert_eq!(of(file, "/etc/mine"), "/etc/mine");
            assert_eq!((of(file, "~/mine"), of(file, "")), ("~/mine".into(), "".into()));
        }
        assert_eq!(of("SSL_CERT_FILE", "ca.pem"), format!("{here}/ca.pem"));
        assert_eq!(of("SSL_CERT_DIR", "certs:/etc/ssl"), format!("{here}/certs:/etc/ssl"));
        assert_eq!(of("AWS_PROFILE", "mine"), "mine");
    }
}
