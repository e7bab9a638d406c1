//! How a rank tells why it ended.
//!
//! A rank that fails writes its message where `TORCHELASTIC_ERROR_FILE` says, in torchrun's format, and ends
//! with an exit code: [`PEER_LOST`] when all it knows is that another rank went away, 1 otherwise. The
//! launcher (ours, or torchrun's agent) so finds the rank whose failure came first among those that merely
//! noticed.
//!
//! A panic is told in the same way ([`caught`]): tch's operations panic with libtorch's words, and too little
//! memory is something that every user meets.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, anyhow};
use serde_json::{Value, json};

use crate::rank::env::RankEnv;
use crate::rank::stop::StoppedByPeer;

/// Exit code of a rank that ended because a peer did, or was told to.
pub const PEER_LOST: u8 = 3;

/// Names the file that a failing rank writes its message to.
pub const ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";

/// How every error line begins.
pub const PREFIX: &str = "forebay-train: ";

/// Ends a rank: reports the error, if any, and gives the exit code.
pub fn end_rank(env: &RankEnv, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(report(env, &error)),
    }
}

/// Ends a rank in the middle of whatever it does, which may never return: a peer is lost.
pub fn end_now(env: &RankEnv, lost: forebay_c10d::Error) -> ! {
    let code = report(env, &lost.into());
    Writing::wait();
    forebay_c10d::exit(code)
}

/// How many checkpoints this process is writing.
static WRITING: AtomicUsize = AtomicUsize::new(0);

/// How long a rank that has failed, or whose peer has, may take to finish the checkpoint that it writes.
pub const WRITE_GRACE: Duration = Duration::from_secs(120);

/// A checkpoint is being written: while this lives the launcher lets the rank be, though another has failed.
pub struct Writing {
    /// A file beside that of the rank's error, which the launcher looks for.
    mark: Option<PathBuf>,
}

impl Writing {
    /// From here to the drop.
    pub fn begin() -> Self {
        WRITING.fetch_add(1, Ordering::SeqCst);
        let mark = std::env::var_os(ERROR_FILE).map(|file| Self::mark(Path::new(&file)));
        if let Some(mark) = &mark {
            // Without it the launcher only has less patience.
            let _ = std::fs::write(mark, "");
        }
        Self { mark }
    }

    /// Whether the rank with this error file is writing one.
    pub fn is_marked(error_file: &Path) -> bool {
        Self::mark(error_file).exists()
    }

    fn mark(error_file: &Path) -> PathBuf {
        error_file.with_extension("writing")
    }

    /// Until this process writes none, or has taken too long.
    fn wait() {
        let began = Instant::now();
        while WRITING.load(Ordering::SeqCst) > 0 && began.elapsed() < WRITE_GRACE {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if let Some(mark) = &self.mark {
            let _ = std::fs::remove_file(mark);
        }
        WRITING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Tells why a rank fails; gives its exit code.
fn report(env: &RankEnv, error: &anyhow::Error) -> u8 {
    let message = one_line(error);
    if let Some(file) = std::env::var_os(ERROR_FILE) {
        // Nobody is left to be told if this fails; the exit code still says that the rank failed.
        let _ = write(Path::new(&file), &message);
    }
    if env.launcher.is_none() {
        eprintln!("forebay-train: {}: {message}", rank_name(env.rank, env.world));
    }
    if peer_lost(error) { PEER_LOST } else { 1 }
}

/// Ends the launcher, which speaks for all ranks.
pub fn end_launcher(result: Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("forebay-train: {}", one_line(&error));
    ExitCode::FAILURE
}

/// What to do about it.
const NO_MEMORY: &str = "too little memory: take a smaller --batch, or --batch auto, which finds what fits";

thread_local! {
    /// Where this thread's last panic was.
    static PANICKED_AT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// From now on a panic of the calling thread prints nothing by itself: [`caught`] tells it. With
/// `RUST_BACKTRACE` set it prints all the same. Panics of other threads are as loud as ever.
pub fn tell_panics() {
    let (own, print) = (std::thread::current().id(), take_hook());
    set_hook(Box::new(move |panic| {
        let place = panic.location().map(|place| format!("{}:{}", place.file(), place.line()));
        PANICKED_AT.set(place.unwrap_or_default());
        if std::thread::current().id() != own || std::env::var_os("RUST_BACKTRACE").is_some() {
            print(panic);
        }
    }));
}

/// Runs a part of a rank. A panic becomes an error; too little memory, however it showed, one that says what
/// to do.
pub fn caught<T>(run: impl FnOnce() -> Result<T>) -> Result<T> {
    without_panic(run).map_err(|error| match lacks_memory(&error) && !one_line(&error).contains(NO_MEMORY) {
        true => error.context(NO_MEMORY),
        false => error,
    })
}

/// Runs `run`; a panic becomes an error.
pub fn without_panic<T>(run: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(anyhow!(words(&*panic))))
}

/// Whether an error says that memory ran out, on a GPU or on the host: in libtorch's words or in those of
/// CUDA's libraries, which take memory for themselves.
pub fn lacks_memory(error: &anyhow::Error) -> bool {
    let signs = [
        "out of memory",
        "can't allocate memory",
        "not enough memory",
        "CUBLAS_STATUS_ALLOC_FAILED",
        "CUDNN_STATUS_ALLOC_FAILED",
        "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
        "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    ];
    let text = one_line(error);
    signs.iter().any(|sign| text.contains(sign))
}

/// What a panic said, where it is not libtorch that speaks with its place in the source.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    // tch unwraps a result, and a result printed so has its quotes and ends of lines escaped.
    match text.split_once("Torch(\"") {
        Some((_, words)) => {
            let words = words.split("\\n").next().unwrap_or(words);
            words.trim_end_matches("\")").replace("\\\"", "\"")
        }
        None => format!("panicked at {}: {text}", PANICKED_AT.take()),
    }
}

/// `rank 1 of 2`.
pub fn rank_name(rank: usize, world: usize) -> String {
    format!("rank {rank} of {world}")
}

/// The message that a rank left in `file`.
pub fn read(file: &Path) -> Option<String> {
    let value: Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    Some(value["message"]["message"].as_str()?.to_owned())
}

#[expect(clippy::disallowed_methods, reason = "torchrun reads the time of day")]
fn write(file: &Path, message: &str) -> std::io::Result<()> {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let extra = json!({"py_callstack": "", "timestamp": seconds.to_string()});
    std::fs::write(file, json!({"message": {"message": message, "extraInfo": extra}}).to_string())
}

fn peer_lost(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<StoppedByPeer>()
            || cause.downcast_ref::<forebay_c10d::Error>().is_some_and(|error| error.peer_lost())
    })
}

/// The error with its causes, whatever they contain, on one line. Of libtorch's errors the C++ stack is left
/// out.
fn one_line(error: &anyhow::Error) -> String {
    let cause = |cause: &(dyn std::error::Error + 'static)| {
        let text = cause.to_string();
        let words = text.split("\nException raised from ").next().unwrap_or(&text);
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    error.chain().map(cause).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_message_survives_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rank0.json");
        assert_eq!(read(&file), None);
        write(&file, "epoch 1 step 2: the loss is NaN").unwrap();
        assert_eq!(read(&file).as_deref(), Some("epoch 1 step 2: the loss is NaN"));
    }

    #[test]
    fn a_lost_peer_is_told_from_a_failure_of_ones_own() {
        let store = forebay_c10d::Store::serve(1, std::time::Duration::from_secs(30)).unwrap();
        let lost = store.wait(&["never"], std::time::Duration::from_millis(50)).unwrap_err();
        let lost = Err::<(), _>(lost).context("epoch 1\nstep 2").unwrap_err();
        assert!(peer_lost(&lost));
        assert!(one_line(&lost).starts_with("epoch 1 step 2: store wait: "), "{}", one_line(&lost));
        assert!(!peer_lost(&anyhow::anyhow!("the loss is NaN")));
    }

    fn told(run: impl FnOnce() -> Result<()>) -> String {
        one_line(&caught(run).unwrap_err())
    }

    #[test]
    fn a_panic_is_an_error_of_one_line() {
        assert!(caught(|| Ok(())).is_ok());
        assert_eq!(told(|| anyhow::bail!("the loss is NaN")), "the loss is NaN");
        let shapes = told(|| {
            let _ = tch::Tensor::from_slice(&[1f32, 2.0]).reshape([3]);
            Ok(())
        });
        assert_eq!(shapes, "shape '[3]' is invalid for input of size 2");
        assert!(told(|| panic!("of\nmany lines")).ends_with(": of many lines"));
    }

    #[test]
    fn too_little_memory_says_what_to_do_however_it_shows() {
        // More than any machine can address: refused at once.
        let much = [1i64 << 50];
        let kind = (tch::Kind::Float, tch::Device::Cpu);
        let panicked = told(|| {
            let _ = tch::Tensor::zeros(much, kind);
            Ok(())
        });
        let failed = told(|| caught(|| tch::Tensor::f_zeros(much, kind).context("forward").map(drop)));
        for text in [panicked, failed] {
            assert!(text.starts_with(NO_MEMORY) && text.matches(NO_MEMORY).count() == 1, "{text}");
            assert!(text.contains("you tried to allocate 4503599627370496 bytes"), "{text}");
            assert!(!text.contains("Exception raised"), "{text}");
        }
    }

    #[test]
    fn lack_of_memory_has_several_names() {
        for words in [
            "CUDA out of memory. Trial to allocate 2.00 GiB",
            "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate",
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        ] {
            let error = anyhow!(words);
            assert!(lacks_memory(&error), "{words}");
            let text = told(|| Err(error));
            assert!(text.starts_with(NO_MEMORY) && text.ends_with(words), "{text}");
        }
        assert!(!lacks_memory(&anyhow!("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED")));
    }
}
