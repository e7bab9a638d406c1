//! Sizes as people write them, on command lines and in settings, and as they read them.

/// A number of bytes, with a decimal or binary unit or without: `4GB`, `32MiB`, `1000`. For clap.
pub fn bytes(text: &str) -> std::result::Result<u64, String> {
    const UNITS: [(&str, u64); 11] = [
        ("", 1),
        ("B", 1),
        ("kB", 1000),
        ("KB", 1000),
        ("MB", 1000 * 1000),
        ("GB", 1000 * 1000 * 1000),
        ("TB", 1000 * 1000 * 1000 * 1000),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
    ];
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = UNITS.iter().find(|(name, _)| *name == unit.trim()).map(|(_, factor)| *factor);
    match (number.parse::<f64>(), factor) {
        (Ok(n), Some(factor)) if n * factor as f64 >= 1.0 => Ok((n * factor as f64) as u64),
        (Ok(_), Some(_)) => Err("it must be at least 1 byte".into()),
        _ => Err("use a number of bytes, with a unit or without: 32MiB, 4GB, 1000".into()),
    }
}

/// A number of bytes for people, in decimal units: `12.3 MB`.
pub fn told_bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if n < 1000 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1e3;
    let mut unit = 0;
    // 999.95 and more would round up to four digits.
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1e3;
        unit += 1;
    }
    let digits = if value < 9.995 { 2 } else { 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_for_people() {
        for (n, want) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (9_994, "9.99 kB"),
            (9_996, "10.0 kB"),
            (123_456, "123.5 kB"),
            (999_949, "999.9 kB"),
            (999_950, "1.00 MB"),
            (45_600_000, "45.6 MB"),
            (2_500_000_000, "2.50 GB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(told_bytes(n), want);
        }
    }

    #[test]
    fn bytes_with_units() {
        for (text, want) in [("1000", 1000), ("32MiB", 32 << 20), ("1.5GB", 1_500_000_000), ("2 kB", 2000)] {
            assert_eq!(bytes(text), Ok(want), "{text}");
        }
        for text in ["", "0", "-1", "MB", "1XB", "1.2.3", "0.1", "\u{661}"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
