use super::*;
use crate::auth::principal::CallerRole;
use forebay_proto::token::NewToken;
use std::hint::black_box;
use std::path::PathBuf;
use tokio_util::sync::CancellationToken;

struct World {
    authority: Arc<Authority>,
    token: NewToken,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

fn one(token: &NewToken, roles: &str, prefixes: &str) -> String {
    format!(
        "[[principal]]\nname = 'a'\nroles = {roles}\nprefixes = {prefixes}\ntoken_sha256 = ['{}']\n",
        token.known()
    )
}

fn world(roles: &str, prefixes: &str) -> World {
    let (folder, token) = (tempfile::tempdir().unwrap(), NewToken::new([3; 40]));
    let path = folder.path().join("policy");
    std::fs::write(&path, one(&token, roles, prefixes)).unwrap();
    let settings = AuthSettings { policy: Some(path.clone()), ..AuthSettings::default() };
    let allow = Arc::new(Allowed::new(&["s3://data".into()]).unwrap());
    let authority = Arc::new(Authority::open(&settings, allow).unwrap());
    World { authority, token, path, _folder: folder }
}

impl World {
    fn admit(&self, call: &str) -> std::result::Result<Caller, Refused> {
        let header = format!("Bearer {}", self.token.text());
        self.authority.admit(Shown::Header(&header), Call::of(call))
    }

    /// Another policy, which the node takes as soon as two looks find it.
    fn policy(&self, text: &str) {
        let new = self.path.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, &self.path).unwrap();
        self.look_twice();
    }
}

impl World {
    fn look_twice(&self) {
        self.authority.look();
        self.authority.look();
    }
}

const OPEN: &str = "/forebay.v1.Cache/Open";
const DRAIN: &str = "/forebay.v1.Cache/Drain";

#[test]
fn without_a_policy_everybody_may_all() {
    let allow = Arc::new(Allowed::new(&["s3://data".into()]).unwrap());
    let authority = Authority::open(&AuthSettings::default(), allow).unwrap();
    let caller = authority.admit(Shown::Nothing, None).unwrap();
    assert!(
        caller.has(CallerRole::Operator)
            && caller.may_use("s3://other/x").is_ok()
            && caller.limiter().is_none()
    );
}

#[test]
fn who_is_not_known_may_nothing() {
    let w = world("['reader']", "['s3://data/a']");
    assert!(w.admit(OPEN).unwrap().principal_name() == Some("a"));
    let (text, other) = (w.token.text(), NewToken::new([4; 40]));
    let header = |token: &str| format!("Bearer {token}");
    for shown in [
        Shown::Nothing,
        Shown::Header(""),
        Shown::Header(text),
        Shown::Header("Bearer "),
        Shown::Header(&header(other.text())),
        Shown::Header(&header(&text[..text.len() - 1])),
        Shown::Header(&header(&format!("{text}\0"))),
        Shown::Header(&header(&"x".repeat(1 << 20))),
        Shown::Header(&format!("Basic {text}")),
        Shown::S3Key("AK"),
    ] {
        let Err(Refused::Unknown(why)) = w.authority.admit(shown, Call::of(OPEN)) else {
            panic!("{shown:?}")
        };
        assert!(!why.is_empty() && !why.contains(text.rsplit('.').next().unwrap()), "{why}");
    }
    assert!(w.authority.admit(Shown::Nothing, Call::of("/grpc.health.v1.Health/Check")).is_ok());
    assert_eq!(w.authority.figures.unknown.load(Relaxed), 10);
}

#[test]
fn roles_are_checked_and_calls_that_are_not_in_the_table() {
    let w = world("['reader']", "[]");
    for (call, needs) in [
        (DRAIN, "it needs the role operator"),
        ("/forebay.v1.Peer/Learn", "it needs the role peer"),
        ("metrics", "it needs the role metrics or operator"),
        ("/forebay.v1.Cache/Pin", "it needs the role loader"),
        ("/x.y/Z", "no role of a policy may"),
    ] {
        let Err(Refused::Forbidden(caller, e)) = w.admit(call) else { panic!("{call}") };
        assert!(e.message.contains("a may not make this call") && caller.denied().is_some());
        assert!(e.message.ends_with(needs), "{call}: {}, not {needs}", e.message);
    }
}

#[test]
fn what_a_new_policy_does_not_bear_ends() {
    let w = world("['reader', 'loader']", "['s3://data/a']");
    let caller = w.admit(OPEN).unwrap();
    let session = caller.session().unwrap().clone();
    let cut = CancellationToken::new();
    let _open = session.begin(cut.clone());
    w.policy("[[principal");
    assert_eq!(w.authority.figures.policies_refused.load(Relaxed), 1);
    assert!(session.reason().is_none() && w.admit(OPEN).is_ok(), "the one of before stays in force");
    w.policy(&one(&w.token, "['reader', 'loader', 'operator']", "['s3://data']"));
    assert!(session.reason().is_none(), "it may more");
    assert!(w.admit(OPEN).unwrap().covers("s3://data/b"));
    assert!(Arc::ptr_eq(w.admit(OPEN).unwrap().session().unwrap(), &session));
    w.policy(&one(&w.token, "['reader', 'loader', 'operator']", "['s3://data/a']"));
    assert_eq!(session.reason(), Some(EndReason::Changed));
    assert!(session.end.is_cancelled() && !cut.is_cancelled());
    let again = w.admit(OPEN).unwrap().session().unwrap().clone();
    assert!(!again.end.is_cancelled(), "it may go on, by another session");
    for nobody in ["", "# nobody"] {
        w.policy(nobody);
        assert!(again.reason().is_none() && w.admit(OPEN).is_ok(), "a file that is empty locks nobody out");
    }
    assert_eq!(w.authority.figures.policies_refused.load(Relaxed), 3);
    w.policy(&one(&NewToken::new([4; 40]), "['reader']", "[]"));
    assert_eq!(again.reason(), Some(EndReason::Revoked));
    let Err(Refused::Unknown(why)) = w.admit(OPEN) else { panic!("it is revoked") };
    assert_eq!(why, format!("no principal has token {}", w.token.id()));
    std::thread::sleep(LAST_WORDS);
    w.authority.sweep();
    assert!(cut.is_cancelled(), "a reader that stands still is cut");
    assert_eq!(w.authority.generation(), 3);
}

#[test]
fn a_policy_that_is_removed_stays_in_force() {
    let w = world("['reader']", "[]");
    std::fs::remove_file(&w.path).unwrap();
    w.look_twice();
    assert!(w.admit(OPEN).is_ok());
    assert_eq!(w.authority.figures.policies_refused.load(Relaxed), 1);
}

#[test]
fn a_node_that_checks_no_claims_takes_no_policy_with_some() {
    let w = world("['reader']", "[]");
    w.policy(&(one(&w.token, "['reader', 'loader']", "[]") + "jwt = { sub = 'job-1' }\n"));
    assert_eq!(w.authority.figures.policies_refused.load(Relaxed), 1);
    assert!(!w.admit(OPEN).unwrap().has(CallerRole::Loader), "the one of before stays in force");
    let mut settings = AuthSettings { policy: Some(w.path.clone()), ..AuthSettings::default() };
    let open = |settings: &AuthSettings| {
        Authority::open(settings, w.authority.allow.clone()).map(drop).map_err(|e| e.message)
    };
    let e = open(&settings).unwrap_err();
    assert!(e.contains("is wrong, and not used: principal a: jwt: ") && e.contains("[auth.jwt] jwks"), "{e}");
    settings.jwt.jwks = Some("/keys.json".into());
    open(&settings).unwrap();
}

#[test]
fn what_nobody_uses_is_forgotten() {
    let w = world("['reader']", "[]");
    drop(w.admit(OPEN).unwrap());
    assert_eq!(w.authority.sessions.lock().len(), 1);
    w.authority.sweep();
    assert_eq!(w.authority.sessions.lock().len(), 1, "for a while it is kept");
    for known in w.authority.sessions.lock().values_mut() {
        known.checked -= DECISION_AGE;
    }
    w.authority.sweep();
    assert!(w.authority.sessions.lock().is_empty());
}

/// Microseconds of a decision; in a build that is not optimised it is only printed.
#[test]
fn a_decision_takes_two_microseconds_at_most() {
    let w = world("['reader']", "['s3://data/a', 's3://data/b']");
    let header = format!("Bearer {}", w.token.text());
    let decide = || {
        let caller = w.authority.admit(Shown::Header(&header), Call::of(OPEN)).unwrap();
        black_box(caller.covers("s3://data/b/some/key"))
    };
    let mut runs: Vec<f64> = (0..9)
        .map(|_| {
            let begin = Instant::now();
            for _ in 0..10_000 {
                decide();
            }
            begin.elapsed().as_secs_f64() * 100.0
        })
        .collect();
    runs.sort_by(f64::total_cmp);
    println!("{:.3} us a decision", runs[4]);
    assert!(cfg!(debug_assertions) || runs[4] <= 2.0, "{runs:?}");
}
