//! Opening a bucket: the client of an object store, with its credentials, without retries of its own.

use super::credentials::{Credentials, Resolved};
use super::faults::Endpoint;
use super::object::Bucket;
use super::settings::SourceSettings;
use super::watch::Watch;
use forebay_proto::{Error, Result};
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use object_store::aws::{AmazonS3Builder, AwsCredential};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::{ClientOptions, RetryConfig};
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The file system.
pub(super) fn file_system() -> Bucket {
    Bucket { objects: Box::new(LocalFileSystem::new()), endpoint: Endpoint::default() }
}

/// A bucket of S3. `Denied` without credentials, `Invalid` if the settings do not fit together. Connects to
/// nothing yet.
pub(super) fn s3(bucket: &str, resolved: &Resolved, settings: &SourceSettings) -> Result<Bucket> {
    if matches!(resolved.credentials, Credentials::Missing) {
        return Err(Error::denied(format!(
            "s3://{bucket}: no credentials in settings, environment or ~/.aws: set an access key, or s3_anonymous \
             for a public bucket"
        )));
    }
    let watch = Watch::default();
    let checksums = (HeaderName::from_static("x-amz-checksum-mode"), HeaderValue::from_static("ENABLED"));
    let client =
        client(settings, is_http(&resolved.endpoint)).with_default_headers(HeaderMap::from_iter([checksums]));
    let mut builder = match &resolved.credentials {
        Credentials::Ambient | Credentials::Missing => AmazonS3Builder::from_env(),
        Credentials::Anonymous => AmazonS3Builder::new().with_skip_signature(true),
        Credentials::Fixed(keys) => with_keys(AmazonS3Builder::new(), keys),
        Credentials::Renewed(provider) => AmazonS3Builder::new().with_credentials(provider.clone()),
    };
    builder = builder
        .with_bucket_name(bucket)
        .with_region(&resolved.region)
        .with_virtual_hosted_style_request(!resolved.path_style)
        .with_client_options(client)
        .with_retry(no_retries())
        .with_http_connector(watch.clone());
    if let Some(endpoint) = &resolved.endpoint {
        // With the bucket in the host name, object_store wants it in the endpoint too.
        builder = builder.with_endpoint(match (resolved.path_style, endpoint.split_once("://")) {
            (false, Some((scheme, host))) => format!("{scheme}://{bucket}.{host}"),
            _ => endpoint.clone(),
        });
    }
    let objects = builder.build();
    let objects = objects.map_err(|e| Error::invalid(format!("s3://{bucket}: cannot be opened: {e}")))?;
    let endpoint = Endpoint {
        bucket: Some(bucket.to_owned()),
        name: resolved.endpoint.clone().unwrap_or_else(|| format!("AWS S3 ({})", resolved.region)),
        region: Some(resolved.region.clone()),
        key_id: match &resolved.credentials {
            Credentials::Fixed(keys) => Some(keys.key_id.clone()),
            _ => None,
        },
        renews: matches!(resolved.credentials, Credentials::Renewed(_) | Credentials::Ambient),
        watch,
    };
    Ok(Bucket { objects: Box::new(objects), endpoint })
}

fn with_keys(builder: AmazonS3Builder, keys: &AwsCredential) -> AmazonS3Builder {
    let builder = builder.with_access_key_id(&keys.key_id).with_secret_access_key(&keys.secret_key);
    match &keys.token {
        Some(token) => builder.with_token(token),
        None => builder,
    }
}

/// A bucket of Google Cloud Storage, by the usual variables (`GOOGLE_*`) and files.
pub(super) fn gcs(bucket: &str, settings: &SourceSettings) -> Result<Bucket> {
    let base = std::env::var("GOOGLE_BASE_URL").ok();
    let mut builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(bucket)
        .with_client_options(client(settings, is_http(&base)))
        .with_retry(no_retries());
    if settings.s3_anonymous {
        builder = builder.with_skip_signature(true);
    }
    let objects = builder.build();
    let objects = objects.map_err(|e| Error::invalid(format!("gs://{bucket}: cannot be opened: {e}")))?;
    Ok(Bucket { objects: Box::new(objects), endpoint: other(bucket, base, "Google Cloud Storage") })
}

/// A container of Azure Blob Storage, by the usual variables (`AZURE_STORAGE_*`).
pub(super) fn azure(container: &str, settings: &SourceSettings) -> Result<Bucket> {
    let base = std::env::var("AZURE_STORAGE_ENDPOINT").ok();
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_container_name(container)
        .with_client_options(client(settings, is_http(&base)))
        .with_retry(no_retries());
    if settings.s3_anonymous {
        builder = builder.with_skip_signature(true);
    }
    let objects = builder.build();
    let objects = objects.map_err(|e| Error::invalid(format!("az://{container}: cannot be opened: {e}")))?;
    Ok(Bucket { objects: Box::new(objects), endpoint: other(container, base, "Azure Blob Storage") })
}

fn other(bucket: &str, base: Option<String>, service: &str) -> Endpoint {
    let name = base.unwrap_or_else(|| service.to_owned());
    Endpoint { bucket: Some(bucket.to_owned()), name, renews: true, ..Default::default() }
}

fn is_http(base: &Option<String>) -> bool {
    base.as_ref().is_some_and(|url| url.starts_with("http://"))
}

/// A whole-request timeout would cut off large bodies on slow links: an idle timeout does not.
fn client(settings: &SourceSettings, is_http: bool) -> ClientOptions {
    ClientOptions::new()
        .with_allow_http(is_http)
        .with_no_system_certificates(is_http)
        .with_timeout_disabled()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_read_timeout(Duration::from_secs_f64(settings.request_timeout_s))
        .with_pool_max_idle_per_host(settings.s3_max_requests)
}

/// `object_store`'s own retries know nothing of each other: [`super::retry`] stands in their place.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..Default::default() }
}
