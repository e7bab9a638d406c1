//! Which endpoint, region and credentials an `s3://` source uses: settings first, then the environment, then the
//! usual AWS files. A profile that is asked for by name comes before the environment's keys.
//!
//! Only keys are read from the files; what needs a browser or a program (SSO, roles, `credential_process`) is left
//! to the AWS tools, and said so.

use super::settings::SourceSettings;
use forebay_proto::{Error, Result};
use std::collections::BTreeMap;
use std::fmt;

/// Access keys.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Keys {
    pub id: String,
    pub secret: String,
    pub token: Option<String>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({}, ...)", self.id)
    }
}

/// What settings, environment and files come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resolved {
    pub endpoint: Option<String>,
    pub region: String,
    pub path_style: bool,
    pub keys: Option<Keys>,
}

/// Looks a variable up; empty counts as unset.
pub(super) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Resolves `settings`; `Invalid` if they contradict each other or name a profile that does not exist.
pub(super) fn resolve(settings: &SourceSettings, env: Env<'_>) -> Result<Resolved> {
    let set = |v: &Option<String>| v.clone().filter(|v| !v.is_empty());
    let named = set(&settings.s3_profile);
    let profile = Profile::load(named.clone().or_else(|| env("AWS_PROFILE")), env)?;
    let endpoint = set(&settings.s3_endpoint)
        .or_else(|| env("AWS_ENDPOINT_URL_S3"))
        .or_else(|| env("AWS_ENDPOINT_URL"))
        .or_else(|| profile.get("endpoint_url"))
        .map(|e| e.trim_end_matches('/').to_owned());
    if endpoint.as_ref().is_some_and(|e| e.contains('@')) {
        // Not repeated: it is in every message and log that names the endpoint otherwise.
        return Err(Error::invalid(
            "s3_endpoint: holds credentials: give them as settings or in the environment",
        ));
    }
    if let Some(e) = &endpoint
        && !e.starts_with("http://")
        && !e.starts_with("https://")
    {
        return Err(Error::invalid(format!("s3_endpoint: {e}: must start with http:// or https://")));
    }
    let region = set(&settings.s3_region)
        .or_else(|| env("AWS_REGION"))
        .or_else(|| env("AWS_DEFAULT_REGION"))
        .or_else(|| profile.get("region"))
        .unwrap_or_else(|| "us-east-1".into());
    let given = pair(
        set(&settings.s3_access_key_id),
        set(&settings.s3_secret_access_key),
        set(&settings.s3_session_token),
        "s3_access_key_id and s3_secret_access_key",
    )?;
    let from_env = || {
        let (id, secret) = (env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY"));
        pair(id, secret, env("AWS_SESSION_TOKEN"), "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    };
    let keys = match (given, settings.s3_anonymous, named.is_some()) {
        (Some(_), true, _) => {
            return Err(Error::invalid("s3_anonymous and s3_access_key_id contradict each other: give one"));
        }
        (_, true, _) => None,
        (Some(keys), ..) => Some(keys),
        (None, _, true) => Some(profile.keys()?.ok_or_else(|| profile.no_keys())?),
        (None, _, false) => match from_env()? {
            Some(keys) => Some(keys),
            None => profile.keys()?,
        },
    };
    let path_style = settings.s3_path_style.unwrap_or(endpoint.is_some());
    Ok(Resolved { endpoint, region, path_style, keys })
}

fn pair(
    id: Option<String>,
    secret: Option<String>,
    token: Option<String>,
    names: &str,
) -> Result<Option<Keys>> {
    match (id, secret) {
        (Some(id), Some(secret)) => Ok(Some(Keys { id, secret, token })),
        (None, None) => Ok(None),
        _ => Err(Error::invalid(format!("{names} go together: only one of them is set"))),
    }
}

/// One profile out of the credentials and config files, the former first.
struct Profile {
    name: String,
    values: BTreeMap<String, String>,
}

impl Profile {
    fn load(wanted: Option<String>, env: Env<'_>) -> Result<Self> {
        let name = wanted.clone().unwrap_or_else(|| "default".into());
        let file =
            |var: &str, default: &str| env(var).or_else(|| Some(format!("{}/.aws/{default}", env("HOME")?)));
        let credentials = file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
        let config = file("AWS_CONFIG_FILE", "config");
        let mut values = BTreeMap::new();
        let mut found = false;
        for (path, prefix) in [(config, "profile "), (credentials, "")] {
            let Some(text) = path.and_then(|p| std::fs::read_to_string(p).ok()) else { continue };
            let sections = [name.clone(), format!("{prefix}{name}")];
            let Some(section) = section(&text, &sections) else { continue };
            found = true;
            values.extend(section);
        }
        match (found, wanted) {
            (false, Some(name)) => Err(Error::invalid(format!(
                "no profile '{name}' in ~/.aws/credentials or ~/.aws/config: correct s3_profile or AWS_PROFILE"
            ))),
            _ => Ok(Self { name, values }),
        }
    }

    fn get(&self, key: &str) -> Option<String> {
        self.values.get(key).cloned().filter(|v| !v.is_empty())
    }

    fn keys(&self) -> Result<Option<Keys>> {
        let (id, secret) = (self.get("aws_access_key_id"), self.get("aws_secret_access_key"));
        let names = format!("profile '{}': aws_access_key_id and aws_secret_access_key", self.name);
        pair(id, secret, self.get("aws_session_token"), &names)
    }

    fn no_keys(&self) -> Error {
        Error::invalid(format!(
            "profile '{0}' holds no access key (SSO, roles and credential_process are not read): \
             run `aws configure export-credentials --profile {0} --format env` and set what it prints",
            self.name
        ))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(
            dir.path().join("credentials"),
            "# mine\n[default]\naws_access_key_id = D\naws_secret_access_key=s3cret=\n\n[w]\naws_access_key_id=W\n\
             aws_secret_access_key=ws\naws_session_token=t\n",
        )
        .unwrap();
        std::fs::write(
            dir.path().join("config"),
            "[default]\nregion = eu-west-1\n[profile w]\nregion=ap-south-1\nendpoint_url = http://h:1/\ns3 =\n  \
             region = nested\n[profile sso]\nsso_session = x\n",
        )
        .unwrap();
        dir
    }

    fn run(settings: &SourceSettings, vars: &[(&str, &str)]) -> Result<Resolved> {
        let dir = files();
        let at = |f: &str| Some(dir.path().join(f).display().to_string());
        resolve(settings, &|name| match name {
            "AWS_SHARED_CREDENTIALS_FILE" => at("credentials"),
            "AWS_CONFIG_FILE" => at("config"),
            _ => vars.iter().find(|(k, _)| *k == name).map(|(_, v)| v.to_string()),
        })
    }

    #[test]
    fn files_then_environment_then_settings() {
        let none = SourceSettings::default();
        let r = run(&none, &[]).unwrap();
        assert_eq!((r.region.as_str(), r.endpoint, r.path_style), ("eu-west-1", None, false));
        let keys = r.keys.unwrap();
        assert_eq!((keys.id.as_str(), keys.secret.as_str(), keys.token.is_none()), ("D", "s3cret=", true));
        assert!(!format!("{keys:?}").contains("s3cret"));

        let env = [("AWS_ACCESS_KEY_ID", "E"), ("AWS_SECRET_ACCESS_KEY", "es"), ("AWS_REGION", "r")];
        let r = run(&none, &env).unwrap();
        assert_eq!((r.keys.unwrap().id.as_str(), r.region.as_str()), ("E", "r"));

        let w = SourceSettings { s3_profile: Some("w".into()), ..Default::default() };
        let r = run(&w, &env[..2]).unwrap();
        assert_eq!((r.region.as_str(), r.endpoint.as_deref()), ("ap-south-1", Some("http://h:1")));
        assert_eq!((r.keys.unwrap().id.as_str(), r.path_style), ("W", true));

        let s = SourceSettings {
            s3_access_key_id: Some("S".into()),
            s3_secret_access_key: Some("x".into()),
            ..w
        };
        assert_eq!(run(&s, &env).unwrap().keys.unwrap().id, "S");
    }

    #[test]
    fn contradictions_are_told() {
        let half = SourceSettings { s3_access_key_id: Some("S".into()), ..Default::default() };
        assert!(run(&half, &[]).unwrap_err().message.contains("go together"));
        let anonymous =
            SourceSettings { s3_anonymous: true, s3_secret_access_key: Some("x".into()), ..half.clone() };
        assert!(run(&anonymous, &[]).unwrap_err().message.contains("contradict"));
        for (profile, hint) in [("nope", "no profile"), ("sso", "holds no access key")] {
            let s = SourceSettings { s3_profile: Some(profile.into()), ..Default::default() };
            let e = run(&s, &[]).unwrap_err();
            assert!(e.message.contains(hint), "{e}");
        }
        let s = SourceSettings { s3_endpoint: Some("localhost:9000".into()), ..Default::default() };
        assert!(run(&s, &[]).is_err());
        let s = SourceSettings { s3_endpoint: Some("http://me:hunter2@h:1".into()), ..Default::default() };
        let e = run(&s, &[]).unwrap_err();
        assert!(e.message.contains("holds credentials") && !e.message.contains("hunter2"), "{e}");
    }
}
