//! The limits that every request of a process passes before it is sent, and the layers that hold them: bytes
//! a second ([`RateLimit`]), then requests at once (a semaphore whose limit [`ConcurrencyLimit`] finds).
//! Demands go first in both.

use super::aimd::ConcurrencyLimit;
use super::settings::SourceSettings;
use crate::priority::{PrioritySemaphore, SemaphorePermit};
use crate::urgency::Urgency;
use forebay_proto::TokenBucket;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// Seconds' worth of bytes that an idle process saves up: the rate holds on average and not for each request.
const BURST_S: f64 = 0.1;

/// More than any limit on requests.
const ALL: u64 = 1 << 32;

/// What all requests of one process share: how many may be under way, and how many bytes a second they may
/// fetch.
#[derive(Debug)]
pub(super) struct Limits {
    rate: Option<RateLimit>,
    requests: Arc<PrioritySemaphore>,
    answers: Mutex<Answers>,
    pub patience: Duration,
}

/// What the answers so far say: how many requests may be under way, and whether the object store is down.
#[derive(Debug)]
struct Answers {
    concurrency: ConcurrencyLimit,
    /// When the object store began to answer nothing well.
    failing_since: Option<Instant>,
    /// Holds all requests back.
    pause: Option<AbortHandle>,
}

/// The right to send one request, from when the limits let it through until it is answered.
#[derive(Debug)]
pub(super) struct RequestPermit {
    at_once: SemaphorePermit,
    /// That of [`ConcurrencyLimit`] when the request was sent.
    era: u64,
}

impl Limits {
    pub(super) fn new(settings: &SourceSettings) -> Self {
        let concurrency = ConcurrencyLimit::new(settings.s3_max_requests);
        Self {
            rate: settings.s3_max_bytes_per_s.map(|per_s| RateLimit::new(per_s as f64)),
            requests: PrioritySemaphore::new(concurrency.get() as u64),
            answers: Mutex::new(Answers { concurrency, failing_since: None, pause: None }),
            patience: Duration::from_secs_f64(settings.patience_s),
        }
    }

    /// Waits until a request for `bytes` may be sent. None if the object store has answered nothing well for
    /// the whole patience since `since`.
    pub(super) async fn enter(&self, urgency: &Urgency, bytes: u64, since: Instant) -> Option<RequestPermit> {
        let permit = async {
            if let Some(rate) = &self.rate {
                rate.pass(bytes, urgency).await;
            }
            self.requests.acquire(1, urgency).await
        };
        tokio::pin!(permit);
        loop {
            let (now, failing_since) = (Instant::now(), self.answers.lock().failing_since);
            // A long queue before an object store that works is no reason to give up.
            let until = failing_since.map_or(now, |failing| failing.max(since)) + self.patience;
            if failing_since.is_some() && until <= now {
                return None;
            }
            if let Ok(at_once) = tokio::time::timeout_at(until.into(), &mut permit).await {
                let era = self.answers.lock().concurrency.era();
                return Some(RequestPermit { at_once, era });
            }
        }
    }

    /// Requests that could be sent now: none while bytes a second are short.
    pub(super) fn free(&self) -> u64 {
        if self.rate.as_ref().is_some_and(|rate| rate.turns.is_full()) { 0 } else { self.requests.free() }
    }

    /// The request was answered, if only with a refusal that a retry would not change.
    pub(super) fn on_success(&self, permit: RequestPermit) {
        let is_full = self.requests.is_full();
        let mut answers = self.answers.lock();
        answers.failing_since = None;
        answers.concurrency.on_success(permit.era, is_full);
        self.requests.set_limit(answers.concurrency.get() as u64);
        if let Some(pause) = answers.pause.take() {
            pause.abort();
        }
    }

    /// The request was refused for now, or its answer broke off.
    pub(super) fn on_throttle(&self, permit: RequestPermit) {
        let now = Instant::now();
        {
            let mut answers = self.answers.lock();
            answers.failing_since.get_or_insert(now);
            let pause = answers.concurrency.on_throttle(permit.era, now);
            self.requests.set_limit(answers.concurrency.get() as u64);
            if let Some(until) = pause {
                let paused = hold_until(until, self.requests.acquire_now(ALL));
                answers.pause.replace(paused).inspect(AbortHandle::abort);
            }
        }
        drop(permit.at_once);
    }
}

/// Keeps others waiting for a while.
fn hold_until(until: Instant, permit: SemaphorePermit) -> AbortHandle {
    let hold = async move {
        tokio::time::sleep_until(until.into()).await;
        drop(permit);
    };
    tokio::spawn(hold).abort_handle()
}

/// Lets requests through one after the other, at the pace of a number of bytes a second.
#[derive(Debug)]
struct RateLimit {
    /// Held by each request in turn until its bytes are paid for.
    turns: Arc<PrioritySemaphore>,
    bucket: Mutex<TokenBucket>,
}

impl RateLimit {
    fn new(per_s: f64) -> Self {
        let bucket = TokenBucket::new(per_s, per_s * BURST_S, Instant::now());
        Self { turns: PrioritySemaphore::new(1), bucket: Mutex::new(bucket) }
    }

    /// Waits until all bytes let through before are paid for, and then lets `bytes` through.
    async fn pass(&self, bytes: u64, urgency: &Urgency) {
        let turn = self.turns.acquire(1, urgency).await;
        let now = Instant::now();
        let mut bucket = self.bucket.lock();
        bucket.charge(bytes as f64, now);
        if let Some(paid) = now.checked_add(bucket.debt(now)) {
            hold_until(paid, turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn a_rate_keeps_the_next_waiting_and_demands_go_first() {
        let rate = RateLimit::new(1000.0);
        let (demand, prefetch, start) = (Urgency::demand(), Urgency::prefetch(), Instant::now());
        // The first is free: an idle process has saved up its cost.
        rate.pass(100, &demand).await;
        rate.pass(100, &demand).await;
        let mut early = Box::pin(rate.pass(100, &prefetch));
        assert!((&mut early).now_or_never().is_none());
        rate.pass(100, &demand).await;
        assert!(start.elapsed() >= Duration::from_millis(100), "{:?}", start.elapsed());
        assert!((&mut early).now_or_never().is_none(), "it came first, but nobody waits for it");
        early.await;
        assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
    }

    #[tokio::test]
    async fn no_request_is_free_while_bytes_are_short() {
        let settings = SourceSettings { s3_max_bytes_per_s: Some(1_000_000), ..Default::default() };
        let (limits, demand) = (Limits::new(&settings), Urgency::demand());
        assert_eq!(limits.free(), 4);
        let _permit = limits.enter(&demand, 100_000_000, Instant::now()).await.unwrap();
        assert_eq!(limits.free(), 0, "three more requests, but no bytes for 100 s");
    }

    #[tokio::test]
    async fn requests_at_once_are_bounded_and_an_outage_closes_them() {
        let settings = SourceSettings { s3_max_requests: 1, patience_s: 0.05, ..Default::default() };
        let (limits, demand, now) = (Limits::new(&settings), Urgency::demand(), Instant::now());
        assert_eq!(limits.free(), 1);
        let first = limits.enter(&demand, 1, now).await.unwrap();
        assert_eq!(limits.free(), 0);
        assert!(limits.enter(&demand, 1, now).now_or_never().is_none());
        limits.on_success(first);
        let refused = limits.enter(&demand, 1, now).await.unwrap();
        limits.on_throttle(refused);
        let _under_way = limits.enter(&demand, 1, now).await.unwrap();
        assert!(limits.enter(&demand, 1, now).await.is_none());
    }

    /// When nothing is answered well any more, nothing is sent for a while; a good answer ends that.
    #[tokio::test]
    async fn an_outage_pauses_and_a_good_answer_ends_the_pause() {
        let limits = Limits::new(&SourceSettings::default());
        let (demand, now) = (Urgency::demand(), Instant::now());
        let fill = || std::iter::from_fn(|| limits.enter(&demand, 1, now).now_or_never().flatten());
        for at_once in [4, 8, 16] {
            let permits: Vec<RequestPermit> = fill().collect();
            assert_eq!(permits.len(), at_once);
            permits.into_iter().for_each(|permit| limits.on_success(permit));
        }
        let early = limits.enter(&demand, 1, now).await.unwrap();
        for at_once in [31, 15, 7, 3] {
            let permits: Vec<RequestPermit> = fill().collect();
            assert_eq!(permits.len(), at_once);
            permits.into_iter().for_each(|permit| limits.on_throttle(permit));
        }
        assert!(limits.enter(&demand, 1, now).now_or_never().is_none(), "one more fits, but not now");
        limits.on_success(early);
        tokio::task::yield_now().await;
        assert!(limits.enter(&demand, 1, now).now_or_never().is_some());
    }
}
