//! Which variable of the environment says what a program logs, and how a value that makes no sense is told.

use crate::error::{Error, Result};
use tracing_subscriber::EnvFilter;

/// The variable that says what one program logs.
#[derive(Debug, Clone, Copy)]
pub struct LogVariable {
    /// As in `RUST_LOG=debug`.
    pub name: &'static str,
    /// Counts where the variable is not set.
    pub default: &'static str,
    /// Values that make sense: advice for those whose value makes none.
    pub examples: &'static str,
}

impl LogVariable {
    /// The filter that a value asks for; an empty one counts as absent. `Invalid` says why it makes no sense.
    pub fn filter(&self, value: Option<String>) -> Result<EnvFilter> {
        let value = value.filter(|value| !value.trim().is_empty()).unwrap_or_else(|| self.default.to_owned());
        EnvFilter::try_new(&value).map_err(|e| {
            Error::invalid(format!("{}={value}: {e}: use a level, as in {}", self.name, self.examples))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_cannot_be_understood_is_told() {
        let log = LogVariable { name: "A_LOG", default: "info,h2=error", examples: "debug or h2=debug" };
        let told = |value: &str| log.filter(Some(value.to_owned())).map(|filter| filter.to_string());
        let e = told("forebay_server=debgu").unwrap_err().message;
        assert!(e.starts_with("A_LOG=forebay_server=debgu: "), "{e}");
        assert!(e.ends_with(": use a level, as in debug or h2=debug"), "{e}");
        assert_eq!(told("forebay_server=debug").unwrap(), "forebay_server=debug");
        let default = log.filter(None).unwrap().to_string();
        assert!(default.contains("info") && default.contains("h2=error"), "{default}");
        assert_eq!(told(" ").unwrap(), default);
    }
}
