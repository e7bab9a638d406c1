//! `make attack`: a node attacked as strangers would, who know its address and nothing else, and what its
//! good readers notice.
//!
//! The cases are numbered as in docs/security.md. Each runs twice: alone, to judge what becomes of the attack
//! and of the node, and beside a training job that reads at a steady pace and must keep most of it. A row
//! `case.N` is 1 if all promises of both were kept.

mod amplification;
mod arena;
mod bodies;
mod calls;
mod certificates;
mod frames;
mod jwt;
mod manifests;
mod opened;
mod opens;
mod other_protocols;
mod places;
mod plain_http;
mod rogue_members;
mod roles;
mod rotation;
mod s3_floods;
mod s3_nonsense;
mod s3_signatures;
mod secrets;
mod secured;
mod silence;
mod stop;
mod strangers;
mod swaps;
mod tenants;
mod timing;
mod trials;
mod unread;

pub use arena::{Arena, AttackScale, FULL, Guard, SHORT};

use super::stages::{Stages, runtime};
use crate::harness::background::BackgroundReader;
use crate::harness::check::{Check, Findings};
use crate::harness::reader::Job;
use crate::harness::s3::S3Server;
use crate::harness::table::{MIB_ROWS, Table};
use arena::{files, forget_peak};
use clap::Parser;
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// An attack, and what must become of it.
#[derive(Clone, Copy)]
pub struct AttackCase {
    /// In the table of docs/security.md.
    pub number: u32,
    /// In words.
    pub name: &'static str,
    /// What the node has against it.
    pub guard: Guard,
    /// Attacks; gives the promises.
    pub attack: Attack,
}

/// Attacks a node; gives the promises.
pub type Attack = fn(&Arena<'_>) -> anyhow::Result<Vec<Check>>;

const fn case(number: u32, name: &'static str, attack: Attack) -> AttackCase {
    AttackCase { number, name, guard: Guard::Open, attack }
}

const fn guarded(number: u32, name: &'static str, attack: Attack) -> AttackCase {
    AttackCase { number, name, guard: Guard::Policy, attack }
}

const fn by_tls(number: u32, name: &'static str, attack: Attack) -> AttackCase {
    AttackCase { number, name, guard: Guard::Tls, attack }
}

/// All of them.
pub const CASES: &[AttackCase] = &[
    case(1, "connections that say nothing", silence::nothing_said),
    case(2, "half a preface", silence::half_a_preface),
    case(3, "a head byte by byte", silence::slow_head),
    case(4, "idle HTTP connections", silence::idle_http),
    case(5, "all file descriptors", silence::all_descriptors),
    case(6, "10,000 streams on a connection", frames::many_streams),
    case(7, "rapid reset", frames::rapid_reset),
    case(8, "headers without an end", frames::endless_headers),
    case(9, "header bombs", frames::header_bombs),
    case(10, "floods of small frames", frames::small_frames),
    case(11, "large bodies that are no tickets", bodies::no_tickets),
    guarded(12, "large manifests of nobody", bodies::no_manifests),
    case(13, "messages with a wrong head", bodies::wrong_heads),
    case(14, "streams that nobody reads", unread::streams),
    case(15, "a slow reader", bodies::slow_reader),
    guarded(16, "every call without credentials", strangers::no_credentials),
    guarded(17, "tokens that are wrong", strangers::wrong_tokens),
    guarded(18, "JSON Web Tokens that are forged", jwt::forged_tokens),
    by_tls(19, "certificates that are not good", certificates::bad_ones),
    by_tls(20, "a certificate that is revoked while it is used", certificates::revoked_in_use),
    by_tls(21, "other protocols", other_protocols::refused),
    guarded(22, "a stolen digest", tenants::stolen_digest),
    guarded(23, "another's data among one's own", tenants::foreign_parts),
    guarded(24, "the status of others", tenants::status_of_others),
    guarded(25, "calls of operators by others", roles::calls_of_operators),
    guarded(26, "calls of nodes by others", roles::calls_of_nodes),
    guarded(27, "names that lead elsewhere", places::places),
    guarded(28, "manifests that are wrong", manifests::manifests),
    guarded(31, "random rows of everything", amplification::random_rows),
    guarded(32, "opens without a pause", opens::opens),
    case(33, "lists that are too long", bodies::long_lists),
    case(34, "no protobuf", bodies::no_protobuf),
    case(35, "the rest of Flight", bodies::other_flight),
    case(36, "scrapes without a pause", plain_http::scrapes),
    case(37, "HTTP that makes no sense", plain_http::nonsense),
    case(38, "S3 requests that make no sense", s3_nonsense::nonsense),
    guarded(39, "signatures that are too old, or for others", s3_signatures::signatures),
    guarded(40, "two buckets in a request", s3_nonsense::two_buckets),
    guarded(41, "listings of many keys", s3_floods::lists),
    guarded(42, "requests for missing keys", s3_floods::missing),
    guarded(43, "planted secrets", secrets::planted),
    by_tls(44, "members that are no nodes", rogue_members::named_in_etcd),
    by_tls(45, "certificate files", rotation::files),
    case(46, "SIGTERM in the middle", stop::in_the_middle),
];

/// The least part of its pace that a good reader keeps.
const PACE_KEPT: f64 = 0.8;

/// How long a node may have more files open than before an attack.
const FILES_BACK: Duration = Duration::from_secs(60);

/// Files that a node may have more than before: of the good reader, of its own background work.
const FILES_MORE: usize = 16;

/// Attacks a node.
#[derive(Debug, Clone, Parser)]
#[command(name = "forebay-attack", version)]
pub struct AttackOptions {
    /// Only these cases, separated by commas.
    #[arg(long, value_delimiter = ',')]
    only: Vec<u32>,
    /// Little of everything: for a look at whether it works.
    #[arg(long)]
    short: bool,
    /// Where the report goes.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
}

/// Runs it; false if a promise was broken.
pub fn run(options: &AttackOptions) -> anyhow::Result<bool> {
    let scale = if options.short { SHORT } else { FULL };
    raise_files();
    let (s3, runtime) = (S3Server::start(), runtime()?);
    let table = Arena::upload(&s3, 16, MIB_ROWS)?;
    let mut stages = Stages::default();
    let wanted = |case: &&AttackCase| options.only.is_empty() || options.only.contains(&case.number);
    for case in CASES.iter().filter(wanted) {
        stages.run(format_args!("case {}: {}", case.number, case.name), || {
            judge(case, &s3, &table, scale, &runtime)
        });
    }
    let settings = json!({
        "short": options.short, "memory_bytes": scale.memory_bytes, "handshake_s": scale.handshake_s,
        "connections": scale.connections, "streams": scale.streams, "frames": scale.frames, "resets": scale.resets,
        "bodies": scale.bodies.0, "body_bytes": scale.bodies.1, "manifests": scale.manifests.0,
        "manifest_bytes": scale.manifests.1, "unread_streams": scale.unread, "member_keys": scale.member_keys,
        "rotations": scale.rotations, "opens": scale.opens, "keys": scale.keys, "segments": scale.segments,
        "flood_s": scale.flood.as_secs_f64(), "pace_kept": PACE_KEPT,
    });
    stages.end(&options.folder, "attack", settings)
}

/// This process has more connections than most.
fn raise_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Where it is not allowed, the cases say that they cannot connect.
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).ok();
}

fn judge(
    case: &AttackCase,
    s3: &S3Server,
    table: &Table,
    scale: AttackScale,
    runtime: &Runtime,
) -> anyhow::Result<Findings> {
    let arena = Arena::start(s3, table, scale, case.guard)?;
    let mut checks = alone(case, &arena)?;
    let arena = Arena { is_quiet: false, ..arena };
    let (kept, more) = beside(case, &arena, table, runtime)?;
    checks.extend(more);
    drop(arena);
    let mut found = Findings::default();
    let is_kept = !checks.iter().any(Check::is_broken);
    found.value(format!("case.{}", case.number), "kept", f64::from(u8::from(is_kept)));
    found.value(format!("case.{}.pace_kept", case.number), "ratio", kept);
    found.checks = checks;
    Ok(found)
}

/// The attack on a node that nobody else uses.
pub fn alone(case: &AttackCase, arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let before = arena.files()?;
    forget_peak(arena.server.pid())?;
    let mut checks = (case.attack)(arena)?;
    let end = Instant::now() + FILES_BACK;
    while arena.files()? > before + FILES_MORE && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    let after = files(arena.server.pid())?;
    checks.push(Check::of(
        "files are closed",
        format!("{before}, then {after}"),
        after <= before + FILES_MORE,
    ));
    checks.push(Check::of("the node answers", "", arena.answers(2)));
    Ok(checks)
}

/// The attack beside a job that reads at half of the pace it could have.
fn beside(
    case: &AttackCase,
    arena: &Arena<'_>,
    table: &Table,
    runtime: &Runtime,
) -> anyhow::Result<(f64, Vec<Check>)> {
    let job = Job { step: Duration::from_millis(20), ..Job::new(7, 1_000_000) };
    arena.be_known()?;
    let reader = BackgroundReader::start(runtime, &arena.server.endpoint, table, job)?;
    let look = Duration::from_secs(5);
    std::thread::sleep(look);
    let from = Instant::now();
    std::thread::sleep(look);
    let alone = reader.batches_between(from, Instant::now()) as f64 / from.elapsed().as_secs_f64();
    let from = Instant::now();
    let attacked = (case.attack)(arena);
    // Attacks that are over at once are followed by what comes after them.
    std::thread::sleep(Duration::from_secs(2));
    let beside = reader.batches_between(from, Instant::now()) as f64 / from.elapsed().as_secs_f64();
    let kept = beside / alone;
    let mut checks = attacked?;
    let measured = format!("{beside:.1} of {alone:.1} steps a second");
    checks.push(Check::of("a good reader keeps its pace", measured, kept >= PACE_KEPT));
    let errors = reader.errors();
    checks.push(Check::of("a good reader sees no error", errors.join("; "), errors.is_empty()));
    Ok((kept, checks))
}
