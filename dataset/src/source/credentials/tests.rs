mod sso;

use super::*;
use object_store::CredentialProvider;
use std::time::{Duration, Instant};

fn files() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("credentials"),
        "# mine\n[default]\naws_access_key_id = D\naws_secret_access_key=s3cret=\n\n[w]\naws_access_key_id=W\n\
         aws_secret_access_key=ws\naws_session_token=t\n",
    )
    .unwrap();
    std::fs::write(
        dir.path().join("config"),
        "[default]\nregion = eu-west-1\n[profile w]\nregion=ap-south-1\nendpoint_url = http://h:1/\ns3 =\n  \
         region = nested\n[profile sso]\nsso_session = x\n[profile bare]\nregion = x\n",
    )
    .unwrap();
    dir
}

fn env(dir: &tempfile::TempDir, vars: &[(&str, &str)]) -> Env {
    let at = |f: &str| dir.path().join(f).display().to_string();
    let (credentials, config) = (at("credentials"), at("config"));
    let files = [("AWS_SHARED_CREDENTIALS_FILE", &*credentials), ("AWS_CONFIG_FILE", &*config)];
    Env::from_slice(&[&files, vars].concat())
}

fn resolve_in(dir: &tempfile::TempDir, settings: &SourceSettings, vars: &[(&str, &str)]) -> Result<Resolved> {
    resolve(settings, &env(dir, vars))
}

fn run(settings: &SourceSettings, vars: &[(&str, &str)]) -> Result<Resolved> {
    resolve_in(&files(), settings, vars)
}

async fn keys(resolved: &Resolved) -> Arc<AwsCredential> {
    resolved.credentials.as_ref().unwrap().get_credential().await.unwrap()
}

#[tokio::test]
async fn files_then_environment_then_settings() {
    let dir = files();
    let run = |settings: &SourceSettings, vars: &[(&str, &str)]| resolve_in(&dir, settings, vars);
    let none = SourceSettings::default();
    let r = run(&none, &[]).unwrap();
    assert_eq!((r.region.as_str(), r.endpoint.as_deref(), r.path_style), ("eu-west-1", None, false));
    let k = keys(&r).await;
    assert_eq!((k.key_id.as_str(), k.secret_key.as_str(), k.token.is_none()), ("D", "s3cret=", true));
    assert!(!format!("{r:?}").contains("s3cret"));

    let env = [("AWS_ACCESS_KEY_ID", "E"), ("AWS_SECRET_ACCESS_KEY", "es"), ("AWS_REGION", "r")];
    let r = run(&none, &env).unwrap();
    assert_eq!((keys(&r).await.key_id.as_str(), r.region.as_str()), ("E", "r"));
    assert!(!format!("{r:?}").contains("es\""));

    let w = SourceSettings { s3_profile: Some("w".into()), ..Default::default() };
    let r = run(&w, &env[..2]).unwrap();
    assert_eq!((r.region.as_str(), r.endpoint.as_deref()), ("ap-south-1", Some("http://h:1")));
    assert_eq!((keys(&r).await.key_id.as_str(), r.path_style), ("W", true));

    let s =
        SourceSettings { s3_access_key_id: Some("S".into()), s3_secret_access_key: Some("x".into()), ..w };
    assert_eq!(keys(&run(&s, &env).unwrap()).await.key_id, "S");
}

#[test]
fn contradictions_are_told() {
    let half = SourceSettings { s3_access_key_id: Some("S".into()), ..Default::default() };
    assert!(run(&half, &[]).unwrap_err().message.contains("go together"));
    let anonymous =
        SourceSettings { s3_anonymous: true, s3_secret_access_key: Some("x".into()), ..half.clone() };
    assert!(run(&anonymous, &[]).unwrap_err().message.contains("contradict"));
    for (profile, hint) in [("nope", "no profile"), ("bare", "holds no access key")] {
        let s = SourceSettings { s3_profile: Some(profile.into()), ..Default::default() };
        let e = run(&s, &[]).unwrap_err();
        assert!(e.message.contains(hint), "{e}");
    }
    let s = SourceSettings { s3_profile: Some("nope".into()), ..Default::default() };
    let e = run(&s, &[("AWS_SHARED_CREDENTIALS_FILE", "/my/keys")]).unwrap_err();
    assert!(e.message.contains("no profile 'nope' in /my/keys or "), "{e}");
    let sso = SourceSettings { s3_profile: Some("sso".into()), ..Default::default() };
    assert!(run(&sso, &[]).is_ok());
    let s = SourceSettings { s3_endpoint: Some("localhost:9000".into()), ..Default::default() };
    assert!(run(&s, &[]).is_err());
    let s = SourceSettings { s3_endpoint: Some("http://me:hunter2@h:1".into()), ..Default::default() };
    let e = run(&s, &[]).unwrap_err();
    assert!(e.message.contains("holds credentials") && !e.message.contains("hunter2"), "{e}");
}

#[tokio::test]
async fn a_custom_endpoint_is_not_asked_for_by_an_instances_role() {
    let empty = tempfile::tempdir().unwrap();
    let custom = SourceSettings { s3_endpoint: Some("http://h:1".into()), ..Default::default() };
    let start = Instant::now();
    let none = resolve_in(&empty, &custom, &[]).unwrap().credentials.unwrap().get_credential().await;
    assert!(matches!(none, Err(object_store::Error::Unauthenticated { .. })), "{none:?}");
    assert!(start.elapsed() < Duration::from_millis(900), "no service was waited for");
    let chain = |settings| format!("{:?}", resolve_in(&empty, settings, &[]).unwrap().credentials);
    assert!(chain(&custom).contains("asks_instance: false"));
    assert!(chain(&SourceSettings::default()).contains("asks_instance: true"));
}

/// A session token that is renewed in the file is used, and a file that is gone leaves the last one.
#[tokio::test]
async fn session_tokens_are_read_again() {
    let dir = files();
    let path = dir.path().join("credentials");
    let mut keys = Chain {
        env: env(&dir, &[]),
        region: "us-east-1".into(),
        profile: "w".into(),
        is_named: true,
        asks_instance: false,
        read_again: Some(Duration::from_secs(3600)),
        last: Default::default(),
    };
    let token = async |keys: &Chain| keys.get_credential().await.unwrap().token.clone().unwrap();
    assert_eq!(token(&keys).await, "t");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("aws_session_token=t", "aws_session_token=renewed")).unwrap();
    assert_eq!(token(&keys).await, "t", "it is not read for each request");
    keys.read_again = Some(Duration::ZERO);
    keys.last = Default::default();
    assert_eq!(token(&keys).await, "renewed");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(token(&keys).await, "renewed");
}

#[test]
fn endpoints_that_no_request_can_go_to_are_refused_with_the_reason() {
    let to = |endpoint: &str, s3_path_style| {
        run(&SourceSettings { s3_endpoint: Some(endpoint.into()), s3_path_style, ..Default::default() }, &[])
    };
    for (endpoint, path_style, why) in [
        ("http://127.0.0.1:99999", None, "is no URL: invalid port"),
        ("http://local host", None, "is no URL"),
        ("http://[::1", None, "is no URL"),
        ("http://1.2.3.4.5:9", None, "is no URL"),
        ("h:9000", None, "must start with http://"),
        ("http://h/?a=b", None, "must end before ?"),
        ("http://127.0.0.1:9000", Some(false), "set it to true"),
        ("https://[::1]:9000", Some(false), "set it to true"),
    ] {
        let e = to(endpoint, path_style).unwrap_err();
        assert_eq!(e.kind, forebay_proto::Kind::Invalid);
        assert!(e.message.contains(endpoint) && e.message.contains(why), "{e}");
    }
    for (endpoint, path_style) in
        [("http://h:9000/", Some(false)), ("http://127.0.0.1:9000", None), ("https://[::1]:9000", Some(true))]
    {
        to(endpoint, path_style).unwrap();
    }
}
