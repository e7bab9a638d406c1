//! ARCHITECTURE.md names what exists.

use crate::source::root;

#[test]
fn the_architecture_names_what_exists() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("read ARCHITECTURE.md");
    let names: Vec<&str> = text
        .split(|c: char| !(c.is_ascii_alphanumeric() || "_/.:-".contains(c)))
        .filter(|name| name.contains(".rs"))
        .collect();
    let mut wrong = Vec::new();
    let mut functions = 0;
    for name in names {
        let (path, function) = name.split_once(".rs:").map_or((name, ""), |(path, rest)| (path, rest));
        let path = format!("{}.rs", path.trim_end_matches('.').trim_end_matches(".rs"));
        // Within a crate's paragraph files go by their short names.
        let known = [&path, &format!("cache-server/src/{path}")].map(|path| root().join(path));
        let Some(source) = known.iter().find_map(|path| std::fs::read_to_string(path).ok()) else {
            wrong.push(format!("{name}: there is no {path}"));
            continue;
        };
        let function = function.trim_end_matches(['.', ':']);
        functions += usize::from(!function.is_empty());
        let defines = |line: &str| {
            let after = line.split_once(&format!("fn {function}")).map(|(_, after)| after);
            after.is_some_and(|after| after.starts_with(['(', '<']))
        };
        if !function.is_empty() && !source.lines().any(defines) {
            wrong.push(format!("{name}: {path} has no function {function}"));
        }
    }
    assert!(wrong.is_empty(), "ARCHITECTURE.md names what does not exist:\n{}", wrong.join("\n"));
    assert!(functions >= 15, "the life of a read is told in functions: only {functions} are named");
}
