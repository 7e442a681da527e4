//! What a pattern for topics may look like in a policy. How it matches is in
//! [`airlock_model::glob`].

use airlock_model::glob::{Wildcards, is_topic_char};

pub use airlock_model::glob::Glob;

/// Why a pattern is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    #[error("the pattern is empty")]
    Empty,
    #[error("the pattern is {0} bytes long; at most {max} are allowed", max = Glob::MAX_LEN)]
    TooLong(usize),
    #[error("the pattern contains {0:?}, which no topic can contain")]
    BadChar(char),
}

impl GlobError {
    /// What was probably meant.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Empty => Some("write \"*\" for every topic"),
            Self::TooLong(_) => None,
            Self::BadChar('>') => Some("write *, which matches dots too"),
            Self::BadChar('[' | ']' | '{' | '}' | '|' | ',') => {
                Some("there are no classes or alternatives; list several patterns")
            }
            Self::BadChar(_) => Some("only letters, digits, - _ . : / @ + and the wildcards * ?"),
        }
    }
}

/// Reads a pattern with `*` for any characters and `?` for exactly one.
pub fn parse_glob(pattern: &str) -> Result<Glob, GlobError> {
    if pattern.is_empty() {
        return Err(GlobError::Empty);
    }
    if pattern.len() > Glob::MAX_LEN {
        return Err(GlobError::TooLong(pattern.len()));
    }
    let fits = |c: char| is_topic_char(c) || matches!(c, '*' | '?');
    if let Some(c) = pattern.chars().find(|c| !fits(*c)) {
        return Err(GlobError::BadChar(c));
    }
    Ok(Glob::with_wildcards(
        pattern,
        Wildcards::StarAndQuestionMark,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_pattern_is_refused_with_a_hint() {
        assert_eq!(parse_glob(""), Err(GlobError::Empty));
        assert_eq!(parse_glob(&"a".repeat(257)), Err(GlobError::TooLong(257)));
        let error = parse_glob("job.>").unwrap_err();
        assert_eq!(error, GlobError::BadChar('>'));
        assert_eq!(error.hint(), Some("write *, which matches dots too"));
        assert_eq!(parse_glob("job. a"), Err(GlobError::BadChar(' ')));
    }
}
