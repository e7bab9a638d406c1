//! Spans of threads that libtorch's profiler does not see: it follows the thread that started it and its
//! autograd threads.
//!
//! They are collected here, on the profiler's clock, and put into its trace when that is written.

use parking_lot::{Mutex, MutexGuard};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

/// Of a trace at most; what comes after them is left out.
const SPANS_MAX: usize = 1 << 18;

/// Whether a profiler is at work.
static ON: AtomicBool = AtomicBool::new(false);
static SPANS: Mutex<Vec<Ended>> = Mutex::new(Vec::new());

/// A named stretch of time in the trace, from [`BackgroundSpan::new`] until it is dropped, on any thread but
/// those that the profiler follows: there it is [`crate::Span`]. Almost free while no profiler runs.
#[derive(Debug)]
#[must_use]
pub struct BackgroundSpan {
    name: &'static str,
    began: Option<(SystemTime, Instant)>,
}

#[derive(Debug)]
struct Ended {
    name: &'static str,
    /// Nanoseconds since the epoch, which is the profiler's clock.
    began_ns: u128,
    took_ns: u128,
    thread: u64,
    thread_name: String,
}

impl BackgroundSpan {
    /// Begins it.
    #[expect(clippy::disallowed_methods, reason = "the profiler's traces bear the time of day")]
    pub fn new(name: &'static str) -> Self {
        let on = ON.load(Ordering::Relaxed);
        Self { name, began: on.then(|| (SystemTime::now(), Instant::now())) }
    }
}

impl Drop for BackgroundSpan {
    fn drop(&mut self) {
        let Some((at, began)) = self.began else { return };
        let took_ns = began.elapsed().as_nanos();
        let mut spans = spans();
        if spans.len() < SPANS_MAX && ON.load(Ordering::Relaxed) {
            let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let thread_name = std::thread::current().name().unwrap_or_default().to_owned();
            let (thread, began_ns) = (thread_id(), since.as_nanos());
            spans.push(Ended { name: self.name, began_ns, took_ns, thread, thread_name });
        }
    }
}

fn spans() -> MutexGuard<'static, Vec<Ended>> {
    SPANS.lock()
}

/// The kernel's number of this thread, which is what the profiler calls threads by.
fn thread_id() -> u64 {
    thread_local! {
        static ID: u64 = std::fs::read_link("/proc/thread-self").ok()
            .and_then(|link| link.file_name()?.to_str()?.parse().ok())
            .unwrap_or_default();
    }
    ID.with(|id| *id)
}

/// From now on spans are collected, or no longer.
pub(super) fn collect(on: bool) {
    let mut spans = spans();
    ON.store(on, Ordering::Relaxed);
    if on {
        spans.clear();
    }
}

/// Puts what was collected into a trace.
pub(super) fn put_into(file: &Path) -> std::io::Result<()> {
    let spans = std::mem::take(&mut *spans());
    if spans.is_empty() {
        return Ok(());
    }
    let text = std::fs::read_to_string(file)?;
    let with = inserted(&text, &spans)
        .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidData, "it has no traceEvents"))?;
    std::fs::write(file, with)
}

fn inserted(text: &str, spans: &[Ended]) -> Option<String> {
    const LIST: &str = "\"traceEvents\": [";
    let at = text.find(LIST)? + LIST.len();
    // Times in the trace are counted from there, in microseconds.
    let base = text.split_once("\"baseTimeNanoseconds\":").and_then(|(_, rest)| {
        let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u128>().ok()
    });
    let (base, process) = (base.unwrap_or(0), std::process::id());
    let mut named: Vec<u64> = Vec::new();
    let mut events = String::new();
    for Ended { name, began_ns, took_ns, thread, thread_name } in spans {
        if !named.contains(thread) {
            named.push(*thread);
            events += &format!(
                "\n  {{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": {process}, \"tid\": {thread}, \"ts\": 0, \
                 \"args\": {{\"name\": \"{thread_name}\"}}}},"
            );
        }
        let micros = |ns: u128| format!("{}.{:03}", ns / 1000, ns % 1000);
        let (ts, dur) = (micros(began_ns.saturating_sub(base)), micros(*took_ns));
        events += &format!(
            "\n  {{\"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"{name}\", \"pid\": {process}, \
             \"tid\": {thread}, \"ts\": {ts}, \"dur\": {dur}, \"args\": {{}}}},"
        );
    }
    // The list holds at least the profiler's own events, so that a comma may stand before them.
    if text[at..].trim_start().starts_with(']') {
        events.pop();
    }
    Some([&text[..at], &events, &text[at..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_stand_on_the_traces_clock() {
        let ended = |name, began_ns, thread| Ended {
            name,
            began_ns,
            took_ns: 2500,
            thread,
            thread_name: format!("thread {thread}"),
        };
        let spans = [ended("a", 1_000_007_001, 5), ended("b", 1_000_009_000, 5)];
        let text =
            inserted("{\"baseTimeNanoseconds\": 1000000000,\n\"traceEvents\": [\n{}]}", &spans).unwrap();
        assert!(text.contains("\"ts\": 7.001, \"dur\": 2.500"), "{text}");
        assert_eq!((text.matches("thread_name").count(), text.matches("\"ph\": \"X\"").count()), (1, 2));
        assert!(text.contains("}},\n{}]") || text.contains("},\n{}]"), "{text}");
        let text = inserted("\"traceEvents\": []", &spans[..1]).unwrap();
        assert!(text.ends_with("{}}]") && text.contains("\"ts\": 1000007.001"), "{text}");
        assert_eq!(inserted("{}", &spans), None);
    }

    #[test]
    fn nothing_is_collected_while_no_profiler_runs() {
        assert!(BackgroundSpan::new("never").began.is_none());
        assert!(thread_id() > 0);
    }
}
