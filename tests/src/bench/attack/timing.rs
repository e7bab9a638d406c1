//! How long a node takes to refuse a token: two kinds of them in turn, over one connection.

use crate::harness::report::median;
use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::time::Instant;
use tokio::net::TcpStream;

/// Pairs of requests.
const COUNT: usize = 1000;

/// Pairs before the clock runs: of a connection that is new.
const WARM: usize = 50;

/// Standard deviations of a fair coin's heads beyond which pairs tell of a difference: chance alone does
/// so once in 15,000 runs.
const DEVIATIONS: f64 = 4.0;

/// What was measured: pairs of requests, one of each kind, one after the other.
pub struct RefusalTimes {
    pairs_us: Vec<[f64; 2]>,
}

impl RefusalTimes {
    /// How many pairs.
    pub fn count(&self) -> usize {
        self.pairs_us.len()
    }

    /// Of each kind, in microseconds.
    pub fn medians_us(&self) -> [f64; 2] {
        [0, 1].map(|kind| median(&self.pairs_us.iter().map(|pair| pair[kind]).collect::<Vec<_>>()))
    }

    /// By how much the first kind takes longer than the second one, in microseconds: the median of the pairs.
    /// Load on the machine slows both of a pair down.
    pub fn difference_us(&self) -> f64 {
        median(&self.pairs_us.iter().map(|[a, b]| a - b).collect::<Vec<_>>())
    }

    /// Whether one kind is the slower one of more pairs than it would be by chance.
    pub fn is_told_apart(&self) -> bool {
        let slower = self.pairs_us.iter().filter(|[a, b]| a > b).count() as f64;
        let count = self.count() as f64;
        (slower - count / 2.0).abs() > DEVIATIONS * count.sqrt() / 2.0
    }
}

/// Asks a method with one `authorization` and with another one in turn.
pub async fn refusal_times(endpoint: &str, path: &str, headers: [&str; 2]) -> anyhow::Result<RefusalTimes> {
    let address = endpoint.trim_start_matches("http://");
    let stream = TcpStream::connect(address).await.context("connect")?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let mut pairs_us = Vec::with_capacity(COUNT);
    for round in 0..WARM + COUNT {
        // Which of them goes first changes, for the second may find the processor warmer.
        let mut pair = [0.0; 2];
        for kind in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let request = Request::post(format!("http://{address}{path}"))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .header("authorization", headers[kind])
                // A body that comes after the answer is cut off, and a connection ends after a thousand.
                .body(Empty::<Bytes>::new())?;
            let start = Instant::now();
            let answer = sender.send_request(request).await?;
            let code = answer.headers().get("grpc-status").cloned();
            answer.into_body().collect().await?;
            pair[kind] = start.elapsed().as_secs_f64() * 1e6;
            anyhow::ensure!(code.is_some_and(|code| code == "16"), "a token that is no good was taken");
        }
        if round >= WARM {
            pairs_us.push(pair);
        }
    }
    connection.abort();
    Ok(RefusalTimes { pairs_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs of which the first takes some microseconds longer, under loads that come and go.
    fn pairs(longer: f64) -> RefusalTimes {
        let load = |n: usize| [200.0, 350.0, 4000.0][n / 20 % 3];
        let noise = |n: usize| (n % 101) as f64;
        let pair = |n| [load(n) + noise(n * 41) + longer, load(n) + noise(n * 67)];
        RefusalTimes { pairs_us: (0..COUNT).map(pair).collect() }
    }

    #[test]
    fn kinds_that_take_as_long_are_not_told_apart_and_others_are() {
        let same = pairs(0.0);
        assert!(!same.is_told_apart(), "{}", same.difference_us());
        let apart = pairs(60.0);
        assert!(apart.is_told_apart());
        assert!((50.0..70.0).contains(&apart.difference_us()), "{}", apart.difference_us());
        assert!(pairs(-60.0).is_told_apart());
    }
}
