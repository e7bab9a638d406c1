//! Where the ranks compute: all on GPUs, or all on processors.

use anyhow::{Context, Result, ensure};
use forebay_c10d::Store;

use crate::input::transfer::Compute;
use crate::rank::env::RankEnv;
use crate::rank::rendezvous::FAREWELL;
use crate::report::progress::say;
use crate::settings::DeviceName;

/// Opens this rank's device. With `auto` all ranks come to the same, by way of `store`; rank 0 says which,
/// and why. Collective.
pub fn open(name: DeviceName, env: &RankEnv, store: &Store) -> Result<Compute> {
    match name {
        DeviceName::Cpu => Ok(Compute::CPU),
        DeviceName::Cuda => all(Compute::gpu(env.local_rank), env, store).context("--device cuda"),
        DeviceName::Auto => agreed(Compute::gpu(env.local_rank), env, store),
    }
}

/// What this rank has found; an error if it or another has found nothing, for no rank can begin without the
/// others.
fn all(found: Result<Compute>, env: &RankEnv, store: &Store) -> Result<Compute> {
    let lacking = lacking(&found, env, store)?;
    if !lacking.is_empty() && env.is_first() && env.world > 1 && !env.agent_store {
        // The store goes with this rank; the others read it first.
        std::thread::sleep(FAREWELL);
    }
    let gpu = found?;
    ensure!(lacking.is_empty(), lacking);
    Ok(gpu)
}

/// What this rank has found if the others have as well, else the processor: one group has one backend.
fn agreed(found: Result<Compute>, env: &RankEnv, store: &Store) -> Result<Compute> {
    let lacking = lacking(&found, env, store)?;
    let compute = match found {
        Ok(gpu) if lacking.is_empty() => gpu,
        _ => Compute::CPU,
    };
    if env.is_first() {
        say(&match lacking.is_empty() {
            true => format!("--device auto: cuda, for each of {} ranks has a GPU", env.world),
            false => format!("--device auto: cpu, for {lacking}"),
        });
    }
    Ok(compute)
}

/// Which rank has found no GPU, the first of them, and why; empty if all have. Collective, by way of `store`.
fn lacking(found: &Result<Compute>, env: &RankEnv, store: &Store) -> Result<String> {
    let key = |rank: usize| format!("device/{rank}");
    let lacks = found.as_ref().err().map(|error| format!("{error:#}")).unwrap_or_default();
    store.set(&key(env.rank), lacks.as_bytes())?;
    if env.is_first() {
        let mut verdict = Vec::new();
        for rank in 0..env.world {
            let lacks = store.get(&key(rank))?;
            if verdict.is_empty() && !lacks.is_empty() {
                verdict = [format!("rank {rank}: ").as_bytes(), &lacks].concat();
            }
        }
        store.set("device", &verdict)?;
    }
    Ok(String::from_utf8_lossy(&store.get("device")?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use tch::Device;

    use crate::input::transfer::tests::fake_gpu;

    fn env(rank: usize, world: usize) -> RankEnv {
        RankEnv {
            rank,
            world,
            local_rank: 0,
            local_world: 1,
            master_addr: "localhost".into(),
            master_port: 1,
            agent_store: false,
            restart: 0,
            launcher: None,
            agent: None,
        }
    }

    const TIMEOUT: Duration = Duration::from_secs(20);

    #[test]
    fn no_plugin_is_an_error_that_names_the_flag_and_a_reason_for_the_cpu() {
        if std::env::var_os(forebay_c10d::PLUGIN_VARIABLE).is_none() {
            let store = Store::serve(1, TIMEOUT).unwrap();
            let open = |name| super::open(name, &env(0, 1), &store);
            let error = format!("{:#}", open(DeviceName::Cuda).unwrap_err());
            assert!(error.starts_with("--device cuda: load CUDA: "), "{error}");
            assert_eq!(open(DeviceName::Auto).unwrap().device(), Device::Cpu);
            let reason = String::from_utf8(store.get("device").unwrap()).unwrap();
            assert!(reason.starts_with("rank 0: load CUDA: no libforebay_c10d_nccl.so in "), "{reason}");
        }
    }

    #[test]
    fn one_rank_without_a_gpu_keeps_all_from_theirs() {
        let gpu = fake_gpu();
        for (lacking, expected) in [(None, gpu.device()), (Some(2), Device::Cpu)] {
            let server = Store::serve(1, TIMEOUT).unwrap();
            let rank = |rank: usize| {
                let store = Store::tcp("127.0.0.1", server.port().unwrap(), 1, false, TIMEOUT).unwrap();
                let found = if lacking == Some(rank) { Err(anyhow::anyhow!("no GPU")) } else { Ok(gpu) };
                std::thread::spawn(move || agreed(found, &env(rank, 3), &store).unwrap().device())
            };
            let threads: Vec<_> = (0..3).map(rank).collect();
            for thread in threads {
                assert_eq!(thread.join().unwrap(), expected);
            }
            let reason = lacking.map(|rank| format!("rank {rank}: no GPU")).unwrap_or_default();
            assert_eq!(server.get("device").unwrap(), reason.as_bytes());
        }
    }

    #[test]
    fn where_gpus_are_asked_for_all_are_told_of_the_rank_without_one() {
        let server = Store::serve(1, TIMEOUT).unwrap();
        let rank = |rank: usize| {
            let store = Store::tcp("127.0.0.1", server.port().unwrap(), 1, false, TIMEOUT).unwrap();
            let gpu = fake_gpu();
            let found = if rank == 1 { Err(anyhow::anyhow!("no GPU")) } else { Ok(gpu) };
            std::thread::spawn(move || all(found, &env(rank, 3), &store).unwrap_err().to_string())
        };
        let told: Vec<_> =
            (0..3).map(rank).collect::<Vec<_>>().into_iter().map(|t| t.join().unwrap()).collect();
        assert_eq!(told, ["rank 1: no GPU", "no GPU", "rank 1: no GPU"]);
    }
}
