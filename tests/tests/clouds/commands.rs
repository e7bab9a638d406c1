//! The command `forebay` at Google's and Azure's object stores, with and without credentials: pages of
//! listings, busy servers, refusals.

use std::ops::Range;

use forebay_tests::harness::cloud::{CloudServer, Required};
use forebay_tests::harness::process::Run;
use rcgen::{KeyPair, PKCS_RSA_SHA256};

use crate::{no_keys, parquet};

/// Google's scheme, and Azure's.
pub const SCHEMES: [&str; 2] = ["gs", "az"];

/// The account of Azure's containers, and its key.
pub const ACCOUNT: &str = "account";
pub const ACCOUNT_KEY: &str = "YSBzaGFyZWQga2V5IG9mIHRoZSBhY2NvdW50";

/// A shared access signature: all of it, and the signature in it.
const ACCESS: &str = "sv=2023-11-03&sr=c&sp=rl&sig=bWF5K3JlYWQ%2FYW5kL2xpc3Q%3D";
const ACCESS_SIGNATURE: &str = "bWF5K3JlYWQ/YW5kL2xpc3Q=";

/// The address of a service account.
const EMAIL: &str = "reader@project.iam.gserviceaccount.com";

/// A server with a bucket `b`, and the variables by which it is read.
pub struct Cloud {
    pub server: CloudServer,
    scheme: &'static str,
    pub variables: Vec<(&'static str, String)>,
    /// Without the credentials of the person who runs the tests.
    home: tempfile::TempDir,
}

impl Cloud {
    /// One whose readers have no credentials.
    pub fn start(scheme: &'static str) -> Self {
        let (server, home) = (CloudServer::start(no_keys), tempfile::tempdir().expect("make a folder"));
        let mut variables = vec![("HOME", home.path().display().to_string())];
        match scheme {
            "gs" => variables.push(("GOOGLE_BASE_URL", server.endpoint.clone())),
            _ => variables.extend([
                ("AZURE_STORAGE_ENDPOINT", server.endpoint.clone()),
                ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT.to_owned()),
            ]),
        }
        Self { server, scheme, variables, home }
    }

    /// One that needs none.
    pub fn open(scheme: &'static str) -> Self {
        let mut cloud = Self::start(scheme);
        let unsigned = if scheme == "gs" { "GOOGLE_SKIP_SIGNATURE" } else { "AZURE_SKIP_SIGNATURE" };
        cloud.variables.push((unsigned, "true".to_owned()));
        cloud
    }

    pub fn put(&self, key: &str, data: Vec<u8>) {
        self.server.put(&format!("b/{key}"), data);
    }

    pub fn uri(&self, key: &str) -> String {
        format!("{}://b/{key}", self.scheme)
    }

    /// `forebay COMMAND URI ..` without a cache.
    fn run(&self, command: &[&str], key: &str) -> Run {
        let variables = self.variables.iter().map(|(name, value)| (*name, value.as_str()));
        Run::new("forebay").args(command).arg(self.uri(key)).arg("--direct").envs(variables)
    }

    /// Checks that credentials are used: with the right ones the rows of `train` come, with the wrong ones an
    /// error says that they are refused, and does not show the secret in them.
    fn checks(&self, right: (&str, &str), wrong: (&str, &str), secret: &str) {
        self.put("train/a.parquet", parquet(0..250));
        let rows = self.run(&["cat"], "train").envs([right]).end().expect_success();
        assert_eq!(text(rows), lines(0..250), "{right:?}");
        let ended = self.run(&["cat"], "train").envs([wrong]).end();
        assert!(!ended.stderr.contains(secret), "{}", ended.stderr);
        let error = ended.expect_failure();
        let says = "refuses its credentials (AuthenticationFailed: refused): check credentials and policy";
        assert!(error.contains(&self.uri("train")) && error.contains(says), "{error}");
    }
}

/// Rows of [`parquet`] as `forebay cat` prints them.
pub fn lines(ids: Range<i64>) -> String {
    ids.map(|id| format!("{{\"id\":{id}}}\n")).collect()
}

/// What a command has printed.
pub fn text(stdout: Vec<u8>) -> String {
    String::from_utf8(stdout).expect("text")
}

#[test]
fn listings_are_read_to_their_last_page() {
    for scheme in SCHEMES {
        let cloud = Cloud::open(scheme);
        for n in 0..10 {
            cloud.put(&format!("many/{n}.parquet"), parquet(10 * n..10 * n + 10));
        }
        assert_eq!(text(cloud.run(&["cat"], "many").end().expect_success()), lines(0..100));
        let listed = text(cloud.run(&["ls", "-r"], "many").end().expect_success());
        let listed: Vec<_> = listed.lines().filter_map(|line| line.split_whitespace().last()).collect();
        let wanted: Vec<_> = (0..10).map(|n| cloud.uri(&format!("many/{n}.parquet"))).collect();
        assert_eq!(listed, wanted);
    }
}

#[test]
fn a_busy_server_is_asked_again_until_patience_ends() {
    for scheme in SCHEMES {
        let cloud = Cloud::open(scheme);
        cloud.put("train/a.parquet", parquet(0..250));
        for path in ["b", "b/train/a.parquet"] {
            cloud.server.be_busy(path, 2);
        }
        assert_eq!(text(cloud.run(&["cat"], "train").end().expect_success()), lines(0..250));
        for path in ["b", "b/train/a.parquet"] {
            assert_eq!(cloud.server.busy_left(path), 0, "{path} was refused twice, and asked for again");
        }

        for (path, uri) in [("b", "train"), ("b/train/a.parquet", "train/a.parquet")] {
            cloud.server.be_busy(path, usize::MAX);
            let error = cloud.run(&["cat", "--patience-s", "1"], "train").end().expect_failure();
            let (uri, endpoint) = (cloud.uri(uri), &cloud.server.endpoint);
            let says = format!("{uri}: {endpoint} keeps answering 503 (ServerBusy: refused) (tried for ");
            assert!(error.contains(&says) && error.contains("try again later"), "{error}");
            cloud.server.be_busy(path, 0);
        }
    }
}

/// The metadata service is asked for a token, which goes with each request.
#[test]
fn an_instance_of_googles_reads_with_its_token() {
    let cloud = Cloud::start("gs");
    cloud.server.require(Required::InstanceToken("token-of-the-instance".to_owned()));
    let host = cloud.server.endpoint.trim_start_matches("http://");
    let wrong = ("GOOGLE_BEARER_TOKEN", "token-of-another-one");
    cloud.checks(("GCE_METADATA_HOST", host), wrong, wrong.1);
}

/// It signs its tokens itself: the server knows its public key. No token service is asked.
#[test]
fn a_service_account_signs_its_tokens() {
    let cloud = Cloud::start("gs");
    let file = |name: &str| {
        let key = KeyPair::generate_for(&PKCS_RSA_SHA256).expect("make a key");
        let account = serde_json::json!({
            "type": "service_account",
            "client_email": EMAIL,
            "private_key_id": "1",
            "private_key": key.serialize_pem(),
        });
        let path = cloud.home.path().join(name);
        std::fs::write(&path, account.to_string()).expect("write a file");
        (path.display().to_string(), key)
    };
    let ((right, key), (wrong, _)) = (file("right.json"), file("wrong.json"));
    let public_key = key.public_key_raw().to_vec();
    cloud.server.require(Required::ServiceAccount { email: EMAIL.to_owned(), public_key });
    for variable in ["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS"] {
        cloud.checks((variable, &right), (variable, &wrong), "PRIVATE KEY");
    }
}

#[test]
fn the_key_of_an_azure_account_signs_requests() {
    let cloud = Cloud::start("az");
    cloud.server.require(Required::SharedKey { account: ACCOUNT, key: ACCOUNT_KEY });
    let (variable, wrong) = ("AZURE_STORAGE_ACCOUNT_KEY", "dGhlIGtleSBvZiBhbm90aGVyIGFjY291bnQ=");
    cloud.checks((variable, ACCOUNT_KEY), (variable, wrong), wrong);
}

#[test]
fn a_shared_access_signature_goes_with_requests_and_into_no_error() {
    let cloud = Cloud::start("az");
    cloud.server.require(Required::SharedAccess(ACCESS_SIGNATURE));
    let (variable, secret) = ("AZURE_STORAGE_SAS_TOKEN", "YW5vdGhlci1vbmU");
    let wrong = format!("sv=2023-11-03&sr=c&sp=rl&sig={secret}%3D");
    cloud.checks((variable, ACCESS), (variable, &wrong), secret);
}
