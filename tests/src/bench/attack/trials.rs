//! Many trials of one promise, told as one check.

use crate::harness::check::Check;

/// Trials that are shown of those that failed.
const SHOWN: usize = 5;

/// Trials of a promise, and those in which it was broken.
pub struct Trials {
    claim: String,
    tried: usize,
    broken: Vec<String>,
}

impl Trials {
    /// None yet.
    pub fn of(claim: impl Into<String>) -> Self {
        Self { claim: claim.into(), tried: 0, broken: Vec::new() }
    }

    /// One more, with words for the case that it failed.
    pub fn note(&mut self, is_kept: bool, measured: impl FnOnce() -> String) {
        self.tried += 1;
        if !is_kept {
            self.broken.push(measured());
        }
    }

    /// The check: broken by one trial, and where nothing was tried.
    pub fn check(self) -> Check {
        let Self { claim, tried, broken } = self;
        let shown: Vec<&str> = broken.iter().take(SHOWN).map(String::as_str).collect();
        let measured = match broken.len() {
            0 => format!("{tried} tried"),
            count => format!("{count} of {tried}: {}", shown.join("; ")),
        };
        Check::of(claim, measured, tried > 0 && broken.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_trial_breaks_a_promise_and_none_does_not_keep_it() {
        let mut trials = Trials::of("even");
        (2..=4).for_each(|n| trials.note(n % 2 == 0, || n.to_string()));
        let check = trials.check();
        assert_eq!((check.is_broken(), check.measured.as_str()), (true, "1 of 3: 3"));
        assert!(Trials::of("nothing").check().is_broken());
    }
}
