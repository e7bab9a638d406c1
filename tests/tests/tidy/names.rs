//! One word for one thing: no type name twice in a crate, and no alias.

use crate::modules::{CRATES, modules};
use crate::rules::{self, Offenders};

#[test]
fn no_type_name_twice_in_a_crate() {
    rules::check("type-names", "type names that a crate has more than once", &offenders());
}

pub fn offenders() -> Offenders {
    let mut found = Offenders::new();
    for (folder, name) in CRATES {
        let mut times = Offenders::new();
        for module in modules(folder).into_values() {
            let types = module.types.into_iter().map(|t| format!("{name}::{t}"));
            let aliases = module.aliases.into_iter().map(|t| format!("{name}::type {t}"));
            types.chain(aliases).for_each(|t| *times.entry(t).or_default() += 1);
        }
        found.extend(times.into_iter().filter(|(_, times)| *times > 1));
    }
    found
}
