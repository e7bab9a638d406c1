//! Which endpoint, region and credentials an `s3://` source uses: settings first, then the environment, then
//! the usual AWS files. A profile that is asked for by name comes before the environment's keys.
//!
//! Credentials that may change while the process runs come from a provider, which is asked before each
//! request: [`ProfileKeys`] for keys in the AWS files; beyond these (SSO, roles, `credential_process`, web
//! identity, metadata services) `chain`, with the feature `aws-config`, or else the few that `object_store`
//! knows.

#[cfg(feature = "aws-config")]
mod chain;
mod profile;

use super::settings::SourceSettings;
use forebay_proto::{Error, Result};
use object_store::aws::{AwsCredential, AwsCredentialProvider};
use profile::{Env, Profile, ProfileKeys, pair};
use std::fmt;
use std::sync::Arc;

/// Variables that name a role; one that is set counts even for a custom endpoint.
const ROLES: [&str; 3] = [
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

/// What settings, environment and files come to.
#[derive(Debug, Clone)]
pub(super) struct Resolved {
    pub endpoint: Option<String>,
    pub region: String,
    pub path_style: bool,
    pub credentials: Credentials,
}

/// Where credentials come from.
#[derive(Clone)]
pub(super) enum Credentials {
    /// Requests are not signed.
    Anonymous,
    /// Keys that do not change.
    Fixed(Arc<AwsCredential>),
    /// Keys that are renewed.
    Renewed(AwsCredentialProvider),
    /// Whatever `object_store` finds: a web identity, a container's or an instance's role.
    #[cfg_attr(feature = "aws-config", expect(dead_code, reason = "the AWS SDK finds more"))]
    Ambient,
    /// There are none.
    Missing,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous => "Anonymous",
            Self::Fixed(_) => "Fixed(..)",
            Self::Renewed(_) => "Renewed(..)",
            Self::Ambient => "Ambient",
            Self::Missing => "Missing",
        })
    }
}

/// Resolves `settings`.
///
/// # Errors
/// `Invalid` if they contradict each other or name a profile that does not exist.
pub(super) fn resolve(settings: &SourceSettings, env: Env<'_>) -> Result<Resolved> {
    let named = given(&settings.s3_profile);
    let profile = Profile::load(named.clone().or_else(|| env("AWS_PROFILE")), env)?;
    let endpoint = given(&settings.s3_endpoint)
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
    let region = given(&settings.s3_region)
        .or_else(|| env("AWS_REGION"))
        .or_else(|| env("AWS_DEFAULT_REGION"))
        .or_else(|| profile.get("region"))
        .unwrap_or_else(|| "us-east-1".into());
    let path_style = settings.s3_path_style.unwrap_or(endpoint.is_some());
    // A custom endpoint is hardly ever reached by an instance's role, whose absence takes a minute to notice.
    let may_ask = endpoint.is_none() || profile.names_provider() || ROLES.iter().any(|r| env(r).is_some());
    let credentials = choose(settings, profile, named.is_some(), may_ask, env)?;
    Ok(Resolved { endpoint, region, path_style, credentials })
}

fn choose(
    settings: &SourceSettings,
    profile: Profile,
    is_named: bool,
    may_ask: bool,
    env: Env<'_>,
) -> Result<Credentials> {
    let keys = pair(
        given(&settings.s3_access_key_id),
        given(&settings.s3_secret_access_key),
        given(&settings.s3_session_token),
        "s3_access_key_id and s3_secret_access_key",
    )?;
    match (keys, settings.s3_anonymous) {
        (Some(_), true) => {
            return Err(Error::invalid("s3_anonymous and s3_access_key_id contradict each other: give one"));
        }
        (Some(keys), false) => return Ok(Credentials::Fixed(Arc::new(keys))),
        (None, true) => return Ok(Credentials::Anonymous),
        (None, false) => {}
    }
    if !is_named {
        let (id, secret) = (env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY"));
        let names = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY";
        if let Some(keys) = pair(id, secret, env("AWS_SESSION_TOKEN"), names)? {
            return Ok(Credentials::Fixed(Arc::new(keys)));
        }
    }
    if let Some(keys) = profile.keys()? {
        return Ok(Credentials::Renewed(Arc::new(ProfileKeys::new(profile, keys))));
    }
    if is_named && !profile.names_provider() {
        return Err(profile.no_keys("names no way to get one"));
    }
    if !may_ask {
        return Ok(Credentials::Missing);
    }
    #[cfg(feature = "aws-config")]
    return Ok(Credentials::Renewed(Arc::new(chain::Chain::new(
        is_named.then(|| profile.name().to_owned()),
    ))));
    #[cfg(not(feature = "aws-config"))]
    if is_named {
        return Err(profile.no_keys("this program was built without SSO, roles and credential_process"));
    }
    #[cfg(not(feature = "aws-config"))]
    Ok(Credentials::Ambient)
}

fn given(value: &Option<String>) -> Option<String> {
    value.clone().filter(|v| !v.is_empty())
}

#[cfg(test)]
mod tests;
