//! Free ports for processes that must be told where to listen.
//!
//! They lie below the ephemeral range, from which the kernel takes the ports of outgoing connections and of
//! listeners that ask for any. A node that is killed and started again would sometimes find its port taken
//! there.

use std::net::TcpStream;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Linux begins its ephemeral range at 32768.
const PORTS: Range<u32> = 10_000..30_000;

/// One such address.
pub fn free_address() -> anyhow::Result<String> {
    Ok(free_addresses(1)?.remove(0))
}

/// Addresses on the loopback that were free a moment ago, each given once. They are for nodes that must know
/// each other before they start, or that come back to where they were. They are not bound to find out:
/// another thread's child could have inherited the socket.
pub fn free_addresses(count: usize) -> anyhow::Result<Vec<String>> {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Processes that run at the same time begin at different ones.
    let first = std::process::id().wrapping_mul(131);
    let ports = PORTS.map(|_| first.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)));
    let addresses = ports.map(|port| format!("127.0.0.1:{}", PORTS.start + port % (PORTS.end - PORTS.start)));
    let free: Vec<_> = addresses.filter(|address| TcpStream::connect(address).is_err()).take(count).collect();
    anyhow::ensure!(free.len() == count, "no {count} ports from {} to {} are free", PORTS.start, PORTS.end);
    Ok(free)
}
