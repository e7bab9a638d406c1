//! The accept loop of all listeners.
//!
//! It takes what [`Admission`] lets in, and waits a little where the system cannot give it a connection: with
//! no file descriptor left, trying again at once would keep a core busy.

use super::admission::{Admission, Place};
use super::refusals::TurnedAway;
use parking_lot::Mutex;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Before the next one, after a connection that the system could not give.
const PAUSE: Duration = Duration::from_millis(100);

/// The log says at most so often that connections are not taken.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// When the log last said that the system has no connection to give, for all listeners.
static LAST_SAID: Mutex<Option<Instant>> = Mutex::new(None);

/// A socket that takes connections: by TCP, or from this host.
pub trait Listening {
    type Stream;

    /// The next connection, and where it comes from.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Option<IpAddr>)>> + Send;
}

impl Listening for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Option<IpAddr>)> {
        let (stream, from) = TcpListener::accept(self).await?;
        // Nagle's delay off: heads and small messages must not wait.
        stream.set_nodelay(true).ok();
        Ok((stream, Some(from.ip())))
    }
}

impl Listening for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Option<IpAddr>)> {
        UnixListener::accept(self).await.map(|(stream, _)| (stream, None))
    }
}

/// Takes connections until `stop` is called, and hands each to `serve` with its place, or to `turn_away`
/// without one.
pub async fn run<L: Listening>(
    listener: L,
    admission: Admission,
    stop: CancellationToken,
    serve: impl Fn(L::Stream, Place),
    turn_away: impl Fn(L::Stream),
) {
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((stream, from)) => match admission.admit(from) {
                    Some(place) => serve(stream, place),
                    None => turn_away(stream),
                },
                Err(e) if is_of_connection(&e) => {}
                Err(e) => {
                    admission.refusals().count(TurnedAway::Descriptors);
                    say(&e);
                    sleep(PAUSE).await;
                }
            }
        }
    };
    stop.run_until_cancelled(accepting).await;
}

/// Whether only the one connection is lost.
fn is_of_connection(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted)
}

fn say(e: &io::Error) {
    let mut last = LAST_SAID.lock();
    if last.is_none_or(|last| last.elapsed() >= LOG_EVERY) {
        *last = Some(Instant::now());
        tracing::warn!(error = %e, "connections cannot be taken: if files are too many, raise the limit of open files");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::admission::ConnectionLimits;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// Yields a number of errors, then nothing.
    struct Failing(AtomicU64, ErrorKind);

    impl Listening for Failing {
        type Stream = ();

        async fn accept(&self) -> io::Result<((), Option<IpAddr>)> {
            match self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
                Ok(_) => Err(self.1.into()),
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// How often the system was asked for a connection in vain within a time.
    async fn tries_within(time: Duration, kind: ErrorKind) -> u64 {
        let limits = ConnectionLimits { all: 1, per_address: 1 };
        let admission = Admission::new(limits, Arc::default());
        let listener = Failing(AtomicU64::new(1000), kind);
        let running = run(listener, admission.clone(), CancellationToken::new(), |(), _| {}, |()| {});
        tokio::time::timeout(time, running).await.unwrap_err();
        admission.refusals().all().into_iter().find(|(name, _)| name == "descriptors").unwrap().1
    }

    #[tokio::test]
    async fn without_descriptors_it_waits_rather_than_spins() {
        let tries = tries_within(PAUSE * 3, ErrorKind::Other).await;
        assert!((1..=4).contains(&tries), "{tries} tries in three pauses");
        assert_eq!(tries_within(PAUSE, ErrorKind::ConnectionAborted).await, 0);
    }
}
