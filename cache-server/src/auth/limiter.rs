//! What a principal may take of a node in a second, and at once.

use super::principal::PrincipalLimits;
use forebay_proto::{Error, Result, TokenBucket};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex as FetchMutex, OwnedMutexGuard};
use tokio::time::sleep;

/// How long an open may wait for its turn.
const PATIENCE: Duration = Duration::from_secs(20);

/// Seconds of a rate that may be used at once: little, so that the rate holds over seconds.
const BURST_S: f64 = 0.05;

/// The limits of a principal, with what it takes.
#[derive(Debug)]
pub struct Limiter {
    name: String,
    state: Mutex<LimiterState>,
    /// Held by the one fetch that is under way.
    fetching: Arc<FetchMutex<()>>,
}

#[derive(Debug)]
struct LimiterState {
    limits: PrincipalLimits,
    opens: Option<TokenBucket>,
    bytes: Option<TokenBucket>,
    fetched: Option<TokenBucket>,
    streams: usize,
}

/// A stream of a principal, until dropped.
#[derive(Debug)]
pub struct StreamTurn(Arc<Limiter>);

/// The turn of a fetch, until dropped.
#[derive(Debug)]
pub struct FetchTurn {
    limiter: Arc<Limiter>,
    _lock: OwnedMutexGuard<()>,
}

impl Limiter {
    /// Nothing is taken yet.
    pub fn new(name: &str, limits: PrincipalLimits) -> Self {
        let state = LimiterState { limits, opens: None, bytes: None, fetched: None, streams: 0 };
        let limiter = Self { name: name.to_owned(), state: Mutex::new(state), fetching: Arc::default() };
        limiter.set(limits);
        limiter
    }

    /// Other limits from now on.
    pub fn set(&self, limits: PrincipalLimits) {
        let (mut state, now) = (self.state.lock(), Instant::now());
        let opens = |per_s: f64| TokenBucket::new(per_s, (per_s * BURST_S).max(1.0), now);
        let bytes = |per_s: u64| TokenBucket::new(per_s as f64, per_s as f64 * BURST_S, now);
        if state.opens.is_none() || state.limits.opens_per_s != limits.opens_per_s {
            state.opens = limits.opens_per_s.map(opens);
        }
        if state.bytes.is_none() || state.limits.bytes_per_s != limits.bytes_per_s {
            state.bytes = limits.bytes_per_s.map(bytes);
        }
        if state.fetched.is_none() || state.limits.s3_bytes_per_s != limits.s3_bytes_per_s {
            state.fetched = limits.s3_bytes_per_s.map(bytes);
        }
        state.limits = limits;
    }

    /// Waits until a dataset may be opened. `Retry` if that takes too long.
    pub async fn open(&self) -> Result<()> {
        let begin = Instant::now();
        loop {
            let wait = match self.state.lock().opens.as_mut().map(|bucket| bucket.take(1.0, Instant::now())) {
                None | Some(Ok(())) => return Ok(()),
                Some(Err(wait)) => wait,
            };
            if begin.elapsed() + wait > PATIENCE {
                return Err(Error::retry(format!(
                    "{} opens more datasets a second than its limit opens_per_s: try again later",
                    self.name
                )));
            }
            sleep(wait).await;
        }
    }

    /// Waits until these bytes may be sent too.
    pub async fn send(&self, bytes: u64) {
        let wait = match self.state.lock().bytes.as_mut() {
            None => return,
            Some(bucket) => bucket.charge(bytes as f64, Instant::now()),
        };
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }

    /// Whether fetches for this principal are limited.
    pub fn limits_fetches(&self) -> bool {
        self.state.lock().limits.s3_bytes_per_s.is_some()
    }

    /// Waits for the turn of a fetch: one follows the other, when those before are paid for.
    pub async fn fetch_turn(self: &Arc<Self>) -> FetchTurn {
        let lock = self.fetching.clone().lock_owned().await;
        let debt = self.state.lock().fetched.as_mut().map(|bucket| bucket.debt(Instant::now()));
        sleep(debt.unwrap_or_default()).await;
        FetchTurn { limiter: self.clone(), _lock: lock }
    }

    /// A stream begins. `Retry` if there are as many as there may be.
    pub fn begin(self: &Arc<Self>) -> Result<StreamTurn> {
        let mut state = self.state.lock();
        match state.limits.streams {
            Some(most) if state.streams >= most => Err(Error::retry(format!(
                "{} has {most} streams, which is its limit: end some, or have its limit `streams` raised",
                self.name
            ))),
            _ => {
                state.streams += 1;
                Ok(StreamTurn(self.clone()))
            }
        }
    }
}

impl FetchTurn {
    /// Bytes of objects are fetched now.
    pub fn pay(&self, bytes: u64) {
        if let Some(bucket) = &mut self.limiter.state.lock().fetched {
            bucket.charge(bytes as f64, Instant::now());
        }
    }
}

impl Drop for StreamTurn {
    fn drop(&mut self) {
        self.0.state.lock().streams -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(limits: PrincipalLimits) -> Arc<Limiter> {
        Arc::new(Limiter::new("team", limits))
    }

    #[tokio::test]
    async fn rates_are_held_within_five_per_cent() {
        let limiter = limiter(PrincipalLimits {
            bytes_per_s: Some(100_000_000),
            opens_per_s: Some(100.0),
            ..Default::default()
        });
        let begin = Instant::now();
        let send = async {
            // Four streams together.
            let stream = async || {
                for _ in 0..50 {
                    limiter.send(1_000_000).await;
                }
            };
            tokio::join!(stream(), stream(), stream(), stream());
            begin.elapsed().as_secs_f64()
        };
        let open = async {
            for _ in 0..200 {
                limiter.open().await.unwrap();
            }
            begin.elapsed().as_secs_f64()
        };
        let (sent, opened) = tokio::join!(send, open);
        let (bytes, opens) = (200e6 / sent, 200.0 / opened);
        assert!(bytes < 1.05 * 100e6, "{bytes} bytes a second");
        assert!(opens < 1.05 * 100.0, "{opens} opens a second");
        assert!(bytes > 0.5 * 100e6 && opens > 0.5 * 100.0, "{bytes} {opens}");
    }

    #[tokio::test]
    async fn fetches_wait_for_each_other_and_are_paid_for() {
        let limits = PrincipalLimits { s3_bytes_per_s: Some(10_000_000), ..Default::default() };
        let limiter = limiter(limits);
        assert!(limiter.limits_fetches());
        let begin = Instant::now();
        let first = limiter.fetch_turn().await;
        assert!(tokio::time::timeout(Duration::from_millis(20), limiter.fetch_turn()).await.is_err());
        first.pay(1_000_000);
        drop(first);
        let (one, other) = tokio::join!(fetch(&limiter), fetch(&limiter));
        // Those are under way when the first is paid for, and when one of them is.
        let paid = |bytes: f64| Duration::from_secs_f64((bytes / 10e6 - BURST_S) * 0.95);
        assert!(one.min(other) - begin > paid(1e6) && one.max(other) - begin > paid(2e6));
        limiter.set(PrincipalLimits::default());
        assert!(!limiter.limits_fetches());
        fetch(&limiter).await;
        assert!(begin.elapsed() < Duration::from_secs(5));
    }

    /// When a fetch of a million bytes had its turn.
    async fn fetch(limiter: &Arc<Limiter>) -> Instant {
        limiter.fetch_turn().await.pay(1_000_000);
        Instant::now()
    }

    #[tokio::test]
    async fn streams_are_counted_and_limits_change() {
        let limiter =
            limiter(PrincipalLimits { streams: Some(2), opens_per_s: Some(0.01), ..Default::default() });
        let (one, _two) = (limiter.begin().unwrap(), limiter.begin().unwrap());
        assert!(limiter.begin().unwrap_err().message.contains("team has 2 streams"));
        drop(one);
        let _three = limiter.begin().unwrap();
        limiter.open().await.unwrap();
        assert!(limiter.open().await.unwrap_err().message.contains("opens_per_s"));
        limiter.set(PrincipalLimits::default());
        limiter.open().await.unwrap();
        let _four = limiter.begin().unwrap();
        limiter.send(u64::MAX).await;
    }
}
