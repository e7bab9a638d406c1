//! A node that is told to end while it is attacked: case 46.

use super::arena::{Arena, LATE, address};
use super::silence::hold;
use crate::harness::check::Check;
use crate::harness::frames::{PREFACE, connect, stranger};
use std::io::Write as _;
use std::time::Instant;

/// The node's `drain_s`, which it has from its defaults.
const DRAIN_S: f64 = 5.0;

/// 46: SIGTERM beside connections that are silent, half begun, and never end.
pub fn in_the_middle(arena: &Arena<'_>) -> anyhow::Result<Vec<Check>> {
    let server = arena.options.clone().try_start()?;
    let node = address(&server.endpoint)?;
    let mut held = Vec::new();
    for n in 0..20 {
        let mut connection = connect(stranger(1), node)?;
        connection.write_all(&PREFACE[..n])?;
        held.push(connection);
    }
    let open: Vec<_> = (0..20).filter_map(|_| hold(node, 1)).collect();
    let start = Instant::now();
    server.try_stop()?;
    let took = start.elapsed().as_secs_f64();
    let limit = DRAIN_S + 1.0 + LATE.as_secs_f64();
    drop((held, open));
    Ok(vec![Check::of("it ends within drain_s and a second", format!("{took:.1} s"), took < limit)])
}
