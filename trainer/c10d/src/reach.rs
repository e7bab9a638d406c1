//! Is there a store at an address?
//!
//! libtorch's client takes whatever accepts its connection for a store: it waits for the first answer without
//! a limit, and where another program listens (`MASTER_PORT` is taken, `MASTER_ADDR` is a wrong one) a rank
//! would hang. So one exchange of the store's own protocol goes first, with limits: the client's opening
//! words and a ping (`TCPStoreBackend.hpp`).

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::error::Failure;
use crate::ffi::FfiResult;

/// `QueryType::VALIDATE` and its magic number, which every connection begins with.
const VALIDATE: (u8, u32) = (0, 0x3C85_F7CE);
/// `QueryType::PING`, with a number that comes back.
const PING: (u8, u32) = (13, 0x0F0E_BA11);
/// How long one address may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// How long what has accepted it may take to answer; a store takes milliseconds.
const ANSWER: Duration = Duration::from_secs(10);
/// How long connections may be accepted and closed again: what stands before a store that is not up yet does
/// so.
const CLOSED: Duration = Duration::from_secs(30);
/// Between two attempts, at most.
const PAUSE: Duration = Duration::from_millis(200);

/// What an attempt found instead of a store.
enum Found {
    /// It may come yet.
    Nobody(Failure),
    /// It hung up.
    Closed,
    /// Something else.
    Other(String),
}

/// Returns once a store answers at `host:port`; waits for one to be served there for at most `timeout`.
pub(crate) fn reach(host: &str, port: u16, timeout: Duration) -> FfiResult<()> {
    let deadline = Instant::now() + timeout;
    let mut closed_since = None;
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let foreign = |what: &str| format!("what listens at {host}:{port} is no TCP store: {what}");
        let nobody = match attempt(host, port, left) {
            Ok(()) => return Ok(()),
            Err(Found::Other(what)) => return Err(Failure::own(foreign(&what))),
            Err(Found::Closed) => {
                let since = *closed_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= CLOSED {
                    return Err(Failure::peers(foreign("it closes every connection")));
                }
                Failure::peers("connections are closed at once")
            }
            Err(Found::Nobody(why)) => {
                closed_since = None;
                why
            }
        };
        if Instant::now() >= deadline {
            let text = format!("nobody serves a store at {host}:{port}: {}", nobody.text);
            return Err(Failure { text, fault: nobody.fault });
        }
        std::thread::sleep(pause().min(left));
    }
}

/// Half of it is random: thousands of ranks that were started together must not all come back at once.
fn pause() -> Duration {
    PAUSE.mul_f64(0.5 + 0.5 * fastrand::f64())
}

fn attempt(host: &str, port: u16, left: Duration) -> Result<(), Found> {
    let addresses = (host, port).to_socket_addrs().map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => Found::Other(error.to_string()),
        _ => Found::Nobody(Failure::own(error.to_string())),
    })?;
    let mut refused = Failure::own("it has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT.min(left)) {
            Ok(stream) => return greet(stream),
            Err(error) => {
                let is_there = matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::TimedOut);
                let failure = if is_there { Failure::peers } else { Failure::own };
                refused = failure(error.to_string());
            }
        }
    }
    Err(Found::Nobody(refused))
}

fn greet(mut stream: TcpStream) -> Result<(), Found> {
    let mut words = Vec::with_capacity(10);
    for (query, number) in [VALIDATE, PING] {
        words.push(query);
        words.extend(number.to_ne_bytes());
    }
    let mut answer = [0; 4];
    let asked = stream.set_read_timeout(Some(ANSWER)).and_then(|()| stream.write_all(&words));
    match asked.and_then(|()| stream.read_exact(&mut answer)) {
        Ok(()) if answer == PING.1.to_ne_bytes() => Ok(()),
        Ok(()) => Err(Found::Other(format!("it says {:?}", String::from_utf8_lossy(&answer)))),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Err(Found::Other(format!("it has not answered within {} s", ANSWER.as_secs())))
        }
        Err(_) => Err(Found::Closed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use std::net::TcpListener;

    #[test]
    fn a_store_is_told_from_what_is_none() {
        let timeout = Duration::from_secs(60);
        let store = Store::serve(1, timeout).unwrap();
        reach("127.0.0.1", store.port().unwrap(), timeout).unwrap();
        store.set("still", b"there").unwrap();

        let talks = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = talks.local_addr().unwrap().port();
        let thread =
            std::thread::spawn(move || talks.accept().unwrap().0.write_all(b"HTTP/1.1 400 Bad Request\r\n"));
        let error = reach("127.0.0.1", port, timeout).unwrap_err().text;
        assert_eq!(error, format!("what listens at 127.0.0.1:{port} is no TCP store: it says \"HTTP\""));
        thread.join().unwrap().unwrap();

        // Accepts, as the kernel does for it, and says nothing.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = silent.local_addr().unwrap().port();
        let error = reach("127.0.0.1", port, timeout).unwrap_err().text;
        assert!(error.ends_with("is no TCP store: it has not answered within 10 s"), "{error}");
    }

    #[test]
    fn ranks_that_begin_together_do_not_stay_in_step() {
        let closes = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = closes.local_addr().unwrap().port();
        // It may go on longer than the test.
        drop(std::thread::spawn(move || reach("127.0.0.1", port, Duration::from_secs(10))));
        let accepted = |_| {
            drop(closes.accept().unwrap());
            Instant::now()
        };
        let times: Vec<_> = (0..10).map(accepted).collect();
        let least = times.windows(2).map(|two| two[1] - two[0]).min().unwrap();
        assert!(least < PAUSE * 19 / 20, "{least:?} between two attempts and more");
    }

    #[test]
    fn nobody_is_waited_for_until_the_time_is_up() {
        // One that nobody is given who asks for any: those are higher ones.
        let first = 10_000 + (std::process::id() % 300) as u16 * 16;
        let free = (first..).find(|port| TcpStream::connect(("127.0.0.1", *port)).is_err()).unwrap();
        let error = reach("127.0.0.1", free, Duration::from_millis(300)).unwrap_err().text;
        assert!(
            error.starts_with(&format!("nobody serves a store at 127.0.0.1:{free}: Connection refused")),
            "{error}"
        );
        let late = std::thread::spawn(move || reach("127.0.0.1", free, Duration::from_secs(30)));
        std::thread::sleep(Duration::from_millis(300));
        let _store = Store::host("127.0.0.1", free, Duration::from_secs(5)).unwrap();
        late.join().unwrap().unwrap();
    }
}
