//! Which endpoint, region and credentials an `s3://` source uses: settings first, then the environment, then
//! the usual AWS files. A profile that is asked for by name comes before the environment's keys.
//!
//! The AWS SDK reads the files. Keys that may change while the process runs come from [`Chain`].

mod chain;
mod profile;

use super::settings::SourceSettings;
use aws_config::profile::ProfileSet;
use aws_types::os_shim_internal::Env;
use chain::{ASK_AGAIN, Chain};
use forebay_proto::{Error, Result};
use object_store::StaticCredentialProvider;
use object_store::aws::{AwsCredential, AwsCredentialProvider};
use profile::{profile, value, variable};
use std::sync::Arc;
use url::{Host, Url};

/// Settings of a profile that name another source of its keys.
const PROVIDERS: [&str; 5] =
    ["role_arn", "sso_session", "sso_start_url", "credential_process", "web_identity_token_file"];

/// What settings, environment and files come to.
#[derive(Debug, Clone)]
pub(super) struct Resolved {
    pub endpoint: Option<String>,
    pub region: String,
    pub path_style: bool,
    /// Without any, requests are not signed.
    pub credentials: Option<AwsCredentialProvider>,
    /// The id of a key that stays the same.
    pub key_id: Option<String>,
}

/// Resolves `settings`.
///
/// # Errors
/// `Invalid` if they contradict each other or name a profile that does not exist.
pub(super) fn resolve(settings: &SourceSettings, env: &Env) -> Result<Resolved> {
    let named = given(&settings.s3_profile);
    let profile = profile(named.clone().or_else(|| variable(env, "AWS_PROFILE")), env)?;
    let endpoint = given(&settings.s3_endpoint)
        .or_else(|| variable(env, "AWS_ENDPOINT_URL_S3"))
        .or_else(|| variable(env, "AWS_ENDPOINT_URL"))
        .or_else(|| value(&profile, "endpoint_url"))
        .map(|e| e.trim_end_matches('/').to_owned());
    let region = given(&settings.s3_region)
        .or_else(|| variable(env, "AWS_REGION"))
        .or_else(|| variable(env, "AWS_DEFAULT_REGION"))
        .or_else(|| value(&profile, "region"))
        .unwrap_or_else(|| "us-east-1".into());
    let path_style = settings.s3_path_style.unwrap_or(endpoint.is_some());
    endpoint.as_deref().map_or(Ok(()), |endpoint| check_endpoint(endpoint, path_style))?;
    let keys = fixed_keys(settings, named.is_some(), env)?;
    let key_id = keys.as_ref().map(|keys| keys.key_id.clone());
    let credentials: Option<AwsCredentialProvider> = match keys {
        Some(keys) => Some(Arc::new(StaticCredentialProvider::new(keys))),
        None if settings.s3_anonymous => None,
        None => Some(Arc::new(Chain {
            env: env.clone(),
            region: region.clone(),
            read_again: holds_keys(&profile, named.is_some())?.then_some(ASK_AGAIN),
            profile: profile.selected_profile().to_owned(),
            is_named: named.is_some(),
            // A custom endpoint is hardly ever reached by an instance's role; its absence is noticed late.
            asks_instance: endpoint.is_none(),
            last: Default::default(),
        })),
    };
    Ok(Resolved { endpoint, region, path_style, credentials, key_id })
}

/// `Invalid` if no request can go there.
fn check_endpoint(endpoint: &str, path_style: bool) -> Result<()> {
    if endpoint.contains('@') {
        // Not repeated: it is in every message and log that names the endpoint otherwise.
        return Err(Error::invalid(
            "s3_endpoint: holds credentials: give them as settings or in the environment",
        ));
    }
    let wrong = |why: &str| Err(Error::invalid(format!("s3_endpoint: {endpoint}: {why}")));
    if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
        return wrong("must start with http:// or https://");
    }
    match Url::parse(endpoint) {
        Ok(url) if url.query().is_some() || url.fragment().is_some() => wrong("must end before ? and #"),
        Ok(url) => match url.host() {
            Some(Host::Domain(_)) => Ok(()),
            Some(_) if path_style => Ok(()),
            Some(_) => {
                wrong("a bucket cannot be part of an IP address: leave s3_path_style out, or set it to true")
            }
            None => wrong("names no host"),
        },
        Err(e) => wrong(&format!("is no URL: {e}")),
    }
}

/// Keys in the settings, or in the environment unless a profile is named.
fn fixed_keys(settings: &SourceSettings, is_named: bool, env: &Env) -> Result<Option<AwsCredential>> {
    let keys = pair(
        given(&settings.s3_access_key_id),
        given(&settings.s3_secret_access_key),
        given(&settings.s3_session_token),
        "s3_access_key_id and s3_secret_access_key",
    )?;
    if keys.is_some() && settings.s3_anonymous {
        return Err(Error::invalid("s3_anonymous and s3_access_key_id contradict each other: give one"));
    }
    if keys.is_some() || settings.s3_anonymous || is_named {
        return Ok(keys);
    }
    let [id, secret, token] =
        ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"].map(|name| variable(env, name));
    pair(id, secret, token, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
}

/// Whether the profile holds keys itself. `Invalid` if it is named, and does not say how to get any either.
fn holds_keys(profile: &ProfileSet, is_named: bool) -> Result<bool> {
    let [id, secret] = ["aws_access_key_id", "aws_secret_access_key"].map(|key| value(profile, key));
    let name = profile.selected_profile();
    let names = format!("profile '{name}': aws_access_key_id and aws_secret_access_key");
    let holds_keys = pair(id, secret, None, &names)?.is_some();
    if is_named && !holds_keys && PROVIDERS.iter().all(|key| value(profile, key).is_none()) {
        return Err(Error::invalid(format!(
            "profile '{name}' holds no access key, and names no way to get one: name another by s3_profile"
        )));
    }
    Ok(holds_keys)
}

/// Both of a key's halves, or none.
fn pair(
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

fn given(value: &Option<String>) -> Option<String> {
    value.clone().filter(|v| !v.is_empty())
}

#[cfg(test)]
mod tests;
