//! Opening a bucket: the client of an object store, with its credentials, without retries of its own.

use super::credentials::Resolved;
use super::faults::Endpoint;
use super::object::Bucket;
use super::settings::SourceSettings;
use super::watch::Watch;
use forebay_proto::{Error, Result};
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::{ClientOptions, RetryConfig};
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Variables that name a role which a custom endpoint may be reached by.
const ROLES: [&str; 3] = [
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

/// The file system.
pub(super) fn file_system() -> Bucket {
    Bucket { objects: Box::new(LocalFileSystem::new()), endpoint: Endpoint::default() }
}

/// A bucket of S3. `Denied` without credentials, `Invalid` if the settings do not fit together. Connects to nothing yet.
pub(super) fn s3(bucket: &str, resolved: &Resolved, settings: &SourceSettings) -> Result<Bucket> {
    // A custom endpoint is hardly ever reached by an instance's role, whose absence takes a minute to notice.
    let has_role = resolved.endpoint.is_none() || ROLES.iter().any(|name| std::env::var_os(name).is_some());
    if resolved.keys.is_none() && !settings.s3_anonymous && !has_role {
        return Err(Error::denied(format!(
            "s3://{bucket}: no credentials in settings, environment or ~/.aws: set an access key, or s3_anonymous \
             for a public bucket"
        )));
    }
    let watch = Watch::default();
    let is_plain = resolved.endpoint.as_ref().is_some_and(|e| e.starts_with("http://"));
    let checksums = (HeaderName::from_static("x-amz-checksum-mode"), HeaderValue::from_static("ENABLED"));
    let client = client(settings, is_plain).with_default_headers(HeaderMap::from_iter([checksums]));
    let mut builder = match &resolved.keys {
        // Only without keys may the environment name further sources of them (roles of pods and instances).
        Some(_) => AmazonS3Builder::new(),
        None => AmazonS3Builder::from_env(),
    };
    builder = builder
        .with_bucket_name(bucket)
        .with_region(&resolved.region)
        .with_virtual_hosted_style_request(!resolved.path_style)
        .with_client_options(client)
        .with_retry(no_retries())
        .with_http_connector(watch.clone())
        .with_skip_signature(settings.s3_anonymous);
    if let Some(endpoint) = &resolved.endpoint {
        // With the bucket in the host name, object_store wants it in the endpoint too.
        builder = builder.with_endpoint(match (resolved.path_style, endpoint.split_once("://")) {
            (false, Some((scheme, host))) => format!("{scheme}://{bucket}.{host}"),
            _ => endpoint.clone(),
        });
    }
    if let Some(keys) = &resolved.keys {
        builder = builder.with_access_key_id(&keys.id).with_secret_access_key(&keys.secret);
        if let Some(token) = &keys.token {
            builder = builder.with_token(token);
        }
    }
    let objects = builder.build();
    let objects = objects.map_err(|e| Error::invalid(format!("s3://{bucket}: cannot be opened: {e}")))?;
    let endpoint = Endpoint {
        bucket: Some(bucket.to_owned()),
        name: resolved.endpoint.clone().unwrap_or_else(|| format!("AWS S3 ({})", resolved.region)),
        region: resolved.region.clone(),
        key_id: resolved.keys.as_ref().map(|k| k.id.clone()),
        watch,
    };
    Ok(Bucket { objects: Box::new(objects), endpoint })
}

/// A whole-request timeout would cut off large bodies on slow links: an idle timeout does not.
fn client(settings: &SourceSettings, is_plain: bool) -> ClientOptions {
    ClientOptions::new()
        .with_allow_http(is_plain)
        .with_no_system_certificates(is_plain)
        .with_timeout_disabled()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_read_timeout(Duration::from_secs_f64(settings.request_timeout_s))
        .with_pool_max_idle_per_host(settings.s3_max_requests)
}

/// `object_store`'s own retries know nothing of each other: [`super::retry`] stands in their place.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..Default::default() }
}
