//! Why nothing comes: which node, disk or object store a reader waits for, for people.

use crate::access::Access;
use crate::endpoints::Endpoints;
use crate::survey::{Surveyed, each, survey, topology};
use forebay_dataset::source::ObjectStoreSilence;
use forebay_proto::units::told_bytes;
use forebay_proto::v1::{Counters, StatusReply};
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::timeout;

/// How long nothing comes before that is told, and told again.
pub const TOLD_EVERY: Duration = Duration::from_secs(5);

/// How long nodes may take to say what they wait for.
const ANSWER: Duration = Duration::from_secs(3);

/// An object store that has just answered is not what keeps anybody waiting.
const OBJECT_STORE_IS_SILENT: Duration = Duration::from_secs(2);

/// Waits for `work`. While it lasts, `tell` is told every 5 s for how long it has, and why.
pub async fn told<T>(
    access: &Access,
    work: impl Future<Output = T>,
    tell: impl Fn(Duration, Option<&str>),
) -> T {
    told_every(TOLD_EVERY, access, work, tell).await
}

async fn told_every<T>(
    every: Duration,
    access: &Access,
    work: impl Future<Output = T>,
    tell: impl Fn(Duration, Option<&str>),
) -> T {
    tokio::pin!(work);
    let mut waited = Duration::ZERO;
    loop {
        if let Ok(done) = timeout(every, work.as_mut()).await {
            return done;
        }
        waited += every;
        tokio::select! {
            done = work.as_mut() => return done,
            why = cause(access) => tell(waited, why.as_deref()),
        }
    }
}

/// Looks every 5 s whether `done` has changed; if not, `tell` is told for how long it has not, and why.
pub async fn watch(
    access: &Access,
    done: impl Fn() -> u64,
    tell: impl Fn(Duration, Option<&str>),
) -> Infallible {
    let (mut before, mut waited) = (done(), Duration::ZERO);
    loop {
        tokio::time::sleep(TOLD_EVERY).await;
        let now = done();
        waited = if now == before { waited + TOLD_EVERY } else { Duration::ZERO };
        before = now;
        if !waited.is_zero() {
            let why = cause(access).await;
            if done() == before {
                tell(waited, why.as_deref());
            }
        }
    }
}

/// What keeps readers waiting; none if nothing is wrong that anybody knows of. Takes a few seconds at most.
pub async fn cause(access: &Access) -> Option<String> {
    match access {
        Access::Endpoint(nodes) => match timeout(ANSWER, of_nodes(nodes)).await {
            Ok(why) => why,
            Err(_) => Some("no node of the cache answers".to_owned()),
        },
        Access::Direct(direct) => store("", &direct.source().silence()?),
    }
}

async fn of_nodes(nodes: &Endpoints) -> Option<String> {
    let topology = match topology(nodes).await {
        Ok(topology) => topology,
        Err(e) => return Some(format!("no node of the cache answers: {}", e.message)),
    };
    let all = each(&topology).await;
    let silent = all.iter().find(|Surveyed { status, .. }| status.is_err());
    if let Some(Surveyed { node, .. }) = silent {
        return Some(format!("node {} at {} does not answer", node.name, node.address));
    }
    let told = |of: fn(&StatusReply) -> Option<String>| all.iter().flat_map(|node| &node.status).find_map(of);
    told(|status| {
        let lasting = Duration::try_from_secs_f64(status.object_store_silent_s).ok()?;
        let silence = ObjectStoreSilence { lasting, error: status.object_store_error.clone() };
        store(&format!(" node {}", status.node), &silence)
    })
    .or_else(|| told(disk))
}

/// Says so where the nodes of a cache are too small for an epoch, and which size would do. `cost` is that of
/// an epoch which should have come from the cache, `decoded` the bytes that it read.
pub async fn too_small(access: &Access, decoded: u64, cost: &Counters) -> Option<String> {
    let Access::Endpoint(nodes) = access else { return None };
    if cost.s3_bytes == 0 || cost.evictions + cost.bypassed == 0 {
        return None;
    }
    let all = timeout(ANSWER, survey(nodes)).await.ok()?.ok()?.1;
    let limit = all.iter().flat_map(|node| &node.status).map(|status| status.cache_bytes_limit).sum();
    Some(too_small_for(decoded, cost.s3_bytes, limit))
}

fn too_small_for(decoded: u64, s3_bytes: u64, limit: u64) -> String {
    format!(
        "the cache is too small for this job: each epoch reads {} from S3 again. An epoch is {} decoded, the nodes hold {} \
         in all: give them {} or more (--cache-bytes)",
        told_bytes(s3_bytes),
        told_bytes(decoded),
        told_bytes(limit),
        // Some room for segments written before others are let go.
        told_bytes(decoded + decoded / 10)
    )
}

/// What an object store that is silent keeps from a node, or from this process.
fn store(whom: &str, silence: &ObjectStoreSilence) -> Option<String> {
    let ObjectStoreSilence { lasting, error } = silence;
    if *lasting < OBJECT_STORE_IS_SILENT {
        return None;
    }
    let why = if error.is_empty() { String::new() } else { format!(" ({error})") };
    Some(format!("the object store has given{whom} nothing for {} s{why}", lasting.as_secs()))
}

/// A disk that is full or has failed.
fn disk(status: &StatusReply) -> Option<String> {
    let dir = status.dirs.iter().find(|dir| dir.health != "up")?;
    let what = if dir.health == "full" { "is full: what it cannot keep is read again" } else { "has failed" };
    Some(format!("the disk {} of node {} {what}", dir.path, status.node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::v1::DirStatus;
    use parking_lot::Mutex;

    #[test]
    fn a_store_is_named_when_it_is_silent_and_a_disk_when_it_is_not_up() {
        let silence =
            |s, error: &str| ObjectStoreSilence { lasting: Duration::from_secs(s), error: error.into() };
        assert_eq!(store("", &silence(1, "503")), None, "it has just answered");
        let why = store(" node a", &silence(7, "s3://b/k: 503")).expect("a cause");
        assert_eq!(why, "the object store has given node a nothing for 7 s (s3://b/k: 503)");
        let dir = |health: &str| DirStatus { path: "/d".into(), health: health.into(), ..Default::default() };
        let status = |dirs| StatusReply { node: "a".into(), dirs, ..Default::default() };
        assert_eq!(disk(&status(vec![dir("up")])), None);
        let full = disk(&status(vec![dir("up"), dir("full")])).expect("a cause");
        assert!(full.starts_with("the disk /d of node a is full"), "{full}");
    }

    #[test]
    fn a_cache_that_is_too_small_is_told_the_size_that_would_do() {
        let note = too_small_for(585_000_000, 262_000_000, 200_000_000);
        for part in ["262.0 MB from S3 again", "585.0 MB decoded", "hold 200.0 MB", "643.5 MB or more"] {
            assert!(note.contains(part), "{note}");
        }
    }

    #[tokio::test]
    async fn what_lasts_is_told_again_and_what_does_not_never() {
        let access = Access::direct(Default::default()).expect("an access");
        let (release, released) = tokio::sync::oneshot::channel();
        let release = Mutex::new(Some(release));
        let told = Mutex::new(Vec::new());
        let tell = |waited: Duration, why: Option<&str>| {
            told.lock().push((waited.as_millis(), why.is_some()));
            // The work ends when it was told of three times.
            if told.lock().len() == 3 {
                release.lock().take().map(|release| release.send(7));
            }
        };
        let every = Duration::from_millis(10);
        assert_eq!(told_every(every, &access, released, tell).await, Ok(7));
        assert_eq!(*told.lock(), [(10, false), (20, false), (30, false)]);
        let never = |_, _: Option<&str>| panic!("it is there");
        assert_eq!(told_every(every, &access, async { 8 }, never).await, 8);
    }
}
