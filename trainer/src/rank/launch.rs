//! The launcher: starts the ranks of one machine and ends all of them when one fails.
//!
//! It serves the store that the ranks meet at, as torchrun's agent does, on a loopback port that it has bound
//! before anyone is told of it. A failed rank is named within seconds; ranks that do not end by themselves by
//! then, because they wait for a peer that no longer exists, are killed. With restarts left, all ranks are
//! then restarted, from the newest checkpoint if they keep any. Should the launcher itself be killed, its
//! ranks go with it; should it be told to end (SIGTERM, Ctrl-C), they are told too and have time to write a
//! checkpoint.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use forebay_c10d::Store;
use rustix::process::{Pid, Signal, kill_process};

use crate::rank::env::{LAUNCHER, RESTART_COUNT};
use crate::rank::failure::{self, ERROR_FILE, PEER_LOST, WRITE_GRACE, Writing, rank_name};
use crate::rank::stop::StopSignals;

/// How long the other ranks have, after the first failure, to end by themselves and to say why.
const GRACE: Duration = Duration::from_secs(2);
/// How often the ranks are looked at.
const POLL: Duration = Duration::from_millis(20);
/// How often they are looked at in that time at least.
const POLLS: u32 = 50;
/// How long the ranks have, once told to end, to finish their step and to write a checkpoint.
const STOP_GRACE: Duration = Duration::from_secs(120);
/// The store's timeout for the launcher itself, which asks it nothing.
const STORE_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs this program's own command line on `world` ranks, and up to `restarts` times again if a rank fails.
/// The error names the rank that failed first.
pub fn run(world: usize, restarts: u32) -> Result<()> {
    let program = std::env::current_exe().context("find this program's own file")?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1));
    let signals = StopSignals::listen()?;
    run_command(command, world, restarts, &signals)
}

/// Runs `command` on `world` ranks.
fn run_command(mut command: Command, world: usize, restarts: u32, signals: &StopSignals) -> Result<()> {
    command
        .envs([("MASTER_ADDR", "127.0.0.1"), ("TORCHELASTIC_USE_AGENT_STORE", "True")])
        .env(LAUNCHER, std::process::id().to_string())
        .envs([("WORLD_SIZE", world.to_string()), ("LOCAL_WORLD_SIZE", world.to_string())])
        .env("TORCHELASTIC_MAX_RESTARTS", restarts.to_string())
        .stdin(Stdio::null());
    // Ranks of one machine need no other interface. c10d also logs each error that it returns, with its
    // stack; the errors themselves are reported. A user who sets these variables wants something else.
    for (key, value) in [("GLOO_SOCKET_IFNAME", "lo"), ("TORCH_CPP_LOG_LEVEL", "FATAL")] {
        if std::env::var_os(key).is_none() {
            command.env(key, value);
        }
    }
    for restart in 0..=restarts {
        command.env(RESTART_COUNT, restart.to_string());
        match start(&mut command, world)?.wait(signals) {
            Err(error) if restart < restarts && !signals.is_set() => {
                eprintln!("forebay-train: {error:#}; restart {} of {restarts}", restart + 1);
            }
            end => return end,
        }
    }
    Ok(())
}

/// Starts all ranks once, with a store of their own.
fn start(command: &mut Command, world: usize) -> Result<Ranks> {
    let store = Store::serve(world, STORE_TIMEOUT)?;
    command.env("MASTER_PORT", store.port()?.to_string());
    let folder = tempfile::tempdir().context("make a folder for the ranks' error files")?;
    let mut ranks = Ranks { all: Vec::with_capacity(world), folder, _store: store };
    for rank in 0..world {
        let error_file = ranks.folder.path().join(format!("rank{rank}.json"));
        command
            .envs([("RANK", rank.to_string()), ("LOCAL_RANK", rank.to_string())])
            .env(ERROR_FILE, &error_file);
        let child = command.spawn().with_context(|| format!("start {}", rank_name(rank, world)))?;
        ranks.all.push(Rank { child, error_file, end: None });
    }
    Ok(ranks)
}

/// The ranks; those that still run are killed when this goes.
struct Ranks {
    all: Vec<Rank>,
    folder: tempfile::TempDir,
    _store: Store,
}

struct Rank {
    child: Child,
    error_file: PathBuf,
    /// When it ended by itself, and how.
    end: Option<(Instant, ExitStatus)>,
}

impl Ranks {
    fn wait(mut self, signals: &StopSignals) -> Result<()> {
        let (mut first_failure, mut told_at, mut polls) = (None, None, 0);
        loop {
            let mut running = false;
            for rank in self.all.iter_mut().filter(|rank| rank.end.is_none()) {
                match rank.child.try_wait().context("wait for a rank")? {
                    Some(status) => rank.end = Some((Instant::now(), status)),
                    None => running = true,
                }
            }
            if self.all.iter().any(Rank::failed) {
                let since = *first_failure.get_or_insert_with(Instant::now);
                polls += 1;
                // Looked at as often as time allows: a machine that stood still takes from nobody's time to
                // say why.
                let is_late = since.elapsed() > GRACE && polls > POLLS;
                if !running || (is_late && (since.elapsed() > WRITE_GRACE || !self.is_writing())) {
                    let failed = |rank: &&Rank| rank.failed();
                    // Before a rank has begun, and where none keeps checkpoints, a signal ends it as any
                    // process.
                    if signals.is_set() && self.all.iter().filter(failed).all(Rank::ended_by_signal) {
                        bail!("stopped by {}: no checkpoint was written for it", signals.by());
                    }
                    return self.blame();
                }
            } else if !running {
                return Ok(());
            } else if signals.is_set() && told_at.is_none() {
                told_at = Some(Instant::now());
                self.all.iter().filter(|rank| rank.end.is_none()).for_each(Rank::tell);
            }
            if told_at.is_some_and(|at| at.elapsed() > STOP_GRACE) {
                bail!(
                    "the ranks did not end within {} s of {} and were killed",
                    STOP_GRACE.as_secs(),
                    signals.by()
                );
            }
            sleep(POLL);
        }
    }

    /// Whether one that still runs is at a checkpoint, which would be lost with it.
    fn is_writing(&self) -> bool {
        self.all.iter().any(|rank| rank.end.is_none() && Writing::is_marked(&rank.error_file))
    }

    /// The error of the rank that failed first, those that only lost a peer coming last.
    fn blame(&self) -> Result<()> {
        let failed = self.all.iter().enumerate().filter(|(_, rank)| rank.failed());
        let first = failed.min_by_key(|(_, rank)| (rank.lost_a_peer(), rank.end.map(|(when, _)| when)));
        let Some((number, rank)) = first else { return Ok(()) };
        let (name, world) = (rank_name(number, self.all.len()), self.all.len());
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

    fn ended_by_signal(&self) -> bool {
        let told = [Signal::TERM, Signal::INT].map(Signal::as_raw);
        self.end.is_some_and(|(_, status)| status.signal().is_some_and(|signal| told.contains(&signal)))
    }

    /// Passes SIGTERM on.
    fn tell(&self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // Fails only if it has ended meanwhile.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    fn lost_a_peer(&self) -> bool {
        self.end.is_some_and(|(_, status)| status.code() == Some(PEER_LOST.into()))
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in self.all.iter_mut().filter(|rank| rank.end.is_none()) {
            // Either fails only if the rank has ended meanwhile.
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    /// Runs a shell script as the ranks; gives the outcome and the seconds it took.
    fn script(text: &str, world: usize) -> (Result<()>, f64) {
        let began = Instant::now();
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        (run_command(command, world, 0, &StopSignals::default()), began.elapsed().as_secs_f64())
    }

    fn blamed(text: &str, world: usize) -> String {
        let (result, seconds) = script(text, world);
        assert!(seconds < 40.0, "took {seconds} s");
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
    fn a_checkpoint_that_is_being_written_is_finished() {
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path().join("kept");
        let write = format!(
            r#"mark="${{TORCHELASTIC_ERROR_FILE%.json}}.writing"; echo > "$mark"; sleep 5; echo > {}; rm "$mark"; exec sleep 60"#,
            kept.display()
        );
        let died = blamed(&format!("[ $RANK = 1 ] && sleep 1 && exit 7; {write}"), 2);
        assert!(died.starts_with("rank 1 of 2 ended without a word (exit status: 7)"), "{died}");
        assert!(kept.exists(), "it was killed while it wrote");
    }

    #[test]
    fn a_rank_that_only_lost_its_peer_is_not_blamed() {
        let write = r#"echo "{\"message\": {\"message\": \"from $RANK\"}}" > "$TORCHELASTIC_ERROR_FILE""#;
        let late = format!("{write}; [ $RANK = 0 ] && exit 3; sleep 0.1; exit 1");
        assert_eq!(blamed(&late, 2), "rank 1 of 2: from 1");
        assert_eq!(blamed(&format!("{write}; exit 1"), 1), "from 0");
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error() {
        let error = run_command(Command::new("/nowhere/forebay"), 2, 3, &StopSignals::default()).unwrap_err();
        assert!(format!("{error:#}").starts_with("start rank 0 of 2: "), "{error:#}");
    }

    #[test]
    fn failed_ranks_are_started_anew_as_often_as_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let run = |restarts| {
            let mut command = Command::new("sh");
            command.current_dir(folder.path()).args([
                "-c",
                "echo $RANK $TORCHELASTIC_RESTART_COUNT >> seen; [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 4",
            ]);
            run_command(command, 2, restarts, &StopSignals::default())
        };
        let error = run(1).unwrap_err().to_string();
        assert!(error.contains("ended without a word (exit status: 4)"), "{error}");
        run(5).unwrap();
        let seen = std::fs::read_to_string(folder.path().join("seen")).unwrap();
        let seen: Vec<_> = seen.lines().collect();
        // Two starts, then three; a shell that is slow to start may be stopped before it says so.
        assert!(seen.len() <= 10 && seen.contains(&"0 2") && seen.contains(&"1 2"), "{seen:?}");
        assert!(seen.iter().all(|line| ["0", "1", "2"].contains(&&line[2..])), "{seen:?}");
    }

    #[test]
    fn ranks_are_told_to_end_and_may_do_so_well() {
        let signals = StopSignals::default();
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        let script =
            "trap 'echo done > ended$RANK; exit 0' TERM; echo up > up$RANK; while :; do sleep 0.05; done";
        command.current_dir(folder.path()).args(["-c", script]);
        let up = || [0, 1].iter().all(|rank| folder.path().join(format!("up{rank}")).exists());
        std::thread::scope(|scope| {
            let (run, signals) = (scope.spawn(|| run_command(command, 2, 3, &signals)), &signals);
            while !up() && !run.is_finished() {
                sleep(POLL);
            }
            signals.0.store(true, Ordering::Relaxed);
            run.join().unwrap().unwrap();
        });
        assert!(folder.path().join("ended0").exists() && folder.path().join("ended1").exists());
    }

    #[test]
    fn ranks_that_sigterm_ends_are_blamed_for_nothing() {
        let signals = StopSignals::default();
        signals.0.store(true, Ordering::Relaxed);
        let mut command = Command::new("sh");
        command.args(["-c", "exec sleep 60"]);
        let error = run_command(command, 2, 3, &signals).unwrap_err().to_string();
        assert_eq!(error, "stopped by SIGTERM: no checkpoint was written for it");
    }
}
