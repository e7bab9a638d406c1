//! A node to be attacked, and what it has of the machine.

use crate::bench::stages::runtime;
use crate::harness::check::Check;
use crate::harness::frames::{RawHttp2, stranger};
use crate::harness::pki::Leaf;
use crate::harness::policy::{ALL, Policy};
use crate::harness::process::{Server, ServerOptions};
use crate::harness::question::{Answer, Question, ask};
use crate::harness::s3::S3Server;
use crate::harness::table::{MIB_ROWS, Table};
use crate::harness::tls_world::{TlsWorld, VISION, forebay};
use anyhow::Context;
use forebay_client::{
    Access, Dataset, DatasetSpec, TlsFiles, use_certificates, use_no_token, use_token_file,
};
use forebay_proto::plan::{PlanKey, Shuffle};
use forebay_proto::v1;
use prost::Message;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// How much is thrown at a node.
#[derive(Debug, Clone, Copy)]
pub struct AttackScale {
    /// Connections that say nothing.
    pub connections: usize,
    /// Requests on one connection.
    pub streams: u32,
    /// Small frames.
    pub frames: usize,
    /// Requests that are cancelled at once.
    pub resets: usize,
    /// Bodies at once, and bytes of each.
    pub bodies: (usize, usize),
    /// Manifests at once, and bytes of each.
    pub manifests: (usize, usize),
    /// Batch streams that nobody reads.
    pub unread: usize,
    /// Keys of members that somebody writes to etcd.
    pub member_keys: usize,
    /// How often a node gets a new certificate.
    pub rotations: usize,
    /// Different splits that are opened.
    pub opens: usize,
    /// Objects under a prefix.
    pub keys: usize,
    /// Segments of one manifest that is wrong.
    pub segments: usize,
    /// The share of a core that a node may take while it can take no connections: one that spins takes a
    /// whole one.
    pub cpu_share: f64,
    /// How long requests come without a pause.
    pub flood: Duration,
    /// How long something slow goes on.
    pub slow: Duration,
    /// The node's `[limits] handshake_s`, and the head timeout of its S3 endpoint.
    pub handshake_s: f64,
    /// The node's `--memory-bytes`.
    pub memory_bytes: u64,
}

/// As the table of attacks has them.
pub const FULL: AttackScale = AttackScale {
    connections: 1000,
    streams: 10_000,
    frames: 1_000_000,
    resets: 100_000,
    bodies: (200, 32 << 20),
    manifests: (40, 250 << 20),
    unread: 5000,
    member_keys: 100_000,
    rotations: 100,
    opens: 10_000,
    keys: 100_000,
    segments: 100_000_000,
    cpu_share: 0.05,
    flood: Duration::from_secs(8),
    slow: Duration::from_secs(60),
    handshake_s: 10.0,
    memory_bytes: 256 << 20,
};

/// For tests: the same attacks, soon over.
pub const SHORT: AttackScale = AttackScale {
    connections: 60,
    streams: 1000,
    frames: 20_000,
    resets: 20_000,
    bodies: (12, 8 << 20),
    manifests: (4, 16 << 20),
    unread: 400,
    member_keys: 2000,
    rotations: 10,
    opens: 300,
    keys: 5000,
    segments: 10_000_000,
    // Of a build that is not optimised, beside other tests.
    cpu_share: 0.3,
    flood: Duration::from_secs(2),
    slow: Duration::from_secs(4),
    handshake_s: 1.0,
    memory_bytes: 64 << 20,
};

/// Bytes that a node may have beyond its `--memory-bytes`.
pub const SLACK_BYTES: u64 = 200 << 20;

/// Room for the pace of a busy machine.
pub const LATE: Duration = Duration::from_secs(4);

/// What keeps strangers out of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// Nothing: all may do everything.
    Open,
    /// A policy that knows its callers by their tokens, and by their keys of S3.
    Policy,
    /// TLS, and a policy that knows its callers by their certificates.
    Tls,
}

/// Where the data of tenants lies, and a neighbour whose name begins like the first one's.
pub const OWN: &str = "tenants/vision/train";
pub const OTHERS: &str = "tenants/audio/zebra7";
const NEIGHBOURS: &str = "tenants/visionX/zebra7";

/// A node, and what strangers need to know of it.
pub struct Arena<'a> {
    /// How much is thrown at it.
    pub scale: AttackScale,
    /// Where it reads from.
    pub store: &'a S3Server,
    /// The policy of a node that has one.
    pub policy: Option<Policy>,
    /// The certificates, with TLS.
    pub tls: Option<TlsWorld>,
    /// The files by which a good reader is known, with TLS.
    pub reader: Option<TlsFiles>,
    /// The node.
    pub server: Server,
    /// How to start another one like it.
    pub options: ServerOptions,
    /// Where gRPC is.
    pub grpc: SocketAddr,
    /// Where /metrics is.
    pub metrics: SocketAddr,
    /// Where S3 clients are served.
    pub s3: SocketAddr,
    /// A ticket for all rows of the table; empty where a stranger gets none.
    pub ticket: Vec<u8>,
    /// Whether nobody else uses the node, so that its processor time is the attack's.
    pub is_quiet: bool,
}

impl<'a> Arena<'a> {
    /// Uploads what the tenants have: the table is what a good reader reads.
    pub fn upload(s3: &S3Server, segments: u64, segment_rows: u64) -> anyhow::Result<Table> {
        for name in [OTHERS, NEIGHBOURS] {
            Table::upload(s3, name, 1, MIB_ROWS)?;
        }
        Table::upload(s3, OWN, segments, segment_rows)
    }

    /// Starts a node that serves a table.
    pub fn start(
        store: &'a S3Server,
        table: &Table,
        scale: AttackScale,
        guard: Guard,
    ) -> anyhow::Result<Self> {
        let policy = (guard == Guard::Policy).then(|| Policy::new(store, &ALL));
        let tls = (guard == Guard::Tls).then(|| TlsWorld::new("tenants/vision/"));
        let reader = tls.as_ref().map(|tls| tls.issue(Leaf::client("reader", VISION)));
        let options = match (&policy, &tls) {
            (Some(policy), _) => {
                let path = |name: &str| policy.path(name).display().to_string();
                let (audit, keys, public) = (path("audit"), path("keys"), store.uri("public/"));
                let flags = ["--audit-file", &audit, "--s3-keys", &keys, "--s3-public", &public];
                ServerOptions::for_s3(store).args(policy.arguments()).args(flags)
            }
            (_, Some(tls)) => {
                let audit = tls.pki.path("audit").display().to_string();
                let public = store.uri("public/");
                let flags = ["--audit-file", &audit, "--s3-public", &public];
                // Of a certificate that there never was.
                let crl = Some(tls.pki.revoke(&[1], &tls.authority())?);
                let files = TlsFiles { crl, ..tls.issue(Leaf::node("node")) };
                tls.node(store, &files).args(flags).env("FOREBAY_LOG", &told_more("::service::handshake"))
            }
            _ => ServerOptions::for_s3(store).args(["--s3-public", &store.uri("public/")]),
        };
        let options = options
            .env("FOREBAY_LIMITS__HANDSHAKE_S", &scale.handshake_s.to_string())
            .env("FOREBAY_LIMITS__METRICS_AGE_S", "1")
            .env("FOREBAY_GATEWAY__HEAD_TIMEOUT_S", &scale.handshake_s.to_string())
            .args(["--memory-bytes", &scale.memory_bytes.to_string()])
            .args(["--s3-listen", "127.0.0.1:0"])
            .allow_log("connections cannot be taken");
        let server = options.clone().try_start()?;
        let (grpc, metrics) = (address(&server.endpoint)?, address(metrics_of(&server)?)?);
        let s3 = address(server.s3.as_deref().context("a node with an S3 endpoint")?)?;
        let ticket = match guard {
            Guard::Open => ticket(&server.endpoint, table)?,
            Guard::Policy | Guard::Tls => Vec::new(),
        };
        Ok(Self {
            scale,
            store,
            policy,
            tls,
            reader,
            server,
            options,
            grpc,
            metrics,
            s3,
            ticket,
            is_quiet: true,
        })
    }

    /// Has this process show what a good reader shows, from the next connection on.
    pub fn be_known(&self) -> anyhow::Result<()> {
        match &self.policy {
            Some(policy) => use_token_file(policy.token_file("vision")),
            // One of a case before is unknown to this node.
            None => use_no_token(),
        }
        if let Some(files) = &self.reader {
            use_certificates(files.clone())?;
        }
        Ok(())
    }

    /// The policy of a node that has one.
    pub fn policy(&self) -> anyhow::Result<&Policy> {
        self.policy.as_ref().context("a node with a policy")
    }

    /// The certificates of a node with TLS.
    pub fn tls(&self) -> anyhow::Result<&TlsWorld> {
        self.tls.as_ref().context("a node with TLS")
    }

    /// Asks as a principal; as nobody without a name.
    pub fn ask(&self, who: Option<&str>, path: &str, message: &[u8]) -> anyhow::Result<Answer> {
        let header = who.map(|who| Ok::<_, anyhow::Error>(self.policy()?.header(who))).transpose()?;
        self.ask_with(header.as_deref(), path, message)
    }

    /// Asks with any `authorization`.
    pub fn ask_with(&self, header: Option<&str>, path: &str, message: &[u8]) -> anyhow::Result<Answer> {
        let endpoint = &self.server.endpoint;
        runtime()?.block_on(ask(Question { endpoint, path, header, message }))
    }

    /// How long a connection that says nothing may stay.
    pub fn handshake(&self) -> Duration {
        Duration::from_secs_f64(self.scale.handshake_s)
    }

    /// A stranger's connection that speaks HTTP/2.
    pub fn http2(&self) -> anyhow::Result<RawHttp2> {
        RawHttp2::open(stranger(1), self.grpc)
    }

    /// Whether the node answers a short request from an address.
    pub fn answers(&self, from: u8) -> bool {
        match &self.reader {
            Some(files) => forebay(files, &self.server.endpoint, &["status"]).stdout().is_ok(),
            None => asks_well(self.grpc, from).is_ok(),
        }
    }

    /// Files that the node has open.
    pub fn files(&self) -> anyhow::Result<usize> {
        files(self.server.pid())
    }

    /// Seconds of processor time in one second from now.
    pub fn cpu_share(&self) -> anyhow::Result<f64> {
        cpu_share(&self.server, Duration::from_secs(2))
    }

    /// That the node's memory stays within what it may have.
    pub fn memory_check(&self) -> anyhow::Result<Check> {
        let (peak, limit) = (peak_bytes(self.server.pid())?, self.scale.memory_bytes + SLACK_BYTES);
        let mb = |bytes: u64| bytes >> 20;
        let claim = format!("resident memory stays below {} MiB", mb(limit));
        Ok(Check::of(claim, format!("{} MiB", mb(peak)), peak <= limit))
    }
}

/// What has a node log more of some of its modules.
pub fn told_more(modules: &str) -> String {
    // Modules are named after their program.
    format!("info,{}{modules}=debug", "forebay-server".replace('-', "_"))
}

/// Asks a node for its health from an address of this host.
pub fn asks_well(node: SocketAddr, from: u8) -> anyhow::Result<()> {
    let mut connection = RawHttp2::open(stranger(from), node)?;
    connection.request(1, "/grpc.health.v1.Health/Check")?;
    let empty = crate::harness::frames::grpc(0, 0, b"");
    use crate::harness::frames::{flag, frame, kind};
    connection.say(&frame(kind::DATA, flag::END_STREAM, 1, &empty))?;
    let answer = connection.find(Duration::from_secs(10), |f| f.stream == 1 && f.kind == kind::DATA);
    answer.map(drop).context("no answer in time")
}

/// The address of `http://HOST:PORT`.
pub fn address(url: &str) -> anyhow::Result<SocketAddr> {
    let at = url.rsplit("//").next().unwrap_or_default();
    at.to_socket_addrs()?.find(SocketAddr::is_ipv4).context("an address")
}

/// Where its metrics are.
pub fn metrics_of(server: &Server) -> anyhow::Result<&str> {
    server.metrics.as_deref().context("a node with metrics")
}

fn ticket(endpoint: &str, table: &Table) -> anyhow::Result<Vec<u8>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let spec = DatasetSpec { segment_bytes: Some(table.segment_bytes), ..DatasetSpec::new(&table.uri) };
    let dataset = runtime.block_on(Dataset::open(&Access::endpoint(endpoint)?, &spec))?;
    let key = PlanKey { manifest: dataset.manifest.digest(), seed: 0, epoch: 0, shuffle: Shuffle::Window(2) };
    let plan = v1::PlanTicket {
        plan: Some(key.into()),
        global_batch: 1024,
        world: 1,
        ending: v1::plan_ticket::Ending::Exact.into(),
        ..Default::default()
    };
    let ticket = v1::Ticket { kind: Some(v1::ticket::Kind::Plan(plan)), ..Default::default() };
    Ok(ticket.encode_to_vec())
}

/// Files that a process has open.
pub fn files(pid: u32) -> anyhow::Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// The greatest resident memory of a process since [`forget_peak`].
pub fn peak_bytes(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

/// Begins [`peak_bytes`] again from the memory that is resident now (proc(5), `clear_refs`).
pub fn forget_peak(pid: u32) -> anyhow::Result<()> {
    Ok(std::fs::write(format!("/proc/{pid}/clear_refs"), "5")?)
}

/// The share of a processor that a node takes from now on for a time.
pub fn cpu_share(server: &Server, time: Duration) -> anyhow::Result<f64> {
    let (before, start) = (server.cpu_s()?, Instant::now());
    std::thread::sleep(time);
    Ok((server.cpu_s()? - before) / start.elapsed().as_secs_f64())
}

/// How many of these connections the node has closed before a time is over.
pub fn closed_within(connections: &mut [TcpStream], time: Duration) -> anyhow::Result<usize> {
    let end = Instant::now() + time;
    let mut closed = 0;
    for connection in connections {
        let left = end.saturating_duration_since(Instant::now());
        closed += usize::from(crate::harness::frames::closes_within(connection, left)?);
    }
    Ok(closed)
}
