//! 200 SIGKILLs: a reading process is killed at random steps and resumed, each time with another world size,
//! from one cache node or from three.

use super::dataset::open;
use super::reader::{Checkpoint, GLOBAL_BATCH, SampleCounts, WORLDS, samples, settings};
use crate::harness::check::{Check, Findings};
use crate::harness::reader::planned_digest;
use crate::harness::report::Row;
use anyhow::Context;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::runtime::Runtime;

/// Kills `kills` times, then reads to the end, and compares with the plan and with an undisturbed run. Each
/// process reads from one of `endpoints`, which belong to clusters of different size.
pub fn run(
    runtime: &Runtime,
    endpoints: &[String],
    uri: &str,
    kills: u32,
    seed: u64,
) -> anyhow::Result<Findings> {
    let endpoint = endpoints.first().context("there is a cluster")?.as_str();
    let folder = tempfile::tempdir()?;
    let dataset_rows = runtime.block_on(open(endpoint, uri))?.manifest.rows();
    let steps_per_epoch = dataset_rows.div_ceil(GLOBAL_BATCH);
    let most = 40;
    // Kills come 20 steps and a few milliseconds after a start, on average; twice as many steps leave some
    // for the last process.
    let epochs = (u64::from(kills) * most).div_ceil(steps_per_epoch).max(2);
    let path = folder.path().join("killed.json");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut killed = 0;
    let mut world = 0;
    while killed < kills {
        let others: Vec<u32> = WORLDS.iter().copied().filter(|w| *w != world).collect();
        world = others[random.usize(..others.len())];
        let after = (random.u64(1..=most), Duration::from_micros(random.u64(..3_000)));
        let cluster = &endpoints[random.usize(..endpoints.len())];
        match kill_after(cluster, uri, world, epochs, &path, after)? {
            true => killed += 1,
            false => break,
        }
    }
    finish(endpoint, uri, 4, epochs, &path)?;
    let undisturbed = folder.path().join("undisturbed.json");
    finish(endpoint, uri, 1, epochs, &undisturbed)?;
    let (seen, straight) = (Checkpoint::load(&path)?.seen, Checkpoint::load(&undisturbed)?.seen);
    let planned = runtime.block_on(planned(endpoint, uri, epochs))?;
    let order = seen.iter().map(|(epoch, seen)| (*epoch, (seen.digest.clone(), seen.samples))).collect();
    let exact = seen == straight && planned == order && killed == kills;
    let (counted, wanted) = (seen.values().map(|s| s.samples).sum::<u64>(), dataset_rows * epochs);
    let (lost, repeated) = (wanted.saturating_sub(counted), counted.saturating_sub(wanted));
    let (values_lost, values_repeated) = lost_and_repeated(&samples(&path)?, &samples(&undisturbed)?);
    let verdict = format!(
        "{killed} kills over {epochs} epochs, seed {seed}: digests of order and values {} the undisturbed run's, samples lost {lost}, \
         repeated {repeated}; by their values lost {values_lost}, repeated {values_repeated}",
        if seen == straight { "equal" } else { "DIFFER from" }
    );
    let row = |name: &str, unit, value: f64| Row::of(name, unit, &[value]);
    let rows = vec![
        row("kills", "kills", f64::from(killed)),
        row("kills_samples_lost", "samples", lost as f64),
        row("kills_samples_repeated", "samples", repeated as f64),
        row("kills_values_lost", "samples", values_lost as f64),
        row("kills_values_repeated", "samples", values_repeated as f64),
        row("kills_digests_equal", "1 = yes", f64::from(u8::from(exact))),
    ];
    let holds = exact && (values_lost, values_repeated) == (0, 0);
    Ok(Findings { rows, checks: vec![Check::of(verdict, "", holds)] })
}

/// How many samples were read less often than they should be, and how many more often: one of each does not
/// make up for the other.
fn lost_and_repeated(read: &SampleCounts, wanted: &SampleCounts) -> (u64, u64) {
    let missing = |of: &SampleCounts, from: &SampleCounts| {
        let times = |(sample, times): (&(u64, u64), &u64)| {
            times.saturating_sub(from.get(sample).copied().unwrap_or_default())
        };
        of.iter().map(times).sum::<u64>()
    };
    (missing(wanted, read), missing(read, wanted))
}

fn reader(endpoint: &str, uri: &str, world: u32, epochs: u64, checkpoint: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["reader", "--endpoint", endpoint, "--uri", uri]);
    command.args(["--world", &world.to_string(), "--epochs", &epochs.to_string()]);
    command.arg("--checkpoint").arg(checkpoint).stdin(Stdio::null());
    Ok(command)
}

/// Starts a reader and kills it a while after it has saved a number of steps; false if it came to the end
/// first.
fn kill_after(
    endpoint: &str,
    uri: &str,
    world: u32,
    epochs: u64,
    checkpoint: &Path,
    (steps, while_after): (u64, Duration),
) -> anyhow::Result<bool> {
    let mut child = reader(endpoint, uri, world, epochs, checkpoint)?.stdout(Stdio::piped()).spawn()?;
    let mut stdout = child.stdout.take().context("a reader has a stdout")?;
    let saved = stdout.read_exact(&mut vec![0; steps as usize]).is_ok();
    // Else each kill would come right after a checkpoint was written.
    std::thread::sleep(while_after);
    let reached = saved && child.try_wait()?.is_none();
    child.kill()?;
    let status = child.wait()?;
    anyhow::ensure!(reached || status.success(), "a reader of world {world} failed: {status}");
    Ok(reached)
}

fn finish(endpoint: &str, uri: &str, world: u32, epochs: u64, checkpoint: &Path) -> anyhow::Result<()> {
    let status = reader(endpoint, uri, world, epochs, checkpoint)?.stdout(Stdio::null()).status()?;
    anyhow::ensure!(status.success(), "a reader of world {world} failed: {status}");
    Ok(())
}

/// The order digest and samples of each epoch, by the plan.
async fn planned(endpoint: &str, uri: &str, epochs: u64) -> anyhow::Result<BTreeMap<u64, (String, u64)>> {
    let dataset = open(endpoint, uri).await?;
    let settings = settings();
    let seen = |epoch| {
        let digest = planned_digest(&dataset.manifest, &settings, epoch)?;
        Ok((epoch, (digest.to_string(), dataset.manifest.rows())))
    };
    (0..epochs).map(seen).collect()
}

#[test]
fn a_sample_that_comes_twice_does_not_make_up_for_one_that_is_lost() {
    let counts = |samples: &[(u64, u64)]| {
        let mut counts = SampleCounts::new();
        samples.iter().for_each(|sample| *counts.entry(*sample).or_default() += 1);
        counts
    };
    // Two images of the first epoch are alike.
    let wanted = counts(&[(0, 1), (0, 2), (0, 2), (1, 1), (1, 2)]);
    assert_eq!(lost_and_repeated(&wanted, &wanted), (0, 0));
    assert_eq!(lost_and_repeated(&counts(&[(0, 1), (0, 1), (0, 2), (1, 1), (1, 2)]), &wanted), (1, 1));
    assert_eq!(lost_and_repeated(&counts(&[(0, 1), (0, 2), (0, 2), (0, 2), (1, 1)]), &wanted), (1, 1));
}
