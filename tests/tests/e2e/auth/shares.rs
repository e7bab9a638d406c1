//! A principal whose data may take only so much of the disk.

use super::Guarded;
use crate::commands::{digests, json};
use forebay_proto::v1;
use forebay_tests::harness::policy::{AUDIO, ROOT, VISION, Who};
use forebay_tests::harness::table::{MIB_ROWS, Table};
use std::time::{Duration, Instant};

/// Segments of about a MiB that each tenant has.
const SEGMENTS: u64 = 32;

/// Too little to keep the others in.
const MEMORY_BYTES: &str = "64MiB";

/// What `vision` may have: four of them, and one.
const FOUR: Who = Who { more: "limits = { cache_bytes = 4718592 }", ..VISION };
const ONE: Who = Who { more: "limits = { cache_bytes = '1.5MB' }", ..VISION };

/// Folders that files are put into, and their last blocks.
const SLACK_BYTES: u64 = 256 << 10;

/// How soon another policy counts.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_principal_s_data_take_no_more_of_the_disk_than_they_may_and_others_lose_nothing() {
    let world =
        Guarded::start(&[FOUR, AUDIO, ROOT], |options| options.args(["--memory-bytes", MEMORY_BYTES]));
    let upload = |key: &str| Table::upload(&world.s3, key, SEGMENTS, MIB_ROWS).expect("a table");
    let (own, others) = (upload("tenants/vision/rows"), upload("tenants/audio/rows"));
    let read = |who: &str, table: &Table| {
        let segment_bytes = table.segment_bytes.to_string();
        let line = ["epoch", &table.uri, "--verify", "--segment-bytes", &segment_bytes, "--same-host", "off"];
        world.s3.take_log();
        let answer = json(world.command(who, &line));
        (digests(&answer, 0), table.data_bytes(&world.s3.take_log()))
    };
    let used = || {
        let status: v1::StatusReply =
            world.ask("root", "/forebay.v1.Cache/Status", &[]).first().expect("status");
        status.cache_bytes_used
    };
    assert!(read("audio", &others).1 > 0, "it is read once");
    assert_eq!(read("audio", &others).1, 0, "all of it is held");
    let before = used();
    let (first, again) = (read("vision", &own), read("vision", &own));
    assert_eq!(first.0, again.0, "the same rows, held or not");
    assert!(again.1 > 0, "not all of it is held");
    let held = used() - before;
    assert!(held <= 4_718_592 + SLACK_BYTES && held > 2 << 20, "{held} bytes of it are held");
    assert_eq!(read("audio", &others).1, 0, "others lose nothing");
    // Without a limit there is room for all of it.
    world.policy.set(&[VISION, AUDIO, ROOT]);
    let begin = Instant::now();
    while read("vision", &own).1 > 0 {
        assert!(begin.elapsed() < SOON, "{} bytes are held", used() - before);
    }
    assert!(used() - before > 28 << 20);
    // All above a new limit leaves without anybody's reading.
    world.policy.set(&[ONE, AUDIO, ROOT]);
    let begin = Instant::now();
    while used() - before > 1_500_000 + SLACK_BYTES {
        assert!(begin.elapsed() < SOON, "{} bytes are held", used() - before);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!((read("vision", &own).0, read("audio", &others).1), (first.0, 0));
}
