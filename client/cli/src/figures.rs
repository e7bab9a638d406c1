//! Numbers for people: decimal units, thousands apart. Programs get exact ones, by `--json`.

use comfy_table::{CellAlignment, Table, presets};
use forebay_proto::manifest::Digest;
pub(crate) use forebay_proto::units::told_bytes as bytes;
use indicatif::HumanCount;

/// `60,000`.
pub(crate) fn count(n: u64) -> String {
    HumanCount(n).to_string()
}

/// `1 segment`, `3 segments`.
pub(crate) fn of(n: u64, thing: &str) -> String {
    plural(n, thing, &format!("{thing}s"))
}

/// `1 miss`, `3 misses`.
pub(crate) fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// `42 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`.
pub(crate) fn duration(seconds: u64) -> String {
    let (s, min, h, d) = (seconds % 60, seconds / 60 % 60, seconds / 3600 % 24, seconds / 86400);
    match (d, h, min) {
        (0, 0, 0) => format!("{s} s"),
        (0, 0, _) => format!("{min} min {s} s"),
        (0, _, _) => format!("{h} h {min} min"),
        _ => format!("{d} d {h} h"),
    }
}

/// A digest's hex digits; empty if the node sent none.
pub(crate) fn digest(bytes: &[u8]) -> String {
    Digest::from_bytes(bytes).map(|d| d.to_string()).unwrap_or_default()
}

/// An amount per second; 0 when no time passed.
pub(crate) fn rate(amount: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { amount / seconds } else { 0.0 }
}

/// A table without lines; the columns named in `right` are flush right.
pub(crate) fn table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header.to_vec());
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right.contains(&i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        let cases = [(0, "0"), (999, "999"), (1000, "1,000"), (60_000, "60,000"), (1_234_567, "1,234,567")];
        for (n, want) in cases {
            assert_eq!(count(n), want);
        }
        assert_eq!((of(1, "row"), of(2000, "row")), ("1 row".into(), "2,000 rows".into()));
        assert_eq!(duration(59), "59 s");
        assert_eq!(duration(185), "3 min 5 s");
        assert_eq!(duration(7800), "2 h 10 min");
        assert_eq!(duration(273_600), "3 d 4 h");
        assert_eq!((rate(10.0, 0.0), rate(10.0, 4.0)), (0.0, 2.5));
    }

    #[test]
    fn tables_are_plain() {
        let mut t = table(&["name", "n"], &[1]);
        t.add_row(["a", "1"]).add_row(["bcd", "1,000"]);
        let lines: Vec<String> = t.to_string().lines().map(|l| l.trim_end().to_owned()).collect();
        assert_eq!(lines, ["name      n", "a         1", "bcd   1,000"]);
    }
}
