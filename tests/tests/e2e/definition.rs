//! The order as docs/order.md defines it: a script that was written from that page alone, and shares no code
//! with Forebay, says which rows real loaders must read.

use forebay_client::loader::{Event, Loader, LoaderSettings, LoaderState, Shuffle};
use forebay_client::{Access, Dataset, DatasetSpec};
use forebay_proto::plan::PlanKey;
use forebay_proto::view::MixPart;
use forebay_tests::harness::mnist;
use forebay_tests::harness::process::{Server, ServerOptions};
use forebay_tests::harness::s3::S3Server;
use serde_json::{Value, json};

use crate::commands::{cached, json as answer};
use crate::fixtures;

/// Several segments for each dataset, so that windows matter.
const SEGMENT_BYTES: u64 = 2_500_000;

const SEED: u64 = 5;

/// Divisible by every number of ranks below, and no divisor of the rows.
const BATCH: u64 = 1200;

/// Shuffle, ranks, ending, and the position at which the first epoch begins.
const RUNS: [(&str, u32, &str, u64); 4] = [
    ("none", 1, "pad", 0),
    ("window(2)", 3, "exact", 0),
    ("window(3)", 4, "drop", 1300),
    ("full", 2, "pad", 0),
];

/// A rank's steps: of each slot, whether it is a sample and no padding, and its row in the dataset.
type Steps = Vec<Vec<(bool, u64)>>;

#[test]
fn loaders_read_the_order_that_the_page_defines() {
    let s3 = S3Server::start();
    mnist::upload_folder(&s3, &mnist::folder().join("test"), "test").expect("read MNIST");
    let train = std::fs::read(mnist::folder().join("train/part-00000.parquet")).expect("read MNIST");
    s3.put("train/0.parquet", train);
    let server = ServerOptions::for_s3(&s3).start();
    let (test, train) = (s3.uri("test"), s3.uri("train"));
    let spec = || DatasetSpec {
        columns: Some(vec!["label".to_owned()]),
        segment_bytes: Some(SEGMENT_BYTES),
        ..Default::default()
    };
    let whole = DatasetSpec { uri: test.clone(), ..spec() };
    check(&server, &whole, &json!([{"segments": segments(&server, &test, &[])}]));
    let split = Some("0.1:0.85".parse().expect("a split"));
    let stretch = segments(&server, &test, &["--split", "0.1:0.85"]);
    check(&server, &DatasetSpec { uri: test.clone(), split, ..spec() }, &json!([{"segments": stretch}]));
    // The second epoch of the mix goes on into another epoch of its first part.
    let shares = [(&train, 0.7), (&test, 0.3)];
    let mix = shares.map(|(uri, share)| format!("{uri}={share}").parse::<MixPart>().expect("a part"));
    let parts = shares.map(|(uri, share)| json!({"share": share, "segments": segments(&server, uri, &[])}));
    check(&server, &DatasetSpec { mix: mix.to_vec(), ..spec() }, &json!(parts));
    server.stop();
}

/// The rows of each segment, as `forebay inspect` says.
fn segments(server: &Server, uri: &str, view: &[&str]) -> Vec<u64> {
    let bytes = SEGMENT_BYTES.to_string();
    let said = answer(cached(server, &[&["inspect", uri, "--segment-bytes", &bytes], view].concat()));
    let all = said["segments"].as_array().expect("segments");
    assert!(all.len() > 2, "{all:?}");
    all.iter().map(|segment| segment["rows"].as_u64().expect("a number")).collect()
}

fn check(server: &Server, spec: &DatasetSpec, parts: &Value) {
    let access = Access::endpoint(&server.endpoint).expect("an endpoint");
    let runtime = tokio::runtime::Runtime::new().expect("start a runtime");
    let dataset = runtime.block_on(Dataset::open(&access, spec)).expect("open");
    for (shuffle, world, ending, first) in RUNS {
        let expected = by_script(&json!({
            "parts": parts, "shuffle": shuffle, "seed": SEED, "epochs": 2, "batch": BATCH, "world": world,
            "ending": ending, "first_position": first,
        }));
        let shuffle: Shuffle = shuffle.parse().expect("a shuffle");
        let key = PlanKey { manifest: dataset.manifest.digest(), seed: SEED, epoch: 0, shuffle };
        let resume = (first > 0).then_some(LoaderState { key, samples_done: first, tokens_done: None });
        for rank in 0..world {
            let settings = LoaderSettings {
                seed: SEED,
                shuffle,
                ending: ending.parse().expect("an ending"),
                global_batch: BATCH,
                rank,
                world,
                epochs: Some(2),
                resume,
                ..Default::default()
            };
            let read = runtime.block_on(read(&dataset, settings));
            for (epoch, ranks) in expected.iter().enumerate() {
                let what = format!("{parts}, {shuffle}, epoch {epoch}, rank {rank} of {world}");
                // No assert_eq: nobody reads ten thousand rows.
                assert!(read[epoch].1 == ranks[rank as usize].1, "other rows: {what}");
                assert_eq!(read[epoch].0, ranks[rank as usize].0, "{what}");
            }
        }
    }
}

/// Of each epoch, for each rank, its order digest and its steps, as the script computes them.
fn by_script(run: &Value) -> Vec<Vec<(String, Steps)>> {
    let file = tempfile::NamedTempFile::new().expect("make a file");
    std::fs::write(file.path(), run.to_string()).expect("write the run");
    let said = fixtures::script("order.py").arg(file.path()).end().expect_success();
    let epochs: Vec<Vec<Value>> = serde_json::from_slice(&said).expect("JSON");
    let of_rank = |rank: &Value| {
        let steps: Vec<Vec<(Option<u64>, u64)>> =
            serde_json::from_value(rank["steps"].clone()).expect("positions and rows");
        let slot = |(position, row): &(Option<u64>, u64)| (position.is_some(), *row);
        let steps: Steps = steps.iter().map(|step| step.iter().map(slot).collect()).collect();
        (rank["digest"].as_str().expect("a digest is text").to_owned(), steps)
    };
    epochs.iter().map(|ranks| ranks.iter().map(of_rank).collect()).collect()
}

/// Of each epoch, the order digest and the steps that a loader gives.
async fn read(dataset: &Dataset, settings: LoaderSettings) -> Vec<(String, Steps)> {
    let mut loader = Loader::start(dataset, settings).expect("start");
    let (mut epochs, mut steps) = (Vec::new(), Steps::new());
    while let Some(event) = loader.next().await.expect("next") {
        match event {
            Event::Batch(batch) => {
                let is_real = |slot| batch.mask.as_ref().is_none_or(|mask| mask.value(slot));
                let ids = batch.sample_ids.iter().enumerate();
                steps.push(ids.map(|(slot, id)| (is_real(slot), *id)).collect());
            }
            Event::EpochEnd(summary) => {
                epochs.push((summary.digest.to_string(), std::mem::take(&mut steps)));
            }
        }
    }
    assert_eq!(epochs.len(), 2);
    epochs
}
