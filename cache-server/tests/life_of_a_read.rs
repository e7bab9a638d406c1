//! ARCHITECTURE.md's life of a read against the spans of a real batch, served by a node in this process.

mod one_node;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow_flight::Ticket;
use arrow_flight::flight_service_client::FlightServiceClient;
use forebay_proto::plan::{PlanKey, Shuffle};
use forebay_proto::v1;
use one_node::OneNode;
use parking_lot::Mutex;
use parquet::arrow::ArrowWriter;
use prost::Message;
use std::path::Path;
use std::sync::Arc;
use tonic::transport::Channel;
use tracing::span::{Attributes, Id};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// The names of the spans of this project that began, each once.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<&'static str>>>);

impl<S: tracing::Subscriber> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        let span = attributes.metadata();
        let mut names = self.0.lock();
        if span.target().starts_with("forebay") && !names.contains(&span.name()) {
            names.push(span.name());
        }
    }
}

impl Spans {
    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// The functions in the second column of a section's table.
fn functions(page: &str, section: &str) -> Vec<String> {
    let after = page.split_once(&format!("### {section}\n")).expect(section).1;
    let rows =
        after.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cell = |row: &str| row.split('|').nth(2).unwrap_or_default().trim().trim_matches('`').to_owned();
    rows.skip(2).map(|row| cell(row).rsplit(':').next().unwrap_or_default().to_owned()).collect()
}

fn write_dataset(folder: &Path) {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..5000));
    let batch = RecordBatch::try_from_iter([("id", ids)]).unwrap();
    let file = std::fs::File::create(folder.join("a.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// Reads a ticket's stream to its end; how many messages with rows there were.
async fn read(client: &mut FlightServiceClient<Channel>, kind: v1::ticket::Kind) -> usize {
    let ticket = v1::Ticket { kind: Some(kind), ..Default::default() };
    let ticket = Ticket { ticket: ticket.encode_to_vec().into() };
    let mut messages = client.do_get(ticket).await.unwrap().into_inner();
    let mut count = 0;
    while let Some(message) = messages.message().await.unwrap() {
        count += usize::from(!message.app_metadata.is_empty());
    }
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_passes_the_functions_that_the_page_names() {
    let spans = Spans::default();
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(spans.clone())).unwrap();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ARCHITECTURE.md");
    let page = std::fs::read_to_string(page).unwrap();
    let node = OneNode::start(write_dataset, 32 << 20).await;
    let mut client = FlightServiceClient::new(node.channel.clone());

    // Nothing is announced, so nothing is prefetched: this read fills what it needs.
    spans.take();
    let digest = node.manifest.digest().to_bytes().to_vec();
    let scan = v1::ScanTicket { manifest: digest.into(), ..Default::default() };
    assert_eq!(read(&mut client, v1::ticket::Kind::Scan(scan)).await, 1);
    let (miss, warm) = (functions(&page, "A miss"), functions(&page, "From ticket to wire"));
    // Beside those that a read passes anyway it passes these, and no others.
    let is_of_any_read = |name: &str| miss[0] != name && warm.iter().any(|f| f == name);
    let passed: Vec<_> = spans.take().into_iter().filter(|name| !is_of_any_read(name)).collect();
    assert_eq!(passed, miss);

    let key = PlanKey { manifest: node.manifest.digest(), seed: 1, epoch: 0, shuffle: Shuffle::Full };
    let plan = v1::PlanTicket {
        plan: Some(key.into()),
        global_batch: 5000,
        world: 1,
        epochs_after: Some(0),
        ..Default::default()
    };
    assert_eq!(read(&mut client, v1::ticket::Kind::Plan(plan)).await, 1);
    assert!(warm.len() <= 12, "{} stations", warm.len());
    assert_eq!(spans.take(), warm);

    node.stop().await;
}
