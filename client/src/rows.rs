//! Rows outside of any plan: all in file order, or chosen ones, from a cache node or directly.
//!
//! Through a cache the rows come by Arrow Flight, directly from the same code that answers there. Each
//! message's checksum is verified before anything of it is handed out. A node that does not know the dataset
//! is told of it, and another one is asked where a node goes away before its first rows; a stream that breaks
//! later is an error. Columns come in the order in which the [`DatasetSpec`](crate::DatasetSpec) names them.

use crate::access::Access;
use crate::dataset::Dataset;
use crate::node::Node;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow_flight::FlightData;
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use bytes::Bytes;
use forebay_dataset::stream::{BatchStream, Reading};
use forebay_proto::hash::Hash64;
use forebay_proto::manifest::Manifest;
use forebay_proto::{Error, Kind, Result, v1};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use prost::Message;
use std::sync::Arc;
use tonic::Status;

/// Rows that are asked for at once: a node with 64 MiB of memory has room for so long a ticket.
const TAKEN_AT_ONCE: usize = 1 << 16;

/// Rows as they come: batches of any length.
pub type RowStream = BoxStream<'static, Result<RecordBatch>>;

/// The columns of the rows, in the order in which they were asked for.
pub fn schema(dataset: &Dataset) -> Result<SchemaRef> {
    dataset.projected_schema.project(&as_asked(dataset)?).map(Arc::new).map_err(not_projected)
}

/// Brings the columns of batches that have them in the dataset's order, such as a loader's, into the order in
/// which they were asked for.
#[derive(Debug, Clone)]
pub struct ColumnOrder {
    /// `None` if that is the dataset's order.
    columns: Option<Vec<usize>>,
}

impl ColumnOrder {
    /// That of a dataset's batches.
    pub fn of(dataset: &Dataset) -> Result<Self> {
        let columns = as_asked(dataset)?;
        let is_theirs = columns.iter().copied().eq(0..dataset.projected_schema.fields().len());
        Ok(Self { columns: (!is_theirs).then_some(columns) })
    }

    /// The batch with its columns in this order.
    pub fn apply(&self, batch: RecordBatch) -> Result<RecordBatch> {
        match &self.columns {
            None => Ok(batch),
            Some(columns) => batch.project(columns).map_err(not_projected),
        }
    }
}

/// The first `limit` rows in file order; `None` = all.
pub async fn scan(dataset: &Dataset, limit: Option<u64>) -> Result<RowStream> {
    let limit = match limit {
        Some(0) => return Ok(stream::empty().boxed()),
        limit => limit.unwrap_or(0),
    };
    let manifest = dataset.manifest.digest().to_bytes().to_vec().into();
    read(
        dataset,
        v1::ticket::Kind::Scan(v1::ScanTicket { manifest, columns: dataset.ticket_columns(), limit }),
    )
    .await
}

/// The rows of these numbers (in file order from 0), in this order; a number may come several times.
/// `Invalid` names the first that the dataset does not have. More than 65,536 rows are asked for in parts,
/// each when the one before has come.
pub async fn take(dataset: &Dataset, rows: &[u64]) -> Result<RowStream> {
    let (segment, row) = places(&dataset.manifest, rows)?;
    let manifest: Bytes = dataset.manifest.digest().to_bytes().to_vec().into();
    let ticket = |(segment, row): (&[u32], &[u64])| {
        let (segment, row) = (segment.to_vec(), row.to_vec());
        let columns = dataset.ticket_columns();
        v1::ticket::Kind::Rows(v1::RowsTicket { manifest: manifest.clone(), columns, segment, row })
    };
    let parts = segment.chunks(TAKEN_AT_ONCE).zip(row.chunks(TAKEN_AT_ONCE));
    let mut tickets = parts.map(ticket).collect::<Vec<_>>().into_iter();
    let Some(first) = tickets.next() else { return Ok(stream::empty().boxed()) };
    let first = read(dataset, first).await?;
    let dataset = dataset.clone();
    let rest = stream::iter(tickets).then(move |ticket| {
        let dataset = dataset.clone();
        async move { read(&dataset, ticket).await }
    });
    Ok(first.chain(rest.try_flatten()).boxed())
}

/// The segment of each row, and its number there.
fn places(manifest: &Manifest, rows: &[u64]) -> Result<(Vec<u32>, Vec<u64>)> {
    let segments = manifest.segments();
    let place = |&row: &u64| {
        let after = segments.partition_point(|segment| segment.first_row <= row);
        let found = after.checked_sub(1).map(|index| (index as u32, row - segments[index].first_row));
        let found = found.filter(|(index, row)| *row < segments[*index as usize].rows);
        found.ok_or_else(|| {
            let (uri, all) = (manifest.uri(), manifest.rows());
            Error::invalid(format!("{uri} has {all} rows, counted from 0: there is no row {row}"))
        })
    };
    Ok(rows.iter().map(place).collect::<Result<Vec<_>>>()?.into_iter().unzip())
}

/// For each column that was asked for, its index in the projected schema (which is in the dataset's order).
fn as_asked(dataset: &Dataset) -> Result<Vec<usize>> {
    let schema = &dataset.projected_schema;
    match &dataset.spec.columns {
        None => Ok((0..schema.fields().len()).collect()),
        Some(names) => names.iter().map(|name| schema.index_of(name).map_err(not_projected)).collect(),
    }
}

fn not_projected(e: ArrowError) -> Error {
    Error::corrupt(format!("the rows that came do not fit the dataset's schema: {e}"))
}

async fn read(dataset: &Dataset, ticket: v1::ticket::Kind) -> Result<RowStream> {
    let rows = match &dataset.access {
        Access::Endpoint(nodes) => {
            let ticket = &v1::Ticket::new(&dataset.manifest, ticket);
            nodes.ask(|node| async move { from_node(dataset, node, ticket).await }).await?
        }
        Access::Direct(direct) => {
            let columns = dataset.ticket_columns();
            let reading = Reading::new(dataset.manifest.clone(), &dataset.schema, &columns)?;
            let setup = direct.stream(reading);
            let BatchStream { schema, mut messages } = match &ticket {
                v1::ticket::Kind::Rows(ticket) => BatchStream::rows(setup, ticket)?,
                v1::ticket::Kind::Scan(ticket) => BatchStream::scan(setup, ticket),
                v1::ticket::Kind::Plan(_) => return Err(Error::invalid("a plan is read by a loader")),
            };
            let messages = stream::poll_fn(move |context| messages.poll_recv(context));
            messages.map(move |message| message?.to_record_batch(&schema)).boxed()
        }
    };
    let order = ColumnOrder::of(dataset)?;
    Ok(rows.map(move |batch| order.apply(batch?)).boxed())
}

/// Asks a node. One that has lost the dataset, with its disk or for want of room, is told of it again.
async fn from_node(dataset: &Dataset, node: Node, ticket: &v1::Ticket) -> Result<RowStream> {
    match opened(node.clone(), ticket).await {
        Err(e) if e.kind == Kind::NotFound => {
            dataset.tell(&node).await?;
            opened(node, ticket).await
        }
        rows => rows,
    }
}

/// What a node sends for a ticket.
async fn opened(node: Node, ticket: &v1::Ticket) -> Result<RowStream> {
    let mut client = FlightServiceClient::new(node.authorized())
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX);
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
    let mut hash = Hash64::default();
    hash.update(&message.data_header);
    hash.update(&message.data_body);
    match meta {
        Ok(meta) if meta.hash == hash.digest() => Ok(message),
        _ => Err(Status::data_loss("a message was damaged on its way: its checksum does not match")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DatasetSpec, SourceSettings};
    use arrow::array::AsArray;
    use arrow::datatypes::Int64Type;

    async fn labels(columns: &[&str]) -> Dataset {
        let access = Access::direct(SourceSettings::default()).unwrap();
        let folder = std::fs::canonicalize("../tests/data/mnist/test").unwrap();
        let columns = Some(columns.iter().map(|name| (*name).to_owned()).collect());
        let spec = DatasetSpec { columns, ..DatasetSpec::new(format!("file://{}", folder.display())) };
        Dataset::open(&access, &spec).await.unwrap()
    }

    async fn values(rows: RowStream) -> Vec<i64> {
        let batches: Vec<RecordBatch> = rows.try_collect().await.unwrap();
        let column = |b: &RecordBatch| b.column(0).as_primitive::<Int64Type>().values().to_vec();
        batches.iter().flat_map(column).collect()
    }

    #[tokio::test]
    async fn chosen_rows_are_those_of_a_scan() {
        let dataset = labels(&["label"]).await;
        let all = values(scan(&dataset, None).await.unwrap()).await;
        assert_eq!(all.len(), 10_000);
        let chosen = [9_999, 0, 5_000, 5_000, 1];
        let taken = values(take(&dataset, &chosen).await.unwrap()).await;
        assert_eq!(taken, chosen.map(|row| all[row as usize]));
        assert_eq!(values(scan(&dataset, Some(3)).await.unwrap()).await, all[..3]);
        assert_eq!(values(scan(&dataset, Some(0)).await.unwrap()).await.len(), 0);
        let many: Vec<u64> = (0..150_000).map(|n| n * 7 % 10_000).collect();
        let taken = values(take(&dataset, &many).await.unwrap()).await;
        assert!(taken.iter().eq(many.iter().map(|row| &all[*row as usize])), "in parts too");
        assert_eq!(values(take(&dataset, &[]).await.unwrap()).await.len(), 0);
        let e = take(&dataset, &[0, 10_000]).await.err().unwrap();
        assert!(e.message.ends_with("has 10000 rows, counted from 0: there is no row 10000"), "{e}");
    }

    #[tokio::test]
    async fn columns_come_in_the_order_asked_for() {
        let dataset = labels(&["label", "image"]).await;
        let names = |schema: &SchemaRef| schema.fields().iter().map(|f| f.name().clone()).collect::<Vec<_>>();
        assert_eq!(names(&schema(&dataset).unwrap()), ["label", "image"]);
        let batch = take(&dataset, &[7]).await.unwrap().try_next().await.unwrap().unwrap();
        assert_eq!(names(&batch.schema()), ["label", "image"]);
    }
}
