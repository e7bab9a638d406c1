//! Opening a bucket: the client of an object store, with its credentials, without retries of its own.

use super::credentials::Resolved;
use super::faults::Endpoint;
use super::object::Bucket;
use super::settings::SourceSettings;
use super::store_names;
use super::uri::BucketName;
use super::verbatim::Verbatim;
use super::watch::Watch;
use forebay_proto::{Error, Result};
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::HttpConnector;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::list::PaginatedListStore;
use object_store::local::LocalFileSystem;
use object_store::{Certificate, ClientOptions, ObjectStore, RetryConfig};
use std::path::Path;
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The client of a bucket. `Invalid` if the settings do not fit together. Connects to nothing yet.
pub(super) fn open(name: &BucketName, s3: &Resolved, settings: &SourceSettings) -> Result<Bucket> {
    let Some((scheme, bucket)) = name else {
        let objects = Box::new(LocalFileSystem::new());
        return Ok(Bucket {
            objects,
            pages: None,
            endpoint: Endpoint::default(),
            verbatim: None,
            guard: None,
        });
    };
    let roots = settings.s3_ca.as_deref().map(authorities).transpose()?.unwrap_or_default();
    let client = |endpoint: &Option<String>| client(settings, endpoint, &roots);
    let opened = match *scheme {
        "s3" => amazon(bucket, s3, client(&s3.endpoint)),
        "gs" => google(bucket, settings, client),
        _ => azure(bucket, settings, client),
    };
    let opened = opened.map_err(|e| Error::invalid(format!("{scheme}://{bucket}: cannot be opened: {e}")))?;
    store_names::note(&opened.endpoint);
    Ok(opened)
}

/// The certificates of a file. `Invalid` if it has none.
fn authorities(path: &Path) -> Result<Vec<Certificate>> {
    let wrong = |why: String| Error::invalid(format!("s3_ca {}: {why}", path.display()));
    let bytes = std::fs::read(path).map_err(|e| wrong(format!("cannot be read: {e}")))?;
    let all = Certificate::from_pem_bundle(&bytes).map_err(|e| wrong(e.to_string()))?;
    match all.is_empty() {
        true => Err(wrong("has no certificate in PEM in it".into())),
        false => Ok(all),
    }
}

fn amazon(bucket: &str, s3: &Resolved, client: ClientOptions) -> object_store::Result<Bucket> {
    let watch = Watch::default();
    let checksums = (HeaderName::from_static("x-amz-checksum-mode"), HeaderValue::from_static("ENABLED"));
    let client = client.with_default_headers(HeaderMap::from_iter([checksums]));
    let verbatim = Verbatim {
        client: watch.connect(&client)?,
        url: url_of(bucket, s3),
        region: s3.region.clone(),
        credentials: s3.credentials.clone(),
    };
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(bucket)
        .with_region(&s3.region)
        .with_virtual_hosted_style_request(!s3.path_style)
        .with_client_options(client)
        .with_retry(no_retries())
        .with_http_connector(watch.clone());
    builder = match &s3.credentials {
        Some(provider) => builder.with_credentials(provider.clone()),
        None => builder.with_skip_signature(true),
    };
    if let Some(endpoint) = &s3.endpoint {
        // With the bucket in the host name, object_store wants it in the endpoint too.
        builder = builder.with_endpoint(match (s3.path_style, endpoint.split_once("://")) {
            (false, Some((scheme, host))) => format!("{scheme}://{bucket}.{host}"),
            _ => endpoint.clone(),
        });
    }
    let endpoint = Endpoint {
        bucket: Some(bucket.to_owned()),
        name: s3.endpoint.clone().unwrap_or_else(|| format!("AWS S3 ({})", s3.region)),
        region: Some(s3.region.clone()),
        key_id: s3.key_id.clone(),
        renews: s3.key_id.is_none() && s3.credentials.is_some(),
        watch,
    };
    Ok(Bucket { verbatim: Some(verbatim), ..bucket_of(builder.build()?, endpoint) })
}

/// Where requests for a bucket go.
fn url_of(bucket: &str, s3: &Resolved) -> String {
    let endpoint = s3.endpoint.clone().unwrap_or_else(|| format!("https://s3.{}.amazonaws.com", s3.region));
    match endpoint.split_once("://") {
        Some((scheme, host)) if !s3.path_style => format!("{scheme}://{bucket}.{host}"),
        _ => format!("{endpoint}/{bucket}"),
    }
}

/// A bucket of Google Cloud Storage, by the usual variables (`GOOGLE_*`) and files.
fn google(
    bucket: &str,
    settings: &SourceSettings,
    client: impl Fn(&Option<String>) -> ClientOptions,
) -> object_store::Result<Bucket> {
    let base = std::env::var("GOOGLE_BASE_URL").ok();
    let mut builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(bucket)
        .with_client_options(client(&base))
        .with_retry(no_retries());
    if settings.s3_anonymous {
        builder = builder.with_skip_signature(true);
    }
    let endpoint = other(bucket, base, "Google Cloud Storage");
    Ok(bucket_of(builder.build()?, endpoint))
}

/// A container of Azure Blob Storage, by the usual variables (`AZURE_STORAGE_*`).
fn azure(
    container: &str,
    settings: &SourceSettings,
    client: impl Fn(&Option<String>) -> ClientOptions,
) -> object_store::Result<Bucket> {
    let base = std::env::var("AZURE_STORAGE_ENDPOINT").ok();
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_container_name(container)
        .with_client_options(client(&base))
        .with_retry(no_retries());
    if settings.s3_anonymous {
        builder = builder.with_skip_signature(true);
    }
    let endpoint = other(container, base, "Azure Blob Storage");
    Ok(bucket_of(builder.build()?, endpoint))
}

fn bucket_of(client: impl ObjectStore + PaginatedListStore + Clone, endpoint: Endpoint) -> Bucket {
    Bucket {
        objects: Box::new(client.clone()),
        pages: Some(Box::new(client)),
        endpoint,
        verbatim: None,
        guard: None,
    }
}

fn other(bucket: &str, base: Option<String>, service: &str) -> Endpoint {
    let name = base.unwrap_or_else(|| service.to_owned());
    Endpoint { bucket: Some(bucket.to_owned()), name, renews: true, ..Default::default() }
}

/// A whole-request timeout would cut off large bodies on slow links: an idle timeout does not.
/// Where authorities are named, only those are believed.
fn client(settings: &SourceSettings, endpoint: &Option<String>, roots: &[Certificate]) -> ClientOptions {
    let is_http = endpoint.as_ref().is_some_and(|url| url.starts_with("http://"));
    let options =
        roots.iter().fold(ClientOptions::new(), |options, root| options.with_root_certificate(root.clone()));
    options
        .with_allow_http(is_http)
        .with_no_system_certificates(is_http || !roots.is_empty())
        .with_timeout_disabled()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_read_timeout(Duration::from_secs_f64(settings.request_timeout_s))
        .with_pool_max_idle_per_host(settings.s3_max_requests)
}

/// `object_store`'s own retries know nothing of each other: [`super::request`] stands in their place.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..Default::default() }
}
