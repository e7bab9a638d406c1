//! A node that is drained while a job reads from it: the job goes on elsewhere, and the node serves no row
//! until it is back, not even to a reader that has not heard of it.

use std::time::Duration;

use forebay_client::Node;
use forebay_client::stream::{Stream, WINDOW_BYTES};
use forebay_proto::{Kind, v1};
use forebay_tests::harness::background::BackgroundReader;
use forebay_tests::harness::etcd::Etcd;
use forebay_tests::harness::process::Server;
use forebay_tests::harness::reader::Job;
use forebay_tests::harness::s3::S3Server;
use forebay_tests::harness::table::{MIB_ROWS, Table};
use forebay_tests::harness::wait::until;
use prost::Message;
use tokio::runtime::Runtime;

/// Generous: the machine may be loaded.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two nodes of a cluster.
struct Pair {
    runtime: Runtime,
    s3: S3Server,
    _etcd: Etcd,
    stays: Server,
    leaves: Server,
}

impl Pair {
    fn start() -> Self {
        let (runtime, s3, etcd) = (Runtime::new().expect("a runtime"), S3Server::start(), Etcd::start(1));
        let [stays, leaves] = crate::snapshots::cluster(&s3, &etcd);
        let pair = Self { runtime, s3, _etcd: etcd, stays, leaves };
        until("the nodes know each other", PATIENCE, || {
            let nodes = |node| pair.status(node).membership.expect("a membership").nodes;
            [&pair.stays, &pair.leaves].into_iter().all(|node| nodes(node) == 2)
        });
        pair
    }

    fn status(&self, node: &Server) -> v1::StatusReply {
        let node = Node::new(&node.endpoint).expect("a URL");
        self.runtime.block_on(node.status()).expect("a status")
    }

    /// Rows that the node which leaves has served so far.
    fn served(&self) -> u64 {
        self.status(&self.leaves).counters.expect("counters").rows_served
    }

    /// Has that node leave, or come back.
    fn drain(&self, undo: bool) -> v1::DrainReply {
        let node = Node::new(&self.leaves.endpoint).expect("a URL");
        let drained = async { node.client().drain(v1::DrainRequest { undo }).await };
        self.runtime.block_on(drained).expect("drained").into_inner()
    }
}

/// Waits for two further epochs.
fn reads_on(reader: &BackgroundReader) {
    let wanted = reader.epochs() + 2;
    until("the job reads on", PATIENCE, || {
        assert!(reader.errors().is_empty(), "a rank ended: {:?}", reader.errors());
        reader.epochs() >= wanted
    });
}

#[test]
fn a_job_reads_on_while_a_node_is_drained_which_serves_no_row_until_it_is_back() {
    let pair = Pair::start();
    let table = Table::upload(&pair.s3, "drained", 24, MIB_ROWS).expect("a table");
    let job = Job { world: 2, step: Duration::from_millis(10), ..Job::new(7, u64::MAX / 2) };
    let both = format!("{},{}", pair.stays.endpoint, pair.leaves.endpoint);
    let reader = BackgroundReader::start(&pair.runtime, &both, &table, job).expect("a job");
    reads_on(&reader);
    assert!(pair.served() > 0, "the job reads from both");

    assert_eq!(pair.drain(false).streams_left, 0);
    let served = pair.served();
    let manifest = reader.dataset().manifest.digest().to_bytes().to_vec().into();
    let kind = v1::ticket::Kind::Scan(v1::ScanTicket { manifest, ..Default::default() });
    let ticket = v1::Ticket { kind: Some(kind), ..Default::default() }.encode_to_vec();
    let asked = pair.runtime.block_on(Stream::open(&pair.leaves.endpoint, &ticket, WINDOW_BYTES));
    let refused = asked.expect_err("a node that is drained");
    assert!(refused.kind == Kind::Retry && refused.message.contains("draining"), "{refused}");
    reads_on(&reader);
    assert_eq!(pair.served(), served, "rows of a node that is drained");

    pair.drain(true);
    until("it serves again", PATIENCE, || pair.served() > served);
    reads_on(&reader);
    let read = reader.compare().expect("the plan");
    assert_eq!((read.wrong_digests, read.wrong_values), (0, 0), "of {} epochs", read.epochs);
    drop(reader);
    [pair.stays, pair.leaves].into_iter().for_each(Server::stop);
}
