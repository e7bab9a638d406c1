//! The demo leaves nothing behind when it is told to stop. `make demo` tests the rest of it.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use forebay_tests::harness::process::Run;

/// Whether `done` within a minute.
fn soon(mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        if done() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn its_node_ends_with_it() {
    let folder = tempfile::tempdir().expect("make a folder");
    let demo = Run::new("forebay-demo").arg("--folder").arg(folder.path()).start();
    let mut address = String::new();
    let listens = soon(|| {
        let log = std::fs::read_to_string(folder.path().join("server.log")).unwrap_or_default();
        let found = log.lines().find_map(|line| line.strip_prefix("listening "));
        address = found.unwrap_or_default().to_owned();
        !address.is_empty() && TcpStream::connect(&address).is_ok()
    });
    assert!(listens, "a node listens");
    let told = std::process::Command::new("sh").args(["-c", &format!("kill -TERM {}", demo.pid())]).status();
    assert!(told.is_ok_and(|status| status.success()));
    assert_eq!(demo.end().code, None, "the signal ended it");
    assert!(soon(|| TcpStream::connect(&address).is_err()), "the node outlived the demo");
}
