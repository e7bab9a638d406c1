//! Why something failed: errors of networks come wrapped in several others, which say nothing to a person.

/// The error behind all others.
pub(crate) fn innermost<'a>(
    e: &'a (dyn std::error::Error + 'static),
) -> &'a (dyn std::error::Error + 'static) {
    e.source().map_or(e, innermost)
}
