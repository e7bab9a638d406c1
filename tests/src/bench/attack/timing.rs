//! How long a node takes to refuse a token: two kinds of them in turn, over one connection.

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::time::Instant;
use tokio::net::TcpStream;

/// Requests of each kind.
const COUNT: usize = 1000;

/// Requests before the clock runs: of a connection that is new.
const WARM: usize = 50;

/// What was measured.
pub struct RefusalTimes {
    /// Requests of each kind.
    pub count: usize,
    /// Of each kind, in microseconds.
    pub medians_us: [f64; 2],
}

/// Asks a method with one `authorization` and with another one in turn.
pub async fn refusal_times(endpoint: &str, path: &str, headers: [&str; 2]) -> anyhow::Result<RefusalTimes> {
    let address = endpoint.trim_start_matches("http://");
    let stream = TcpStream::connect(address).await.context("connect")?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let mut times = [Vec::with_capacity(COUNT), Vec::with_capacity(COUNT)];
    for round in 0..WARM + COUNT {
        // Which of them goes first changes, for the second may find the processor warmer.
        for kind in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let request = Request::post(format!("http://{address}{path}"))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .header("authorization", headers[kind])
                .body(Full::new(Bytes::from_static(&[0; 5])))?;
            let start = Instant::now();
            let answer = sender.send_request(request).await?;
            let code = answer.headers().get("grpc-status").cloned();
            answer.into_body().collect().await?;
            let took = start.elapsed();
            anyhow::ensure!(code.is_some_and(|code| code == "16"), "a token that is no good was taken");
            if round >= WARM {
                times[kind].push(took.as_secs_f64() * 1e6);
            }
        }
    }
    connection.abort();
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    Ok(RefusalTimes { count: COUNT, medians_us: times.map(median) })
}
