//! Waiting for others, with a limit.

use std::time::{Duration, Instant};

/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until something has happened.
///
/// # Panics
/// If it has not happened within `limit`.
pub fn until(what: &str, limit: Duration, mut happened: impl FnMut() -> bool) {
    if let Err(error) = try_until(what, limit, || Ok(happened())) {
        panic!("{error}");
    }
}

/// The same where a look may fail: that, or the end of `limit`, is an error.
pub fn try_until(
    what: &str,
    limit: Duration,
    mut happened: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let began = Instant::now();
    while !happened()? {
        anyhow::ensure!(began.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

#[test]
fn what_happens_ends_the_wait_and_what_does_not_is_an_error() {
    let mut looks = 0;
    until("the third look", Duration::from_secs(30), || {
        looks += 1;
        looks == 3
    });
    let never = try_until("an answer", Duration::ZERO, || Ok(false)).expect_err("it never comes");
    assert_eq!(never.to_string(), "an answer: not within 0ns");
    let failed = try_until("an answer", Duration::from_secs(30), || anyhow::bail!("nobody is there"));
    assert_eq!(failed.expect_err("a look failed").to_string(), "nobody is there");
}
