//! Secrets, which are told to nobody; and where the node's object store is and how it is asked, which callers
//! are not told.

use super::Guarded;
use forebay_proto::v1;
use forebay_tests::harness::policy::ALL;
use forebay_tests::harness::process::Run;
use forebay_tests::harness::question::{DENIED, UNKNOWN};
use prost::Message as _;

/// Secrets that are planted, by where they are.
const PLANTED: [(&str, &str); 6] = [
    ("AWS_SECRET_ACCESS_KEY", "planted-01-of-the-store"),
    ("AWS_SESSION_TOKEN", "planted-02-of-the-session"),
    ("FOREBAY_SOURCE__S3_SESSION_TOKEN", "planted-03-of-the-settings"),
    ("AZURE_STORAGE_ACCOUNT_KEY", "planted-04-of-azure"),
    ("GOOGLE_SERVICE_ACCOUNT_KEY", "planted-05-of-google"),
    ("FOREBAY_SOURCE__S3_SECRET_ACCESS_KEY", "planted-06-of-the-settings"),
];

/// The key by which the node asks its store.
const KEY_ID: &str = "AKIAPLANTED0000000000";

/// Case 43: nothing of twelve secrets comes out anywhere, with logs at trace.
#[test]
fn planted_secrets_are_found_nowhere() {
    let world = Guarded::start(&ALL, |options| {
        let options = PLANTED.iter().fold(options, |options, (name, secret)| options.env(name, secret));
        options.env("FOREBAY_SOURCE__S3_ACCESS_KEY_ID", KEY_ID).env("FOREBAY_LOG", "trace").allow_log("")
    });
    let tokens: Vec<String> = world.policy.tokens.values().map(|token| token.text().to_owned()).collect();
    let secrets = tokens.iter().map(String::as_str).chain([super::S3_SECRET]);
    let secrets: Vec<&str> = secrets.chain(PLANTED.iter().map(|(_, secret)| *secret)).collect();
    assert_eq!(secrets.len(), 12);
    let uri = world.s3.uri("tenants/vision/set");
    let mut told = String::new();
    for arguments in
        [&["inspect", uri.as_str()][..], &["status"], &["epoch", &uri], &["load", &uri], &["drain", "x"]]
    {
        for who in ["vision", "root", "peers"] {
            let ended = world.command(who, arguments).end();
            told += &format!("{}{}", ended.stderr, String::from_utf8_lossy(&ended.stdout));
        }
    }
    let open = v1::OpenRequest {
        dataset: Some(v1::DatasetSpec { uri, ..Default::default() }),
        ..Default::default()
    };
    for path in ["/forebay.v1.Cache/Open", "/forebay.v1.Cache/Status", "/forebay.v1.Cache/Drain"] {
        for who in ["vision", "root", "scraper"] {
            let answer = world.ask(Some(who), path, &open.encode_to_vec());
            told += &format!("{}{}", answer.message, String::from_utf8_lossy(&answer.body));
        }
        assert_eq!(world.ask(None, path, &[]).code, UNKNOWN);
    }
    let client = world.s3_client("VISION");
    let bucket = &world.s3.bucket;
    let ask = forebay_tests::harness::s3_client::S3Ask::new("GET", format!("/{bucket}/tenants/vision/set/x"));
    let answer = world.runtime.block_on(client.send(&ask)).expect("an answer");
    told += &String::from_utf8_lossy(&answer.body);
    let read = |path: String| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    told += &read(format!("/proc/{}/cmdline", world.server.pid()));
    told += &read(world.policy.path("audit").display().to_string());
    told += &read(world.policy.path("policy").display().to_string());
    told += &world.server.log();
    told += &String::from_utf8_lossy(&Run::new("forebay-server").arg("--help").end().stdout);
    assert!(told.len() > 10_000, "there is something to look through");
    for secret in secrets {
        assert!(!told.contains(secret), "{secret} comes out");
    }
}

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
    let ask = |who: &str| world.ask(Some(who), "/forebay.v1.Cache/Open", &open.encode_to_vec());
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
