//! A rank is killed: how long until all others have ended, and do they name the lost one?
//!
//! Each rank in its turn. Without a launcher rank 0 serves the TCP store, which tells the others who is lost.
//! A checkpoint shows that the ranks have met and train; then one is killed.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::trainer;
use crate::harness::check::{Check, Findings};
use crate::harness::mnist;
use crate::harness::ports::free_address;
use crate::harness::process::Running;
use crate::harness::report::Row;

/// The promise.
const LIMIT_S: f64 = 10.0;

/// The step whose checkpoint is waited for.
const STEP: u64 = 20;

/// Kills a rank `kills` times with our launcher, and as often without.
pub fn measure(kills: u32) -> Result<Findings> {
    let uri = format!("file://{}", mnist::folder().join("test").canonicalize()?.display());
    let (mut launched, mut alone, mut named) = (Vec::new(), Vec::new(), 0);
    for kill in 0..kills {
        let victim = kill as usize % 3;
        let (seconds, said) = with_launcher(&uri, victim)?;
        launched.push(seconds);
        named += u32::from(said.contains(&format!("rank {victim} of 3 ended without a word")));
        let (seconds, said) = without_launcher(&uri, victim)?;
        alone.push(seconds);
        named += u32::from(said.iter().all(|line| names(line, victim)));
    }
    let slowest = launched.iter().chain(&alone).copied().fold(0.0, f64::max);
    let kept = slowest <= LIMIT_S && named == 2 * kills;
    let text = format!(
        "{} ranks killed: the others ended within {slowest:.1} s, {named} times naming the lost rank",
        2 * kills
    );
    let rows = vec![
        Row::of("kill_detect_s", "s", &launched),
        Row::of("kill_detect_without_launcher_s", "s", &alone),
        Row::of("kill_named", "share of kills", &[f64::from(named) / f64::from(2 * kills)]),
    ];
    Ok(Findings { rows, checks: vec![Check::of(text, "", kept)] })
}

/// Whether a survivor's last line blames `victim`, beside saying who it is itself.
fn names(line: &str, victim: usize) -> bool {
    line.contains(&format!("rank {victim}"))
}

fn line(uri: &str, checkpoints: &Path) -> Vec<String> {
    let (every, directory) = (STEP.to_string(), checkpoints.to_string_lossy().into_owned());
    let line =
        ["--direct", "--train", uri, "--epochs", "1000", "--batch", "96", "--checkpoint-every", &every];
    line.into_iter().chain(["--checkpoint-dir", &directory]).map(str::to_owned).collect()
}

fn with_launcher(uri: &str, victim: usize) -> Result<(f64, String)> {
    let folder = tempfile::tempdir()?;
    let mut run = trainer::run(line(uri, folder.path()))?.args(["--nproc", "3"]).try_start()?;
    trainer::wait_for_step(&mut run, folder.path(), STEP)?;
    let ranks = trainer::children(run.pid());
    ensure!(ranks.len() == 3, "three ranks were started, not {}", ranks.len());
    let mut ranks: Vec<_> = ranks.into_iter().filter_map(|pid| Some((rank_of(pid)?, pid))).collect();
    ranks.sort_unstable();
    trainer::kill(ranks[victim].1)?;
    let began = Instant::now();
    let ended = run.try_end()?;
    ensure!(ended.code.is_some_and(|code| code != 0), "a run without a rank ended with {:?}", ended.code);
    Ok((began.elapsed().as_secs_f64(), ended.stderr))
}

fn without_launcher(uri: &str, victim: usize) -> Result<(f64, Vec<String>)> {
    let (address, folder) = (free_address()?, tempfile::tempdir()?);
    let port = address.rsplit(':').next().unwrap_or_default().to_owned();
    let start = |rank: usize| -> Result<Running> {
        let rank = rank.to_string();
        let place = [("RANK", rank.as_str()), ("LOCAL_RANK", &rank), ("WORLD_SIZE", "3")];
        let run = trainer::run(line(uri, folder.path()))?.envs(place).envs([("GLOO_SOCKET_IFNAME", "lo")]);
        let run = run.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)]);
        run.envs([("TORCH_CPP_LOG_LEVEL", "FATAL")]).try_start()
    };
    let mut ranks = (0..3).map(start).collect::<Result<Vec<_>>>()?;
    trainer::wait_for_step(&mut ranks[0], folder.path(), STEP)?;
    let dead = ranks.remove(victim);
    trainer::kill(dead.pid())?;
    let began = Instant::now();
    let mut said = Vec::new();
    for rank in ranks {
        let ended = rank.try_end()?;
        ensure!(ended.code.is_some_and(|code| code != 0), "a survivor ended with {:?}", ended.code);
        said.push(ended.stderr.lines().last().unwrap_or_default().to_owned());
    }
    Ok((began.elapsed().as_secs_f64(), said))
}

fn rank_of(pid: u32) -> Option<usize> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    variables.find_map(|variable| variable.strip_prefix("RANK=")?.parse().ok())
}
