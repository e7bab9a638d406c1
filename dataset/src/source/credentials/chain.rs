//! Credentials by the AWS SDK: SSO, `credential_process`, roles, web identity, containers and instances
//! (IMDSv2).
#![expect(clippy::disallowed_methods, reason = "credentials expire at a time of day")]

use crate::source::faults::CREDENTIALS;
use async_trait::async_trait;
use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use std::error::Error as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{Mutex, OnceCell};

/// How long the services behind a provider may take together.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Credentials are renewed so long before they expire, or when three quarters of a shorter life have passed.
const RENEW_BEFORE: Duration = Duration::from_secs(300);

/// While they cannot be renewed the services are asked this often.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// The SDK's chain of providers, and the credentials that it gave last.
pub(super) struct Chain {
    /// None: the default chain.
    profile: Option<String>,
    provider: OnceCell<SharedCredentialsProvider>,
    last: Mutex<Option<Last>>,
}

struct Last {
    keys: Arc<AwsCredential>,
    renew_at: Option<SystemTime>,
    expires_at: Option<SystemTime>,
}

impl Chain {
    pub(super) fn new(profile: Option<String>) -> Self {
        Self { profile, provider: OnceCell::new(), last: Mutex::default() }
    }

    async fn open(&self) -> SharedCredentialsProvider {
        match &self.profile {
            Some(name) => SharedCredentialsProvider::new(
                ProfileFileCredentialsProvider::builder().profile_name(name).build(),
            ),
            None => SharedCredentialsProvider::new(DefaultCredentialsChain::builder().build().await),
        }
    }

    async fn ask(&self) -> Result<Last, CredentialsError> {
        let provider = self.provider.get_or_init(|| self.open()).await;
        let asked = tokio::time::timeout(TIMEOUT, provider.provide_credentials()).await;
        let given = asked.map_err(|_| CredentialsError::provider_timed_out(TIMEOUT))??;
        let now = SystemTime::now();
        let expires_at = given.expiry();
        let life = expires_at.map(|at| at.duration_since(now).unwrap_or_default());
        let keys = AwsCredential {
            key_id: given.access_key_id().to_owned(),
            secret_key: given.secret_access_key().to_owned(),
            token: given.session_token().map(str::to_owned),
        };
        let renew_at = life.map(|life| now + life.saturating_sub(RENEW_BEFORE).max(life * 3 / 4));
        Ok(Last { keys: Arc::new(keys), renew_at, expires_at })
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Chain({:?})", self.profile)
    }
}

#[async_trait]
impl CredentialProvider for Chain {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut last = self.last.lock().await;
        let is_before = |at: Option<SystemTime>| at.is_none_or(|at| SystemTime::now() < at);
        if let Some(last) = last.as_ref().filter(|last| is_before(last.renew_at)) {
            return Ok(last.keys.clone());
        }
        match (self.ask().await, last.as_mut()) {
            (Ok(given), _) => Ok(last.insert(given).keys.clone()),
            (Err(e), Some(last)) if is_before(last.expires_at) => {
                tracing::warn!(error = %text(&e), "credentials cannot be renewed: those of before are used");
                last.renew_at = Some(SystemTime::now() + ASK_AGAIN);
                Ok(last.keys.clone())
            }
            (Err(e), _) => Err(refused(e)),
        }
    }
}

/// As `source/faults.rs` tells them apart: a service that may answer later is generic.
fn refused(e: CredentialsError) -> object_store::Error {
    let source = text(&e).into();
    match e {
        CredentialsError::CredentialsNotLoaded(_) | CredentialsError::InvalidConfiguration(_) => {
            object_store::Error::Unauthenticated { path: "credentials".into(), source }
        }
        _ => object_store::Error::Generic { store: CREDENTIALS, source },
    }
}

/// The error and its causes in one line.
fn text(e: &CredentialsError) -> String {
    let (mut text, mut next) = (e.to_string(), e.source());
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
