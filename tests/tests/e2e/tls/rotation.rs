//! Certificates and authorities that change under jobs that read from nodes that read from each other: they
//! notice nothing.

use super::{alone, train, upload};
use crate::commands::{digests, json};
use forebay_tests::harness::pki::{Leaf, Pki};
use forebay_tests::harness::ports::free_addresses;
use forebay_tests::harness::process::Server;
use forebay_tests::harness::s3::S3Server;
use forebay_tests::harness::tls_world::{TlsWorld, VISION, forebay};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Longer than nodes take to look at their files, read them in peace and go by them.
const LOOK: Duration = Duration::from_secs(5);

/// How often each node and the training run get a new certificate, and how soon after the last one: more than
/// 100 of nodes.
const ROTATIONS: usize = 34;
const NODES: [&str; 3] = ["a", "b", "c"];
const PACE: Duration = Duration::from_millis(300);

/// Of the training run, of 2 s each: longer than all that it goes through.
const EPOCHS: usize = 30;

#[test]
fn new_certificates_and_a_new_authority_under_a_job_cost_nothing() {
    let (world, s3) = (TlsWorld::new("hidden/"), S3Server::start());
    let uri = upload(&s3);
    let addresses = free_addresses(NODES.len()).expect("ports");
    let start = |name: &str, address: &String| {
        let files = world.issue(Leaf::node(name));
        let all = addresses.iter().flat_map(|at| ["--cluster-node".to_owned(), format!("https://{at}")]);
        world.node(&s3, &files).args(all).args(["--listen", address, "--replicas", "2"]).start()
    };
    let nodes: Vec<_> = NODES.iter().zip(&addresses).map(|(name, address)| start(name, address)).collect();
    let at = addresses.iter().map(|address| format!("https://{address}")).collect::<Vec<_>>().join(",");
    world.issue(Leaf::client("before", VISION));
    let (done, epochs) = (AtomicBool::new(false), AtomicUsize::new(0));
    let path = |name: &str| Some(world.pki.path(name));
    let job = |name: &str| {
        let files = forebay_client::TlsFiles {
            cert: path(&format!("{name}.pem")),
            key: path(&format!("{name}-key.pem")),
            ca: path("ca.pem"),
            crl: None,
        };
        let line = ["epoch", &uri, "--verify", "--epochs", "3", "--segment-bytes", "65536"];
        forebay(&files, &at, &line)
    };
    let wanted = digests(&json(job("before")), 0);
    let training = world.issue(Leaf::client("trainer", VISION));
    let count = EPOCHS.to_string();
    let line = ["--epochs", &count, "--emulate-step-ms", "25", "--prefetch-bytes", "64KiB"];
    let training = train(&training, &at, &uri, &line);
    std::thread::scope(|scope| {
        let training = scope.spawn(move || training.epochs());
        // Whatever becomes of the rest, the job ends.
        let reading = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let name = if world.pki.path("after.pem").exists() { "after" } else { "before" };
                let answer = json(job(name));
                assert_eq!(digests(&answer, 0), wanted);
                epochs.fetch_add(3, Ordering::Relaxed);
            }
        });
        let rotated = rotate(&world);
        let has_trained = training.is_finished();
        done.store(true, Ordering::Relaxed);
        reading.join().expect("the job");
        rotated.expect("rotate");
        assert!(!has_trained, "it trains all the while");
        assert_eq!(training.join().expect("a training run"), alone(&s3, &uri, EPOCHS));
    });
    assert!(epochs.load(Ordering::Relaxed) > 3, "{epochs:?} epochs");
    // Who has the old authority's certificate is out now.
    let why = job("before").end().expect_failure();
    assert!(why.contains("does not know the authority"), "{why}");
    for node in &nodes {
        let reloads = node.log().matches("TLS goes by new files").count();
        assert!(reloads >= 4, "{reloads} times in {}", node.log());
    }
    nodes.into_iter().for_each(Server::stop);
}

/// Leaves first, several times; then the authority, by way of a bundle of both.
fn rotate(world: &TlsWorld) -> anyhow::Result<()> {
    for _ in 0..ROTATIONS {
        for name in NODES {
            world.pki.issue(Leaf::node(name), Some(&world.authority()))?;
        }
        world.pki.issue(Leaf::client("trainer", VISION), Some(&world.authority()))?;
        std::thread::sleep(PACE);
    }
    std::thread::sleep(LOOK);
    let new = Pki::authority("new")?;
    world.pki.put("ca.pem", &format!("{}{}", world.authority().pem, new.pem))?;
    std::thread::sleep(LOOK);
    for name in NODES {
        world.pki.issue(Leaf::node(name), Some(&new))?;
    }
    world.pki.issue(Leaf::client("trainer", VISION), Some(&new))?;
    world.pki.issue(Leaf::client("after-new", VISION), Some(&new))?;
    // The key first: the job takes it up when it sees the certificate.
    for file in ["-key.pem", ".pem"] {
        std::fs::rename(
            world.pki.path(&format!("after-new{file}")),
            world.pki.path(&format!("after{file}")),
        )?;
    }
    std::thread::sleep(LOOK * 2);
    world.pki.put("ca.pem", &new.pem)?;
    std::thread::sleep(LOOK);
    Ok(())
}
