//! The device that a rank computes on, and how batches reach it.
//!
//! Batches reach a GPU from pinned memory, on a stream of their own, one ahead of the step: while the GPU
//! computes on one, the next one travels. The thread that prepares a batch stages it ([`Compute::stage`]), so
//! that the training thread only has to put the copy on the stream ([`Compute::send`]), and the step waits
//! for it on the device, not on the host ([`Compute::receive`]). On a CPU nothing is copied.

use std::time::Duration;

use anyhow::{Result, ensure};
use forebay_c10d::{Cuda, Event, Stream, pinned};
use tch::{Device, Tensor};

use super::rows::Input;

/// A rank's device, ready for use.
#[derive(Debug, Clone, Copy)]
pub struct Compute {
    device: Device,
    /// By which a group learns NCCL, if it is a GPU.
    pub cuda: Option<Cuda>,
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

    /// The GPU of a local rank. Opens the plugin: to be called before anything else asks libtorch about CUDA.
    pub fn gpu(local_rank: usize) -> Result<Self> {
        let cuda = Cuda::load()?;
        ensure!(
            local_rank < cuda.devices(),
            "local rank {local_rank} has no GPU of its own: this machine shows {} (one rank per GPU)",
            cuda.devices()
        );
        let device = Device::Cuda(local_rank);
        Ok(Self { device, cuda: Some(cuda), copies: Some(Stream::from_pool(device, true)?) })
    }

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
        input.try_map(|tensor| Ok(pinned(tensor)?))
    }

    /// Begins to copy a staged batch to the device. libtorch gives pinned memory to nobody else before the
    /// copy is through, and takes for the copy no memory of the device that a step still reads
    /// ([`Compute::receive`]).
    pub fn send(&self, staged: Input) -> Result<Sent> {
        let Some(copies) = &self.copies else { return Ok(Sent { input: staged, copied: None }) };
        let there = |tensor: &Tensor| tensor.f_to_device_(self.device, tensor.kind(), true, false);
        let input = copies.run(|| staged.try_map(|tensor| Ok(there(tensor)?)))??;
        let mut copied = Event::new(self.device, false)?;
        copied.record(copies)?;
        Ok(Sent { input, copied: Some(copied) })
    }

    /// The batch on the device, for this thread's operations: they wait for the copy, the host does not.
    /// Gives too how to find out for how long they did.
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
    /// For how long the device had nothing to do but wait for the batch; to be asked when the step is
    /// through.
    pub fn time(&self) -> Result<Duration> {
        let ms = self.asked.elapsed_ms(&self.there)?;
        Ok(Duration::from_secs_f64(ms.max(0.0) / 1e3))
    }
}

#[cfg(test)]
pub(crate) mod tests;
