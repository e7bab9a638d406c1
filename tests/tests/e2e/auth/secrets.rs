//! Where the node's object store is and how it is asked, which callers are not told.

use super::Guarded;
use forebay_proto::v1;
use forebay_tests::harness::policy::ALL;
use forebay_tests::harness::question::DENIED;
use prost::Message as _;

/// The key by which the node asks its store.
const KEY_ID: &str = "AKIAPLANTED0000000000";

/// Callers are told that the store refuses; where it is and by which key it is asked is in the node's log.
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
