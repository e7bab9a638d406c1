//! Where the node's object store is and how it is asked, which callers are not told.

use super::Guarded;
use forebay_proto::token::NewToken;
use forebay_proto::v1;
use forebay_tests::harness::policy::ALL;
use forebay_tests::harness::process::ServerOptions;
use forebay_tests::harness::question::{DENIED, Question, UNKNOWN, ask};
use prost::Message as _;
use std::time::{Duration, Instant};

/// The key by which the node asks its object store.
const KEY_ID: &str = "AKIAPLANTED0000000000";

/// Callers are told that the object store refuses; where it is and by which key it is asked is in the node's
/// log.
#[test]
fn callers_do_not_learn_how_the_store_is_asked() {
    let world = Guarded::start(&ALL, |options| {
        let options = options.env("FOREBAY_SOURCE__S3_ACCESS_KEY_ID", KEY_ID);
        options.env("FOREBAY_SOURCE__S3_SECRET_ACCESS_KEY", "wrong-wrong-wrong")
    });
    let (endpoint, uri) = (world.s3.endpoint.clone(), world.s3.uri("tenants/vision/set"));
    let open = v1::OpenRequest {
        dataset: Some(v1::DatasetSpec { uri: uri.clone(), ..Default::default() }),
        ..Default::default()
    };
    let ask = |who: &str| world.ask(who, "/forebay.v1.Cache/Open", &open.encode_to_vec());
    let answer = ask("vision");
    assert_eq!(answer.code, DENIED, "{}", answer.message);
    let host = endpoint.trim_start_matches("http://");
    for word in [host, KEY_ID, "us-east-1"] {
        assert!(!answer.message.contains(word), "{}", answer.message);
    }
    let request = answer.message.split("(request ").nth(1).and_then(|rest| rest.split(':').next());
    let request = request.unwrap_or_else(|| panic!("it names the request: {}", answer.message));
    let log = world.server.log();
    let line = log.lines().find(|line| line.contains(request)).expect("the log has the request");
    assert!(line.contains(KEY_ID) && line.contains(host), "{line}");
    let answer = ask("root");
    assert!(answer.message.contains(KEY_ID), "an operator is told: {}", answer.message);
}

/// How long a line of the log may be on its way to the test.
const SOON: Duration = Duration::from_secs(10);

/// A caller is told the id of its request; the reason is in the audit log, or else in the node's own.
#[test]
fn why_a_stranger_is_refused_is_for_the_operator_alone() {
    let world = Guarded::start(&ALL, |options| options);
    let without = ServerOptions::for_s3(&world.s3).args(world.policy.arguments()).start();
    let token = NewToken::new([7; 40]);
    let (header, why) =
        (format!("Bearer {}", token.text()), format!("no principal has token {}", token.id()));
    let audit = || std::fs::read_to_string(world.policy.path("audit")).expect("the audit log");
    let log = || without.log();
    let logs: [(&str, &dyn Fn() -> String); 2] =
        [(&world.server.endpoint, &audit), (&without.endpoint, &log)];
    for (endpoint, log) in logs {
        let path = "/forebay.v1.Cache/Status";
        let question = Question { endpoint, path, header: Some(&header), message: &[] };
        let answer = world.runtime.block_on(ask(question)).expect("an answer");
        assert_eq!(answer.code, UNKNOWN, "{}", answer.message);
        assert!(!answer.message.contains("principal"), "it is not told: {}", answer.message);
        let request = answer.message.split("(request ").nth(1).and_then(|rest| rest.split(')').next());
        let request = request.unwrap_or_else(|| panic!("it names the request: {}", answer.message));
        let begin = Instant::now();
        while !log().lines().any(|line| line.contains(request) && line.contains(&why)) {
            assert!(begin.elapsed() < SOON, "no `{why}` of {request}: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
