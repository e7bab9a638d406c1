//! Streams and events: work on a device that runs beside other work, and points in it to wait for.
//!
//! `torch.Stream` and `torch.Event`, of whatever device libtorch knows; with a CPU alone they are an
//! [`Error`]. Copies overlap with computation when they go from pinned memory ([`crate::pinned`]), do not
//! block (`Tensor::to_device_`), and run on a stream of their own:
//!
//! 1. inside `copies.run(..)` copy the next batch, then `copied.record(&copies)`;
//! 2. before it is used: `copied.block(&Stream::current(device)?)`;
//! 3. tell the allocator by [`Stream::keep`] that the computing stream uses it as well.

use cxx::UniquePtr;
use tch::{Device, Tensor};

use crate::error::{Result, named};
use crate::ffi::bridge::{self, EventHandle, Stream};
use crate::ffi::{at, gpu};

impl Stream {
    /// One of the device's pool of streams, handed out in turn: after 32 of them the first comes again.
    pub fn from_pool(device: Device, high_priority: bool) -> Result<Self> {
        bridge::stream_from_pool(gpu(device), high_priority).map_err(named("take a stream"))
    }

    /// The stream that this thread's operations on `device` go to.
    pub fn current(device: Device) -> Result<Self> {
        bridge::current_stream(gpu(device)).map_err(named("current stream"))
    }

    /// Runs `f` with this as the thread's current stream; the one before is restored afterwards, by a panic
    /// too.
    pub fn run<R>(&self, f: impl FnOnce() -> R) -> Result<R> {
        let _before = bridge::switch_stream(self).map_err(named("switch streams"))?;
        Ok(f())
    }

    /// Waits until the device has done all that the stream holds.
    pub fn synchronize(&self) -> Result<()> {
        bridge::synchronize_stream(self).map_err(named("synchronize a stream"))
    }

    /// Keeps the memory of `tensor`, made on another stream, from being given to others before this stream
    /// has done what it holds now (`Tensor.record_stream`).
    pub fn keep(&self, tensor: &Tensor) -> Result<()> {
        bridge::keep_for_stream(at(tensor), self).map_err(named("keep a tensor for a stream"))
    }
}

/// A point in a stream's work.
#[derive(Debug)]
pub struct Event(UniquePtr<EventHandle>);

impl Event {
    /// An event for the streams of `device`'s kind; with `timing` it also tells when it was reached.
    pub fn new(device: Device, timing: bool) -> Result<Self> {
        bridge::make_event(gpu(device), timing).map(Self).map_err(named("make an event"))
    }

    /// Puts the event behind what `stream` holds now.
    pub fn record(&mut self, stream: &Stream) -> Result<()> {
        bridge::record_event(self.0.pin_mut(), stream).map_err(named("record an event"))
    }

    /// Makes `stream` wait, and nobody else, until the event is reached.
    pub fn block(&self, stream: &Stream) -> Result<()> {
        bridge::block_stream(&self.0, stream).map_err(named("wait for an event"))
    }

    /// Waits until it is reached.
    pub fn synchronize(&self) -> Result<()> {
        bridge::synchronize_event(&self.0).map_err(named("synchronize an event"))
    }

    /// Milliseconds on the device from this event to `end`, both made with `timing` and reached.
    pub fn elapsed_ms(&self, end: &Self) -> Result<f64> {
        bridge::elapsed_ms(&self.0, &end.0).map_err(named("time between events"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_device_there_are_errors_and_no_streams() {
        // These run where the CUDA plugin is never loaded: the same on a machine with a GPU.
        for error in [
            Stream::from_pool(Device::Cuda(0), false).unwrap_err(),
            Stream::current(Device::Cuda(0)).unwrap_err(),
            Stream::from_pool(Device::Cuda(100_000), true).unwrap_err(),
        ] {
            assert_eq!(error.to_string().lines().count(), 1);
            assert!(error.to_string().to_lowercase().contains("cuda"), "{error}");
        }
        assert!(Event::new(Device::Cuda(0), true).is_err());
    }

    #[test]
    fn the_cpu_has_one_stream_and_no_events() {
        let stream = Stream::current(Device::Cpu).unwrap();
        assert_eq!(stream.run(|| Stream::current(Device::Cpu).unwrap()).unwrap(), stream);
        let mut event = Event::new(Device::Cpu, false).unwrap();
        assert!(event.record(&stream).is_err());
    }
}
