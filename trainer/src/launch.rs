//! The launcher: starts the ranks of one machine and ends all of them when one fails.
//!
//! It serves the store that the ranks meet at, as torchrun's agent does, on a loopback port that it has bound before
//! anyone is told of it. A failed rank is named within seconds; ranks that do not end by themselves by then, because
//! they wait for a peer that no longer exists, are killed. Should the launcher itself be killed, its ranks go with it.

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use forebay_c10d::Store;

use crate::failure::{self, ERROR_FILE, PEER_LOST, rank_name};
use crate::place::LAUNCHER;

/// How long the other ranks have, after the first failure, to end by themselves and to say why.
const GRACE: Duration = Duration::from_secs(2);
/// How often the ranks are looked at.
const POLL: Duration = Duration::from_millis(20);
/// The store's timeout for the launcher itself, which asks it nothing.
const STORE_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs this program's own command line on `world` ranks. The error names the rank that failed first.
pub fn run(world: usize) -> Result<()> {
    let program = std::env::current_exe().context("find this program's own file")?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1));
    run_command(command, world)
}

/// Runs `command` on `world` ranks.
fn run_command(mut command: Command, world: usize) -> Result<()> {
    let store = Store::serve(world, STORE_TIMEOUT)?;
    let folder = tempfile::tempdir().context("make a folder for the ranks' error files")?;
    command
        .envs([("MASTER_ADDR", "127.0.0.1"), ("TORCHELASTIC_USE_AGENT_STORE", "True")])
        .env(LAUNCHER, std::process::id().to_string())
        .env("MASTER_PORT", store.port()?.to_string())
        .envs([("WORLD_SIZE", world.to_string()), ("LOCAL_WORLD_SIZE", world.to_string())])
        .stdin(Stdio::null());
    // Ranks of one machine need no other interface. c10d also logs each error that it returns, with its stack; the
    // errors themselves are reported. Whoever sets these variables is asking for something else.
    for (key, value) in [("GLOO_SOCKET_IFNAME", "lo"), ("TORCH_CPP_LOG_LEVEL", "FATAL")] {
        if std::env::var_os(key).is_none() {
            command.env(key, value);
        }
    }
    let mut ranks = Ranks::default();
    for rank in 0..world {
        let error_file = folder.path().join(format!("rank{rank}.json"));
        command
            .envs([("RANK", rank.to_string()), ("LOCAL_RANK", rank.to_string())])
            .env(ERROR_FILE, &error_file);
        let child = command.spawn().with_context(|| format!("start {}", rank_name(rank, world)))?;
        ranks.0.push(Rank { child, error_file, end: None });
    }
    ranks.wait()
}

/// The ranks; those that still run are killed when this goes.
#[derive(Default)]
struct Ranks(Vec<Rank>);

struct Rank {
    child: Child,
    error_file: PathBuf,
    /// When it ended by itself, and how.
    end: Option<(Instant, ExitStatus)>,
}

impl Ranks {
    fn wait(mut self) -> Result<()> {
        let mut first_failure = None;
        loop {
            let mut running = false;
            for rank in self.0.iter_mut().filter(|rank| rank.end.is_none()) {
                match rank.child.try_wait().context("wait for a rank")? {
                    Some(status) => rank.end = Some((Instant::now(), status)),
                    None => running = true,
                }
            }
            if self.0.iter().any(Rank::failed) {
                let since = *first_failure.get_or_insert_with(Instant::now);
                if !running || since.elapsed() > GRACE {
                    return self.blame();
                }
            } else if !running {
                return Ok(());
            }
            sleep(POLL);
        }
    }

    /// The error of the rank that failed first, those that only lost a peer coming last.
    fn blame(&self) -> Result<()> {
        let failed = self.0.iter().enumerate().filter(|(_, rank)| rank.failed());
        let first = failed.min_by_key(|(_, rank)| (rank.lost_a_peer(), rank.end.map(|(when, _)| when)));
        let Some((number, rank)) = first else { return Ok(()) };
        let (name, world) = (rank_name(number, self.0.len()), self.0.len());
        let rest = if world > 1 { "; the other ranks were stopped" } else { "" };
        match (failure::read(&rank.error_file), rank.end) {
            (Some(message), _) if world == 1 => bail!("{message}"),
            (Some(message), _) => bail!("{name}: {message}"),
            (None, Some((_, status))) => bail!("{name} ended without a word ({status}){rest}"),
            (None, None) => bail!("{name} ended without a word{rest}"),
        }
    }
}

impl Rank {
    fn failed(&self) -> bool {
        self.end.is_some_and(|(_, status)| !status.success())
    }

    fn lost_a_peer(&self) -> bool {
        self.end.is_some_and(|(_, status)| status.code() == Some(PEER_LOST.into()))
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in self.0.iter_mut().filter(|rank| rank.end.is_none()) {
            // Either fails only if the rank has ended meanwhile.
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a shell script as the ranks; gives the outcome and the seconds it took.
    fn script(text: &str, world: usize) -> (Result<()>, f64) {
        let began = Instant::now();
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        (run_command(command, world), began.elapsed().as_secs_f64())
    }

    fn blamed(text: &str, world: usize) -> String {
        let (result, seconds) = script(text, world);
        assert!(seconds < 10.0, "took {seconds} s");
        result.unwrap_err().to_string()
    }

    #[test]
    fn ranks_get_torchruns_contract() {
        let expected = r#"[ "$WORLD_SIZE$LOCAL_WORLD_SIZE" = 33 ] && [ "$RANK" = "$LOCAL_RANK" ] && [ "$RANK" -lt 3 ] \
            && [ "$MASTER_ADDR" = 127.0.0.1 ] && [ "$MASTER_PORT" -gt 0 ] && [ "$TORCHELASTIC_USE_AGENT_STORE" = True ]"#;
        script(expected, 3).0.unwrap();
    }

    #[test]
    fn the_rank_that_died_is_named_and_the_others_are_stopped() {
        let killed = blamed("[ $RANK = 1 ] && kill -9 $$; exec sleep 60", 3);
        assert_eq!(
            killed,
            "rank 1 of 3 ended without a word (signal: 9 (SIGKILL)); the other ranks were stopped"
        );
        let silent = blamed("[ $RANK = 0 ] && exit 7; exec sleep 60", 2);
        assert_eq!(silent, "rank 0 of 2 ended without a word (exit status: 7); the other ranks were stopped");
    }

    #[test]
    fn a_rank_that_only_lost_its_peer_is_not_blamed() {
        let write = r#"echo "{\"message\": {\"message\": \"from $RANK\"}}" > "$TORCHELASTIC_ERROR_FILE""#;
        let late = format!("{write}; [ $RANK = 0 ] && exit 3; sleep 0.5; exit 1");
        assert_eq!(blamed(&late, 2), "rank 1 of 2: from 1");
        assert_eq!(blamed(&format!("{write}; exit 1"), 1), "from 0");
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error() {
        let error = run_command(Command::new("/nowhere/forebay"), 2).unwrap_err();
        assert!(format!("{error:#}").starts_with("start rank 0 of 2: "), "{error:#}");
    }
}
