//! Who makes a request, before anything of it is read; what of it is written down; and what becomes of its
//! answer when its caller may have it no more.

mod answer;

use super::stalls::StreamOrigin;
use crate::auth::audit::{AuditLine, AuditLog};
use crate::auth::authority::{Authority, Refused, Shown};
use crate::auth::caller::Caller;
use crate::auth::calls::Call;
use crate::auth::session::Session;
use crate::runtime::blocking;
use crate::tls::PeerCertificate;
use answer::{GuardedBody, ended, told};
use forebay_proto::{Error, Result};
use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use http::{Extensions, Response};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::body::Body;
use tonic::{Code, Status};

/// The header of an answer that names its request, for those who look into the node's log.
const REQUEST_HEADER: &str = "forebay-request-id";

/// Names of nobody in the table, in the audit log: a stranger's words may be long.
const NAME_BYTES_MAX: usize = 100;

/// Refusals that the node's own log tells in a stretch of time at most, where there is no audit log:
/// strangers may ask without end.
const TOLD_MAX: u32 = 20;
const TOLD_IN: Duration = Duration::from_secs(10);

/// Stands before all services of a node.
#[derive(Debug)]
pub struct CallGuard {
    pub authority: Arc<Authority>,
    pub audit: AuditLog,
    node: String,
    told: Mutex<RefusalsTold>,
}

/// How many refusals the log has told since when, and how many it has not.
#[derive(Debug, Default)]
struct RefusalsTold {
    since: Option<Instant>,
    told: u32,
    untold: u64,
}

/// A request that may be answered.
#[derive(Debug, Clone)]
pub struct Admitted {
    pub caller: Caller,
    call: Option<&'static Call>,
}

impl CallGuard {
    /// Of the node of this name.
    pub fn new(authority: Arc<Authority>, audit: AuditLog, node: String) -> Self {
        Self { authority, audit, node, told: Mutex::default() }
    }

    /// Whether a gRPC request may be answered, by its head.
    pub async fn admit(
        &self,
        path: &str,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> std::result::Result<Admitted, Status> {
        let call = Call::of(path);
        match self.authority.admit(shown(headers, extensions), call) {
            Ok(caller) => Ok(Admitted { caller, call }),
            Err(refused) => {
                let origin = extensions.get::<StreamOrigin>();
                let (code, why) = self.refuse(path, origin, refused).await;
                Err(Status::new(code, why))
            }
        }
    }

    /// Writes a refusal down; returns how a caller is told.
    pub async fn refuse(
        &self,
        call: &str,
        origin: Option<&StreamOrigin>,
        refused: Refused,
    ) -> (Code, String) {
        let call = &call[..call.floor_char_boundary(NAME_BYTES_MAX)];
        match refused {
            Refused::Unknown(why) => {
                let request = Caller::everyone().request();
                let why = &format!("nobody who is known: {why}");
                self.note(AuditLine {
                    request: request.clone(),
                    call,
                    outcome: "denied",
                    why,
                    ..self.line(origin)
                })
                .await;
                let why = format!(
                    "this node does not know you: show a token or a certificate that its policy knows, a token by \
                     FOREBAY_TOKEN_FILE (request {request})"
                );
                (Code::Unauthenticated, why)
            }
            Refused::Forbidden(caller, e) => {
                self.note_denial(&caller, call, origin).await;
                (Code::PermissionDenied, format!("{e} (request {})", caller.request()))
            }
        }
    }

    /// Writes down what a caller was refused, if it was.
    pub async fn note_denial(&self, caller: &Caller, call: &str, origin: Option<&StreamOrigin>) {
        if let Some(denial) = caller.denied() {
            self.authority.figures.forbidden.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let (uri, why) = (denial.uri.as_str(), denial.why.as_str());
            self.note(AuditLine { call, uri, why, outcome: "denied", ..self.line_of(caller, origin) }).await;
        }
    }

    /// The answer as its caller may have it.
    pub async fn finish(
        &self,
        admitted: Admitted,
        origin: &StreamOrigin,
        mut response: Response<Body>,
    ) -> Response<Body> {
        let Admitted { caller, call } = admitted;
        let name = call.map_or("", |call| call.name);
        self.note_denial(&caller, name, Some(origin)).await;
        if caller.denied().is_none() && call.is_some_and(Call::is_of_operators) {
            let status = Status::from_header_map(response.headers());
            let outcome = status.map_or("ok".to_owned(), |status| format!("{:?}", status.code()));
            let line = AuditLine { call: name, outcome: &outcome, ..self.line_of(&caller, Some(origin)) };
            self.note(line).await;
        }
        let Some(session) = caller.session() else { return response };
        if let Ok(id) = HeaderValue::try_from(caller.request()) {
            response.headers_mut().insert(REQUEST_HEADER, id);
        }
        told(&caller, response.headers_mut());
        let open = session.begin(origin.cut.clone());
        response.map(|body| Body::new(GuardedBody::new(body, caller.clone(), open)))
    }

    /// Callers are told the id of a request that is refused, so one of the logs has it.
    async fn note(&self, line: AuditLine<'_>) {
        if self.audit.is_on() {
            self.audit.note(line).await;
            return;
        }
        let turn = (line.outcome == "denied").then(|| self.told.lock().turn(Instant::now()));
        if let Some(Some(others)) = turn {
            let AuditLine { request, principal, by, address, call, uri, why, .. } = line;
            tracing::info!(request, principal, by, address, call, uri, why, others, "a call was refused");
        }
    }

    fn line(&self, origin: Option<&StreamOrigin>) -> AuditLine<'_> {
        let address = origin.and_then(|origin| origin.address);
        AuditLine {
            node: &self.node,
            address: address.map_or("unix".to_owned(), |address| address.to_string()),
            ..AuditLine::default()
        }
    }

    fn line_of<'a>(&'a self, caller: &'a Caller, origin: Option<&StreamOrigin>) -> AuditLine<'a> {
        AuditLine {
            request: caller.request(),
            principal: caller.principal_name().unwrap_or_default(),
            by: caller.session().map(|session| session.credential.name()).unwrap_or_default(),
            ..self.line(origin)
        }
    }
}

impl RefusalsTold {
    /// Whether another one may be told now, and how many were not since the last one.
    fn turn(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.duration_since(since) >= TOLD_IN) {
            (self.since, self.told) = (Some(now), 0);
        }
        if self.told >= TOLD_MAX {
            self.untold += 1;
            return None;
        }
        self.told += 1;
        Some(std::mem::take(&mut self.untold))
    }
}

/// The caller of a request that a guard let in.
pub fn caller(extensions: &Extensions) -> Result<Caller> {
    // Nobody is let in by a mistake in the order of things.
    extensions.get().cloned().ok_or_else(|| Error::denied("the request has no caller"))
}

/// `Denied` unless an object lies where a caller may read.
pub async fn may_use_object(caller: &Caller, uri: &str) -> Result<()> {
    // Only names of files touch the disk.
    if caller.session().is_none() || !uri.starts_with("file:") {
        return caller.may_use_object(uri);
    }
    let (caller, uri) = (caller.clone(), uri.to_owned());
    blocking(move || caller.may_use_object(&uri)).await?
}

/// The same of a URI that may name many.
pub async fn may_use(caller: &Caller, uri: &str) -> Result<()> {
    if caller.session().is_none() {
        return Ok(());
    }
    let (caller, uri) = (caller.clone(), uri.to_owned());
    blocking(move || caller.may_use(&uri)).await?
}

/// What a request shows of its caller. One with two tokens shows nothing.
pub fn shown<'a>(headers: &'a HeaderMap, extensions: &'a Extensions) -> Shown<'a> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    match (all.next(), all.next(), extensions.get::<Arc<PeerCertificate>>()) {
        (Some(only), None, _) => only.to_str().map_or(Shown::Nothing, Shown::Header),
        (None, _, Some(certificate)) => Shown::Certificate(certificate),
        _ => Shown::Nothing,
    }
}

/// The answer to a request whose caller may have none any more.
pub fn ended_answer(session: &Session) -> Response<Body> {
    ended(session).into_http()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_does_not_fill_the_log() {
        let (mut told, start) = (RefusalsTold::default(), Instant::now());
        let turns: Vec<_> = (0..1000).map(|_| told.turn(start)).collect();
        assert_eq!(turns.iter().flatten().count(), TOLD_MAX as usize);
        assert_eq!(told.turn(start + TOLD_IN), Some(1000 - u64::from(TOLD_MAX)));
        assert_eq!(told.turn(start + TOLD_IN), Some(0));
    }
}
