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
mod rules;
mod security;
mod source;
mod tokens;
mod words;

#[test]
fn figures() {
    let circles = circles::not_allowed();
    println!("circles beyond those allowed  {}", circles.len());
    circles.iter().for_each(|circle| println!("    {}", circle.join(" ")));
    println!("type names twice in a crate   {}", names::offenders().len());
    println!("product code lines            {} (aim: {})", lengths::product_lines(), lengths::PRODUCT_LINES);
    println!("stale tables in docs/benchmarks.md:");
    figures::stale().iter().for_each(|table| println!("    {table}"));
}
