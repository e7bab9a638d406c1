//! Rules that hold for every source: no offender is let through.

use std::collections::BTreeMap;

/// Offenders, and how often each offends.
pub type Offenders = BTreeMap<String, usize>;

/// Fails if a rule has offenders, and names them. `advice` says how to mend one.
pub fn check(rule: &str, advice: &str, found: &Offenders) {
    let wrong: Vec<String> = found.iter().map(|(name, times)| format!("{name} ({times})")).collect();
    assert!(wrong.is_empty(), "{rule}: {advice}:\n{}", wrong.join("\n"));
}
