//! An HTTP/1.1 server on its own thread and its own small runtime, on a free port of the loopback.
//!
//! Plain tests and async tests can both use it, and dropping it stops it: no connection or task outlives the
//! value.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

/// Answers the requests of one connection.
pub(crate) type Handler =
    Arc<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<ResponseBody>> + Send + Sync>;

/// A running server; stops when dropped.
pub(crate) struct Serving {
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Starts a server whose connections are each answered by a fresh handler from `connect`.
    pub(crate) fn start(name: &str, connect: impl Fn() -> Handler + Send + 'static) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        // Bound outside the runtime, so that this may be called from async code too.
        let socket = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            runtime.block_on(async {
                match TcpListener::from_std(socket) {
                    Ok(listener) => accept(listener, connect, stopped).await,
                    Err(error) => panic!("listen on {address}: {error}"),
                }
            });
        })?;
        Ok(Self { address, stop, thread: Some(thread) })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic of the server thread has been printed already; the test fails on what it sees.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, connect: impl Fn() -> Handler, stop: CancellationToken) {
    loop {
        let socket = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => socket,
                Err(_) => continue,
            },
        };
        tokio::spawn(serve(socket, connect()));
    }
}

async fn serve(socket: TcpStream, handler: Handler) {
    // Without this, small answers wait for delayed acknowledgements: 40 ms each.
    let _ = socket.set_nodelay(true);
    let service = service_fn(move |request| {
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    // An error here is a client that went away or a body cut on purpose.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
}
