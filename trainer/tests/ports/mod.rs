//! Ports for ranks that meet, in the unit tests of the rendezvous too.

use std::net::TcpStream;
use std::sync::atomic::{AtomicU16, Ordering};

/// One that nobody is given who asks for any: those are higher ones. It is not bound to find out: another
/// thread's child could have inherited the socket.
pub fn free_port() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (std::process::id() % 300) as u16 * 16;
    let next = || first + TAKEN.fetch_add(1, Ordering::Relaxed);
    let free = |port: &u16| TcpStream::connect(("127.0.0.1", *port)).is_err();
    std::iter::repeat_with(next).find(free).expect("a free port")
}
