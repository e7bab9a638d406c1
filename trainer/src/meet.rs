//! Where the ranks of one start meet: a part of the store that no other start has used or will use.
//!
//! A launcher's store outlives its ranks: they are started anew after a failure, and by torchrun also when machines come
//! or go. What is left in it must not be taken for these ranks' own. How often they were started does not tell them
//! apart: torchrun's agents count failures of their own machine, so that the counts of two machines may differ, or be
//! the same as before. So each start gets a name of its own, by a handshake that nothing old can answer: every rank asks with a
//! number drawn for this start, and rank 0 answers with the name until every rank has said that it has it.
//!
//! What the starts of one job have to tell each other goes by [`Job`].

use std::hash::{BuildHasher, RandomState};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use forebay_c10d::Store;

use crate::place::Place;

/// How often rank 0 looks for those who have not come.
const POLL: Duration = Duration::from_millis(20);

/// The store as these ranks see it, and what reaches beyond them.
#[derive(Debug)]
pub struct Meeting {
    /// For these ranks alone.
    pub store: Store,
    /// For all starts of the job.
    pub job: Job,
}

/// All starts of the ranks, from the first on.
#[derive(Debug)]
pub struct Job {
    /// The launcher's store; none if a rank serves it, for then it ends with the ranks.
    store: Option<Store>,
    /// Whether the environment says that this start is not the first.
    restarted: bool,
}

impl Meeting {
    /// Comes together with the other ranks; `timeout` bounds this and each request to the store later. Collective.
    pub fn join(place: &Place, timeout: Duration) -> Result<Self> {
        let serves = place.is_first() && !place.agent_store;
        let store = Store::tcp(&place.master_addr, place.master_port, place.world, serves, timeout)?;
        let restarted = place.restart > 0;
        if !place.agent_store {
            return Ok(Self { store: store.served_by(0), job: Job { store: None, restarted } });
        }
        let own = name(&store, place.rank, place.world, timeout)?;
        Ok(Self { store: own, job: Job { store: Some(store), restarted } })
    }
}

impl Job {
    /// Whether an earlier start has done this.
    pub fn has(&self, deed: &str) -> Result<bool> {
        match &self.store {
            Some(store) => Ok(store.contains(&key(deed))?),
            None => Ok(self.restarted),
        }
    }

    /// Remembers, for later starts, that this is done.
    pub fn done(&self, deed: &str) -> Result<()> {
        self.store.as_ref().map_or(Ok(()), |store| Ok(store.set(&key(deed), b"")?))
    }
}

fn key(deed: &str) -> String {
    format!("forebay/job/{deed}")
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

    fn place(server: &Store, rank: usize, world: usize, restart: u64) -> Place {
        Place {
            rank,
            world,
            local_rank: 0,
            local_world: 1,
            master_addr: "127.0.0.1".into(),
            master_port: server.port().unwrap(),
            agent_store: true,
            restart,
            launcher: None,
        }
    }

    /// All ranks of a start, each with the restarts that its own agent has counted; gives what each saw of the others.
    fn start(server: &Store, restarts: &[u64]) -> Vec<Vec<String>> {
        let world = restarts.len();
        let rank = |rank: usize| {
            let place = place(server, rank, world, restarts[rank]);
            move || {
                // In any order.
                sleep(Duration::from_millis(40 * ((rank as u64 * 7) % 3)));
                let Meeting { store, job } = Meeting::join(&place, TIMEOUT).unwrap();
                assert!(!store.contains("met").unwrap() || rank > 0, "an earlier start's");
                let fresh = rank == 0 && !job.has("deed").unwrap();
                if rank == 0 {
                    store.set("met", b"").unwrap();
                    job.done("deed").unwrap();
                }
                store.set(&format!("seen/{rank}"), format!("{rank} of {world} {fresh}").as_bytes()).unwrap();
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
    fn each_start_meets_apart_whatever_its_agents_have_counted() {
        let server = Store::serve(1, TIMEOUT).unwrap();
        // Ranks that died before anybody answered them.
        server.set("forebay/ask/1", b"old").unwrap();
        server.set("forebay/ask/2", b"older").unwrap();
        // A machine that fails, one that joins with a count of its own, the same count again after one has left.
        let mut fresh = true;
        for restarts in [&[0, 0][..], &[1, 0, 0], &[1, 0], &[0]] {
            let world = restarts.len();
            for seen in start(&server, restarts) {
                let all = (0..world).map(|rank| format!("{rank} of {world} {}", fresh && rank == 0));
                assert_eq!(seen, all.collect::<Vec<_>>());
            }
            fresh = false;
        }
    }

    #[test]
    fn ranks_that_do_not_come_are_named() {
        let server = Store::serve(1, TIMEOUT).unwrap();
        let error = Meeting::join(&place(&server, 0, 3, 0), Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.to_string(), "these ranks have not come to the store: 1, 2");
        let error = Meeting::join(&place(&server, 1, 3, 0), Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.to_string(), "rank 0 has not answered at the store");
    }

    #[test]
    fn without_a_launchers_store_the_environment_says_what_was_before() {
        for restarted in [false, true] {
            let job = Job { store: None, restarted };
            job.done("deed").unwrap();
            assert_eq!(job.has("deed").unwrap(), restarted);
        }
    }
}
