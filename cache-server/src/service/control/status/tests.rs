//! What a status says of datasets, and what it costs: `status_ms`, which `make bench-order` measures here.

use super::status;
use crate::auth::caller::Caller;
use crate::datasets::Dataset;
use crate::disk::tests::hold_without_files;
use crate::node::Node;
use crate::settings::Settings;
use arrow::datatypes::Schema;
use forebay_proto::manifest::{Manifest, Object, SegmentId, SegmentSize};
use forebay_proto::view::Split;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const ROWS: u64 = 1000;

async fn node(dir: &Path) -> Arc<Node> {
    let settings = Settings {
        cache_dir: vec![dir.to_owned()],
        cache_bytes: 1 << 30,
        memory_bytes: 1 << 28,
        ..Settings::default()
    };
    let url = "http://127.0.0.1:7070".to_owned();
    Arc::new(Node::open(&settings, url, CancellationToken::new()).await.expect("a node"))
}

fn manifest(objects: u32, segments: u32) -> Manifest {
    let object = |i| Object {
        key: format!("part-{i:05}.parquet"),
        etag: format!("{i}"),
        size: 1 << 30,
        ..Default::default()
    };
    let size = |i| SegmentSize {
        object: i / (segments / objects),
        row_groups: 1,
        rows: ROWS,
        decoded_bytes: 32 << 20,
    };
    let sizes: Vec<SegmentSize> = (0..segments).map(size).collect();
    Manifest::new("s3://b/d", 1, vec![], (0..objects).map(object).collect(), &sizes).expect("a manifest")
}

fn ids(manifest: &Manifest) -> Vec<SegmentId> {
    (0..manifest.segments().len() as u32).map(|s| manifest.segment_id(s).expect("a segment")).collect()
}

async fn learn(node: &Node, manifest: Manifest) {
    let dataset = Dataset { manifest: Arc::new(manifest), schema: Arc::new(Schema::empty()) };
    node.datasets.learn(dataset).await.expect("it is kept");
}

/// A dataset, and a split of it up to a row.
fn with_split(objects: u32, segments: u32, rows: u64) -> [Manifest; 2] {
    let whole = manifest(objects, segments);
    let split: Split = format!("0:{rows}").parse().expect("a split");
    let split = whole.split(&split).expect("rows that there are");
    [whole, split]
}

#[tokio::test]
async fn the_node_looks_at_itself_for_one_caller_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (node, turn) = (node(dir.path()).await, Arc::<tokio::sync::Mutex<()>>::default());
    let another = turn.clone().lock_owned().await;
    let caller = Caller::everyone();
    let mut told = Box::pin(status(&node, &caller, &turn));
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut told).await.is_err(), "it waits");
    drop(another);
    told.await.unwrap();
    assert!(turn.try_lock().is_ok(), "and is done");
}

#[tokio::test]
async fn a_status_says_what_is_held_of_each_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(dir.path()).await;
    let [whole, split] = with_split(4, 40, 15 * ROWS + 1);
    let ids = ids(&whole);
    let turn = Arc::default();
    let told = async || {
        let told = status(&node, &Caller::everyone(), &turn).await.unwrap();
        let of = |d: &forebay_proto::v1::DatasetStatus| (d.part.clone(), d.segments_held, d.segments_owned);
        let mut told: Vec<_> = told.datasets.iter().map(of).collect();
        told.sort();
        told
    };
    assert!(told().await.is_empty());
    learn(&node, whole).await;
    hold_without_files(&node.disk, &ids[..20]);
    assert_eq!(told().await, [(String::new(), 20, 20)]);
    learn(&node, split).await;
    let part = "0:15001".to_owned();
    assert_eq!(told().await, [(String::new(), 20, 20), (part.clone(), 16, 16)]);
    node.disk.free_segments(&ids[..5]);
    assert_eq!(told().await, [(String::new(), 15, 15), (part, 11, 11)]);
}

/// Half of 60,000 segments are held. The median of 101.
#[tokio::test]
#[ignore = "a measurement"]
async fn what_a_status_costs() {
    let dir = tempfile::tempdir().unwrap();
    let node = node(dir.path()).await;
    let all = with_split(1_000, 60_000, 30_000 * ROWS);
    let half: Vec<SegmentId> = ids(&all[0]).into_iter().step_by(2).collect();
    hold_without_files(&node.disk, &half);
    for manifest in all {
        learn(&node, manifest).await;
    }
    let caller = Caller::everyone();
    black_box(status(&node, &caller, &Arc::default()).await.expect("a status"));
    let mut took = Vec::new();
    for _ in 0..101 {
        let begun = Instant::now();
        black_box(status(&node, &caller, &Arc::default()).await.expect("a status"));
        took.push(begun.elapsed());
    }
    took.sort();
    println!("\nstatus_ms {:.3}", took[took.len() / 2].as_secs_f64() * 1e3);
}
