//! Profiles of the AWS files (`~/.aws/credentials` and `~/.aws/config`): keys, region and endpoint.

use crate::source::blocking::blocking;
use async_trait::async_trait;
use forebay_proto::{Error, Result};
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How old keys may be before the files are read again: tools that renew session tokens write them there.
const READ_AGAIN: Duration = Duration::from_secs(5);

/// Settings of a profile that name another source of its keys.
const PROVIDERS: [&str; 5] =
    ["role_arn", "sso_session", "sso_start_url", "credential_process", "web_identity_token_file"];

/// Looks a variable up; empty counts as unset.
pub(super) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// One profile out of both files; the credentials file comes first.
#[derive(Clone)]
pub(super) struct Profile {
    name: String,
    config: Option<PathBuf>,
    credentials: Option<PathBuf>,
    values: BTreeMap<String, String>,
}

impl Profile {
    /// The profile `wanted`, or the default one. `Invalid` if neither file has the one wanted.
    pub(super) fn load(wanted: Option<String>, env: Env<'_>) -> Result<Self> {
        let file = |variable: &str, default: &str| {
            let path = env(variable).or_else(|| Some(format!("{}/.aws/{default}", env("HOME")?)));
            path.map(PathBuf::from)
        };
        let mut profile = Self {
            name: wanted.clone().unwrap_or_else(|| "default".into()),
            config: file("AWS_CONFIG_FILE", "config"),
            credentials: file("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
            values: BTreeMap::new(),
        };
        match (profile.read(), wanted) {
            (false, Some(name)) => Err(Error::invalid(format!(
                "no profile '{name}' in ~/.aws/credentials or ~/.aws/config: correct s3_profile or AWS_PROFILE"
            ))),
            _ => Ok(profile),
        }
    }

    #[cfg(feature = "aws-config")]
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn get(&self, key: &str) -> Option<String> {
        self.values.get(key).cloned().filter(|v| !v.is_empty())
    }

    /// Whether the profile says how to get its keys (SSO, a role, a program) rather than holding them.
    pub(super) fn names_provider(&self) -> bool {
        PROVIDERS.iter().any(|key| self.get(key).is_some())
    }

    pub(super) fn keys(&self) -> Result<Option<AwsCredential>> {
        let (id, secret) = (self.get("aws_access_key_id"), self.get("aws_secret_access_key"));
        let names = format!("profile '{}': aws_access_key_id and aws_secret_access_key", self.name);
        pair(id, secret, self.get("aws_session_token"), &names)
    }

    pub(super) fn no_keys(&self, why: &str) -> Error {
        Error::invalid(format!(
            "profile '{0}' holds no access key, and {why}: run `aws configure export-credentials --profile {0} --format \
             env` and set what it prints",
            self.name
        ))
    }

    /// Reads the values; false if no file has the profile.
    fn read(&mut self) -> bool {
        let (mut values, mut is_found) = (BTreeMap::new(), false);
        for (path, prefix) in [(&self.config, "profile "), (&self.credentials, "")] {
            let Some(text) = path.as_ref().and_then(|p| std::fs::read_to_string(p).ok()) else { continue };
            let sections = [self.name.clone(), format!("{prefix}{}", self.name)];
            let Some(section) = section(&text, &sections) else { continue };
            is_found = true;
            values.extend(section);
        }
        self.values = values;
        is_found
    }
}

/// The values of the section named by any of `names`; nested (indented) values are left out.
fn section(text: &str, names: &[String]) -> Option<BTreeMap<String, String>> {
    let mut inside = false;
    let mut found = None;
    for line in text.lines() {
        if line.starts_with(char::is_whitespace) {
            continue;
        }
        let line = line.trim_end();
        if line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.split(']').next()) {
            inside = names.iter().any(|n| n == name.trim());
            if inside {
                found.get_or_insert_with(BTreeMap::new);
            }
        } else if let (true, Some((k, v)), Some(values)) = (inside, line.split_once('='), found.as_mut()) {
            values.insert(k.trim().to_ascii_lowercase(), v.trim().to_owned());
        }
    }
    found
}

/// Both of a key's halves, or none.
pub(super) fn pair(
    id: Option<String>,
    secret: Option<String>,
    token: Option<String>,
    names: &str,
) -> Result<Option<AwsCredential>> {
    match (id, secret) {
        (Some(key_id), Some(secret_key)) => Ok(Some(AwsCredential { key_id, secret_key, token })),
        (None, None) => Ok(None),
        _ => Err(Error::invalid(format!("{names} go together: only one of them is set"))),
    }
}

/// The keys of a profile, read again while they are used: session tokens are renewed in the files.
pub(super) struct ProfileKeys {
    profile: Profile,
    read: Mutex<(Instant, Arc<AwsCredential>)>,
}

impl ProfileKeys {
    pub(super) fn new(profile: Profile, keys: AwsCredential) -> Self {
        Self { profile, read: Mutex::new((Instant::now(), Arc::new(keys))) }
    }

    /// The keys, at most `max_age` old. Files that cannot be read or hold none leave the keys as they were.
    pub(super) async fn at_most(&self, max_age: Duration) -> Arc<AwsCredential> {
        let mut read = self.read.lock().await;
        if read.0.elapsed() < max_age {
            return read.1.clone();
        }
        let mut profile = self.profile.clone();
        let keys = blocking(move || {
            profile.read();
            profile.keys()
        });
        match keys.await {
            Ok(Some(keys)) => read.1 = Arc::new(keys),
            Ok(None) => tracing::warn!(profile = self.profile.name, "the AWS files hold no key any more"),
            Err(e) => tracing::warn!(error = %e, "the AWS files cannot be read again"),
        }
        read.0 = Instant::now();
        read.1.clone()
    }
}

impl std::fmt::Debug for ProfileKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ProfileKeys({})", self.profile.name)
    }
}

#[async_trait]
impl CredentialProvider for ProfileKeys {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        Ok(self.at_most(READ_AGAIN).await)
    }
}
