//! Sizes as people write them, on command lines and in settings.

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

#[cfg(test)]
mod tests {
    use super::*;

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
