//! Rules of the repository that no compiler checks. `make check` runs them and prints the figures.

mod architecture;
mod circles;
mod dependencies;
mod docs;
mod figures;
mod layers;
mod lengths;
mod modules;
mod mutations;
mod names;
mod ratchet;
mod security;
mod source;
mod tokens;
mod words;

/// Rules with lists of offenders that are still to be mended.
const RULES: [&str; 8] = [
    "circles",
    "type-names",
    "file-lines",
    "function-lines",
    "comment-width",
    "words",
    "docstrings",
    "public-modules",
];

#[test]
fn figures() {
    let circles = circles::not_allowed();
    println!("circles beyond those allowed  {}", circles.len());
    circles.iter().for_each(|circle| println!("    {}", circle.join(" ")));
    println!("type names twice in a crate   {}", names::offenders().len());
    println!("product code lines            {} (aim: {})", lengths::product_lines(), lengths::PRODUCT_LINES);
    for rule in RULES {
        let allowed = ratchet::allowed(rule);
        println!("still allowed: {rule:<16}{} ({} places)", allowed.values().sum::<usize>(), allowed.len());
    }
    println!("stale tables in docs/benchmarks.md:");
    figures::stale().iter().for_each(|table| println!("    {table}"));
}
