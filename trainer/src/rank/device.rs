//! Where a rank computes: the CPU, or its GPU, which it reaches through the CUDA plugin.
//!
//! Batches reach a GPU from pinned memory, on a stream of their own, one ahead of the step: while the GPU computes on one,
//! the next one travels. Whoever prepares a batch stages it ([`Compute::stage`]), so that the training thread only has to put
//! the copy on the stream ([`Compute::send`]), and the step waits for it on the device, not on the host
//! ([`Compute::receive`]). On a CPU nothing is copied.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use forebay_c10d::{Cuda, Event, NcclSettings, ProcessGroup, Store, Stream, copy_into, pinned, to_device};
use tch::{Device, Tensor};

use crate::input::Input;
use crate::rank::env::RankEnv;
use crate::rank::rendezvous::FAREWELL;
use crate::rank::session::say;

/// What `--device` takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum DeviceName {
    /// The processor; ranks talk by Gloo
    #[default]
    Cpu,
    /// One GPU per rank, by its local rank; ranks talk by NCCL
    Cuda,
    /// cuda if every rank has a GPU, else cpu
    Auto,
}

/// A rank's device, ready for use.
#[derive(Debug, Clone, Copy)]
pub struct Compute {
    device: Device,
    cuda: Option<Cuda>,
    /// The stream that batches are copied on.
    copies: Option<Stream>,
}

/// A batch on its way to the device.
#[derive(Debug)]
pub struct Sent {
    input: Input,
    /// Where the copy is through; none if nothing is copied.
    copied: Option<Event>,
}

/// Where a device waited for a batch.
#[derive(Debug)]
pub struct Stall {
    asked: Event,
    there: Event,
}

impl Compute {
    /// The processor.
    pub const CPU: Self = Self { device: Device::Cpu, cuda: None, copies: None };

    /// Opens the plugin if a GPU is asked for, before anything else asks libtorch about CUDA. With `auto` all ranks come
    /// to the same device, by way of `store`; rank 0 says which, and why.
    pub fn open(name: DeviceName, env: &RankEnv, store: &Store) -> Result<Self> {
        match name {
            DeviceName::Cpu => Ok(Self::CPU),
            DeviceName::Cuda => Self::all(Self::gpu(env), env, store).context("--device cuda"),
            DeviceName::Auto => Self::agreed(Self::gpu(env), env, store),
        }
    }

    fn gpu(env: &RankEnv) -> Result<Self> {
        let cuda = Cuda::load()?;
        ensure!(
            env.local_rank < cuda.devices(),
            "local rank {} has no GPU of its own: this machine shows {} (one rank per GPU)",
            env.local_rank,
            cuda.devices()
        );
        let device = Device::Cuda(env.local_rank);
        Ok(Self { device, cuda: Some(cuda), copies: Some(Stream::from_pool(device, true)?) })
    }

    /// What this rank has found; an error if it or another has found nothing, for no rank can begin without the others.
    fn all(found: Result<Self>, env: &RankEnv, store: &Store) -> Result<Self> {
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
    fn agreed(found: Result<Self>, env: &RankEnv, store: &Store) -> Result<Self> {
        let lacking = lacking(&found, env, store)?;
        let compute = match found {
            Ok(gpu) if lacking.is_empty() => gpu,
            _ => Self::CPU,
        };
        if env.is_first() {
            say(&match lacking.is_empty() {
                true => format!("--device auto: cuda, for each of {} ranks has a GPU", env.world),
                false => format!("--device auto: cpu, for {lacking}"),
            });
        }
        Ok(compute)
    }

    /// Has a group use what the device wants besides Gloo. Collective.
    pub fn enter(
        &self,
        group: &ProcessGroup,
        env: &RankEnv,
        timeout: Duration,
        nccl: &NcclSettings,
    ) -> Result<()> {
        if let Some(cuda) = &self.cuda {
            cuda.nccl(group, env.local_rank, timeout, nccl)?;
        }
        Ok(())
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Whether batches are copied to it.
    pub fn copies(&self) -> bool {
        self.copies.is_some()
    }

    /// The batch where a copy can run beside other work: in pinned memory. Any thread may do it.
    pub fn stage(&self, input: Input) -> Result<Input> {
        if !self.copies() {
            return Ok(input);
        }
        input.try_map(|tensor| {
            let mut staged = pinned(&tensor.size(), tensor.kind())?;
            copy_into(&mut staged, tensor, false)?;
            Ok(staged)
        })
    }

    /// Begins to copy a staged batch to the device. libtorch gives pinned memory to nobody else before the copy is
    /// through, and takes for the copy no memory of the device that a step still reads ([`Compute::receive`]).
    pub fn send(&self, staged: Input) -> Result<Sent> {
        let Some(copies) = &self.copies else { return Ok(Sent { input: staged, copied: None }) };
        let input = copies.run(|| staged.try_map(|tensor| Ok(to_device(tensor, self.device, true)?)))??;
        let mut copied = Event::new(self.device, false)?;
        copied.record(copies)?;
        Ok(Sent { input, copied: Some(copied) })
    }

    /// The batch on the device, for this thread's operations: they wait for the copy, the host does not. Gives too how
    /// to find out for how long they did.
    pub fn receive(&self, sent: Sent) -> Result<(Input, Option<Stall>)> {
        let Sent { input, copied } = sent;
        let Some(copied) = copied else { return Ok((input, None)) };
        let computing = Stream::current(self.device)?;
        let mark = || -> Result<Event> {
            let mut mark = Event::new(self.device, true)?;
            mark.record(&computing)?;
            Ok(mark)
        };
        let asked = mark()?;
        copied.block(&computing)?;
        let stall = Stall { asked, there: mark()? };
        input.tensors().try_for_each(|tensor: &Tensor| computing.keep(tensor))?;
        Ok((input, Some(stall)))
    }
}

impl Stall {
    /// For how long the device had nothing to do but wait for the batch; to be asked when the step is through.
    pub fn time(&self) -> Result<Duration> {
        let ms = self.asked.elapsed_ms(&self.there)?;
        Ok(Duration::from_secs_f64(ms.max(0.0) / 1e3))
    }
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
    use crate::input::Role;

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
    fn the_cpu_takes_batches_as_they_are() {
        let store = Store::serve(1, TIMEOUT).unwrap();
        let compute = Compute::open(DeviceName::Cpu, &env(0, 1), &store).unwrap();
        let labels = Tensor::from_slice(&[1i64, 2]);
        let input = Input::new(2, vec![(Role::Label, labels.shallow_clone())], None);
        let sent = compute.send(compute.stage(input).unwrap()).unwrap();
        let (taken, stall) = compute.receive(sent).unwrap();
        assert_eq!(taken.get(Role::Label).unwrap().data_ptr(), labels.data_ptr());
        assert_eq!((compute.device(), compute.copies(), stall.is_none()), (Device::Cpu, false, true));
    }

    #[test]
    fn no_plugin_is_an_error_that_names_the_flag_and_a_reason_for_the_cpu() {
        if std::env::var_os(forebay_c10d::PLUGIN_VARIABLE).is_none() {
            let store = Store::serve(1, TIMEOUT).unwrap();
            let open = |name| Compute::open(name, &env(0, 1), &store);
            let error = format!("{:#}", open(DeviceName::Cuda).unwrap_err());
            assert!(error.starts_with("--device cuda: load CUDA: "), "{error}");
            assert_eq!(open(DeviceName::Auto).unwrap().device(), Device::Cpu);
            let reason = String::from_utf8(store.get("device").unwrap()).unwrap();
            assert!(reason.starts_with("rank 0: load CUDA: no libforebay_c10d_nccl.so in "), "{reason}");
        }
    }

    #[test]
    fn one_rank_without_a_gpu_keeps_all_from_theirs() {
        let gpu = Compute { device: Device::Cuda(0), ..Compute::CPU };
        for (lacking, expected) in [(None, gpu.device), (Some(2), Device::Cpu)] {
            let server = Store::serve(1, TIMEOUT).unwrap();
            let rank = |rank: usize| {
                let store = Store::tcp("127.0.0.1", server.port().unwrap(), 1, false, TIMEOUT).unwrap();
                let found = if lacking == Some(rank) { Err(anyhow::anyhow!("no GPU")) } else { Ok(gpu) };
                std::thread::spawn(move || Compute::agreed(found, &env(rank, 3), &store).unwrap().device)
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
            let gpu = Compute { device: Device::Cuda(0), ..Compute::CPU };
            let found = if rank == 1 { Err(anyhow::anyhow!("no GPU")) } else { Ok(gpu) };
            std::thread::spawn(move || Compute::all(found, &env(rank, 3), &store).unwrap_err().to_string())
        };
        let told: Vec<_> =
            (0..3).map(rank).collect::<Vec<_>>().into_iter().map(|t| t.join().unwrap()).collect();
        assert_eq!(told, ["rank 1: no GPU", "no GPU", "rank 1: no GPU"]);
    }
}
