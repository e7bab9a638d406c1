//! What plans cost a node with 1,024 ranks and 60,000 segments: `look_ms`, the shortest look at what to
//! prefetch, `look_median_ms`, and `order_bytes_per_stream`, the memory of the order that each stream walks.
//! Run by `make bench-order`.

use super::Plans;
use arrow::datatypes::{DataType, Field, Schema};
use forebay_dataset::schema;
use forebay_dataset::stream::{Orders, PlanWalk, Reading};
use forebay_proto::manifest::{Manifest, Object, SegmentSize};
use forebay_proto::plan::{PlanKey, Shuffle};
use forebay_proto::{SegmentSet, v1};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

const RANKS: u32 = 1024;
const SEGMENTS: u32 = 60_000;

#[test]
#[ignore = "a measurement"]
fn what_plans_cost() {
    let before = resident_bytes();
    let walks = walks(RANKS, SEGMENTS);
    let bytes = resident_bytes().saturating_sub(before) / u64::from(RANKS);
    drop(walks);
    let looks = looks(RANKS, SEGMENTS, 100);
    println!("\nlook_ms {:.3}", looks[0].as_secs_f64() * 1e3);
    println!("look_median_ms {:.3}", looks[looks.len() / 2].as_secs_f64() * 1e3);
    println!("order_bytes_per_stream {bytes}");
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
}

/// How long `times` looks take, the shortest first, at the segments due for a job of `ranks` streams, which
/// each want half of `segments`.
pub fn looks(ranks: u32, segments: u32, times: u32) -> Vec<Duration> {
    let (plans, reading) = (Arc::new(Plans::default()), reading(segments));
    let mut wanted = SegmentSet::new(segments);
    wanted.extend((0..segments).step_by(2));
    let open: Vec<_> = (0..ranks)
        .map(|rank| {
            let walk = walk(&reading, &plans.orders, rank, ranks, &wanted);
            plans.announce(&reading, &walk).expect("announced")
        })
        .collect();
    let job = plans.jobs()[0];
    let look = || {
        let begun = Instant::now();
        black_box(plans.due(job));
        begun.elapsed()
    };
    let mut took: Vec<_> = (0..times).map(|_| look()).collect();
    drop(open);
    took.sort();
    took
}

/// The streams of a job, for as long as the value lives: the plan that each of them walks.
fn walks(ranks: u32, segments: u32) -> Vec<PlanWalk> {
    let (orders, reading, all) = (Orders::default(), reading(segments), SegmentSet::all(segments));
    (0..ranks).map(|rank| walk(&reading, &orders, rank, ranks, &all)).collect()
}

fn walk(reading: &Reading, orders: &Orders, rank: u32, world: u32, wanted: &SegmentSet) -> PlanWalk {
    let manifest = reading.manifest.digest();
    let ticket = v1::PlanTicket {
        plan: Some(PlanKey { manifest, seed: 1, epoch: 0, shuffle: Shuffle::Window(16) }.into()),
        global_batch: u64::from(world),
        rank,
        world,
        segments: wanted.to_wire().into(),
        ..Default::default()
    };
    PlanWalk::new(&reading.manifest, &ticket, orders).expect("a good ticket")
}

fn reading(segments: u32) -> Reading {
    let columns = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true)]));
    let object = Object { key: "o".into(), etag: "e".into(), size: 1, ..Default::default() };
    let size = SegmentSize { object: 0, row_groups: 1, rows: 100, decoded_bytes: 800 };
    let ipc = schema::to_ipc(&columns).expect("a schema");
    let sizes = vec![size; segments as usize];
    let manifest = Manifest::new("s3://b/d", 1, ipc, vec![object], &sizes).expect("a manifest");
    Reading::new(Arc::new(manifest), &columns, &[]).expect("a reading")
}
