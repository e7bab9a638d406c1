//! What Rust has to say, by Python's `logging`: loggers `forebay.client`, `forebay.dataset` and so on.
//!
//! Threads of the runtime must not wait for the GIL, which a training step may hold for long. So they put
//! their notes into a bounded queue, and the next wait for Forebay passes them on.

use parking_lot::Mutex;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::fmt::{Debug, Write};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// Notes that wait at most; older ones are lost first.
const NOTES_KEPT: usize = 256;

static NOTES: Mutex<VecDeque<Note>> = Mutex::new(VecDeque::new());

struct Note {
    logger: String,
    /// As `logging` numbers it.
    level: u8,
    text: String,
}

/// Begins to listen; does nothing if this process has a listener already.
pub(crate) fn listen() {
    let notes = tracing_subscriber::registry().with(Notes.with_filter(LevelFilter::INFO));
    tracing::subscriber::set_global_default(notes).ok();
}

/// Passes on what was said. A logger that raises loses its note, and nothing else. Anything but an
/// `Exception` is raised: logging is Python code, in which a signal may be handled.
pub(crate) fn tell(py: Python<'_>) -> PyResult<()> {
    let Some(notes) = NOTES.try_lock().map(|mut notes| std::mem::take(&mut *notes)) else { return Ok(()) };
    for Note { logger, level, text } in notes {
        let logger = py.import("logging").and_then(|logging| logging.call_method1("getLogger", (logger,)));
        match logger.and_then(|logger| logger.call_method1("log", (level, "%s", text))) {
            Err(e) if !e.is_instance_of::<PyException>(py) => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

struct Notes;

impl<S: Subscriber> Layer<S> for Notes {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(module) = event.metadata().target().strip_prefix("forebay_") else { return };
        let level = match *event.metadata().level() {
            Level::ERROR => 40,
            Level::WARN => 30,
            _ => 20,
        };
        let mut text = Text::default();
        event.record(&mut text);
        let logger = format!("forebay.{}", module.replace("::", "."));
        let mut notes = NOTES.lock();
        if notes.len() == NOTES_KEPT {
            notes.pop_front();
        }
        notes.push_back(Note { logger, level, text: text.message + &text.fields });
    }
}

/// An event as one line: its message, then ` name=value` for each field.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let written = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
        debug_assert!(written.is_ok(), "a String takes all");
    }
}
