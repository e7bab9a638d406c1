//! Which lines of a server's log a test must not see.

/// The WARN, ERROR and panic lines of `log` that contain none of the `allowed` texts.
pub(super) fn unexpected(log: &str, allowed: &[String]) -> Vec<String> {
    log.lines()
        .filter(|line| is_alarm(line) && !allowed.iter().any(|text| line.contains(text.as_str())))
        .map(str::to_owned)
        .collect()
}

/// A level stands as a word near the start of a line (after the time), or as a field of a JSON line.
fn is_alarm(line: &str) -> bool {
    let by_word = line.split_whitespace().take(3).any(|word| matches!(word, "WARN" | "ERROR"));
    let by_field = line.contains("\"level\":\"WARN\"") || line.contains("\"level\":\"ERROR\"");
    by_word || by_field || line.contains("panicked at ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_alarms_and_honours_what_is_allowed() {
        let log = "2026-01-01T00:00:00Z  INFO forebay: no ERROR here, only a WARN in words\n\
                   2026-01-01T00:00:00Z  WARN forebay: throttled by s3://b/k\n\
                   {\"timestamp\":\"x\",\"level\":\"ERROR\",\"message\":\"disk\"}\n\
                   thread 'main' panicked at src/main.rs:1:1:\n";
        assert_eq!(unexpected(log, &[]).len(), 3);
        let left = unexpected(log, &["throttled".to_owned(), "disk".to_owned()]);
        assert_eq!(left, ["thread 'main' panicked at src/main.rs:1:1:"]);
    }
}
