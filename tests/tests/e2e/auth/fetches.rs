//! Principals for whom only some bytes of objects are fetched in a second, by each way to read.

use super::Guarded;
use forebay_tests::harness::policy::{AUDIO, VISION, Who};
use forebay_tests::harness::s3_client::S3Ask;
use std::time::{Duration, Instant};

/// Bytes of an object: three blocks.
const BYTES: usize = 12 << 20;

/// The rate of `vision`, as its policy says.
const LIMITS: &str = "s3_keys = ['VISION']\nlimits = { s3_bytes_per_s = 4194304 }";

/// The first block is paid for when the second is asked for, and that when the third is.
const LEAST: Duration = Duration::from_millis(1850);

#[test]
fn every_way_to_read_pays_for_what_is_fetched_and_others_do_not_wait() {
    let limited = Who { more: LIMITS, ..VISION };
    let world = Guarded::start(&[limited, AUDIO], |options| options);
    let bytes: Vec<u8> = (0..BYTES).map(|n| (n / 7 + n / 65_521) as u8).collect();
    for key in ["vision/got", "vision/asked", "vision/filled", "audio/zebra7/got"] {
        world.s3.put(&format!("tenants/{key}"), bytes.clone());
    }
    let uri = |key: &str| world.s3.uri(&format!("tenants/{key}"));
    let get = |who: &str, key: &str| {
        let begin = Instant::now();
        let got = world.command(who, &["get", &uri(key)]).end().expect_success();
        assert!(got == bytes, "{key} has other bytes");
        begin.elapsed()
    };
    let slow = get("vision", "vision/got");
    assert!(slow > LEAST, "{slow:?}");
    let others = get("audio", "audio/zebra7/got");
    assert!(others < LEAST, "{others:?}: others do not wait");
    let again = get("vision", "vision/got");
    assert!(again < LEAST, "{again:?}: held bytes cost nothing");
    std::thread::sleep(Duration::from_secs(1));
    let begin = Instant::now();
    let ask = S3Ask::new("GET", format!("/{}/tenants/vision/asked", world.s3.bucket));
    let asked = world.runtime.block_on(world.s3_client("VISION").send(&ask)).expect("an answer");
    assert!(asked.status == 200 && asked.body == bytes);
    assert!(begin.elapsed() > LEAST, "{:?}", begin.elapsed());
    std::thread::sleep(Duration::from_secs(1));
    let begin = Instant::now();
    world.command("vision", &["load", "--raw", &uri("vision/filled")]).end().expect_success();
    assert!(begin.elapsed() > LEAST, "{:?}", begin.elapsed());
}
