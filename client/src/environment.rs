//! Variables of the environment.

/// What a variable holds; empty counts as absent.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}
