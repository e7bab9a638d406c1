//! Rendezvous: `c10d::TCPStore`, the small key-value service through which ranks find each other.

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::IntoRawFd;
use std::time::Duration;

use cxx::UniquePtr;

use crate::error::{Error, Result, named};
use crate::ffi::bridge::{self, StoreHandle};
use crate::ffi::milliseconds;
use crate::reach::reach;

/// A connection to a TCP store, and the store itself on the master. Values are small byte strings.
///
/// It may be used by several threads; a request that waits holds up the others, so a thread that must not
/// wait wants a connection of its own ([`Store::connect_again`]).
#[derive(Debug)]
pub struct Store {
    pub(crate) handle: UniquePtr<StoreHandle>,
    /// The rank that serves it, if a rank does.
    pub(crate) served_by: Option<usize>,
}

/// What a server's own connection leads to.
const HERE: &str = "127.0.0.1";
/// How long a machine may take to reach itself by its own address.
const OWN_ADDRESS: Duration = Duration::from_secs(30);

fn astray(host: &str, why: &str) -> Error {
    let text = format!("{host} does not lead to this machine, where rank 0 serves the store: {why}");
    Error::new("open the store", None, text)
}

impl Store {
    /// Connects to the store at `host:port`, or serves it there when `is_master`. The master waits until
    /// `world` processes, itself among them, have connected. `timeout` bounds connecting, waiting and each
    /// later call.
    ///
    /// The master is rank 0, unless the launcher serves the store (torchrun says so by
    /// `TORCHELASTIC_USE_AGENT_STORE=True`). For others it is an error within seconds if what listens there
    /// is no store.
    pub fn tcp(host: &str, port: u16, world: usize, is_master: bool, timeout: Duration) -> Result<Self> {
        let world = count("world", world)?;
        if !is_master {
            reach(host, port, timeout).map_err(named("open the store"))?;
        }
        Self::opened(bridge::tcp_store(host, port, world, is_master, true, -1, milliseconds(timeout)))
    }

    /// Serves a store on a free loopback port for `world` clients, without waiting for them: the launcher's
    /// side. The socket is bound before the port is known to anyone, so two launchers cannot take the same
    /// one.
    pub fn serve(world: usize, timeout: Duration) -> Result<Self> {
        let failed = |error: std::io::Error| Error::new("serve a store", None, error.to_string());
        let world = count("world", world)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let socket = listener.into_raw_fd();
        Self::opened(bridge::tcp_store(HERE, port, world, true, false, socket, milliseconds(timeout)))
    }

    /// Serves a store on `port` of all this machine's addresses, without waiting for clients. An error if it
    /// is not what `host` leads to, by which the others will look for it.
    pub fn host(host: &str, port: u16, timeout: Duration) -> Result<Self> {
        let served = Self::opened(bridge::tcp_store(HERE, port, 1, true, false, -1, milliseconds(timeout)));
        let store = served.map_err(|error| match error.message.contains("EADDRINUSE") {
            true => Error { message: format!("port {port} is in use by another program"), ..error },
            false => error,
        })?;
        let mark = format!("forebay/served/{:016x}", fastrand::u64(..));
        store.set(&mark, b"")?;
        let there = Self::tcp(host, port, 1, false, timeout.min(OWN_ADDRESS));
        match there.and_then(|there| there.contains(&mark)) {
            Ok(true) => Ok(store),
            Ok(false) => Err(astray(host, "another store answers there")),
            Err(error) => Err(astray(host, &error.message)),
        }
    }

    fn opened(made: std::result::Result<UniquePtr<StoreHandle>, cxx::Exception>) -> Result<Self> {
        Ok(Self { handle: made.map_err(named("open the store"))?, served_by: None })
    }

    /// Says that `rank` serves the store, not a launcher: when the store goes, that rank has gone.
    #[must_use]
    pub fn served_by(self, rank: usize) -> Self {
        Self { served_by: Some(rank), ..self }
    }

    /// The same store with `prefix` put before every key: keys that others left there are not seen.
    /// torchrun's store lives on when its ranks are started again; a prefix for each start keeps the starts
    /// apart.
    pub fn prefixed(&self, prefix: &str) -> Result<Self> {
        let handle = self.handle.prefixed(prefix).map_err(named("prefix the store"))?;
        Ok(Self { handle, served_by: self.served_by })
    }

    /// The same store over a connection of its own.
    pub fn connect_again(&self) -> Result<Self> {
        let handle = self.handle.connect_again().map_err(named("open the store"))?;
        Ok(Self { handle, served_by: self.served_by })
    }

    /// The port at which its server listens: where other processes join.
    pub fn port(&self) -> Result<u16> {
        self.handle.port().map_err(named("store port"))
    }

    /// Sets `key`, for every process to see.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.handle.set(key, value).map_err(named("store set"))
    }

    /// The value of `key`; waits for it to be set, up to the store's timeout.
    pub fn get(&self, key: &str) -> Result<Vec<u8>> {
        self.handle.get(key).map_err(named("store get"))
    }

    /// Adds `amount` to the number at `key`, which starts at 0, and gives the sum. Such a key is read by
    /// adding 0.
    pub fn add(&self, key: &str, amount: i64) -> Result<i64> {
        self.handle.add(key, amount).map_err(named("store add"))
    }

    /// Whether `key` is set; does not wait.
    pub fn contains(&self, key: &str) -> Result<bool> {
        self.handle.contains(key).map_err(named("store check"))
    }

    /// Removes `key`; gives whether it was there.
    pub fn delete(&self, key: &str) -> Result<bool> {
        self.handle.remove(key).map_err(named("store delete"))
    }

    /// Waits until all of `keys` are set.
    pub fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        self.handle.wait(keys, milliseconds(timeout)).map_err(named("store wait"))
    }
}

/// A rank or world as C++'s `int`; a world of 0 is refused here, for C++ would wait for ever.
pub(crate) fn count(what: &'static str, value: usize) -> Result<i32> {
    match i32::try_from(value) {
        Ok(0) => Err(Error::new(what, None, "must be at least 1")),
        Ok(value) => Ok(value),
        Err(_) => Err(Error::new(what, None, format!("{value} is too large"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    #[test]
    fn values_pass_between_clients() {
        let server = Store::serve(1, TIMEOUT).unwrap();
        let client = Store::tcp("127.0.0.1", server.port().unwrap(), 1, false, TIMEOUT).unwrap();
        client.set("bytes", &[0, 1, 0xff]).unwrap();
        client.set("nothing", &[]).unwrap();
        server.wait(&["bytes", "nothing"], TIMEOUT).unwrap();
        assert_eq!(server.get("bytes").unwrap(), [0, 1, 0xff]);
        assert!(server.get("nothing").unwrap().is_empty());
    }

    #[test]
    fn numbers_prefixes_and_further_connections() {
        let server = Store::serve(1, TIMEOUT).unwrap();
        let client = Store::tcp("127.0.0.1", server.port().unwrap(), 1, false, TIMEOUT).unwrap();
        let (first, second) = (client.prefixed("attempt_0").unwrap(), client.prefixed("attempt_1").unwrap());
        assert_eq!(first.port().unwrap(), server.port().unwrap());
        assert_eq!((first.add("n", 2).unwrap(), first.add("n", 3).unwrap()), (2, 5));
        assert_eq!(second.add("n", 0).unwrap(), 0);
        let again = first.connect_again().unwrap();
        let waits = std::thread::spawn(move || again.get("late").unwrap());
        assert!(!first.contains("late").unwrap());
        first.set("late", b"x").unwrap();
        assert_eq!(waits.join().unwrap(), b"x");
        assert!(first.contains("late").unwrap() && !second.contains("late").unwrap());
        assert!(first.delete("late").unwrap() && !first.delete("late").unwrap());
    }

    #[test]
    fn bad_arguments_are_errors() {
        assert_eq!(Store::serve(0, TIMEOUT).unwrap_err().to_string(), "world: must be at least 1");
        let error = Store::tcp("127.0.0.1", 1, 1, false, Duration::from_millis(300)).unwrap_err();
        assert!(error.to_string().starts_with("open the store: "), "{error}");
        assert_eq!(error.to_string().lines().count(), 1);
        assert!(Store::tcp("a\0b", 1, 1, false, TIMEOUT).is_err());

        let server = Store::serve(1, TIMEOUT).unwrap();
        let error = Store::host("127.0.0.1", server.port().unwrap(), TIMEOUT).unwrap_err();
        assert!(error.to_string().ends_with(" is in use by another program"), "{error}");
        let error = Store::host("nowhere.invalid", 0, Duration::from_millis(300)).unwrap_err();
        assert!(error.to_string().contains("nowhere.invalid does not lead to this machine"), "{error}");
        assert!(!error.peer_lost(), "{error}");
        // The words in a key are no sign of a lost peer.
        let error = server.set("socket timeout\0", b"").unwrap_err();
        assert!(error.to_string().contains("timeout") && !error.peer_lost(), "{error}");
        let listening = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = listening.local_addr().unwrap().port();
        let error = Store::tcp("127.0.0.1", taken, 1, true, TIMEOUT).unwrap_err();
        assert!(error.to_string().contains("socket") && !error.peer_lost(), "{error}");
        let error = server.wait(&["never"], Duration::from_millis(100)).unwrap_err();
        assert!(error.peer_lost(), "{error}");
    }
}
