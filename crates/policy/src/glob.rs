//! Patterns for topics: `*` stands for any characters, dots included, and `?` for
//! exactly one. Case counts, as it does on the bus.
//!
//! Nearly every pattern in practice is a plain topic or ends in `*`, so those are told
//! apart once, when the policy is loaded. Regular expressions were rejected: in
//! `job.backup` the dot would match anything, and nobody would notice.

use std::fmt;

/// A compiled pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// Stands in for a pattern that was refused.
    Nothing,
    Any,
    Exact(Box<str>),
    Prefix(Box<str>),
    Suffix(Box<str>),
    General(Box<[Token]>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Char(char),
    One,
    Many,
}

/// Why a pattern is refused.
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

impl Glob {
    pub const MAX_LEN: usize = 256;

    pub fn new(pattern: &str) -> Result<Self, GlobError> {
        if pattern.is_empty() {
            return Err(GlobError::Empty);
        }
        if pattern.len() > Self::MAX_LEN {
            return Err(GlobError::TooLong(pattern.len()));
        }
        let fits = |c: char| {
            c.is_ascii_alphanumeric()
                || matches!(c, '-' | '_' | '.' | ':' | '/' | '@' | '+' | '*' | '?')
        };
        if let Some(c) = pattern.chars().find(|c| !fits(*c)) {
            return Err(GlobError::BadChar(c));
        }
        Ok(Self(Kind::of(pattern)))
    }

    /// Matches no topic.
    pub(crate) fn nothing() -> Self {
        Self(Kind::Nothing)
    }

    /// The one topic it fits, if it has no wildcard.
    pub(crate) fn literal(&self) -> Option<&str> {
        match &self.0 {
            Kind::Exact(exact) => Some(exact),
            Kind::Nothing | Kind::Any | Kind::Prefix(_) | Kind::Suffix(_) | Kind::General(_) => {
                None
            }
        }
    }

    /// Whether it surely fits whatever `other` fits. May be `false` for want of
    /// looking harder.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kind::Any, _) => true,
            (_, Kind::Exact(topic)) => self.matches(topic),
            (Kind::Prefix(a), Kind::Prefix(b)) => b.starts_with(&**a),
            (Kind::Suffix(a), Kind::Suffix(b)) => b.ends_with(&**a),
            (a, b) => a == b,
        }
    }

    pub fn matches(&self, topic: &str) -> bool {
        match &self.0 {
            Kind::Nothing => false,
            Kind::Any => true,
            Kind::Exact(exact) => **exact == *topic,
            Kind::Prefix(prefix) => topic.starts_with(&**prefix),
            Kind::Suffix(suffix) => topic.ends_with(&**suffix),
            Kind::General(tokens) => general(tokens, topic),
        }
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Nothing => Ok(()),
            Kind::Any => f.write_str("*"),
            Kind::Exact(text) => f.write_str(text),
            Kind::Prefix(text) => write!(f, "{text}*"),
            Kind::Suffix(text) => write!(f, "*{text}"),
            Kind::General(tokens) => tokens.iter().try_for_each(|token| match token {
                Token::Char(c) => write!(f, "{c}"),
                Token::One => f.write_str("?"),
                Token::Many => f.write_str("*"),
            }),
        }
    }
}

impl Kind {
    fn of(pattern: &str) -> Self {
        let plain = |s: &str| !s.contains(['*', '?']);
        if pattern.chars().all(|c| c == '*') {
            return Self::Any;
        }
        if plain(pattern) {
            return Self::Exact(pattern.into());
        }
        if let Some(prefix) = pattern.strip_suffix('*').filter(|p| plain(p)) {
            return Self::Prefix(prefix.into());
        }
        if let Some(suffix) = pattern.strip_prefix('*').filter(|p| plain(p)) {
            return Self::Suffix(suffix.into());
        }
        let mut tokens: Vec<Token> = pattern
            .chars()
            .map(|c| match c {
                '*' => Token::Many,
                '?' => Token::One,
                other => Token::Char(other),
            })
            .collect();
        tokens.dedup_by(|a, b| *a == Token::Many && *b == Token::Many);
        Self::General(tokens.into())
    }
}

/// Matches greedily and goes back to the last `*` only: an earlier one never has to
/// give way once a later one was reached. So the cost is at most pattern × topic, and
/// a hostile pattern cannot make it explode.
fn general(tokens: &[Token], topic: &str) -> bool {
    let mut rest = topic.chars();
    let mut at = 0;
    // Where to go on when what follows the last `*` turns out not to fit.
    let mut back: Option<(usize, std::str::Chars<'_>)> = None;
    loop {
        let mut ahead = rest.clone();
        let next = ahead.next();
        match (tokens.get(at), next) {
            (None, None) => return true,
            (Some(Token::Many), _) => {
                at += 1;
                back = Some((at, rest.clone()));
                continue;
            }
            (Some(Token::One), Some(_)) => {
                at += 1;
                rest = ahead;
                continue;
            }
            (Some(Token::Char(wanted)), Some(got)) if *wanted == got => {
                at += 1;
                rest = ahead;
                continue;
            }
            (Some(Token::One | Token::Char(_)), _) | (None, Some(_)) => {}
        }
        // A mismatch: let the last `*` swallow one character more, if there is one.
        let Some((after, mut from)) = back.take() else {
            return false;
        };
        if from.next().is_none() {
            return false;
        }
        at = after;
        rest = from.clone();
        back = Some((after, from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, topic: &str) -> bool {
        Glob::new(pattern).unwrap().matches(topic)
    }

    #[test]
    fn each_kind_is_recognised() {
        let kind = |p: &str| Glob::new(p).unwrap().0;
        assert_eq!(kind("**"), Kind::Any);
        assert_eq!(kind("job.a"), Kind::Exact("job.a".into()));
        assert_eq!(kind("job.*"), Kind::Prefix("job.".into()));
        assert_eq!(kind("*.a"), Kind::Suffix(".a".into()));
        assert!(matches!(kind("job.*.a"), Kind::General(_)));
        assert!(matches!(kind("job.?"), Kind::General(_)));
    }

    #[test]
    fn a_star_crosses_dots_and_a_question_mark_is_one_character() {
        assert!(matches("job.*", "job.image.resize"));
        assert!(matches("job.*.resize", "job.a.b.resize"));
        assert!(!matches("job.*.resize", "job.resize"));
        assert!(matches("job.?", "job.a"));
        assert!(!matches("job.?", "job.ab"));
        assert!(!matches("job.?", "job."));
        assert!(!matches("job.*", "Job.a"));
    }

    #[test]
    fn covering_is_never_claimed_wrongly() {
        let glob = |p: &str| Glob::new(p).unwrap();
        for (wide, narrow, covers) in [
            ("*", "job.?.a", true),
            ("job.*", "job.a", true),
            ("job.*", "job.a.*", true),
            ("job.a.*", "job.*", false),
            ("*.a", "*.b.a", true),
            ("job.?", "job.a", true),
            ("job.*.x", "job.*.x", true),
            ("job.a", "job.*", false),
        ] {
            assert_eq!(glob(wide).covers(&glob(narrow)), covers, "{wide} {narrow}");
            assert_eq!(glob(wide).to_string(), wide);
        }
    }

    #[test]
    fn a_hostile_pattern_stays_cheap() {
        let pattern = format!("{}b", "*a".repeat(100));
        assert!(!matches(&pattern, &"a".repeat(256)));
    }

    #[test]
    fn what_is_not_a_pattern_is_refused_with_a_hint() {
        assert_eq!(Glob::new(""), Err(GlobError::Empty));
        assert_eq!(Glob::new(&"a".repeat(257)), Err(GlobError::TooLong(257)));
        let error = Glob::new("job.>").unwrap_err();
        assert_eq!(error, GlobError::BadChar('>'));
        assert_eq!(error.hint(), Some("write *, which matches dots too"));
        assert_eq!(Glob::new("job. a"), Err(GlobError::BadChar(' ')));
    }
}
