//! libtorch's own profiler (Kineto): what ran when, as a Chrome trace that Perfetto and `chrome://tracing`
//! open.
//!
//! `torch.profiler.profile` and `torch.profiler.record_function`, without Python. On a CUDA build it says on
//! stderr, once and harmlessly, that it found no device where there is none.

use std::marker::PhantomData;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use cxx::UniquePtr;

use crate::error::{Error, Result, named};
use crate::ffi::FfiResult;
use crate::ffi::bridge::{self, SpanHandle};

/// One per process: Kineto has a single session.
static RUNNING: AtomicBool = AtomicBool::new(false);

/// What the profiler records beside the operators and their times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProfilerSettings {
    /// Kernels and copies on CUDA devices; the plugin must have been loaded.
    pub cuda: bool,
    /// The operators' input shapes.
    pub shapes: bool,
    /// Memory that is allocated and freed.
    pub memory: bool,
}

/// A profiler at work: it sees all threads of the process.
///
/// Dropped without [`Profiler::stop`], it forgets what it saw.
#[derive(Debug)]
pub struct Profiler {
    running: bool,
    // Starting and stopping belong to one thread.
    _here: PhantomData<*const ()>,
}

impl Profiler {
    /// Starts it. Fails if one is already at work in this process.
    pub fn start(settings: ProfilerSettings) -> Result<Self> {
        if RUNNING.swap(true, Ordering::SeqCst) {
            return Err(Error::new("start the profiler", None, "one is already at work in this process"));
        }
        let started = bridge::start_profiler(settings.cuda, settings.shapes, settings.memory);
        if let Err(failure) = started {
            RUNNING.store(false, Ordering::SeqCst);
            return Err(Error::new("start the profiler", None, failure));
        }
        Ok(Self { running: true, _here: PhantomData })
    }

    /// Stops it and writes the trace to `file`, whose folder must exist. Spans that have not ended are lost.
    pub fn stop(mut self, file: &Path) -> Result<()> {
        let failed = |text: &str| Error::new("write the trace", None, format!("{}: {text}", file.display()));
        let path = file.to_str().ok_or_else(|| failed("is no UTF-8 text"))?;
        // Kineto only logs what it cannot write, so it is tried here.
        std::fs::File::create(file).map_err(|error| failed(&error.to_string()))?;
        self.end(path).map_err(|failure| failed(&failure.text))
    }

    /// To nowhere, if the path is empty.
    fn end(&mut self, path: &str) -> FfiResult<()> {
        self.running = false;
        let stopped = bridge::stop_profiler(path);
        RUNNING.store(false, Ordering::SeqCst);
        Ok(stopped?)
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        if self.running {
            // The trace is not wanted, and what could be done about a failure?
            let _ = self.end("");
        }
    }
}

/// A named stretch of time in the trace, from [`Span::new`] until it is dropped. Almost free while no
/// profiler runs.
#[derive(Debug)]
pub struct Span(#[expect(dead_code, reason = "it ends when it goes")] UniquePtr<SpanHandle>);

impl Span {
    /// Begins it. Spans nest; each must end on the thread that began it, which the type sees to.
    pub fn new(name: &str) -> Result<Self> {
        bridge::begin_span(name).map(Self).map_err(named("begin a span"))
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;

    fn aside() {
        let _made = Span::new("made elsewhere").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2));
    }

    fn work() {
        let _step = Span::new("one step").unwrap();
        let a = Tensor::ones([16, 16], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let loss = {
            let _forward = Span::new("forward \"quoted\"").unwrap();
            a.matmul(&a).mean(Kind::Float)
        };
        let _backward = Span::new("backward").unwrap();
        loss.backward();
    }

    // One test: the profiler is the process's.
    #[test]
    fn a_trace_holds_our_spans_and_libtorchs_operators() {
        work();
        let file = std::env::temp_dir().join(format!("forebay-trace-{}.json", std::process::id()));
        let profiler = Profiler::start(ProfilerSettings { shapes: true, ..Default::default() }).unwrap();
        let second = Profiler::start(ProfilerSettings::default()).unwrap_err();
        assert_eq!(second.to_string(), "start the profiler: one is already at work in this process");
        work();
        std::thread::Builder::new().name("elsewhere".to_owned()).spawn(aside).unwrap().join().unwrap();
        profiler.stop(&file).unwrap();
        aside();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(text.trim_start().starts_with('{') && text.contains("\"traceEvents\""));
        for name in
            ["one step", "forward", "backward", "aten::matmul", "MmBackward", "made elsewhere", "(elsewhere)"]
        {
            assert!(text.contains(name), "no {name} in the trace");
        }
        assert_eq!(text.matches("made elsewhere").count(), 1);
        // On the same clock: within the seconds of this test.
        let time_of = |name: &str| -> f64 {
            let event = text.split('{').find(|event| event.contains(name)).unwrap();
            let time = event.split("\"ts\":").nth(1).unwrap();
            time.trim_start().split([',', '}', '\n']).next().unwrap().trim().parse().unwrap()
        };
        let apart = time_of("made elsewhere") - time_of("one step");
        assert!((0.0..30e6).contains(&apart), "{apart} us after the step");

        // Dropped, it makes room for the next; a folder that does not exist is named.
        drop(Profiler::start(ProfilerSettings::default()).unwrap());
        let profiler = Profiler::start(ProfilerSettings::default()).unwrap();
        let error = profiler.stop(Path::new("/nowhere/trace.json")).unwrap_err().to_string();
        assert!(error.starts_with("write the trace: /nowhere/trace.json: "), "{error}");
        drop(Profiler::start(ProfilerSettings::default()).unwrap());
    }
}
