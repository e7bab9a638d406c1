//! docs/security.md: each threat names tests that exist.

use crate::source::{root, sources};

/// The heads of the table, by which it is found.
const HEAD: &str = "| threat | held by | test |";

#[test]
fn every_threat_has_a_test_that_exists() {
    let page = std::fs::read_to_string(root().join("docs/security.md")).expect("read docs/security.md");
    let table = page.split_once(HEAD).expect("the table of threats").1;
    let rows: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    let tests: Vec<String> = sources("", &[".rs"]).into_iter().map(|source| source.text).collect();
    let exists = |name: &str| {
        let function = format!("fn {name}(");
        tests.iter().any(|text| text.contains(&function))
    };
    let mut wrong = Vec::new();
    for row in &rows {
        let cell = row.trim_matches('|').rsplit(" | ").next().unwrap_or_default();
        let names: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            wrong.push(format!("no test: {row}"));
        }
        let missing = names.iter().filter(|name| **name != "make attack" && !exists(name));
        wrong.extend(missing.map(|name| format!("there is no test {name}")));
    }
    assert!(rows.len() >= 10, "{} rows only", rows.len());
    assert!(wrong.is_empty(), "docs/security.md:\n{}", wrong.join("\n"));
}
