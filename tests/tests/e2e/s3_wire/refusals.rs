//! Buckets in another region and sessions that have expired: named at once, with what to do about it.

use super::{DATASET, PATIENCE, same_as_pyarrow, straight};
use crate::commands::{cached, direct, rows};
use crate::fixtures;
use crate::refused::{SECRET, refused};
use forebay_tests::harness::fault::Fault;
use forebay_tests::harness::process::ServerOptions;
use forebay_tests::harness::s3::{REGION, S3Server};
use std::time::Duration;

/// Where the bucket is.
const ELSEWHERE: &str = "eu-central-1";

/// Requests of two commands that are refused. Retries would be many more.
const REQUESTS_MAX: usize = 8;

#[test]
fn a_redirect_to_another_region_says_which_at_once() {
    let (here, there) = (S3Server::start(), S3Server::start_in(ELSEWHERE));
    let uri = fixtures::upload(&here, DATASET);
    fixtures::upload(&there, DATASET);
    let says = [uri.as_str(), "'forebay'", ELSEWHERE, REGION, "--s3-region"];
    // A redirect that says where to go is followed, but the keys do not go with it.
    for fault in [Fault::Redirect(there.address), Fault::Moved(ELSEWHERE)] {
        let server = ServerOptions::for_s3(&here).args(["--patience-s", PATIENCE]).start();
        here.inject(Box::new(move |_| Some(fault)));
        here.take_log();
        refused(cached(&server, &["cat", &uri]), &says);
        refused(direct(&here, &["cat", &uri, "--patience-s", PATIENCE]), &says);
        let sent = here.take_log().len();
        assert!((2..=REQUESTS_MAX).contains(&sent), "{fault:?}: {sent} requests");
        server.stop();
    }
    // So does an answer without a document: an object is asked for by HEAD.
    let server = ServerOptions::for_s3(&there).args(["--patience-s", PATIENCE]).start();
    let object = format!("{uri}/part-00000.parquet");
    refused(
        cached(&server, &["get", &object]),
        &[object.as_str(), "'forebay'", ELSEWHERE, REGION, "--s3-region"],
    );
    server.stop();
    // With that region, and where it is, all is well.
    let server = ServerOptions::bare()
        .args(["--allow", "s3://forebay/", "--s3-endpoint", &there.endpoint, "--s3-region", ELSEWHERE])
        .env("AWS_ACCESS_KEY_ID", &there.access_key)
        .env("AWS_SECRET_ACCESS_KEY", &there.secret_key)
        .start();
    same_as_pyarrow(&rows(&server, &uri));
    server.stop();
}

#[test]
fn a_session_that_has_expired_is_said_at_once() {
    let s3 = S3Server::start();
    let (first, second) = (fixtures::upload(&s3, "good/one-row"), fixtures::upload(&s3, DATASET));
    let (id, secret) = ("SESSION", "secret-of-the-session");
    let expires = |after: Option<Duration>| s3.keys().add(id, secret, after);
    let session =
        [("AWS_ACCESS_KEY_ID", id), ("AWS_SECRET_ACCESS_KEY", secret), ("AWS_SESSION_TOKEN", SECRET)];
    expires(None);
    let options = ServerOptions::for_s3(&s3).args(["--patience-s", PATIENCE]);
    let server = session.iter().fold(options, |options, (name, value)| options.env(name, value)).start();
    assert!(!rows(&server, &first).is_empty());

    expires(Some(Duration::ZERO));
    let says =
        [second.as_str(), &s3.endpoint, "access key SESSION", "ExpiredToken", "credentials have expired"];
    s3.take_log();
    refused(cached(&server, &["cat", &second]), &says);
    let settings = ["--s3-endpoint", &s3.endpoint, "--patience-s", PATIENCE];
    refused(straight(&s3, &second, &settings).envs(session), &says);
    // An object is asked for by HEAD: the answer to that has a status, and no reason.
    let object = format!("{second}/part-00000.parquet");
    let says = [object.as_str(), &s3.endpoint, "400", "credentials expired"];
    refused(cached(&server, &["get", &object]), &says);
    let sent = s3.take_log().len();
    assert!((3..=REQUESTS_MAX).contains(&sent), "{sent} requests");

    // The node is none the worse for it.
    expires(None);
    same_as_pyarrow(&rows(&server, &second));
    server.stop();
}
