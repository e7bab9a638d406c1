//! Packed documents through real nodes: the same sequences of tokens as the plan says, by any number of
//! ranks, with a node that dies, and in training runs.

use std::sync::Arc;

use arrow::array::{Array, AsArray, ListArray, RecordBatch};
use arrow::datatypes::Int32Type;
use forebay_client::loader::{Packing, Shuffle};
use forebay_client::{Access, Dataset, DatasetSpec, Event, Loader, LoaderSettings};
use forebay_proto::digest::ContentDigest;
use forebay_proto::plan::Order;
use forebay_tests::harness::process::{Run, Server, ServerOptions};
use forebay_tests::harness::s3::{REGION, S3Server};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use serde_json::Value;

use crate::real::three;

const DOCUMENTS: usize = 3_000;
const CONTEXT: u32 = 64;

/// Tokens of a document: a few, or some sequences full, or none.
fn text(row: usize) -> Vec<i32> {
    let length = match row % 17 {
        3 => 0,
        9 => 150 + row % 91,
        other => 1 + (other * 11 + row) % 60,
    };
    (0..length).map(|place| ((row * 31 + place * (1 + row % 5)) % 97) as i32).collect()
}

/// A dataset of many segments.
fn documents(s3: &S3Server) -> DatasetSpec {
    let each = DOCUMENTS / 4;
    for object in 0..4 {
        let rows = object * each..(object + 1) * each;
        let texts = rows.map(|row| Some(text(row).into_iter().map(Some).collect::<Vec<_>>()));
        let list = ListArray::from_iter_primitive::<Int32Type, _, _>(texts);
        let batch = RecordBatch::try_from_iter([("tokens", Arc::new(list) as _)]).expect("a batch");
        let groups = WriterProperties::builder().set_max_row_group_row_count(Some(100)).build();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(groups)).expect("a writer");
        writer.write(&batch).expect("write");
        s3.put(&format!("documents/part-{object}.parquet"), writer.into_inner().expect("an object"));
    }
    DatasetSpec { segment_bytes: Some(8 << 10), ..DatasetSpec::new(s3.uri("documents")) }
}

/// An epoch's sequences, straight from the plan.
fn planned(dataset: &Dataset, settings: &LoaderSettings) -> Vec<Vec<i32>> {
    let order = Order::new(&dataset.manifest, settings.seed, 0, settings.shuffle);
    let segments = dataset.manifest.segments();
    let samples = (0..order.len()).map(|position| order.at(position).expect("a sample"));
    let rows = samples.map(|sample| segments[sample.segment as usize].first_row + u64::from(sample.row));
    let tokens: Vec<i32> = rows.flat_map(|row| text(row as usize)).collect();
    tokens.chunks(CONTEXT as usize).map(<[i32]>::to_vec).collect()
}

/// One rank's sequences of a step, and the digest of the documents that it counts.
async fn step(loader: &mut Loader) -> (Vec<Vec<i32>>, ContentDigest) {
    let Some(Event::Batch(batch)) = loader.next().await.expect("a batch") else { panic!("the epoch ended") };
    let made = batch.sequences.expect("sequences");
    let column = batch.column("tokens").expect("a column");
    let texts = column.as_list::<i32>();
    let values =
        (0..texts.len()).flat_map(|row| texts.value(row).as_primitive::<Int32Type>().values().to_vec());
    let tokens: Vec<i32> = values.skip(made.skip as usize).take(made.tokens as usize).collect();
    assert_eq!(tokens.len() as u64, made.tokens);
    let sequences = tokens.chunks(CONTEXT as usize).map(<[i32]>::to_vec).collect();
    (sequences, batch.content.expect("it was asked for"))
}

/// What some steps brought: their sequences, the digest of their documents, and the state after them.
struct Stretch {
    sequences: Vec<Vec<i32>>,
    content: ContentDigest,
    state: Vec<u8>,
}

/// Some steps of `world` ranks; `None`: all that is left. A node is killed in the middle of them.
async fn read(
    dataset: &Dataset,
    settings: &LoaderSettings,
    world: u32,
    steps: Option<u64>,
    mut kill: Option<&mut Server>,
) -> Stretch {
    let rank = |rank| Loader::start(dataset, LoaderSettings { rank, world, ..settings.clone() });
    let mut ranks: Vec<_> = (0..world).map(|number| rank(number).expect("a loader")).collect();
    let (mut sequences, mut content) = (Vec::new(), ContentDigest::default());
    let steps = steps.unwrap_or(u64::MAX).min(ranks[0].steps(0));
    for number in 0..steps {
        if let Some(node) = kill.take_if(|_| number == steps / 2) {
            node.kill();
        }
        for loader in &mut ranks {
            let (some, digest) = step(loader).await;
            sequences.extend(some);
            content.merge(digest);
        }
    }
    Stretch { sequences, content, state: ranks[0].state_dict() }
}

fn settings(shuffle: Shuffle) -> LoaderSettings {
    let lengths: Vec<u32> = (0..DOCUMENTS).map(|row| text(row).len() as u32).collect();
    LoaderSettings {
        seed: 3,
        shuffle,
        global_batch: 12,
        epochs: Some(1),
        content_digest: true,
        prefetch_bytes: 64 << 10,
        pack: Some(Packing::new(CONTEXT, lengths.into()).expect("a packing")),
        ..Default::default()
    }
}

#[test]
fn nodes_bring_the_planned_sequences_to_any_ranks_also_when_one_dies() {
    let s3 = S3Server::start();
    let spec = documents(&s3);
    let mut nodes = three(&s3);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let access = Access::endpoint(&nodes[1].endpoint).expect("an endpoint");
        let dataset = Dataset::open(&access, &spec).await.expect("a dataset");
        assert!(dataset.manifest.segments().len() > 20, "many segments");
        for shuffle in [Shuffle::None, Shuffle::Window(4), Shuffle::Full] {
            let settings = settings(shuffle);
            let planned = planned(&dataset, &settings);
            for world in [1, 2, 3] {
                let whole = read(&dataset, &settings, world, None, None).await;
                assert_eq!(whole.sequences, planned, "{world} ranks, {shuffle}");
            }
        }
        // Two ranks, one, and three, at other batches; a node dies while the first of them read.
        let mut settings = settings(Shuffle::Window(4));
        let (planned, whole) =
            (planned(&dataset, &settings), read(&dataset, &settings, 1, None, None).await.content);
        let (mut seen, mut content, mut victim) = (Vec::new(), ContentDigest::default(), Some(&mut nodes[0]));
        for (world, batch, steps) in [(2, 12, Some(20)), (1, 7, Some(31)), (3, 9, None)] {
            settings.global_batch = batch;
            let stretch = read(&dataset, &settings, world, steps, victim.take()).await;
            seen.extend(stretch.sequences);
            content.merge(stretch.content);
            settings.load_state_dict(&stretch.state).expect("a state");
        }
        assert_eq!(seen, planned);
        assert_eq!(content, whole, "each document once, with its own values");
    });
    let [_, second, third] = <[_; 3]>::try_from(nodes).ok().expect("three nodes");
    second.stop();
    third.stop();
}

/// A training that changes nothing: its loss tells the sequences that it saw.
fn train(spec: &DatasetSpec, access: &[&str], s3: &S3Server, line: &[&str]) -> Value {
    let report = tempfile::NamedTempFile::new().expect("a file");
    let path = report.path().to_string_lossy().into_owned();
    let steady = "--model gpt --vocab 97 --context 64 --layers 1 --heads 2 --width 16 --pack --optimizer sgd --lr 1e-30 \
                  --verify --batch 12 --epochs 1 --report";
    let run = Run::new("forebay-train").args(access).args(["--train", &spec.uri]);
    let run = run.args(steady.split_whitespace()).arg(&path).args(line);
    run.envs([("OMP_NUM_THREADS", "1")]).envs(s3.credentials()).end().expect_success();
    serde_json::from_slice(&std::fs::read(&path).expect("a report")).expect("JSON")
}

#[test]
fn training_runs_through_a_node_see_what_those_without_one_see() {
    let s3 = S3Server::start();
    let spec = documents(&s3);
    let server = ServerOptions::for_s3(&s3).start();
    let node = ["--endpoint", &server.endpoint];
    let two = train(&spec, &node, &s3, &["--nproc", "2"]);
    let three = train(&spec, &node, &s3, &["--nproc", "3"]);
    let alone = train(
        &spec,
        &["--direct", "--s3-endpoint", &s3.endpoint, "--s3-region", REGION],
        &s3,
        &["--nproc", "1"],
    );
    let tokens: usize = (0..DOCUMENTS).map(|row| text(row).len()).sum();
    for report in [&two, &three, &alone] {
        let (epoch, expected) = (&report["epochs"][0], &alone["epochs"][0]);
        assert_eq!(epoch["order_digest"], expected["order_digest"]);
        assert_eq!(epoch["content_digest"], expected["content_digest"]);
        assert_eq!(epoch["sequences"].as_u64(), Some(tokens.div_ceil(CONTEXT as usize) as u64));
        assert_eq!(epoch["tokens"].as_u64(), Some(tokens as u64));
        let [own, other] = [epoch, expected].map(|epoch| epoch["loss"].as_f64().expect("a loss"));
        assert!((own - other).abs() < 1e-5 * other, "{own} against {other}");
    }
    server.stop();
}
