//! Panics of the parquet crate, which damaged bytes may bring about: they are errors like others, and nobody
//! is to find their stack on a terminal.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

static HOOK: Once = Once::new();

/// How `unwrap` begins.
const UNWRAPPED: &str = "called `Result::unwrap()` on an `Err` value: ";

/// Runs `work`; a panic is its message, which is told nowhere else.
pub(crate) fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                before(panic);
            }
        }));
    });
    let before = IS_QUIET.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    IS_QUIET.set(before);
    done.map_err(|panic| {
        let text =
            panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("the parser gave up");
        text.strip_prefix(UNWRAPPED).unwrap_or(text).to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That nothing is printed is a test of the Python package.
    #[test]
    fn a_panic_is_its_message() {
        assert_eq!(quietly(|| 3), Ok(3));
        assert_eq!(
            quietly(|| "x".parse::<u8>().unwrap()),
            Err("ParseIntError { kind: InvalidDigit }".to_owned())
        );
        assert_eq!(quietly(|| panic!("no {}", "way")), Err::<(), _>("no way".to_owned()));
        assert!(!IS_QUIET.get());
    }
}
