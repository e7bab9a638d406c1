//! A wire to a server next door, which breaks as networks break: nobody listens, nothing is answered, answers
//! break off, or come byte by byte. What the server and its client say passes as it is, so a client finds
//! what it would find at the server itself.

use crate::harness::ports::free_address;
use anyhow::Context;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// How a wire breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outage {
    /// Nobody listens, and what was open is reset.
    Refused,
    /// Connections open and stay open, and nothing comes back on them, ever.
    BlackHole,
    /// An answer is reset after [`RESET_BYTES`].
    Reset,
    /// Answers come at [`DRIP_BYTES_PER_S`].
    Drip,
    /// What was open is reset once; new connections work, for those who find the address.
    Moved,
}

/// Of an answer come through before it is reset: its head, and some of any body worth the name.
pub const RESET_BYTES: usize = 16 << 10;

/// How fast answers drip.
pub const DRIP_BYTES_PER_S: u64 = 100;

/// Between two drops.
const DROP: Duration = Duration::from_millis(100);

/// A wire; cut for good when dropped.
pub struct Wire {
    /// `host:port`, where its near end is.
    pub address: SocketAddr,
    outage: watch::Sender<Option<Outage>>,
    struck: Arc<AtomicU64>,
    /// `None` once it is dropped.
    runtime: Option<Runtime>,
}

/// The near end's view of what the wire does now.
#[derive(Clone)]
struct State {
    outage: watch::Receiver<Option<Outage>>,
    struck: Arc<AtomicU64>,
}

impl Wire {
    /// Lays a wire to `url` (`http://host:port`).
    pub fn start(url: &str) -> anyhow::Result<Self> {
        let to: SocketAddr = url.strip_prefix("http://").context("an http URL")?.parse()?;
        // A port below those that the kernel gives away, as it is let go and taken again.
        let bind = || anyhow::Ok(std::net::TcpListener::bind(free_address()?)?);
        let listener = (0..10).find_map(|_| bind().ok()).context("a free port")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (outage, seen) = watch::channel(None);
        let struck = Arc::new(AtomicU64::new(0));
        let state = State { outage: seen, struck: struck.clone() };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        runtime.spawn(async move {
            let mut listener = TcpListener::from_std(listener);
            loop {
                match listener {
                    Ok(open) => accept(open, to, state.clone()).await,
                    Err(_) => tokio::time::sleep(DROP).await,
                }
                let mut outage = state.outage.clone();
                if outage.wait_for(|outage| *outage != Some(Outage::Refused)).await.is_err() {
                    return;
                }
                listener = TcpListener::bind(address).await;
            }
        });
        Ok(Self { address, outage, struck, runtime: Some(runtime) })
    }

    /// Breaks it, or mends it.
    pub fn set(&self, outage: Option<Outage>) {
        self.outage.send_replace(outage);
    }

    /// Connections that an outage has struck so far. Those that were refused are not known here.
    pub fn struck(&self) -> u64 {
        self.struck.load(Ordering::Relaxed)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Not to be waited for: this may be an async thread.
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Takes connections until nobody is to listen any more.
async fn accept(listener: TcpListener, to: SocketAddr, state: State) {
    let mut outage = state.outage.clone();
    loop {
        let near = tokio::select! {
            closed = outage.wait_for(|outage| *outage == Some(Outage::Refused)) => {
                return drop(closed);
            }
            accepted = listener.accept() => match accepted {
                Ok((near, _)) => near,
                Err(_) => continue,
            },
        };
        let state = state.clone();
        tokio::spawn(async move {
            let Ok(far) = TcpStream::connect(to).await else { return };
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            let asked = forward(near_in, far_out);
            let answered = state.answer(far_in, near_out);
            tokio::pin!(asked, answered);
            // Whichever side ends, the connection does.
            tokio::select! {
                () = &mut asked => {}
                () = &mut answered => {}
            }
        });
    }
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await
        && to.write_all(&bytes[..count]).await.is_ok()
    {}
}

impl State {
    /// Carries answers, as well as the outage of each moment lets it.
    async fn answer(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut outage = self.outage.clone();
        let mut bytes = vec![0; 64 << 10];
        let mut is_struck = false;
        let mut left = RESET_BYTES;
        let first = *outage.borrow_and_update();
        loop {
            // A connection that was opened after the move is not reset by it.
            let now = *outage.borrow_and_update();
            let now = now.filter(|now| *now != Outage::Moved || first != Some(Outage::Moved));
            if now.is_some() && !std::mem::replace(&mut is_struck, true) {
                self.struck.fetch_add(1, Ordering::Relaxed);
            }
            if matches!(now, Some(Outage::Refused | Outage::Moved)) {
                return reset(to);
            }
            if now == Some(Outage::BlackHole) {
                // What was sent is lost; it is the asker who has to hang up.
                return std::future::pending().await;
            }
            let most = match now {
                Some(Outage::Drip) => (DRIP_BYTES_PER_S / 10) as usize,
                Some(Outage::Reset) => left,
                _ => bytes.len(),
            };
            let read = tokio::select! {
                changed = outage.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                read = from.read(&mut bytes[..most]) => read,
            };
            let Ok(count @ 1..) = read else { return };
            if to.write_all(&bytes[..count]).await.is_err() {
                return;
            }
            match now {
                Some(Outage::Drip) => tokio::time::sleep(DROP).await,
                Some(Outage::Reset) => left -= count,
                _ => {}
            }
            if left == 0 {
                return reset(to);
            }
        }
    }
}

/// Has a connection end by a reset, rather than in good order.
fn reset(of: OwnedWriteHalf) {
    let _ = of.as_ref().set_zero_linger();
    of.forget();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::wait;
    use std::io::{ErrorKind, Read, Result, Write};
    use std::net::{TcpListener, TcpStream};

    const BODY: usize = 100_000;

    /// A server that answers each byte by a long body.
    fn server() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let serve = |mut client: TcpStream| {
            while matches!(client.read(&mut [0]), Ok(1)) && client.write_all(&[1; BODY]).is_ok() {}
        };
        std::thread::spawn(move || {
            listener.incoming().flatten().for_each(|client| drop(std::thread::spawn(move || serve(client))));
        });
        url
    }

    fn connect(wire: &Wire) -> Result<TcpStream> {
        let connection = TcpStream::connect(wire.address)?;
        connection.set_read_timeout(Some(Duration::from_secs(2)))?;
        Ok(connection)
    }

    /// Asks, and reads the whole answer.
    fn ask(connection: &mut TcpStream) -> Result<()> {
        connection.write_all(&[0])?;
        connection.read_exact(&mut [0; BODY])
    }

    fn until(what: &str, is: impl Fn() -> bool) {
        wait::until(what, Duration::from_secs(30), is);
    }

    #[test]
    fn each_outage_is_as_it_says_and_passes() {
        let wire = Wire::start(&server()).expect("a wire");
        let is_whole = || connect(&wire).is_ok_and(|mut connection| ask(&mut connection).is_ok());
        until("it works", is_whole);
        let error = |open: &mut TcpStream| ask(open).expect_err("an outage").kind();

        wire.set(Some(Outage::Refused));
        until("nobody listens", || connect(&wire).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused));
        wire.set(None);
        until("it works again", is_whole);

        let mut open = connect(&wire).expect("a connection");
        ask(&mut open).expect("an answer");
        wire.set(Some(Outage::BlackHole));
        assert!(matches!(error(&mut open), ErrorKind::WouldBlock | ErrorKind::TimedOut));
        wire.set(None);
        assert!(
            matches!(error(&mut open), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            "a lost answer stays lost"
        );
        until("it works again", is_whole);

        let mut open = connect(&wire).expect("a connection");
        ask(&mut open).expect("an answer");
        wire.set(Some(Outage::Reset));
        assert!(matches!(error(&mut open), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe));
        wire.set(None);
        until("it works again", is_whole);

        wire.set(Some(Outage::Drip));
        let mut open = connect(&wire).expect("a connection");
        open.write_all(&[0]).expect("a question");
        let first = open.read(&mut [0; BODY]).expect("a drop") as u64;
        assert!(first <= DRIP_BYTES_PER_S, "{first}");
        wire.set(None);
        open.read_exact(&mut vec![0; BODY - first as usize]).expect("the rest, at once");

        wire.set(Some(Outage::Moved));
        // What was open is reset.
        while ask(&mut open).is_ok() {}
        until("new ones work", is_whole);
        // The black hole's, the one that was reset, and the one that dripped.
        assert!(wire.struck() >= 3, "{}", wire.struck());
    }
}
