//! Keys by AWS SSO: a portal on the loopback, and the token that `aws sso login` leaves in the home. The AWS
//! SDK finds both by variables of its own process, so each test asks in a child.

use super::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

/// The profile that a child asks for.
const PROFILE: &str = "FOREBAY_TEST_PROFILE";

/// Begins the line in which a child says what came of it.
const SAID: &str = "the portal gave: ";

/// Two profiles of one role: by a session, and as they were written before there were sessions.
const CONFIG: &str = "\
[profile session]
sso_session = dev
sso_account_id = 123456789012
sso_role_name = Reader

[sso-session dev]
sso_region = eu-central-1
sso_start_url = https://example.awsapps.com/start

[profile plain]
sso_account_id = 123456789012
sso_role_name = Reader
sso_region = eu-central-1
sso_start_url = https://example.awsapps.com/start
";

/// Both profiles, and where each has its token: named by the SHA-1 of the session's name, of the URL.
const TOKENS: [(&str, &str); 2] = [
    ("session", "34c6fceca75e456f25e7e99531e2425c6c1de443"),
    ("plain", "e8be5486177c5b5392bd9aa76563515b29358e6e"),
];

/// What the portal is asked for, and the only token that it takes.
const REQUEST: &str = "GET /federation/credentials?role_name=Reader&account_id=123456789012 HTTP/1.1\r\n";
const TOKEN: &str = "token-of-the-session";

const LATER: &str = "2099-01-01T00:00:00Z";
const LATER_MS: u64 = 4_070_908_800_000;

/// Starts a portal, which lasts as long as the process.
fn portal() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || listener.incoming().for_each(|client| answer(client.unwrap())));
    endpoint
}

fn answer(mut client: TcpStream) {
    let (mut head, mut piece) = (Vec::<u8>::new(), [0; 4096]);
    while !head.ends_with(b"\r\n\r\n") {
        match client.read(&mut piece) {
            Ok(0) | Err(_) => return,
            Ok(count) => head.extend_from_slice(&piece[..count]),
        }
    }
    let head = String::from_utf8(head).unwrap();
    let is_known = head.lines().any(|line| {
        let pair = line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
        pair == Some(("x-amz-sso_bearer_token".to_owned(), TOKEN.to_owned()))
    });
    let (status, body) = match (head.starts_with(REQUEST), is_known) {
        (true, true) => (
            "200 OK",
            serde_json::json!({ "roleCredentials": {
                "accessKeyId": "PORTAL",
                "secretAccessKey": "portal-secret",
                "sessionToken": "portal-session",
                "expiration": LATER_MS,
            } }),
        ),
        (true, false) => (
            "401 Unauthorized",
            serde_json::json!({
                "__type": "UnauthorizedException",
                "message": "Session token not found or invalid",
            }),
        ),
        (false, _) => ("404 Not Found", serde_json::json!({})),
    };
    let body = body.to_string();
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    // A client that went away needs no answer.
    write!(client, "{head}{body}").ok();
}

/// A home with the profiles, and a token for each if one is given.
fn home(token: Option<(&str, &str)>) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let cache = home.path().join(".aws/sso/cache");
    std::fs::create_dir_all(&cache).unwrap();
    std::fs::write(home.path().join(".aws/config"), CONFIG).unwrap();
    if let Some((token, expires)) = token {
        let text = serde_json::json!({ "accessToken": token, "expiresAt": expires }).to_string();
        for (_, name) in TOKENS {
            std::fs::write(cache.join(format!("{name}.json")), &text).unwrap();
        }
    }
    home
}

/// What a child says that asks the portal for keys.
fn ask(home: &tempfile::TempDir, portal: &str, profile: &str) -> String {
    let name = format!("{}::asks_for_keys", module_path!().split_once("::").unwrap().1);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &name, "--ignored", "--nocapture"]);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("AWS_")) {
        command.env_remove(name);
    }
    command.env("HOME", home.path()).env("AWS_ENDPOINT_URL_SSO", portal).env(PROFILE, profile);
    let output = command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let line = said.lines().find_map(|line| Some(line.split_once(SAID)?.1.to_owned()));
    line.unwrap_or_else(|| panic!("{said}{}", String::from_utf8_lossy(&output.stderr)))
}

#[tokio::test]
#[ignore = "the child of the other tests"]
async fn asks_for_keys() {
    let settings = SourceSettings { s3_profile: std::env::var(PROFILE).ok(), ..Default::default() };
    let chain = resolve(&settings, &Env::real()).unwrap().credentials.unwrap();
    match chain.get_credential().await {
        Ok(keys) => println!("{SAID}{} {} {:?}", keys.key_id, keys.secret_key, keys.token),
        Err(e) => println!("{SAID}{e}"),
    }
}

#[test]
fn the_portal_gives_the_keys_of_the_role() {
    let (home, portal) = (home(Some((TOKEN, LATER))), portal());
    for (profile, _) in TOKENS {
        let said = ask(&home, &portal, profile);
        assert_eq!(said, "PORTAL portal-secret Some(\"portal-session\")", "{profile}");
    }
}

/// A token that is old, that the portal does not know, that is not there: each time somebody must log in.
#[test]
fn without_a_good_token_the_error_says_how_to_log_in() {
    let portal = portal();
    for (token, profile, why) in [
        (Some((TOKEN, "2020-01-01T00:00:00Z")), "session", "the SSO token has expired"),
        (Some(("ended", LATER)), "session", "Session token not found or invalid"),
        (Some(("ended", "2020-01-01T00:00:00Z")), "plain", "Session token not found or invalid"),
        (None, "session", "failed to load the cached SSO token"),
        (None, "plain", "failed to read"),
    ] {
        let said = ask(&home(token), &portal, profile);
        assert!(said.contains(why) && said.contains("aws sso login"), "{token:?} of {profile}: {said}");
    }
}
