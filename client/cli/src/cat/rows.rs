//! The rows of a dataset in file order, from a cache node or directly.

use arrow::array::RecordBatch;
use arrow_flight::FlightData;
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use forebay_client::{Access, Dataset, Node};
use forebay_dataset::stream::{BatchStream, Reading, StreamSetup};
use forebay_proto::{Error, Result, v1};
use futures::StreamExt;
use prost::Message;
use tonic::Status;
use xxhash_rust::xxh3::Xxh3;

/// Batches in file order.
pub(super) enum Rows {
    Endpoint(Node, Box<FlightRecordBatchStream>),
    Direct(BatchStream),
}

impl Rows {
    /// Asks for the first `limit` rows; 0 = all.
    pub(super) async fn start(dataset: &Dataset, limit: u64) -> Result<Self> {
        let ticket = v1::ScanTicket {
            manifest: dataset.manifest().digest().to_bytes().to_vec().into(),
            columns: dataset.ticket_columns(),
            limit,
        };
        match dataset.access() {
            Access::Endpoint(nodes) => {
                let ticket = v1::Ticket::new(dataset.manifest(), v1::ticket::Kind::Scan(ticket));
                Self::ask(nodes.node(), ticket).await
            }
            Access::Direct(_) => {
                let manifest = dataset.manifest().clone();
                let reading = Reading::new(manifest, dataset.schema(), &ticket.columns)?;
                let setup = StreamSetup::new(reading, dataset.segments()?);
                Ok(Rows::Direct(BatchStream::scan(setup, &ticket)))
            }
        }
    }

    async fn ask(node: &Node, ticket: v1::Ticket) -> Result<Self> {
        let mut client = FlightServiceClient::new(node.channel()).max_decoding_message_size(usize::MAX);
        let stream = client.do_get(arrow_flight::Ticket { ticket: ticket.encode_to_vec().into() }).await;
        let stream = stream.map_err(|s| node.error(s))?.into_inner();
        let checked =
            stream.map(|message| message.and_then(check).map_err(|s| FlightError::Tonic(Box::new(s))));
        let batches = FlightRecordBatchStream::new_from_flight_data(checked);
        Ok(Rows::Endpoint(node.clone(), Box::new(batches)))
    }

    /// The next batch; `None` after the last.
    pub(super) async fn next(&mut self) -> Result<Option<RecordBatch>> {
        match self {
            Rows::Endpoint(node, stream) => match stream.next().await.transpose() {
                Ok(batch) => Ok(batch),
                Err(FlightError::Tonic(status)) => Err(node.error(*status)),
                Err(e) => Err(Error::corrupt(format!("{} sent no batch stream: {e}", node.url()))),
            },
            Rows::Direct(answer) => match answer.messages.recv().await {
                Some(message) => message?.to_record_batch(&answer.schema).map(Some),
                None => Ok(None),
            },
        }
    }
}

/// Lets a message pass whose header and body are what its sender hashed.
fn check(message: FlightData) -> Result<FlightData, Status> {
    if message.app_metadata.is_empty() {
        return Ok(message);
    }
    let meta = v1::MessageMeta::decode(message.app_metadata.as_ref());
    let mut hash = Xxh3::new();
    hash.update(&message.data_header);
    hash.update(&message.data_body);
    match meta {
        Ok(meta) if meta.hash == hash.digest() => Ok(message),
        _ => Err(Status::data_loss("a message was damaged on its way: its checksum does not match")),
    }
}
