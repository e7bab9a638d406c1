//! Trying again: a right product succeeds on a machine that does not stall, a wrong one never.

/// Plays a scenario until it goes well, three times at most. The scenario asserts everything that must hold
/// every time; it returns what a stall of the machine may have spoilt: a node is silent too long and is
/// passed over.
///
/// # Panics
/// If it never goes well.
pub fn one_of_three(mut scenario: impl FnMut() -> Result<(), String>) {
    let mut spoilt = Vec::new();
    for _ in 0..3 {
        match scenario() {
            Ok(()) => return,
            Err(why) => spoilt.push(why),
        }
    }
    panic!("it went wrong three times: {spoilt:?}");
}

/// The outcome of a scenario.
pub fn well(so: bool, or_else: impl Into<String>) -> Result<(), String> {
    if so { Ok(()) } else { Err(or_else.into()) }
}
