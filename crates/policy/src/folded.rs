//! How words compare: trimmed, and without regard to case.
//!
//! A job tagged `Destructive ` must not slip past a rule about `destructive`, nor one
//! whose tag only looks like it: with a zero-width space in it, or in full-width letters.
//! Both sides are folded alike, so that it does not matter which side a word came from.

use airlock_model::text::fold_name;

/// A word of a rule, folded once when the policy is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct FoldedText(Box<str>);

impl FoldedText {
    pub(crate) fn new(s: &str) -> Self {
        Self(fold_name(s).into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a word of a job is this one. Almost all are ASCII and take no folding.
    pub(crate) fn matches(&self, other: &str) -> bool {
        let other = other.trim();
        if other.is_ascii() {
            self.0.eq_ignore_ascii_case(other)
        } else {
            *self.0 == fold_name(other)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_and_surrounding_space_do_not_count() {
        let word = FoldedText::new(" Destructive ");
        assert!(word.matches("destructive"));
        assert!(word.matches("DESTRUCTIVE\t"));
        assert!(!word.matches("destructiv"));
        assert!(!word.matches(""));
    }

    #[test]
    fn folding_reaches_beyond_ascii() {
        assert!(FoldedText::new("Gefährlich").matches("GEFÄHRLICH"));
        assert!(FoldedText::new("ΟΔΟΣ").matches("οδοσ"));
        // The Kelvin sign folds to a plain k.
        assert!(FoldedText::new("k").matches("\u{212a}"));
        // What cannot be seen does not count, nor which of two spellings it is.
        assert!(FoldedText::new("destructive").matches("de\u{200b}structive\u{ad}"));
        assert!(FoldedText::new("destructive").matches("ｄｅｓｔｒｕｃｔｉｖｅ"));
    }
}
