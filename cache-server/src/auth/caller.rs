//! Who makes a request, as the services ask for it.

use super::limiter::Limiter;
use super::principal::{CallerRole, Principal};
use super::session::{Credential, Session};
use crate::allow::Allowed;
use forebay_dataset::Selection;
use forebay_dataset::source;
use forebay_proto::{Error, Manifest, Result};
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

/// Who makes a request. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Caller(Arc<CallerState>);

#[derive(Debug)]
struct CallerState {
    /// `None` where everybody may all.
    who: Option<Identified>,
    request: u64,
    /// What was refused.
    denied: OnceLock<Denial>,
}

#[derive(Debug)]
struct Identified {
    session: Arc<Session>,
    /// As the policy had it when the request came.
    principal: Arc<Principal>,
}

/// What a caller was refused.
#[derive(Debug, Clone)]
pub struct Denial {
    /// Empty where it was no matter of data.
    pub uri: String,
    pub why: String,
}

impl Caller {
    /// Somebody who may all that the node may: where there is no policy, and the node itself.
    pub fn everyone() -> Self {
        Self(Arc::new(CallerState { who: None, request: fastrand::u64(..), denied: OnceLock::new() }))
    }

    /// Who has the credential of a session.
    pub fn of(session: Arc<Session>) -> Self {
        let who = Some(Identified { principal: session.principal(), session });
        Self(Arc::new(CallerState { who, request: fastrand::u64(..), denied: OnceLock::new() }))
    }

    /// What names this request, in errors and in the log.
    pub fn request(&self) -> String {
        format!("{:016x}", self.0.request)
    }

    /// The caller's session; none where everybody may all.
    pub fn session(&self) -> Option<&Arc<Session>> {
        self.0.who.as_ref().map(|who| &who.session)
    }

    /// Its limits; none where everybody may all.
    pub fn limiter(&self) -> Option<&Arc<Limiter>> {
        self.session().map(|session| &session.limiter)
    }

    /// Its name in the policy; none where everybody may all.
    pub fn principal_name(&self) -> Option<&str> {
        self.principal().map(|principal| principal.name.as_str())
    }

    /// Whether it is known by the certificate of its connection.
    pub fn has_certificate(&self) -> bool {
        self.session().is_some_and(|session| matches!(session.credential, Credential::Certificate(_)))
    }

    fn principal(&self) -> Option<&Principal> {
        self.0.who.as_ref().map(|who| &*who.principal)
    }

    /// Whether it has a role.
    pub fn has(&self, role: CallerRole) -> bool {
        self.principal().is_none_or(|principal| principal.roles.contains(&role))
    }

    /// Whether it sees all data of the node.
    pub fn is_operator(&self) -> bool {
        self.has(CallerRole::Operator)
    }

    /// Whether it may know the node's figures.
    pub fn sees_figures(&self) -> bool {
        self.is_operator() || self.has(CallerRole::Metrics)
    }

    /// Whether a URI in normal form lies where it may read.
    pub fn covers(&self, uri: &str) -> bool {
        self.principal().is_none_or(|principal| principal.prefixes.covers(uri))
    }

    /// Whether it may know of what lies at a URI in normal form.
    pub fn sees(&self, uri: &str) -> bool {
        self.is_operator() || self.covers(uri)
    }

    /// Whether a rule for all under a URI concerns something that it sees.
    pub fn sees_rule(&self, uri: &str) -> bool {
        let is_above =
            |principal: &Principal| principal.prefixes.roots().iter().any(|root| source::is_under(root, uri));
        self.sees(uri) || self.principal().is_some_and(is_above)
    }

    /// Whether all that a manifest reads lies where it may read. It is looked at each time, or was within the
    /// last minute.
    pub fn reads(&self, manifest: &Manifest) -> bool {
        let Some(Identified { session, principal }) = &self.0.who else { return true };
        session.may_read(manifest.id(), || all_within(&principal.prefixes, manifest))
    }

    /// Whether it may know of a dataset.
    pub fn sees_manifest(&self, manifest: &Manifest) -> bool {
        self.is_operator() || self.reads(manifest)
    }

    /// `Denied` unless a URI, as somebody wrote it, lies where it may read. Follows links where it names a
    /// file: not for an async thread.
    pub fn may_use(&self, uri: &str) -> Result<()> {
        match self.principal() {
            None => Ok(()),
            Some(_) => self.may_use_spelled(uri, &source::normalise(uri)?),
        }
    }

    /// The same of an object, whose key may have any characters.
    pub fn may_use_object(&self, uri: &str) -> Result<()> {
        match self.principal() {
            None => Ok(()),
            Some(_) => self.may_use_spelled(uri, &source::normalise_object(uri)?),
        }
    }

    /// The same of all that a selection names.
    pub fn may_use_selection(&self, selection: &Selection) -> Result<()> {
        if self.principal().is_none() {
            return Ok(());
        }
        self.may_use(&selection.uri)?;
        let named = selection.objects.iter().map(|object| object.key.as_str());
        let schema_of = Some(selection.schema_of.as_str()).filter(|key| !key.is_empty());
        named.chain(schema_of).try_for_each(|key| self.may_use_object(&selection.object_uri(key)))
    }

    fn may_use_spelled(&self, uri: &str, normal: &str) -> Result<()> {
        let Some(principal) = self.principal().filter(|principal| !principal.prefixes.covers(normal)) else {
            return Ok(());
        };
        let name = &principal.name;
        let why = match principal.prefixes.roots() {
            [] => format!("{uri}: {name} may read nothing"),
            roots => format!("{uri}: {name} may not read it; it reads under {}", roots.join(", ")),
        };
        Err(self.deny(uri, why))
    }

    /// Notes that something is refused; the error that says so.
    pub fn deny(&self, uri: &str, why: String) -> Error {
        // The first one counts.
        self.0.denied.set(Denial { uri: uri.to_owned(), why: why.clone() }).ok();
        Error::denied(why)
    }

    /// What was refused, if anything was.
    pub fn denied(&self) -> Option<&Denial> {
        self.0.denied.get()
    }

    /// Whether a key of an S3 bucket lies where it may read.
    pub fn allows_key(&self, bucket: &str, key: &str) -> bool {
        self.principal().is_none_or(|principal| principal.prefixes.allows_key(bucket, key))
    }

    /// Whether all keys of an S3 bucket that begin so do.
    pub fn allows_prefix(&self, bucket: &str, prefix: &str) -> bool {
        self.principal().is_none_or(|principal| principal.prefixes.allows_prefix(bucket, prefix))
    }

    /// Whether something of an S3 bucket does.
    pub fn allows_bucket(&self, bucket: &str) -> bool {
        self.principal().is_none_or(|principal| principal.prefixes.allows_bucket(bucket))
    }

    /// The S3 buckets of which it may read something; none where everybody may all.
    pub fn buckets(&self) -> Option<BTreeSet<String>> {
        self.principal().map(|principal| principal.prefixes.buckets())
    }
}

/// Whether all parts of a manifest lie under some roots, and objects that it has from elsewhere.
fn all_within(roots: &Allowed, manifest: &Manifest) -> bool {
    let is_elsewhere = |key: &str| key.contains("://") || key.split('/').any(|part| part == "..");
    manifest.parts().iter().all(|part| roots.covers(&part.uri))
        && manifest.objects().iter().filter(|object| is_elsewhere(&object.key)).all(|object| {
            source::normalise_object(&manifest.object_uri(object)).is_ok_and(|uri| roots.covers(&uri))
        })
}

#[cfg(test)]
pub(crate) mod tests;
