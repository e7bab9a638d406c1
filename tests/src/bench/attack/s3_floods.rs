//! Floods of good requests to the S3 endpoint: cases 41 and 42.

use super::arena::{Arena, LATE, OTHERS};
use super::s3_signatures::client;
use crate::bench::stages::runtime;
use crate::harness::check::Check;
use crate::harness::s3_client::{S3Ask, S3Client};
use futures::future::join_all;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Requests at once.
const AT_ONCE: usize = 16;

/// How long an object of somebody else's may take beside a flood.
const SOON: Duration = Duration::from_secs(1);

/// How long a missing object may be said to be missing.
const MISSING: Duration = Duration::from_secs(1);

/// Asks again and again until a time is over; how often each status came.
async fn flood(
    client: &S3Client,
    end: Instant,
    ask: impl Fn(usize) -> S3Ask,
) -> anyhow::Result<BTreeMap<u16, usize>> {
    let counts = Mutex::new(BTreeMap::new());
    let one = async |lane: usize| {
        for n in (lane..).step_by(AT_ONCE).take_while(|_| Instant::now() < end) {
            let status = client.send(&ask(n)).await?.status;
            *counts.lock().entry(status).or_insert(0) += 1;
        }
        anyhow::Ok(())
    };
    join_all((0..AT_ONCE).map(one)).await.into_iter().collect::<anyhow::Result<()>>()?;
    Ok(counts.into_inner())
}

/// The longest that a request took until a time is over, and the statuses that are not as wanted.
async fn slowest(client: &S3Client, end: Instant, ask: &S3Ask) -> anyhow::Result<(Duration, Vec<u16>)> {
    let (mut most, mut wrong) = (Duration::ZERO, Vec::new());
    while Instant::now() < end {
        let begin = Instant::now();
        let status = client.send(ask).await?.status;
        most = most.max(begin.elapsed());
        wrong.extend((status != 200).then_some(status));
        sleep(Duration::from_millis(100)).await;
    }
    Ok((most, wrong))
}

/// 41: listings with delimiters over many keys.
pub fn lists(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let (store, bucket) = (arena.store, &arena.store.bucket);
    let keys: Vec<String> =
        (0..arena.scale.keys).map(|n| format!("tenants/vision/many/{}/{n:06}.txt", n % 97)).collect();
    keys.iter().for_each(|key| store.put(key, "text"));
    let list = |n: usize| {
        let delimiter = ["delimiter=/&", "", "delimiter=7&", "delimiter=.txt&"][n % 4];
        let prefix = ["tenants/vision/many/", "tenants/vision/many/7", "tenants/vision/"][n % 3];
        S3Ask::new("GET", format!("/{bucket}?list-type=2&{delimiter}prefix={prefix}"))
    };
    let object = S3Ask::new("GET", format!("/{bucket}/{OTHERS}/part-00000.parquet"));
    let page = S3Ask::new("GET", format!("/{bucket}?list-type=2&prefix={OTHERS}"));
    let (vision, audio) = (client(arena, "VISION"), client(arena, "AUDIO"));
    let found = runtime()?.block_on(async {
        let end = Instant::now() + arena.scale.flood;
        tokio::try_join!(
            flood(&vision, end, list),
            slowest(&audio, end, &object),
            slowest(&audio, end, &page)
        )
    });
    keys.iter().for_each(|key| store.objects().delete(bucket, key));
    store.take_log();
    let (counts, (of_object, wrong), (of_page, wrong_pages)) = found?;
    let is_answered = counts.keys().all(|status| matches!(status, 200 | 503)) && counts.contains_key(&200);
    let claim = format!("LISTs of {} keys are answered, or told to come later", keys.len());
    Ok(vec![
        Check::of(claim, format!("{counts:?}"), is_answered),
        Check::of(
            format!("others get an object within {SOON:?}"),
            format!("{of_object:?}, {wrong:?}"),
            of_object < SOON && wrong.is_empty(),
        ),
        Check::of(
            format!("others get a listing within {LATE:?}"),
            format!("{of_page:?}, {wrong_pages:?}"),
            of_page < LATE && wrong_pages.is_empty(),
        ),
        arena.memory_check()?,
    ])
}

/// 42: HEADs and GETs of objects that are not there, until one is.
pub fn missing(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let (store, bucket) = (arena.store, &arena.store.bucket);
    let client = client(arena, "VISION");
    // The last one is no path, so that the cache has no name for it.
    let keys = ["none-1", "none-2", "none-3", "none//4"].map(|key| format!("tenants/vision/train/{key}"));
    let ask = |n: usize, key: &str| S3Ask::new(["HEAD", "GET"][n % 2], format!("/{bucket}/{key}"));
    store.take_log();
    let begin = Instant::now();
    let counts = runtime()?.block_on(async {
        let end = begin + arena.scale.flood;
        flood(&client, end, |n| ask(n / keys.len(), &keys[n % keys.len()])).await
    })?;
    let (took, log) = (begin.elapsed(), store.take_log());
    // A HEAD a second, and a GET for the words of the refusal.
    let most = 2 * (took.as_secs() as usize + 2);
    let mut checks = vec![Check::of(
        format!("HEADs and GETs of {} missing keys are told that", keys.len()),
        format!("{counts:?}"),
        counts.keys().eq([&404]),
    )];
    for key in &keys {
        let asked = log.iter().filter(|seen| seen.key == *key).count();
        let claim = format!("requests for {key} in {took:.1?} at the object store: {most} at most");
        checks.push(Check::of(claim, asked.to_string(), (1..=most).contains(&asked)));
    }
    for key in [&keys[0], &keys[3]] {
        checks.push(comes(arena, &client, key, |n| ask(n, key))?);
        store.objects().delete(bucket, key);
    }
    checks.push(arena.memory_check()?);
    Ok(checks)
}

/// That an object which is created beside a flood of requests for it is seen in time: the answer to a request
/// that is sent a second later says that it is there.
fn comes(
    arena: &Arena<'_>,
    client: &S3Client,
    key: &str,
    ask: impl Fn(usize) -> S3Ask,
) -> anyhow::Result<Check> {
    let (before, head) = (Duration::from_millis(500), ask(0));
    let seen = runtime()?.block_on(async {
        let end = Instant::now() + before + 4 * MISSING;
        let beside = flood(client, end, &ask);
        let look = async {
            sleep(before).await;
            arena.store.put(key, "bytes");
            let created = Instant::now();
            let mut last_missed = None;
            while created.elapsed() < 3 * MISSING {
                let sent = created.elapsed();
                match client.send(&head).await?.status {
                    200 => {}
                    404 => last_missed = Some(sent),
                    status => anyhow::bail!("{key}: {status}"),
                }
                sleep(Duration::from_millis(20)).await;
            }
            Ok(last_missed)
        };
        let (_, seen) = tokio::try_join!(beside, look)?;
        anyhow::Ok(seen)
    })?;
    let is_in_time = seen.is_none_or(|last_missed| last_missed <= MISSING);
    Ok(Check::of(
        format!("{key} is seen within {MISSING:?}"),
        format!("last missed after {seen:?}"),
        is_in_time,
    ))
}
