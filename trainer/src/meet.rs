//! Where the ranks of one start meet: a part of the store that no other start has used or will use.
//!
//! A launcher's store may outlive its ranks: torchrun starts them anew after a failure, and when machines come or go. What
//! is left in it must not be taken for these ranks' own. How often they were started does not tell them
//! apart: torchrun's agents count failures of their own machine, so that the counts of two machines may differ, or be
//! the same as before. So each start gets a name of its own, by a handshake that nothing old can answer: every rank asks with a
//! number drawn for this start, and rank 0 answers with the name until every rank has said that it has it.

use std::hash::{BuildHasher, RandomState};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use forebay_c10d::Store;

use crate::place::Place;

/// How often rank 0 looks for those who have not come.
const POLL: Duration = Duration::from_millis(20);

/// The store, for these ranks alone; `timeout` bounds this and each request to the store later. Collective.
pub fn join(place: &Place, timeout: Duration) -> Result<Store> {
    let serves = place.is_first() && !place.agent_store;
    let store = Store::tcp(&place.master_addr, place.master_port, place.world, serves, timeout)?;
    match place.agent_store {
        true => name(&store, place.rank, place.world, timeout),
        // It begins and ends with the ranks.
        false => Ok(store.served_by(0)),
    }
}

/// The part of `store` that is these ranks' own.
fn name(store: &Store, rank: usize, world: usize, timeout: Duration) -> Result<Store> {
    let drawn = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
    let name = match rank {
        0 => answer(store, &drawn, world, timeout).map(|()| drawn)?,
        _ => ask(store, rank, &drawn).context("rank 0 has not answered at the store")?,
    };
    Ok(store.prefixed(&format!("forebay/start/{name}"))?)
}

/// What rank 0 answers.
fn ask(store: &Store, rank: usize, drawn: &str) -> Result<String> {
    let answer = format!("forebay/answer/{drawn}");
    store.set(&format!("forebay/ask/{rank}"), drawn.as_bytes())?;
    let name = String::from_utf8(store.get(&answer)?)?;
    store.set(&format!("forebay/here/{name}/{rank}"), b"")?;
    store.delete(&answer)?;
    Ok(name)
}

/// Tells every rank the name. What an earlier start has asked is answered as well, and nobody reads it.
fn answer(store: &Store, name: &str, world: usize, timeout: Duration) -> Result<()> {
    let began = Instant::now();
    let mut awaited: Vec<(usize, Vec<u8>)> = (1..world).map(|rank| (rank, Vec::new())).collect();
    loop {
        let mut still = Vec::new();
        for (rank, mut answered) in awaited {
            let ask = format!("forebay/ask/{rank}");
            let asked = if store.contains(&ask)? { store.get(&ask)? } else { Vec::new() };
            if asked != answered {
                store.set(&format!("forebay/answer/{}", String::from_utf8_lossy(&asked)), name.as_bytes())?;
                answered = asked;
            }
            let here = format!("forebay/here/{name}/{rank}");
            match store.contains(&here)? {
                true => drop(store.delete(&here)?),
                false => still.push((rank, answered)),
            }
        }
        awaited = still;
        if awaited.is_empty() {
            return Ok(());
        }
        let missing = || awaited.iter().map(|(rank, _)| rank.to_string()).collect::<Vec<_>>().join(", ");
        ensure!(began.elapsed() < timeout, "these ranks have not come to the store: {}", missing());
        sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    fn place(server: &Store, rank: usize, world: usize) -> Place {
        Place {
            rank,
            world,
            local_rank: 0,
            local_world: 1,
            master_addr: "127.0.0.1".into(),
            master_port: server.port().unwrap(),
            agent_store: true,
            restart: 0,
            launcher: None,
            agent: None,
        }
    }

    /// All ranks of a start; gives what each saw of the others.
    fn start(server: &Store, world: usize) -> Vec<Vec<String>> {
        let rank = |rank: usize| {
            let place = place(server, rank, world);
            move || {
                // In any order.
                sleep(Duration::from_millis(40 * ((rank as u64 * 7) % 3)));
                let store = join(&place, TIMEOUT).unwrap();
                if rank == 0 {
                    assert!(!store.contains("met").unwrap(), "an earlier start's");
                    store.set("met", b"").unwrap();
                }
                store.set(&format!("seen/{rank}"), format!("{rank} of {world}").as_bytes()).unwrap();
                (0..world).map(|rank| store.get(&format!("seen/{rank}")).unwrap()).map(text).collect()
            }
        };
        let threads: Vec<_> = (0..world).map(|number| std::thread::spawn(rank(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn each_start_meets_apart() {
        let server = Store::serve(1, TIMEOUT).unwrap();
        // Ranks that died before anybody answered them.
        server.set("forebay/ask/1", b"old").unwrap();
        server.set("forebay/ask/2", b"older").unwrap();
        // A machine joins, one fails and comes again, two leave.
        for world in [2, 3, 3, 1] {
            let all: Vec<_> = (0..world).map(|rank| format!("{rank} of {world}")).collect();
            assert!(start(&server, world).iter().all(|seen| *seen == all));
        }
    }

    #[test]
    fn ranks_that_do_not_come_are_named() {
        let server = Store::serve(1, TIMEOUT).unwrap();
        let error = join(&place(&server, 0, 3), Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.to_string(), "these ranks have not come to the store: 1, 2");
        let error = join(&place(&server, 1, 3), Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.to_string(), "rank 0 has not answered at the store");
    }
}
