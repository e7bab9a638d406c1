//! One word for one thing: no type name twice in a crate.

use crate::modules::{CRATES, modules};
use crate::ratchet::{self, Offenders};

#[test]
fn no_type_name_twice_in_a_crate() {
    ratchet::check("type-names", "type names that a crate has more than once", &offenders());
}

pub fn offenders() -> Offenders {
    let mut found = Offenders::new();
    for (folder, name) in CRATES {
        let mut times = Offenders::new();
        for module in modules(folder).into_values() {
            module.types.into_iter().for_each(|t| *times.entry(format!("{name}::{t}")).or_default() += 1);
        }
        found.extend(times.into_iter().filter(|(_, times)| *times > 1));
    }
    found
}
