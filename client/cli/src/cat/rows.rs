//! The rows of a dataset in file order, from a cache node or directly.

use arrow::array::RecordBatch;
use arrow_flight::FlightData;
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use forebay_client::{Access, Dataset, Node};
use forebay_dataset::stream::{BatchStream, Reading, StreamSetup};
use forebay_proto::{Error, Result, v1};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use prost::Message;
use std::sync::Arc;
use tonic::Status;
use xxhash_rust::xxh3::Xxh3;

/// The first `limit` rows in file order; 0 = all.
pub(super) async fn read(dataset: &Dataset, limit: u64) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let manifest = &dataset.manifest;
    let columns = dataset.ticket_columns();
    let digest = manifest.digest().to_bytes().to_vec();
    let ticket = v1::ScanTicket { manifest: digest.into(), columns, limit };
    match &dataset.access {
        Access::Endpoint(nodes) => {
            let ticket = v1::Ticket::new(manifest, v1::ticket::Kind::Scan(ticket));
            from_node(nodes.node().clone(), ticket).await
        }
        Access::Direct(direct) => {
            let reading = Reading::new(manifest.clone(), &dataset.schema, &ticket.columns)?;
            let setup = StreamSetup::new(reading, Arc::new(direct.clone()));
            let BatchStream { schema, mut messages } = BatchStream::scan(setup, &ticket);
            let messages = stream::poll_fn(move |context| messages.poll_recv(context));
            Ok(messages.map(move |message| message?.to_record_batch(&schema)).boxed())
        }
    }
}

async fn from_node(node: Node, ticket: v1::Ticket) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let mut client = FlightServiceClient::new(node.channel()).max_decoding_message_size(usize::MAX);
    let ticket = arrow_flight::Ticket { ticket: ticket.encode_to_vec().into() };
    let messages = node.reply(client.do_get(ticket)).await?;
    let checked =
        messages.map(|message| message.and_then(check).map_err(|s| FlightError::Tonic(Box::new(s))));
    let broken = move |e| match e {
        FlightError::Tonic(status) => node.error(*status),
        e => Error::corrupt(format!("{} sent no batch stream: {e}", node.url())),
    };
    Ok(FlightRecordBatchStream::new_from_flight_data(checked).map_err(broken).boxed())
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
