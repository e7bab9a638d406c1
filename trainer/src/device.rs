//! Where a rank computes: the CPU, or its GPU, which it reaches through the CUDA plugin.
//!
//! Batches reach a GPU from pinned memory, on a stream of their own: the copy of one runs beside what the GPU still
//! computes of the one before. On a CPU nothing is copied.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use forebay_c10d::{Cuda, Event, NcclSettings, ProcessGroup, Store, Stream, copy_into, pinned, to_device};
use tch::{Device, Tensor};

use crate::input::Input;
use crate::place::Place;

/// What `--device` takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum DeviceName {
    /// The processor; ranks talk by Gloo
    #[default]
    Cpu,
    /// One GPU per rank, by its local rank; ranks talk by NCCL
    Cuda,
}

/// A rank's device, ready for use.
#[derive(Debug)]
pub struct Compute {
    device: Device,
    cuda: Option<Cuda>,
    /// The stream that batches are copied on.
    copies: Option<Stream>,
}

impl Compute {
    /// Opens the plugin if a GPU is asked for, before anything else asks libtorch about CUDA.
    pub fn open(name: DeviceName, place: &Place) -> Result<Self> {
        if name == DeviceName::Cpu {
            return Ok(Self { device: Device::Cpu, cuda: None, copies: None });
        }
        let cuda = Cuda::load().context("--device cuda")?;
        ensure!(
            place.local_rank < cuda.devices(),
            "--device cuda: local rank {} has no GPU of its own: this machine shows {} (one rank per GPU)",
            place.local_rank,
            cuda.devices()
        );
        let device = Device::Cuda(place.local_rank);
        Ok(Self { device, cuda: Some(cuda), copies: Some(Stream::from_pool(device, true)?) })
    }

    /// Joins the other ranks, by the backend that the device wants.
    pub fn join(&self, store: Store, place: &Place, timeout: Duration) -> Result<ProcessGroup> {
        let (rank, world) = (place.rank, place.world);
        Ok(match &self.cuda {
            None => ProcessGroup::gloo(store, rank, world, timeout)?,
            Some(cuda) => {
                cuda.nccl(store, (rank, world), place.local_rank, timeout, &NcclSettings::default())?
            }
        })
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The batch on the device, to be used by this thread's operations.
    pub fn take(&self, input: Input) -> Result<Input> {
        let Some(copies) = &self.copies else { return Ok(input) };
        let computing = Stream::current(self.device)?;
        let taken = copies.run(|| input.try_map(|tensor| self.send(tensor, &computing)))??;
        let mut copied = Event::new(self.device, false)?;
        copied.record(copies)?;
        copied.block(&computing)?;
        Ok(taken)
    }

    /// Puts the copy of one tensor on the current stream. libtorch keeps the pinned memory until the copy is through.
    fn send(&self, tensor: &Tensor, used_on: &Stream) -> Result<Tensor> {
        let mut staged = pinned(&tensor.size(), tensor.kind())?;
        copy_into(&mut staged, tensor, false)?;
        let sent = to_device(&staged, self.device, true)?;
        used_on.keep(&sent)?;
        Ok(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Role;

    fn place() -> Place {
        Place {
            rank: 0,
            world: 1,
            local_rank: 0,
            local_world: 1,
            master_addr: "localhost".into(),
            master_port: 1,
            agent_store: false,
            restart: 0,
            launcher: None,
        }
    }

    #[test]
    fn the_cpu_takes_batches_as_they_are() {
        let compute = Compute::open(DeviceName::Cpu, &place()).unwrap();
        let labels = Tensor::from_slice(&[1i64, 2]);
        let input = Input::new(2, vec![(Role::Label, labels.shallow_clone())], None);
        let taken = compute.take(input).unwrap();
        assert_eq!(taken.get(Role::Label).unwrap().data_ptr(), labels.data_ptr());
        assert_eq!(compute.device(), Device::Cpu);
    }

    #[test]
    fn no_plugin_is_an_error_that_names_the_flag() {
        if std::env::var_os(forebay_c10d::PLUGIN_VARIABLE).is_none() {
            let error = format!("{:#}", Compute::open(DeviceName::Cuda, &place()).unwrap_err());
            assert!(error.starts_with("--device cuda: load CUDA: "), "{error}");
        }
    }
}
