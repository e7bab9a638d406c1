//! Principals, roles and prefixes: who may do what at a node that has a policy.
//!
//! * [`matrix`]: two tenants, every call, whatever lies where.
//! * [`fetches`]: a rate of fetched bytes.
//! * [`limits`]: a principal that takes more than it may.
//! * [`reload`]: policies that change while streams run.
//! * [`nodes`]: nodes of a cluster that has one.
//! * [`shares`]: a share of the disk.
//! * [`secrets`]: where the object store is, and how it is asked.
//!
//! Strangers, and principals who make calls that are for others, are among the attacks: `bench/attack`.

mod fetches;
mod limits;
mod matrix;
mod nodes;
mod reload;
mod secrets;
mod shares;

use forebay_tests::harness::mnist;
use forebay_tests::harness::policy::{Policy, S3_SECRET, Who};
use forebay_tests::harness::process::{Run, Server, ServerOptions};
use forebay_tests::harness::question::{self, Answer, Question};
use forebay_tests::harness::s3::S3Server;
use forebay_tests::harness::s3_client::S3Client;

/// An object store with the data of two tenants, and a node with a policy and an audit log.
struct Guarded {
    s3: S3Server,
    server: Server,
    policy: Policy,
    runtime: tokio::runtime::Runtime,
}

impl Guarded {
    fn start(all: &[Who], change: impl FnOnce(ServerOptions) -> ServerOptions) -> Self {
        let s3 = S3Server::start();
        for key in ["tenants/vision/set", "tenants/audio/zebra7", "tenants/visionX/zebra7"] {
            let folder = mnist::folder().join("test");
            mnist::upload_folder(&s3, &folder, key).expect("read MNIST");
        }
        let policy = Policy::new(&s3, all);
        let options = ServerOptions::for_s3(&s3)
            .args(policy.arguments())
            .args(["--audit-file", &policy.path("audit").display().to_string()])
            .args(["--s3-listen", "127.0.0.1:0", "--s3-keys", &policy.path("keys").display().to_string()]);
        let server = change(options).start();
        Self { s3, server, policy, runtime: tokio::runtime::Runtime::new().expect("start a runtime") }
    }

    /// Asks as somebody.
    fn ask(&self, who: &str, path: &str, message: &[u8]) -> Answer {
        let header = self.policy.header(who);
        let question = Question { endpoint: &self.server.endpoint, path, header: Some(&header), message };
        self.runtime.block_on(question::ask(question)).expect("an answer")
    }

    /// `forebay ARGUMENTS` as somebody.
    fn command(&self, who: &str, arguments: &[&str]) -> Run {
        let token = self.policy.token_file(who);
        Run::new("forebay")
            .args(arguments)
            .args(["--endpoint", &self.server.endpoint])
            .envs([("FOREBAY_TOKEN_FILE", token.as_os_str())])
    }

    fn s3_client(&self, key_id: &str) -> S3Client {
        let endpoint = self.server.s3.clone().expect("it serves S3");
        S3Client { endpoint, key_id: key_id.into(), secret: S3_SECRET.into() }
    }
}
