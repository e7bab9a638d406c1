//! What one credential has open: it ends when the credential is not good any more.

use super::limiter::Limiter;
use super::principal::Principal;
use crate::tls::PeerCertificate;
use forebay_proto::manifest::DatasetId;
use forebay_proto::token::TokenHash;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How long it is remembered that a dataset may be read.
pub const DECISION_AGE: Duration = Duration::from_secs(60);

/// Datasets of which that is remembered, at most.
const DATASETS_MAX: usize = 4096;

/// How a caller proved who it is.
#[derive(Debug, Clone, PartialEq)]
pub enum Credential {
    /// A token of the policy.
    Token { id: String, hash: TokenHash },
    /// A certificate that its connection proved.
    Certificate(PeerCertificate),
    /// What another authority signed, and until when.
    Claims { claims: Map<String, Value>, until: Instant },
    /// The id of a key of S3, whose signature fits.
    S3Key(String),
}

impl Credential {
    /// As the log names it: never by a secret.
    pub fn name(&self) -> String {
        match self {
            Self::Token { id, .. } => format!("token {id}"),
            Self::Certificate(certificate) => format!("certificate {}", certificate.serial),
            Self::Claims { claims, .. } => {
                let subject = claims.get("sub").and_then(Value::as_str).unwrap_or_default();
                format!("jwt {}", subject.chars().take(200).collect::<String>().escape_debug())
            }
            Self::S3Key(id) => format!("key {id}"),
        }
    }

    /// Whether its time is over.
    pub fn has_expired(&self) -> bool {
        matches!(self, Self::Claims { until, .. } if *until <= Instant::now())
    }
}

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// The policy does not know the credential any more.
    Revoked,
    /// It may less than before.
    Changed,
    /// Its time is over.
    Expired,
}

/// All that goes on with one credential.
#[derive(Debug)]
pub struct Session {
    pub credential: Credential,
    pub limiter: Arc<Limiter>,
    /// Called when it ends.
    pub end: CancellationToken,
    reason: OnceLock<EndReason>,
    principal: Mutex<Arc<Principal>>,
    /// What cuts the connections of answers that are being sent.
    answers: Mutex<HashMap<u64, CancellationToken>>,
    next: AtomicU64,
    /// Datasets that it may read, and since when that is known.
    readable: Mutex<HashMap<DatasetId, Instant>>,
}

/// An answer that is being sent, until dropped.
#[derive(Debug)]
pub struct OpenAnswer {
    session: Arc<Session>,
    number: u64,
}

impl Session {
    pub fn new(credential: Credential, principal: Arc<Principal>, limiter: Arc<Limiter>) -> Self {
        Self {
            credential,
            limiter,
            end: CancellationToken::new(),
            reason: OnceLock::new(),
            principal: Mutex::new(principal),
            answers: Mutex::default(),
            next: AtomicU64::new(0),
            readable: Mutex::default(),
        }
    }

    /// Who has the credential, as the policy of now has it.
    pub fn principal(&self) -> Arc<Principal> {
        self.principal.lock().clone()
    }

    /// It may as much as before, or more.
    pub fn go_on_as(&self, principal: Arc<Principal>) {
        *self.principal.lock() = principal;
        self.readable.lock().clear();
    }

    /// Ends all that is open.
    pub fn finish(&self, why: EndReason) {
        // The first reason counts.
        self.reason.set(why).ok();
        self.end.cancel();
    }

    /// Why it ended, if it has.
    pub fn reason(&self) -> Option<EndReason> {
        self.reason.get().copied()
    }

    /// Cuts the connections of answers that have not ended by themselves.
    pub fn cut(&self) {
        self.answers.lock().drain().for_each(|(_, cut)| cut.cancel());
    }

    /// Whether nothing is being sent.
    pub fn is_idle(&self) -> bool {
        self.answers.lock().is_empty()
    }

    /// An answer begins over a connection that `cut` cuts.
    pub fn begin(self: &Arc<Self>, cut: CancellationToken) -> OpenAnswer {
        let number = self.next.fetch_add(1, Relaxed);
        self.answers.lock().insert(number, cut);
        OpenAnswer { session: self.clone(), number }
    }

    /// Whether it is known that a dataset may be read; else what `look` finds is remembered if it is so.
    pub fn may_read(&self, dataset: DatasetId, look: impl FnOnce() -> bool) -> bool {
        let now = Instant::now();
        if self.readable.lock().get(&dataset).is_some_and(|since| now - *since < DECISION_AGE) {
            return true;
        }
        let may = look();
        if may {
            let mut readable = self.readable.lock();
            if readable.len() >= DATASETS_MAX {
                readable.clear();
            }
            readable.insert(dataset, now);
        }
        may
    }
}

impl Drop for OpenAnswer {
    fn drop(&mut self) {
        self.session.answers.lock().remove(&self.number);
    }
}
