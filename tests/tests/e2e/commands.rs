//! The command `forebay`, as tests call it: through a cache node, or from S3 itself.

use forebay_tests::harness::process::{Run, Server};
use forebay_tests::harness::s3::{REGION, S3Server};
use forebay_tests::harness::wait;
use serde_json::Value;
use std::time::{Duration, Instant};

/// `forebay ARGUMENTS` through a cache node, without any credentials.
pub fn cached(server: &Server, arguments: &[&str]) -> Run {
    Run::new("forebay").args(arguments).args(["--endpoint", &server.endpoint])
}

/// `forebay ARGUMENTS --direct`, with S3's credentials.
pub fn direct(s3: &S3Server, arguments: &[&str]) -> Run {
    Run::new("forebay")
        .args(arguments)
        .args(["--direct", "--s3-endpoint", &s3.endpoint, "--s3-region", REGION])
        .envs(s3.credentials())
}

/// The rows of a dataset as an Arrow IPC stream.
pub fn rows(server: &Server, uri: &str) -> Vec<u8> {
    cached(server, &["cat", uri, "--format", "arrow"]).end().expect_success()
}

/// What a command answers in JSON.
pub fn json(run: Run) -> Value {
    let text = run.arg("--json").end().expect_success();
    serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&text)))
}

/// How long nodes may stand still: other tests fill the machine.
const STILL: Duration = Duration::from_secs(20);

/// The errors of a command whose node gives no answer.
const SILENT: [&str; 3] = ["cannot reach the cache at", "did not answer in", "tells no topology"];

/// What a command answers in JSON that may be asked again while nodes stand still, for [`STILL`] at most. Any
/// other error ends the test at once.
pub fn patient(run: impl Fn() -> Run) -> Value {
    let began = Instant::now();
    loop {
        let ended = run().arg("--json").end();
        let is_silent = ended.code != Some(0) && SILENT.iter().any(|why| ended.stderr.contains(why));
        if !is_silent || began.elapsed() > STILL {
            return serde_json::from_slice(&ended.expect_success()).expect("JSON");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until something has happened, at most half a minute.
pub fn until(what: &str, happened: impl FnMut() -> bool) {
    wait::until(what, Duration::from_secs(30), happened);
}

/// A counter of the node, by its name in `forebay status --json`.
pub fn counter(server: &Server, name: &str) -> u64 {
    let status = patient(|| cached(server, &["status"]));
    status["counters"][name].as_u64().unwrap_or_else(|| panic!("no counter `{name}` in {status}"))
}

/// A figure of the node's metrics.
pub fn metric(server: &Server, name: &str) -> u64 {
    server.metric(&format!("forebay_{name}")).expect("a figure") as u64
}

/// Segments that nodes had to fetch from the object store although another one, which did not answer in time,
/// may have had them. On a machine that stalls there may be some. Nothing else has nodes that hold all of the
/// data fetch any of it.
pub fn missed<'a>(nodes: impl IntoIterator<Item = &'a Server>) -> u64 {
    nodes.into_iter().map(|node| metric(node, "peer_missed_total")).sum()
}

/// A field of epoch `number` in what `forebay epoch --json` answered.
pub fn epoch<'a>(answer: &'a Value, number: usize, field: &str) -> &'a Value {
    let value = &answer["epochs"][number][field];
    assert!(!value.is_null(), "no `{field}` of epoch {number} in {answer}");
    value
}

/// The order digest of epoch `number`, and its content digest: of a run with `--verify`.
pub fn digests(answer: &Value, number: usize) -> (String, String) {
    let content = epoch(answer, number, "content_digest").as_str().expect("a digest is text");
    (digest(answer, number), content.to_owned())
}

/// The order digest of epoch `number`.
pub fn digest(answer: &Value, number: usize) -> String {
    epoch(answer, number, "order_digest").as_str().expect("a digest is text").to_owned()
}
