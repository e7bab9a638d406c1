//! Patterns over names of certificates and claims: `*` stands for any characters but `/`.

/// A name, or many that are alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Of text as a policy has it; `None` if it is empty, or fits everything.
    pub fn of(text: &str) -> Option<Self> {
        let says_something = text.chars().any(|c| c.is_alphanumeric());
        (says_something && !text.chars().any(char::is_control)).then(|| Self(text.to_owned()))
    }

    /// Whether a name fits.
    pub fn fits(&self, name: &str) -> bool {
        fits(self.0.as_bytes(), name.as_bytes())
    }
}

/// Each `*` takes as little as it can; the last one is tried again with more.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, n));
            p += 1;
        } else if pattern.get(p) == name.get(n) {
            (p, n) = (p + 1, n + 1);
        } else if let Some((after, taken)) = star.filter(|(_, taken)| name[*taken] != b'/') {
            star = Some((after, taken + 1));
            (p, n) = (after, taken + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_a_part_of_a_path() {
        for (pattern, name, does) in [
            ("spiffe://corp/train/*", "spiffe://corp/train/a", true),
            ("spiffe://corp/train/*", "spiffe://corp/train/a/b", false),
            ("spiffe://corp/*/a", "spiffe://corp/train/a", true),
            ("spiffe://corp/*/a", "spiffe://corp/train/x/a", false),
            ("*.train.example.org", "n1.train.example.org", true),
            ("*.train.example.org", "train.example.org", false),
            ("node-*-of-*", "node-1-of-9", true),
            ("node-*-of-*", "node-1of-9", false),
            ("job", "job", true),
            ("job", "job2", false),
            ("job*", "job", true),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXbXbXd", false),
            ("a", "", false),
        ] {
            assert_eq!(Pattern::of(pattern).unwrap().fits(name), does, "{pattern} {name}");
        }
        for everything in ["", "*", "**", "/*", "*.*", "a\n"] {
            assert_eq!(Pattern::of(everything), None, "{everything}");
        }
    }
}
