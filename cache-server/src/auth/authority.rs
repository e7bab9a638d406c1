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
use super::principal::Principal;
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
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};
use tokio::time::{MissedTickBehavior, interval};

/// How often the policy is looked at, and what has expired.
const LOOK: Duration = Duration::from_secs(2);

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
    /// It shows nothing that is good here.
    Unknown,
    /// It is known, and may not.
    Forbidden(Caller, Error),
}

/// Who may do what on this node.
#[derive(Debug)]
pub struct Authority {
    file: Option<PathBuf>,
    allow: Arc<Allowed>,
    policy: RwLock<Option<Arc<Policy>>>,
    jwt: Option<JwtVerifier>,
    sessions: Mutex<HashMap<SessionKey, KnownSession>>,
    limiters: Mutex<HashMap<String, Arc<Limiter>>>,
    /// Those that ended and may be sending still, with the time.
    ended: Mutex<Vec<(Instant, Arc<Session>)>>,
    /// The policy's file as it was when it was looked at last.
    seen: Mutex<Option<FileVersion>>,
    /// Called after each change of the policy.
    generation: AtomicU64,
    pub figures: AuthFigures,
}

/// Sums since start.
#[derive(Debug, Default)]
pub struct AuthFigures {
    /// Policies that came into force.
    pub policies: AtomicU64,
    /// Those that were wrong.
    pub policies_refused: AtomicU64,
    /// Calls of those who are not known, and calls that those who are known may not make.
    pub unknown: AtomicU64,
    pub forbidden: AtomicU64,
}

type SessionKey = [u8; 32];

/// When a file was written, its inode, its length.
type FileVersion = (SystemTime, u64, u64);

#[derive(Debug)]
struct KnownSession {
    session: Arc<Session>,
    checked: Instant,
}

impl Authority {
    /// By these settings. Reads the policy: not for an async thread. `Invalid` says why it cannot be used.
    pub fn open(settings: &AuthSettings, allow: Arc<Allowed>) -> Result<Self> {
        let file = settings.policy.clone();
        let policy = file.as_deref().map(|file| Policy::read(file, &allow)).transpose()?;
        let seen = file.as_deref().and_then(|file| version(file).ok());
        Ok(Self {
            file,
            allow,
            policy: RwLock::new(policy.map(Arc::new)),
            jwt: JwtVerifier::new(&settings.jwt)?,
            sessions: Mutex::default(),
            limiters: Mutex::default(),
            ended: Mutex::default(),
            seen: Mutex::new(seen),
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
        let Some(session) = self.session(shown) else {
            self.figures.unknown.fetch_add(1, Relaxed);
            return Err(Refused::Unknown);
        };
        let caller = Caller::of(session);
        let may = call.is_some_and(|call| call.roles.iter().any(|role| caller.has(*role)));
        if may {
            return Ok(caller);
        }
        let name = caller.principal_name().unwrap_or_default().to_owned();
        let why = format!("{name} may not make this call: it needs another role in the node's policy");
        let e = caller.deny("", why);
        Err(Refused::Forbidden(caller, e))
    }

    /// What a credential has open; `None` if it is not good.
    fn session(&self, shown: Shown<'_>) -> Option<Arc<Session>> {
        let key = shown.key()?;
        if let Some(known) = self.sessions.lock().get(&key)
            && known.checked.elapsed() < DECISION_AGE
            && !known.session.credential.has_expired()
        {
            return Some(known.session.clone());
        }
        let credential = self.credential(shown)?;
        // From here on no other policy comes into force.
        let mut sessions = self.sessions.lock();
        let principal = self.policy.read().as_ref()?.principal_of(&credential)?;
        let checked = Instant::now();
        if let Some(known) = sessions.get_mut(&key).filter(|known| known.session.reason().is_none()) {
            known.session.go_on_as(principal);
            known.checked = checked;
            return Some(known.session.clone());
        }
        if sessions.len() >= SESSIONS_MAX {
            sessions.retain(|_, known| !known.session.is_idle());
        }
        let limiter = self.limiter(&principal);
        let session = Arc::new(Session::new(credential, principal, limiter));
        sessions.insert(key, KnownSession { session: session.clone(), checked });
        Some(session)
    }

    fn credential(&self, shown: Shown<'_>) -> Option<Credential> {
        match shown {
            Shown::Header(text) => {
                let token = bearer(text)?;
                match GivenToken::of(token) {
                    Some(given) => Some(Credential::Token { id: given.id.to_owned(), hash: given.hash() }),
                    None => self.jwt.as_ref()?.verify(token),
                }
            }
            Shown::Certificate(certificate) => Some(Credential::Certificate(certificate.clone())),
            Shown::S3Key(id) => Some(Credential::S3Key(id.to_owned())),
            Shown::Nothing => None,
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
        loop {
            ticks.tick().await;
            if let Some(jwt) = &self.jwt {
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

    /// Takes the policy's file if it has changed. Touches the disk.
    fn look(&self) {
        let Some(file) = &self.file else { return };
        let now = version(file).ok();
        if std::mem::replace(&mut *self.seen.lock(), now) == now {
            return;
        }
        match Policy::read(file, &self.allow) {
            Ok(policy) => self.put_in_force(policy),
            Err(e) => {
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

fn version(file: &Path) -> std::io::Result<FileVersion> {
    let about = std::fs::metadata(file)?;
    Ok((about.modified()?, about.ino(), about.len()))
}

#[cfg(test)]
mod tests;
