//! A stock Arrow Flight client (`arrow_flight`, over tonic) reads the streams of a plan, which the node puts
//! on the wire past tonic's encoder. Every value is compared with the rule that made it, at the place that
//! the plan says.

mod one_node;

use arrow::array::{ArrayRef, FixedSizeBinaryArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_flight::decode::{DecodedFlightData, DecodedPayload};
use arrow_flight::{FlightClient, Ticket};
use forebay_proto::digest::OrderDigest;
use forebay_proto::hash::Hash64;
use forebay_proto::manifest::Manifest;
use forebay_proto::plan::steps::{Cut, Ending, Layout, Steps};
use forebay_proto::plan::{Order, PlanKey, Shuffle};
use forebay_proto::v1;
use futures::TryStreamExt;
use one_node::OneNode;
use parquet::arrow::ArrowWriter;
use prost::Message;
use std::path::Path;
use std::sync::Arc;

/// Objects, row groups of each, and rows of each of these, which become a segment.
const OBJECTS: u64 = 2;
const GROUPS: u64 = 4;
const GROUP_ROWS: u64 = 16_000;

/// Two ranks share a step; the last one is padded.
const GLOBAL_BATCH: u64 = 24_000;
const WORLD: u32 = 2;

/// Where a row of a stream belongs: its step and segment, and its number in the dataset.
type Place = (u64, u32, u64);

/// Rows by their numbers: every value follows from the row.
fn rows(numbers: impl Iterator<Item = u64> + Clone) -> RecordBatch {
    let ids = Int64Array::from_iter_values(numbers.clone().map(|row| row as i64));
    let weight = |row: u64| (!row.is_multiple_of(5)).then_some(row as f64 / 7.0);
    let weights: Float64Array = numbers.clone().map(weight).collect();
    let text = |row: u64| (!row.is_multiple_of(11)).then(|| format!("row {row} ").repeat(row as usize % 4));
    let texts: StringArray = numbers.clone().map(text).collect();
    let bytes = numbers.map(|row| [row.to_le_bytes(), (!row).to_be_bytes()].concat());
    let bytes = FixedSizeBinaryArray::try_from_iter(bytes).unwrap();
    let columns: [(&str, ArrayRef, bool); 4] = [
        ("id", Arc::new(ids), false),
        ("weight", Arc::new(weights), true),
        ("text", Arc::new(texts), true),
        ("bytes", Arc::new(bytes), false),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

fn write_dataset(folder: &Path) {
    for object in 0..OBJECTS {
        let group = |group| {
            let first = (object * GROUPS + group) * GROUP_ROWS;
            rows(first..first + GROUP_ROWS)
        };
        let file = std::fs::File::create(folder.join(format!("part-{object}.parquet"))).unwrap();
        let mut writer = ArrowWriter::try_new(file, group(0).schema(), None).unwrap();
        for number in 0..GROUPS {
            writer.write(&group(number)).unwrap();
            writer.flush().unwrap();
        }
        writer.close().unwrap();
    }
}

/// The rows of a rank in the order of its stream, and their digest.
fn planned(manifest: &Manifest, key: PlanKey, rank: u32) -> (Vec<Place>, OrderDigest) {
    let order = Order::new(manifest, key.seed, key.epoch, key.shuffle);
    let cut = Cut {
        first_position: 0,
        global_batch: GLOBAL_BATCH,
        world: WORLD,
        ending: Ending::Pad,
        layout: Layout::Segment,
    };
    let steps = Steps::new(&order, cut).unwrap();
    let first_row = |segment: u32| manifest.segments()[segment as usize].first_row;
    let (mut places, mut digest, mut slots) = (Vec::new(), OrderDigest::default(), Vec::new());
    for step in 0..steps.count() {
        steps.batch(step, rank, &mut slots);
        let samples = slots.iter().map(|slot| slot.sample);
        places.extend(samples.map(|s| (step, s.segment, first_row(s.segment) + u64::from(s.row))));
        digest.merge(steps.digest(&slots, first_row));
    }
    (places, digest)
}

/// The messages with rows of a ticket's stream. Their bytes must be those that the node hashed.
async fn read(client: &mut FlightClient, ticket: v1::PlanTicket) -> Vec<(v1::MessageMeta, RecordBatch)> {
    let ticket = v1::Ticket { kind: Some(v1::ticket::Kind::Plan(ticket)), ..Default::default() };
    let mut messages = client.do_get(Ticket::new(ticket.encode_to_vec())).await.unwrap().into_inner();
    let mut read = Vec::new();
    while let Some(DecodedFlightData { inner, payload }) = messages.try_next().await.unwrap() {
        let DecodedPayload::RecordBatch(batch) = payload else { continue };
        let meta = v1::MessageMeta::decode(inner.app_metadata).unwrap();
        let mut hash = Hash64::default();
        hash.update(&inner.data_header);
        hash.update(&inner.data_body);
        assert_eq!(meta.hash, hash.digest());
        read.push((meta, batch));
    }
    read
}

/// Compares a stream with the plan and the rule.
fn check(messages: &[(v1::MessageMeta, RecordBatch)], planned: (Vec<Place>, OrderDigest), what: &str) {
    let (places, planned_digest) = planned;
    let (mut left, mut digest) = (&places[..], OrderDigest::default());
    for (meta, batch) in messages {
        let (own, rest) = left.split_at_checked(batch.num_rows()).expect("no more rows than the plan has");
        left = rest;
        let runs = meta.row_runs().unwrap();
        let said = runs.flat_map(|run| {
            std::iter::repeat_n((meta.first_step + u64::from(run.step), run.segment), run.rows as usize)
        });
        assert!(said.eq(own.iter().map(|(step, segment, _)| (*step, *segment))), "{what}: places");
        let expected = rows(own.iter().map(|(_, _, row)| *row));
        assert!(batch.columns() == expected.columns(), "{what}: values");
        digest.merge(OrderDigest::from_bytes(&meta.digest).unwrap());
    }
    assert_eq!((left.len(), digest), (0, planned_digest), "{what}: rows that did not come, and the digest");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stock_client_reads_every_value_where_the_plan_says() {
    // So small that each row group is a segment.
    let node = OneNode::start(write_dataset, 1 << 16).await;
    let manifest = &node.manifest;
    assert_eq!(manifest.segments().len() as u64, OBJECTS * GROUPS);
    let mut client = FlightClient::new(node.channel.clone());

    // In file order long stretches of rows are sent as they lie in files.
    for shuffle in [Shuffle::None, Shuffle::Window(2), Shuffle::Full] {
        let key = PlanKey { manifest: manifest.digest(), seed: 3, epoch: 1, shuffle };
        for (rank, times) in (0..WORLD).flat_map(|rank| [(rank, "first"), (rank, "again")]) {
            let ticket = v1::PlanTicket {
                plan: Some(key.into()),
                global_batch: GLOBAL_BATCH,
                rank,
                world: WORLD,
                ending: Ending::Pad.into(),
                epochs_after: Some(0),
                ..Default::default()
            };
            let messages = read(&mut client, ticket).await;
            assert!(messages.len() > 1, "{} messages", messages.len());
            check(&messages, planned(manifest, key, rank), &format!("{shuffle}, rank {rank}, {times}"));
        }
    }

    drop(client);
    node.stop().await;
}
