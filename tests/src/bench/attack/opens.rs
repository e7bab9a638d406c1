//! One principal that opens without a pause: case 32.

use super::arena::{Arena, OTHERS, OWN};
use crate::bench::stages::runtime;
use crate::harness::check::Check;
use crate::harness::policy::{AUDIO, Policy, VISION, Who};
use crate::harness::process::ServerOptions;
use crate::harness::question::{NOT_FOUND, Question, ask};
use forebay_proto::v1;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use prost::Message;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};
use tokio::time::sleep;

const OPEN: &str = "/forebay.v1.Cache/Open";

/// Requests at once.
const AT_ONCE: usize = 8;

/// How long another principal may wait for a dataset.
const SOON: Duration = Duration::from_secs(1);

/// Opens a second that a principal may have, and by which part it may have more.
const RATE: f64 = 20.0;
const OVER: f64 = 1.05;

/// Where the many objects lie.
const MANY: &str = "tenants/vision/many";

/// 32: many opens, and opens of much.
pub fn opens(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let mut checks = splits(arena)?;
    checks.extend(limited(arena)?);
    checks.extend(many_objects(arena)?);
    checks.push(arena.memory_check()?);
    Ok(checks)
}

/// How often each code was the answer to all these requests.
async fn open_all(
    endpoint: &str,
    header: &str,
    requests: Vec<v1::DatasetSpec>,
) -> anyhow::Result<BTreeMap<u32, usize>> {
    let one = async |dataset| {
        let message = v1::OpenRequest { dataset: Some(dataset), ..Default::default() }.encode_to_vec();
        let question = Question { endpoint, path: OPEN, header: Some(header), message: &message };
        anyhow::Ok(ask(question).await?.code)
    };
    let codes = stream::iter(requests).map(one).buffer_unordered(AT_ONCE);
    codes
        .try_fold(BTreeMap::new(), async |mut all, code| {
            *all.entry(code).or_insert(0) += 1;
            Ok(all)
        })
        .await
}

/// Waits for an attack, while another principal opens its own data again and again; and the longest that
/// took.
async fn beside<T>(
    endpoint: &str,
    header: &str,
    uri: &str,
    attack: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<(T, Duration)> {
    let (begun, slowest) = (Cell::new(Instant::now()), Cell::new(Duration::ZERO));
    let look = async {
        let dataset = Some(v1::DatasetSpec { uri: uri.into(), ..Default::default() });
        let message = v1::OpenRequest { dataset, ..Default::default() }.encode_to_vec();
        loop {
            begun.set(Instant::now());
            let question = Question { endpoint, path: OPEN, header: Some(header), message: &message };
            let answer = ask(question).await?;
            anyhow::ensure!(answer.code == 0, "{}", answer.message);
            slowest.set(slowest.get().max(begun.get().elapsed()));
            sleep(Duration::from_millis(50)).await;
        }
        #[expect(unreachable_code, reason = "says which type the error has")]
        anyhow::Ok::<Infallible>(unreachable!())
    };
    tokio::select! {
        done = attack => Ok((done?, slowest.get().max(begun.get().elapsed()))),
        failed = look => match failed {
            Err(e) => Err(e),
            Ok(never) => match never {},
        },
    }
}

fn soon(what: &str, slowest: Duration) -> Check {
    let claim = format!("beside {what} another principal opens within {SOON:?}");
    Check::of(claim, format!("{slowest:.3?}"), slowest < SOON)
}

/// Different splits of one dataset, without a limit.
fn splits(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let (endpoint, uri) = (&arena.server.endpoint, arena.store.uri(OWN));
    let split = |n: u64| {
        let rows = v1::split::Rows { from: n % 100, to: 200 + n / 100 };
        let split = Some(v1::Split { by: Some(v1::split::By::Rows(rows)) });
        v1::DatasetSpec { uri: uri.clone(), split, ..Default::default() }
    };
    let requests: Vec<_> = (0..arena.scale.opens as u64).map(split).collect();
    let (count, begin) = (requests.len(), Instant::now());
    let (vision, audio) = (arena.policy()?.header("vision"), arena.policy()?.header("audio"));
    let attack = open_all(endpoint, &vision, requests);
    let (codes, slowest) = runtime()?.block_on(beside(endpoint, &audio, &arena.store.uri(OTHERS), attack))?;
    let measured = format!("{codes:?} in {:.1?}", begin.elapsed());
    Ok(vec![
        Check::of(format!("{count} splits are opened"), measured, codes.get(&0) == Some(&count)),
        soon(&format!("{count} opens"), slowest),
    ])
}

/// The same, by a principal that has a limit.
fn limited(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let vision = Who { more: "limits = { opens_per_s = 20 }", ..VISION };
    let policy = Policy::new(arena.store, &[vision, AUDIO]);
    let server = ServerOptions::for_s3(arena.store).args(policy.arguments()).try_start()?;
    let own = v1::DatasetSpec { uri: arena.store.uri(OWN), ..Default::default() };
    let count = (arena.scale.flood.as_secs_f64() * RATE) as usize;
    let (vision, audio) = (policy.header("vision"), policy.header("audio"));
    let attack = async {
        // The first one uses up what was saved.
        open_all(&server.endpoint, &vision, vec![own.clone()]).await?;
        let begin = Instant::now();
        let codes = open_all(&server.endpoint, &vision, vec![own; count]).await?;
        anyhow::Ok((codes, count as f64 / begin.elapsed().as_secs_f64()))
    };
    let others = arena.store.uri(OTHERS);
    let ((codes, per_s), slowest) = runtime()?.block_on(beside(&server.endpoint, &audio, &others, attack))?;
    server.try_stop()?;
    Ok(vec![
        Check::of(
            format!("{RATE} opens a second are held within 5 %"),
            format!("{per_s:.2} a second, {codes:?}"),
            per_s < RATE * OVER && per_s > RATE / 2.0 && codes.get(&0) == Some(&count),
        ),
        soon("a principal at its limit", slowest),
    ])
}

/// A prefix with very many objects, of which none is data: all of its listing has to be read.
fn many_objects(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let (store, bucket) = (arena.store, &arena.store.bucket);
    let keys: Vec<String> = (0..arena.scale.keys).map(|n| format!("{MANY}/{n:06}.txt")).collect();
    keys.iter().for_each(|key| store.put(key, "text"));
    // Of different sizes, so that none waits for the other's listing.
    let request =
        |n: u64| v1::DatasetSpec { uri: store.uri(MANY), segment_bytes: (1 << 20) + n, ..Default::default() };
    let (vision, audio) = (arena.policy()?.header("vision"), arena.policy()?.header("audio"));
    let endpoint = &arena.server.endpoint;
    let attack = open_all(endpoint, &vision, (0..4).map(request).collect());
    let begin = Instant::now();
    let found = runtime()?.block_on(beside(endpoint, &audio, &store.uri(OTHERS), attack));
    let took = begin.elapsed();
    keys.iter().for_each(|key| store.objects().delete(bucket, key));
    store.take_log();
    let (codes, slowest) = found?;
    let claim = format!("4 opens of {} objects that are no data say so", keys.len());
    Ok(vec![
        Check::of(claim, format!("{codes:?} in {took:.1?}"), codes.get(&NOT_FOUND) == Some(&4)),
        soon(&format!("{} objects", keys.len()), slowest),
    ])
}
