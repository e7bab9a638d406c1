//! Where the ranks of one start meet: a part of the store that no other start has used or will use.
//!
//! Rank 0 waits until every rank has come, so that one that never does is named, by all, rather than waited
//! for by each in its first collective; and every rank says how many ranks it believes there are.
//!
//! A launcher's store may outlive its ranks: torchrun restarts them after a failure, and when machines come
//! or go. Keys that are left in it must not be taken for these ranks' own. How often they were started does
//! not tell them apart: torchrun's agents count failures of their own machine, so that the counts of two
//! machines may differ, or be the same as before. So each start gets a name of its own, by a handshake that
//! nothing old can answer: every rank asks with a number drawn for this start, and rank 0 answers by the name
//! until every rank has said that it has it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use forebay_c10d::Store;

use crate::rank::env::RankEnv;

/// How often rank 0 looks for those who have not come.
const POLL: Duration = Duration::from_millis(20);
/// How long the store that rank 0 serves outlives a failed meeting, for the others to read why it failed.
pub(crate) const FAREWELL: Duration = Duration::from_secs(1);
/// In a store of rank 0's own: its world size; what another rank found wrong; how the meeting ended (empty:
/// well).
const WORLD: &str = "forebay/world";
const WRONG: &str = "forebay/wrong";
const MET: &str = "forebay/met";

/// The store, for these ranks alone; `timeout` bounds this and each request to the store later. Collective.
pub fn join(env: &RankEnv, timeout: Duration) -> Result<Store> {
    let RankEnv { rank, world, master_addr: host, master_port: port, .. } = env;
    let at = || format!("MASTER_ADDR={host}, MASTER_PORT={port}");
    if env.agent_store {
        let store = Store::tcp(host, *port, *world, false, timeout).with_context(at)?;
        return name(&store, *rank, *world, timeout);
    }
    // It begins and ends with the ranks.
    if env.is_first() {
        let store = Store::host(host, *port, timeout).with_context(at)?.served_by(0);
        gather(&store, *world, timeout)?;
        return Ok(store);
    }
    let store = Store::tcp(host, *port, *world, false, timeout).with_context(at)?.served_by(0);
    come(&store, *rank, *world)?;
    Ok(store)
}

/// What rank 0 does at a store of its own.
fn gather(store: &Store, world: usize, timeout: Duration) -> Result<()> {
    store.set(WORLD, world.to_string().as_bytes())?;
    let (mut awaited, began): (Vec<_>, _) = ((1..world).collect(), Instant::now());
    let met = loop {
        let mut still = Vec::new();
        for rank in awaited {
            if !store.contains(&here(rank))? {
                still.push(rank);
            }
        }
        awaited = still;
        if store.contains(WRONG)? {
            break String::from_utf8(store.get(WRONG)?)?;
        } else if awaited.is_empty() {
            break String::new();
        } else if began.elapsed() >= timeout {
            break missing(&awaited);
        }
        sleep(POLL);
    };
    store.set(MET, met.as_bytes())?;
    if met.is_empty() {
        return Ok(());
    }
    sleep(FAREWELL);
    bail!(met)
}

/// What the others do there.
fn come(store: &Store, rank: usize, world: usize) -> Result<()> {
    let first: usize = String::from_utf8(store.get(WORLD)?)?.parse()?;
    let wrong = |wrong: String| -> Result<()> {
        store.set(WRONG, wrong.as_bytes())?;
        bail!(wrong)
    };
    if first != world {
        // This rank does not come: rank 0 finds out why, and does not take it for one that is there.
        return wrong(unequal(rank, world, first));
    }
    if store.add(&here(rank), 1)? > 1 {
        return wrong(format!("two processes have RANK={rank}"));
    }
    let met = String::from_utf8(store.get(MET).context("rank 0 waits for other ranks")?)?;
    ensure!(met.is_empty(), met);
    Ok(())
}

fn here(rank: usize) -> String {
    format!("forebay/here/{rank}")
}

fn missing(ranks: &[usize]) -> String {
    let ranks: Vec<_> = ranks.iter().map(usize::to_string).collect();
    format!("these ranks have not come to the store: {}", ranks.join(", "))
}

fn unequal(rank: usize, world: usize, first: usize) -> String {
    format!("rank {rank} has WORLD_SIZE={world}, but rank 0 has WORLD_SIZE={first}: start all with the same")
}

/// The part of a launcher's `store` that is these ranks' own.
fn name(store: &Store, rank: usize, world: usize, timeout: Duration) -> Result<Store> {
    let drawn = format!("{:016x}-{world}", fastrand::u64(..));
    let name = match rank {
        0 => {
            let met = answer(store, &drawn, world, timeout);
            let wrong = met.as_ref().err().map(|error| error.to_string()).unwrap_or_default();
            store.set(&met_key(&drawn), wrong.as_bytes())?;
            met.map(|()| drawn)?
        }
        _ => ask(store, (rank, world), &drawn, timeout)?,
    };
    Ok(store.prefixed(&format!("forebay/start/{name}"))?)
}

/// What rank 0 answers.
fn ask(store: &Store, (rank, world): (usize, usize), drawn: &str, timeout: Duration) -> Result<String> {
    let answer = format!("forebay/answer/{drawn}");
    store.set(&format!("forebay/ask/{rank}"), drawn.as_bytes())?;
    let name = store.get(&answer).context("rank 0 has not answered at the store")?;
    let name = String::from_utf8(name)?;
    let first = name.rsplit_once('-').and_then(|(_, world)| world.parse().ok()).unwrap_or(world);
    let wrong = if first == world { String::new() } else { unequal(rank, world, first) };
    store.set(&format!("forebay/here/{name}/{rank}"), wrong.as_bytes())?;
    store.delete(&answer)?;
    ensure!(wrong.is_empty(), wrong);
    let met = met_key(&name);
    // Rank 0 gives up on the others only after as long.
    store.wait(&[&met], timeout + FAREWELL).context("rank 0 waits for other ranks")?;
    let wrong = String::from_utf8(store.get(&met)?)?;
    ensure!(wrong.is_empty(), wrong);
    Ok(name)
}

/// How the meeting of a start ended, in a launcher's store (empty: well).
fn met_key(name: &str) -> String {
    format!("forebay/met/{name}")
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
            if !store.contains(&here)? {
                still.push((rank, answered));
                continue;
            }
            let wrong = String::from_utf8(store.get(&here)?)?;
            ensure!(wrong.is_empty(), wrong);
            store.delete(&here)?;
        }
        awaited = still;
        if awaited.is_empty() {
            return Ok(());
        }
        let ranks = || awaited.iter().map(|(rank, _)| *rank).collect::<Vec<_>>();
        ensure!(began.elapsed() < timeout, missing(&ranks()));
        sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::free_port;

    const TIMEOUT: Duration = Duration::from_secs(120);

    fn env(server: &Store, rank: usize, world: usize) -> RankEnv {
        place_at(server.port().unwrap(), rank, world, true)
    }

    fn place_at(master_port: u16, rank: usize, world: usize, agent_store: bool) -> RankEnv {
        RankEnv {
            rank,
            world,
            local_rank: 0,
            local_world: 1,
            master_addr: "127.0.0.1".into(),
            master_port,
            agent_store,
            restart: 0,
            launcher: None,
            agent: None,
        }
    }

    /// All ranks of a start; gives what each saw of the others.
    fn start(server: &Store, world: usize) -> Vec<Vec<String>> {
        let rank = |rank: usize| {
            let env = env(server, rank, world);
            move || {
                // In any order.
                sleep(Duration::from_millis(40 * ((rank as u64 * 7) % 3)));
                let store = join(&env, TIMEOUT).unwrap();
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
        let error = join(&env(&server, 0, 3), Duration::from_secs(3)).unwrap_err();
        assert_eq!(error.to_string(), "these ranks have not come to the store: 1, 2");
        let port = free_port();
        let of_four = |rank| place_at(port, rank, 4, false);
        let ours = together([(of_four(0), Duration::from_secs(8)), (of_four(2), TIMEOUT)]);
        let launchers = Store::serve(1, TIMEOUT).unwrap();
        let of_four = |rank| env(&launchers, rank, 4);
        let theirs = together([(of_four(0), Duration::from_secs(8)), (of_four(2), TIMEOUT)]);
        for error in [ours, theirs].concat() {
            assert_eq!(error, "these ranks have not come to the store: 1, 3");
        }
        let error = join(&env(&server, 1, 3), Duration::from_secs(3)).unwrap_err();
        assert_eq!(error.to_string(), "rank 0 has not answered at the store");
    }

    /// What those who join in vain are told.
    fn together<const N: usize>(places: [(RankEnv, Duration); N]) -> [String; N] {
        let began = Instant::now();
        let threads =
            places.map(|(env, timeout)| std::thread::spawn(move || join(&env, timeout).unwrap_err()));
        let told = threads.map(|thread| format!("{:#}", thread.join().unwrap()));
        assert!(began.elapsed() < TIMEOUT / 2, "took {:?}: {told:?}", began.elapsed());
        told
    }

    #[test]
    fn unequal_world_sizes_are_named_by_both_at_once() {
        for agent_store in [false, true] {
            let server = agent_store.then(|| Store::serve(1, TIMEOUT).unwrap());
            for (first, second) in [(2, 3), (3, 2)] {
                let port = server.as_ref().map_or_else(free_port, |server| server.port().unwrap());
                let env = |rank, world| (place_at(port, rank, world, agent_store), TIMEOUT);
                for error in together([env(0, first), env(1, second)]) {
                    let expected = format!(
                        "rank 1 has WORLD_SIZE={second}, but rank 0 has WORLD_SIZE={first}: start all with the same"
                    );
                    assert_eq!(error, expected);
                }
            }
        }
    }

    #[test]
    fn one_rank_too_many_is_told_so() {
        let port = free_port();
        let _first = join(&place_at(port, 0, 1, false), TIMEOUT).unwrap();
        let [error] = together([(place_at(port, 1, 2, false), TIMEOUT)]);
        assert!(error.starts_with("rank 1 has WORLD_SIZE=2, but rank 0 has WORLD_SIZE=1"), "{error}");
        let port = free_port();
        let error = together([0, 1, 1].map(|rank| (place_at(port, rank, 3, false), TIMEOUT)));
        assert!(error.iter().all(|error| error == "two processes have RANK=1"), "{error:?}");
    }

    #[test]
    fn a_port_that_is_another_programs_is_named() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let errors = together([0, 1].map(|rank| (place_at(port, rank, 2, false), TIMEOUT)));
        let at = format!("MASTER_ADDR=127.0.0.1, MASTER_PORT={port}: open the store: ");
        assert_eq!(errors[0], format!("{at}port {port} is in use by another program"));
        assert!(
            errors[1].starts_with(&format!("{at}what listens at 127.0.0.1:{port} is no TCP store: ")),
            "{errors:?}"
        );
    }
}
