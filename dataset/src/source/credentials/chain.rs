//! Keys by the AWS SDK that may change while the process runs: a profile of the AWS files (keys, SSO, roles,
//! `credential_process`), web identity, containers and instances (IMDSv2).
#![expect(clippy::disallowed_methods, reason = "credentials expire at a time of day")]

use super::profile::files;
use crate::source::faults::CREDENTIALS;
use async_trait::async_trait;
use aws_config::ecs::EcsCredentialsProvider;
use aws_config::imds::credentials::ImdsCredentialsProvider;
use aws_config::meta::credentials::CredentialsProviderChain;
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::web_identity_token::WebIdentityTokenCredentialsProvider;
use aws_credential_types::provider::ProvideCredentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_types::os_shim_internal::Env;
use aws_types::region::Region;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::Mutex;

/// How long the services behind a provider may take together.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Keys are renewed so long before they expire, or when three quarters of a shorter life have passed.
const RENEW_BEFORE: Duration = Duration::from_secs(300);

/// Files that hold keys are read again so often, as tools renew session tokens there; so often the services
/// are asked while keys cannot be renewed.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Where keys come from, and those that it gave last.
#[derive(Debug)]
pub(super) struct Chain {
    pub env: Env,
    pub region: String,
    pub profile: String,
    /// The profile alone is asked.
    pub is_named: bool,
    pub asks_instance: bool,
    /// How old keys without an end may be.
    pub read_again: Option<Duration>,
    pub last: Mutex<Option<Last>>,
}

#[derive(Debug)]
pub(super) struct Last {
    keys: Arc<AwsCredential>,
    renew_at: Option<SystemTime>,
    expires_at: Option<SystemTime>,
}

impl Chain {
    /// A chain that has read the AWS files as they are now.
    fn provider(&self) -> CredentialsProviderChain {
        let config = ProviderConfig::default().with_region(Some(Region::new(self.region.clone())));
        let profile = ProfileFileCredentialsProvider::builder()
            .configure(&config)
            .profile_files(files(&self.env))
            .profile_name(&self.profile);
        let chain = CredentialsProviderChain::first_try("profile", profile.build());
        if self.is_named {
            return chain;
        }
        let identity = WebIdentityTokenCredentialsProvider::builder().configure(&config);
        let container = EcsCredentialsProvider::builder().configure(&config);
        let chain = chain.or_else("web identity", identity.build()).or_else("container", container.build());
        match self.asks_instance {
            true => chain.or_else("instance", ImdsCredentialsProvider::builder().configure(&config).build()),
            false => chain,
        }
    }

    async fn ask(&self) -> Result<Last, CredentialsError> {
        let provider = self.provider();
        let asked = tokio::time::timeout(TIMEOUT, provider.provide_credentials()).await;
        let given = asked.map_err(|_| CredentialsError::provider_timed_out(TIMEOUT))??;
        let now = SystemTime::now();
        let expires_at = given.expiry();
        let keys = AwsCredential {
            key_id: given.access_key_id().to_owned(),
            secret_key: given.secret_access_key().to_owned(),
            token: given.session_token().map(str::to_owned),
        };
        let renew_in = match expires_at {
            Some(at) => {
                let life = at.duration_since(now).unwrap_or_default();
                Some(life.saturating_sub(RENEW_BEFORE).max(life * 3 / 4))
            }
            None => self.read_again,
        };
        Ok(Last { keys: Arc::new(keys), renew_at: renew_in.map(|after| now + after), expires_at })
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
                tracing::warn!(error = text(&e), "credentials cannot be renewed: those of before are used");
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
    let causes = std::iter::successors(Some(e as &dyn Error), |&e| e.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
