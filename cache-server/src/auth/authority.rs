//! From what a request shows to its caller; and what becomes of callers when the policy changes.
//!
//! A caller is found once for each of its credentials and remembered for a while: each request then costs a
//! hash. When the policy changes, all that is open is held against the new one, and what it does not bear
//! ends.

use super::caller::Caller;
use super::calls::Call;
use super::jwt::JwtVerifier;
use super::limiter::Limiter;
use super::policy::Policy;
use super::policy_file::WatchedPolicy;
use super::principal::{CallerRole, Principal};
use super::session::{Credential, DECISION_AGE, EndReason, Session};
use crate::allow::Allowed;
use crate::disk::PrefixLimit;
use crate::runtime::blocking;
use crate::settings::AuthSettings;
use crate::tls::PeerCertificate;
use forebay_proto::token::GivenToken;
use forebay_proto::{Error, Result};
use parking_lot::{Mutex, RwLock};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::hash::Hash as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};

/// How often the policy is looked at, and what has expired. Another policy takes force after two looks that
/// find the same file.
const LOOK: Duration = Duration::from_secs(1);

/// Looks between two at the keys of JSON Web Tokens.
const LOOKS_PER_KEYS: u64 = 2;

/// In the error of a caller that is known and has not the role for a call.
pub const NO_ROLE: &str = "may not make this call";

/// How long what has ended may take to say so, before its connection is cut.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Credentials that are remembered at most, but for those with something open.
const SESSIONS_MAX: usize = 65_536;

/// What a request shows of its caller.
#[derive(Debug, Clone, Copy)]
pub enum Shown<'a> {
    /// `Bearer TOKEN`
    Header(&'a str),
    Certificate(&'a PeerCertificate),
    /// The id of a key of S3 whose signature was checked.
    S3Key(&'a str),
    Nothing,
}

/// Why a caller may not make a call.
#[derive(Debug)]
pub enum Refused {
    /// It shows nothing that is good here; why, which is not for the caller.
    Unknown(String),
    /// It is known, and may not.
    Forbidden(Caller, Error),
}

/// Who may do what on this node.
#[derive(Debug)]
pub struct Authority {
    file: Option<Mutex<WatchedPolicy>>,
    allow: Arc<Allowed>,
    policy: RwLock<Option<Arc<Policy>>>,
    jwt: Option<JwtVerifier>,
    sessions: Mutex<HashMap<SessionKey, KnownSession>>,
    limiters: Mutex<HashMap<String, Arc<Limiter>>>,
    /// Those that ended and may be sending still, with the time.
    ended: Mutex<Vec<(Instant, Arc<Session>)>>,
    /// Called after each change of the policy.
    generation: AtomicU64,
    pub figures: AuthFigures,
}

/// Sums since start.
#[derive(Debug, Default)]
pub struct AuthFigures {
    /// Policies that came into force.
    pub policies: AtomicU64,
    /// Policies that were wrong: the one before stays in force.
    pub policies_refused: AtomicU64,
    /// Calls of those who are not known, and calls that those who are known may not make.
    pub unknown: AtomicU64,
    pub forbidden: AtomicU64,
}

type SessionKey = [u8; 32];

#[derive(Debug)]
struct KnownSession {
    session: Arc<Session>,
    checked: Instant,
}

impl Authority {
    /// By these settings. Reads the policy: not for an async thread. `Invalid` says why it cannot be used.
    pub fn open(settings: &AuthSettings, allow: Arc<Allowed>) -> Result<Self> {
        let path = settings.policy.clone();
        let jwt = JwtVerifier::new(&settings.jwt)?;
        let open = |path| WatchedPolicy::open(path, &allow, jwt.is_some());
        let (file, policy) = path.map(open).transpose()?.unzip();
        Ok(Self {
            file: file.map(Mutex::new),
            allow,
            policy: RwLock::new(policy.map(Arc::new)),
            jwt,
            sessions: Mutex::default(),
            limiters: Mutex::default(),
            ended: Mutex::default(),
            generation: AtomicU64::new(0),
            figures: AuthFigures::default(),
        })
    }

    /// Whether there is a policy: else everybody may all.
    pub fn is_on(&self) -> bool {
        self.file.is_some()
    }

    /// What the disk may hold of principals with `cache_bytes`.
    pub fn cache_limits(&self) -> Vec<PrefixLimit> {
        self.policy.read().as_ref().map(|policy| policy.cache_limits()).unwrap_or_default()
    }

    /// Another number after each change of the policy.
    pub fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// Who makes a call; `None` is a call that the table does not have.
    pub fn admit(
        &self,
        shown: Shown<'_>,
        call: Option<&'static Call>,
    ) -> std::result::Result<Caller, Refused> {
        if !self.is_on() || call.is_some_and(|call| call.roles.is_empty()) {
            return Ok(Caller::everyone());
        }
        let session = self.session(shown).map_err(|why| {
            self.figures.unknown.fetch_add(1, Relaxed);
            Refused::Unknown(why)
        })?;
        let caller = Caller::of(session);
        let may = call.is_some_and(|call| call.roles.iter().any(|role| caller.has(*role)));
        if may {
            return Ok(caller);
        }
        let name = caller.principal_name().unwrap_or_default().to_owned();
        let why = match call {
            Some(call) => format!("{name} {NO_ROLE}: it needs the role {}", role_names(call.roles)),
            None => format!("{name} {NO_ROLE}: no role of a policy may"),
        };
        let e = caller.deny("", why);
        Err(Refused::Forbidden(caller, e))
    }

    /// What a credential has open; else why it is not good.
    fn session(&self, shown: Shown<'_>) -> std::result::Result<Arc<Session>, String> {
        let key = shown.key().ok_or_else(|| shown.fault().to_owned())?;
        if let Some(known) = self.sessions.lock().get(&key)
            && known.checked.elapsed() < DECISION_AGE
            && !known.session.credential.has_expired()
        {
            return Ok(known.session.clone());
        }
        let credential = self.credential(shown)?;
        // From here on no other policy comes into force.
        let mut sessions = self.sessions.lock();
        let principal = self.policy.read().as_ref().and_then(|policy| policy.principal_of(&credential));
        let principal = principal.ok_or_else(|| format!("no principal has {}", credential.name()))?;
        let checked = Instant::now();
        if let Some(known) = sessions.get_mut(&key).filter(|known| known.session.reason().is_none()) {
            known.session.go_on_as(principal);
            known.checked = checked;
            return Ok(known.session.clone());
        }
        if sessions.len() >= SESSIONS_MAX {
            sessions.retain(|_, known| !known.session.is_idle());
        }
        let limiter = self.limiter(&principal);
        let session = Arc::new(Session::new(credential, principal, limiter));
        sessions.insert(key, KnownSession { session: session.clone(), checked });
        Ok(session)
    }

    fn credential(&self, shown: Shown<'_>) -> std::result::Result<Credential, String> {
        match shown {
            Shown::Header(text) => {
                let token = bearer(text).ok_or_else(|| shown.fault().to_owned())?;
                match (GivenToken::of(token), &self.jwt) {
                    (Some(given), _) => Ok(Credential::Token { id: given.id.to_owned(), hash: given.hash() }),
                    (None, Some(jwt)) => jwt.verify(token).map_err(str::to_owned),
                    (None, None) => Err("its token is none of a policy, and there is no [auth.jwt]".into()),
                }
            }
            Shown::Certificate(certificate) => Ok(Credential::Certificate(certificate.clone())),
            Shown::S3Key(id) => Ok(Credential::S3Key(id.to_owned())),
            Shown::Nothing => Err(shown.fault().to_owned()),
        }
    }

    fn limiter(&self, principal: &Principal) -> Arc<Limiter> {
        let mut limiters = self.limiters.lock();
        let new = || Arc::new(Limiter::new(&principal.name, principal.limits));
        limiters.entry(principal.name.clone()).or_insert_with(new).clone()
    }

    /// Looks at the policy, at keys and at what has expired, for as long as the node lives.
    pub async fn run(self: Arc<Self>) {
        if !self.is_on() {
            return;
        }
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_fault = String::new();
        for look in 0_u64.. {
            ticks.tick().await;
            if let Some(jwt) = self.jwt.as_ref().filter(|_| look.is_multiple_of(LOOKS_PER_KEYS)) {
                match jwt.look().await {
                    Ok(()) => last_fault.clear(),
                    Err(e) if e.message == last_fault => {}
                    Err(e) => {
                        tracing::warn!(error = %e, "keys of JSON Web Tokens cannot be read: those of before are in force");
                        last_fault = e.message;
                    }
                }
            }
            let authority = self.clone();
            if let Err(e) = blocking(move || authority.look()).await {
                tracing::warn!(error = %e, "the policy cannot be looked at");
            }
            self.sweep();
        }
    }

    /// Takes the policy's file if it has changed and stands still. Touches the disk.
    fn look(&self) {
        let found = self.file.as_ref().and_then(|file| file.lock().look(&self.allow));
        match found {
            None => {}
            Some(Ok(policy)) => self.put_in_force(policy),
            Some(Err(e)) => {
                self.figures.policies_refused.fetch_add(1, Relaxed);
                tracing::warn!(error = %e, "the policy of before stays in force");
            }
        }
    }

    fn put_in_force(&self, policy: Policy) {
        let policy = Arc::new(policy);
        let mut sessions = self.sessions.lock();
        *self.policy.write() = Some(policy.clone());
        let mut limiters = self.limiters.lock();
        limiters.retain(|_, limiter| Arc::strong_count(limiter) > 1);
        for principal in policy.principals() {
            if let Some(limiter) = limiters.get(&principal.name) {
                limiter.set(principal.limits);
            }
        }
        drop(limiters);
        let before = sessions.len();
        sessions.retain(|_, KnownSession { session, .. }| match policy.principal_of(&session.credential) {
            Some(principal) if principal.may_all_of(&session.principal()) => {
                session.go_on_as(principal);
                true
            }
            Some(_) => self.finish(session, EndReason::Changed),
            None => self.finish(session, EndReason::Revoked),
        });
        self.generation.fetch_add(1, Relaxed);
        self.figures.policies.fetch_add(1, Relaxed);
        tracing::info!(
            principals = policy.principals().len(),
            ended = before - sessions.len(),
            "another policy is in force"
        );
    }

    /// Ends a session; false, for it is known no more.
    fn finish(&self, session: &Arc<Session>, why: EndReason) -> bool {
        session.finish(why);
        self.ended.lock().push((Instant::now(), session.clone()));
        false
    }

    /// Forgets what nobody uses, ends what has expired, and cuts what does not end.
    fn sweep(&self) {
        let now = Instant::now();
        self.sessions.lock().retain(|_, KnownSession { session, checked }| {
            match session.credential.has_expired() {
                true => self.finish(session, EndReason::Expired),
                false => now - *checked < DECISION_AGE || !session.is_idle(),
            }
        });
        self.ended.lock().retain(|(at, session)| {
            let is_over = now - *at >= LAST_WORDS;
            if is_over {
                session.cut();
            }
            !is_over
        });
    }
}

impl Shown<'_> {
    /// Why it is nothing that could be good.
    fn fault(&self) -> &'static str {
        match self {
            Self::Header(_) => "its header has no bearer token",
            _ => "it shows no token and no certificate, or several tokens",
        }
    }

    /// What remembers a credential: its hash, for it may be a secret.
    fn key(&self) -> Option<SessionKey> {
        let mut hash = Sha256::new();
        match self {
            Self::Header(text) => {
                hash.update(b"h");
                hash.update(bearer(text)?);
            }
            Self::S3Key(id) => {
                hash.update(b"k");
                hash.update(id);
            }
            Self::Certificate(certificate) => {
                hash.update(b"c");
                certificate.hash(&mut Fed(&mut hash));
            }
            Self::Nothing => return None,
        }
        Some(hash.finalize().into())
    }
}

/// Has a value that can be hashed feed another hash.
struct Fed<'a>(&'a mut Sha256);

impl std::hash::Hasher for Fed<'_> {
    fn finish(&self) -> u64 {
        0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
}

/// The token of a header's value.
fn bearer(text: &str) -> Option<&str> {
    let (scheme, token) = text.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// As a policy has them: `reader or loader`.
fn role_names(roles: &[CallerRole]) -> String {
    roles.iter().map(|role| role.name()).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests;
