//! The faster checks of `make bench-raw`, at a smaller size: every byte of a set through restarts, another
//! node and kills; objects that are overwritten while they are read.

use crate::store::kept;
use forebay_tests::bench::raw::kills::{self, RawKillsSettings};
use forebay_tests::bench::raw::overwrites::{self, OverwritesSettings};

#[test]
fn every_byte_of_a_set_is_the_stores_whatever_happens_to_the_node() {
    let kills: u64 = std::env::var("FOREBAY_TEST_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let settings =
        RawKillsSettings { kills, small: 2, large: 2, large_bytes: 16 << 20, seed: fastrand::u64(..) };
    kept(kills::run(&settings));
}

#[test]
fn an_object_overwritten_in_mid_read_is_an_error_or_one_version() {
    kept(overwrites::run(&OverwritesSettings { each: 24, seed: fastrand::u64(..) }));
}
