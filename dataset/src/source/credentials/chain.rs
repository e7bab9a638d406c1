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
use forebay_proto::Backoff;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::Mutex;

/// How long the services behind a provider may take together.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Keys are renewed so long before they expire at most, or half of a shorter life. Each process takes a time
/// of its own: many got their keys in the same second.
const RENEW_BEFORE: Duration = Duration::from_secs(600);

/// Files that hold keys are read again after so long at most, as tools renew session tokens there; so are the
/// services asked while keys cannot be renewed.
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
    /// How old keys without an end may be at most.
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
            Some(at) => Some(renew_in(at.duration_since(now).unwrap_or_default())),
            None => self.read_again.map(Backoff::once),
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
                last.renew_at = Some(SystemTime::now() + Backoff::once(ASK_AGAIN));
                Ok(last.keys.clone())
            }
            (Err(e), _) => Err(refused(e)),
        }
    }
}

/// When keys that live so long are renewed.
fn renew_in(life: Duration) -> Duration {
    life.saturating_sub(Backoff::once(RENEW_BEFORE.min(life / 2)))
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

/// What tells that there is no good token of AWS SSO, as the SDK and the portal word it.
const NO_SSO_TOKEN: [&str; 3] = ["SSO token", "/.aws/sso/cache/", "UnauthorizedException"];

/// The error and its causes in one line, and what to do where somebody must log in.
fn text(e: &CredentialsError) -> String {
    let causes = std::iter::successors(Some(e as &dyn Error), |&e| e.source());
    let text = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
    match NO_SSO_TOKEN.iter().any(|sign| text.contains(sign)) {
        true => format!("{text}: log in by `aws sso login`"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pauses of processes that act at the same time: neither too long nor too short, and not all alike.
    fn spread(mut pauses: Vec<Duration>, [least, most]: [Duration; 2]) {
        pauses.sort();
        let (first, last) = (pauses[0], pauses[pauses.len() - 1]);
        assert!(first >= least && last <= most, "{first:?} to {last:?}");
        assert!(last - first > (most - least) / 4, "in step: {first:?} to {last:?}");
    }

    #[test]
    fn processes_that_got_keys_together_renew_them_one_by_one() {
        for (life, least, most) in [(3600, 3000, 3300), (900, 450, 675)] {
            let [life, least, most] = [life, least, most].map(Duration::from_secs);
            spread((0..50).map(|_| renew_in(life)).collect(), [least, most]);
        }
        assert_eq!(renew_in(Duration::ZERO), Duration::ZERO);
    }

    #[tokio::test]
    async fn processes_whose_keys_cannot_be_renewed_ask_again_one_by_one() {
        let none = [("AWS_CONFIG_FILE", "/nonexistent"), ("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")];
        let keys = Arc::new(AwsCredential { key_id: "K".into(), secret_key: "s".into(), token: None });
        let mut pauses = Vec::new();
        for _ in 0..20 {
            let renew_at = SystemTime::now();
            let (keys, expires_at) = (keys.clone(), Some(renew_at + 10 * TIMEOUT));
            let last = Last { keys, renew_at: Some(renew_at), expires_at };
            let chain = Chain {
                env: Env::from_slice(&none),
                region: "us-east-1".into(),
                profile: "none".into(),
                is_named: true,
                asks_instance: false,
                read_again: None,
                last: Mutex::new(Some(last)),
            };
            assert_eq!(chain.get_credential().await.unwrap().key_id, "K", "those of before");
            let asked = SystemTime::now();
            let again = chain.last.lock().await.as_ref().and_then(|last| last.renew_at).unwrap();
            pauses.push(again.duration_since(asked).unwrap());
        }
        spread(pauses, [ASK_AGAIN / 3, ASK_AGAIN]);
    }
}
