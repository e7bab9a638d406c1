//! Certificates of S3 that are not good: named at once, with the endpoint and the setting.

use super::{DATASET, PATIENCE, same_as_pyarrow, straight};
use crate::commands::{cached, rows};
use crate::fixtures;
use crate::refused::refused;
use forebay_tests::harness::pki::{Leaf, Pki};
use forebay_tests::harness::process::ServerOptions;
use forebay_tests::harness::s3::S3Server;
use forebay_tests::harness::tap::TlsFront;

#[test]
fn certificates_that_are_not_good_are_named_at_once() {
    let s3 = S3Server::start();
    let uri = fixtures::upload(&s3, DATASET);
    let pki = Pki::new().expect("a folder");
    let [ours, other] = ["ours", "other"].map(|name| Pki::authority(name).expect("an authority"));
    let put = |name: &str, pem: &str| pki.put(name, pem).expect("write it").display().to_string();
    let (ca, other_ca) = (put("ca.pem", &ours.pem), put("other.pem", &other.pem));
    let start = |leaf: Leaf<'_>| {
        let (files, _) = pki.issue(leaf, Some(&ours)).expect("a certificate");
        TlsFront::start(files, s3.address).expect("S3 by TLS")
    };
    for (leaf, ca, problem) in [
        (Leaf::node("foreign"), &other_ca, "UnknownIssuer"),
        (Leaf { days: (-3, -1), ..Leaf::node("late") }, &ca, "certificate expired"),
        (Leaf { hosts: &["s3.elsewhere.test"], ..Leaf::node("elsewhere") }, &ca, "s3.elsewhere.test"),
    ] {
        let front = start(leaf);
        let endpoint = format!("https://{}", front.address);
        let says = [uri.as_str(), &endpoint, "certificate", problem, "--s3-ca"];
        let settings = ["--s3-ca", ca, "--patience-s", PATIENCE];
        let server = ServerOptions::for_endpoint(&s3, &endpoint).args(settings).start();
        refused(cached(&server, &["cat", &uri]), &says);
        server.stop();
        refused(straight(&s3, &uri, &[&["--s3-endpoint", &endpoint], &settings[..]].concat()), &says);
    }
    assert!(s3.log().is_empty(), "nobody asks one whom he does not believe: {:?}", s3.log());

    let front = start(Leaf::node("good"));
    let endpoint = format!("https://{}", front.address);
    let server = ServerOptions::for_endpoint(&s3, &endpoint).args(["--s3-ca", &ca]).start();
    same_as_pyarrow(&rows(&server, &uri));
    server.stop();
}
