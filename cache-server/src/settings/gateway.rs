//! `[gateway]`: the endpoint for clients of S3, and who may read there.

use super::load::refuse;
use clap::Args;
use forebay_dataset::source;
use forebay_proto::{Error, Result};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Bytes of a file of keys at most.
const KEYS_BYTES_MAX: u64 = 1 << 20;

/// The endpoint that S3 clients read from.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewaySettings {
    /// Address at which S3 clients may read what --allow names [default: off].
    #[arg(long, value_name = "ADDR", value_parser = super::listen::address)]
    pub s3_listen: Option<SocketAddr>,
    /// File with the keys of S3 clients: a line `ID SECRET` for each.
    #[arg(long, value_name = "FILE")]
    pub s3_keys: Option<PathBuf>,
    /// Domain of the S3 endpoint: in BUCKET.DOMAIN a client names the bucket; may be repeated.
    #[arg(long, value_name = "DOMAIN")]
    pub s3_domain: Vec<String>,
    /// URI under which S3 clients may read without a key; may be repeated.
    #[arg(long, value_name = "URI")]
    pub s3_public: Vec<String>,
    /// Connections at once; others are told to come back.
    #[arg(skip = 1024_usize)]
    pub connections_max: usize,
    /// Seconds that a client has to say what it wants; also how long an idle connection stays open.
    #[arg(skip = 30.0)]
    pub head_timeout_s: f64,
    /// Seconds after which a client that takes no bytes is cut off.
    #[arg(skip = 60.0)]
    pub write_timeout_s: f64,
}

/// A key that S3 clients sign with.
#[derive(Clone)]
pub struct ClientKey {
    pub id: String,
    pub secret: String,
}

impl GatewaySettings {
    /// `Invalid` names the setting that makes no sense.
    pub(super) fn check(&self) -> Result<()> {
        let Self { s3_listen, s3_keys, s3_domain, s3_public, .. } = self;
        let nobody = "--s3-listen: nobody may read there: give a file of keys with --s3-keys, or a URI with --s3-public";
        refuse(s3_listen.is_some() && s3_keys.is_none() && s3_public.is_empty(), nobody)?;
        let given = [
            ("--s3-keys", s3_keys.is_some()),
            ("--s3-domain", !s3_domain.is_empty()),
            ("--s3-public", !s3_public.is_empty()),
        ];
        let unused = given.iter().find(|(_, is_given)| s3_listen.is_none() && *is_given);
        let flag = unused.map_or("", |(flag, _)| flag);
        refuse(
            unused.is_some(),
            format!("{flag} needs --s3-listen: S3 clients are served nowhere without it"),
        )?;
        for domain in s3_domain {
            let is_label = |label: &str| {
                !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            };
            let why = format!("s3_domain `{domain}`: give a domain without a port, as in s3.example.org");
            refuse(!domain.split('.').all(is_label), why)?;
        }
        for uri in s3_public {
            let normal = source::normalise(uri).map_err(|e| e.context("s3_public"))?;
            let why = format!("s3_public {uri}: only s3:// is served to S3 clients");
            refuse(!normal.starts_with("s3://"), why)?;
        }
        let connections = self.connections_max;
        let range = format!("[gateway] connections_max = {connections}: must be 1 to 100000");
        refuse(!(1..=100_000).contains(&connections), range)?;
        for (name, s) in [("head_timeout_s", self.head_timeout_s), ("write_timeout_s", self.write_timeout_s)]
        {
            let range = format!("[gateway] {name} = {s}: must be 0.1 to 3600 seconds");
            refuse(!(0.1..=3600.0).contains(&s), range)?;
        }
        Ok(())
    }

    /// The keys of the file; none without one. Touches the disk.
    pub fn keys(&self) -> Result<Vec<ClientKey>> {
        self.s3_keys.as_deref().map_or(Ok(Vec::new()), read_keys)
    }
}

fn read_keys(path: &Path) -> Result<Vec<ClientKey>> {
    let wrong = |why: &str| Error::invalid(format!("--s3-keys {}: {why}", path.display()));
    let about = std::fs::metadata(path).map_err(|e| wrong(&e.to_string()))?;
    if about.mode() & 0o007 != 0 {
        return Err(wrong("every user of this machine may read it or write to it: chmod 600"));
    }
    if about.len() > KEYS_BYTES_MAX {
        return Err(wrong("has more than 1 MiB"));
    }
    let text = std::fs::read_to_string(path).map_err(|e| wrong(&e.to_string()))?;
    let mut keys: Vec<ClientKey> = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // The line itself is not repeated: it holds a secret.
        let mut words = line.split_whitespace();
        let (Some(id), Some(secret), None) = (words.next(), words.next(), words.next()) else {
            return Err(wrong(&format!("line {}: give an id and a secret, with a blank between", n + 1)));
        };
        if id.contains('/')
            || !id.bytes().all(|b| b.is_ascii_graphic())
            || keys.iter().any(|key| key.id == id)
        {
            return Err(wrong(&format!(
                "line {}: the id is there twice, or has characters that no id has",
                n + 1
            )));
        }
        keys.push(ClientKey { id: id.to_owned(), secret: secret.to_owned() });
    }
    if keys.is_empty() { Err(wrong("holds no key")) } else { Ok(keys) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn keys_are_read_from_a_file_of_their_owner() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |text: &str, mode| {
            std::fs::write(file.path(), text).unwrap();
            std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let keys = read_keys(file.path()).map_err(|e| e.message)?;
            Ok::<_, String>(keys.into_iter().map(|key| (key.id, key.secret)).collect::<Vec<_>>())
        };
        let two = vec![("a".to_owned(), "hunter2".to_owned()), ("b".into(), "s/+=".into())];
        assert_eq!(read("# ours\na hunter2\n\n  b\ts/+=\n", 0o600).unwrap(), two);
        for (text, mode, says) in [
            ("a hunter2", 0o644, "chmod 600"),
            ("", 0o600, "no key"),
            ("a", 0o600, "line 1"),
            ("a hunter2 x", 0o600, "line 1"),
            ("a hunter2\na hunter3", 0o600, "line 2"),
            ("a/b hunter2", 0o600, "line 1"),
        ] {
            let e = read(text, mode).unwrap_err();
            assert!(e.contains(says) && !e.contains("hunter"), "{text}: {e}");
        }
        assert!(read_keys(Path::new("/no/such")).is_err());
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let check = |change: &dyn Fn(&mut GatewaySettings)| {
            let at = Some(([127, 0, 0, 1], 0).into());
            let mut settings =
                GatewaySettings { s3_listen: at, s3_keys: Some("f".into()), ..GatewaySettings::default() };
            change(&mut settings);
            settings.check().map_err(|e| e.message)
        };
        assert!(check(&|_| ()).is_ok());
        for (unused, flag) in [
            (GatewaySettings { s3_keys: Some("/nope".into()), ..GatewaySettings::default() }, "--s3-keys"),
            (GatewaySettings { s3_domain: vec!["foo".into()], ..GatewaySettings::default() }, "--s3-domain"),
            (
                GatewaySettings { s3_public: vec!["s3://b".into()], ..GatewaySettings::default() },
                "--s3-public",
            ),
        ] {
            let e = check(&|s| *s = unused.clone()).unwrap_err();
            assert!(e.starts_with(&format!("{flag} needs --s3-listen")), "{e}");
        }
        assert!(check(&|s| s.s3_keys = None).unwrap_err().contains("nobody may read"));
        assert!(check(&|s| s.s3_domain = vec!["a..b".into()]).unwrap_err().contains("s3_domain"));
        assert!(check(&|s| s.s3_domain = vec!["a.b:80".into()]).unwrap_err().contains("without a port"));
        assert!(check(&|s| s.s3_public = vec!["gs://b".into()]).unwrap_err().contains("only s3://"));
        assert!(check(&|s| s.connections_max = 0).unwrap_err().contains("connections_max"));
        assert!(check(&|s| s.head_timeout_s = f64::NAN).unwrap_err().contains("head_timeout_s"));
    }
}
