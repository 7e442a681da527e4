//! Patterns in which `*` stands for any characters, dots included. In those of a policy `?`
//! also stands for exactly one. Case counts, as it does on the bus.
//!
//! Nearly every pattern in practice is a plain topic or ends in `*`, so those are told
//! apart once, when the pattern is made. Regular expressions were rejected: in `job.backup`
//! the dot would match anything, and nobody would notice.

use std::fmt;

/// A compiled pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// Stands in for a pattern that is not valid.
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

/// Which characters are no characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wildcards {
    Star,
    StarAndQuestionMark,
}

impl Glob {
    /// The most bytes that a pattern somebody wrote may have.
    pub const MAX_LEN: usize = 256;

    /// A pattern in which only `*` is a wildcard.
    pub fn new(pattern: impl AsRef<str>) -> Self {
        Self::with_wildcards(pattern.as_ref(), Wildcards::Star)
    }

    pub fn with_wildcards(pattern: &str, wildcards: Wildcards) -> Self {
        Self(Kind::from_pattern(pattern, wildcards))
    }

    /// Checks a pattern for topics that somebody wrote. The error says what is wrong.
    pub fn parse(pattern: &str) -> Result<Self, String> {
        if pattern.is_empty() {
            return Err("the pattern is empty".to_owned());
        }
        if pattern.len() > Self::MAX_LEN {
            return Err(format!(
                "the pattern is {} characters long; at most {} are allowed",
                pattern.len(),
                Self::MAX_LEN
            ));
        }
        if pattern.contains("**") {
            return Err("** is not a pattern; one * matches any characters, dots too".to_owned());
        }
        let strange = pattern.chars().find(|c| *c != '*' && !is_topic_char(*c));
        match strange {
            Some('>') => Err("> is no wildcard here; use *, which matches dots too".to_owned()),
            Some(c) => Err(format!(
                "{c:?} cannot be in a topic; patterns know only * (any characters)"
            )),
            None if !can_match_topic(pattern) => {
                Err("no topic can match it: topics start with \"job.\"".to_owned())
            }
            None => Ok(Self::new(pattern)),
        }
    }

    /// Matches no topic.
    pub fn match_nothing() -> Self {
        Self(Kind::Nothing)
    }

    /// The one text it matches, if it has no wildcard.
    pub fn literal(&self) -> Option<&str> {
        match &self.0 {
            Kind::Exact(exact) => Some(exact),
            Kind::Nothing | Kind::Any | Kind::Prefix(_) | Kind::Suffix(_) | Kind::General(_) => {
                None
            }
        }
    }

    /// Whether it surely matches whatever `other` matches. May be `false` although it
    /// does: only the simple cases are compared.
    pub fn covers(&self, other: &Self) -> bool {
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
            Kind::General(tokens) => matches_tokens(tokens, topic),
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
    fn from_pattern(pattern: &str, wildcards: Wildcards) -> Self {
        let question_mark = wildcards == Wildcards::StarAndQuestionMark;
        let wildcard = |c: char| c == '*' || (question_mark && c == '?');
        let plain = |s: &str| !s.contains(wildcard);
        if !pattern.is_empty() && pattern.chars().all(|c| c == '*') {
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
                '?' if question_mark => Token::One,
                other => Token::Char(other),
            })
            .collect();
        tokens.dedup_by(|a, b| *a == Token::Many && *b == Token::Many);
        Self::General(tokens.into())
    }
}

/// What a topic may be made of.
pub const fn is_topic_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '/' | '@' | '+')
}

/// Whether what stands before the first star can begin a topic.
fn can_match_topic(pattern: &str) -> bool {
    let fixed = pattern.split('*').next().unwrap_or("");
    let n = fixed.len().min("job.".len());
    fixed.as_bytes()[..n] == "job.".as_bytes()[..n]
}

/// Matches greedily and goes back to the last `*` only: an earlier one never has to
/// give way once a later one was reached. So the cost is at most pattern × topic, and
/// a hostile pattern cannot make it explode.
fn matches_tokens(tokens: &[Token], topic: &str) -> bool {
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

    fn glob(pattern: &str) -> Glob {
        Glob::with_wildcards(pattern, Wildcards::StarAndQuestionMark)
    }

    fn matches(pattern: &str, topic: &str) -> bool {
        glob(pattern).matches(topic)
    }

    #[test]
    fn each_kind_is_recognised() {
        let kind = |p: &str| glob(p).0;
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
    fn globs_cross_dots() {
        for (p, t, want) in [
            ("job.*", "job.a.b", true),
            ("job.*.b", "job.a.b", true),
            ("job.*.c", "job.a.b", false),
            ("job.a.b", "job.a.b", true),
            ("job.a", "job.a.b", false),
            ("*", "job.a", true),
            ("job.a*a", "job.a", false),
            ("*a*b*", "xaxbx", true),
        ] {
            assert_eq!(Glob::new(p).matches(t), want, "{p} on {t}");
        }
    }

    #[test]
    fn bad_patterns_are_told_apart() {
        for (pattern, why) in [
            ("", "empty"),
            ("job.**", "**"),
            ("job.>", "no wildcard"),
            ("job.[ab]", "cannot be in a topic"),
            ("job a", "cannot be in a topic"),
            ("task.*", "start with"),
            ("jo*", ""),
            ("*", ""),
            ("job.*.b", ""),
        ] {
            match Glob::parse(pattern) {
                Ok(_) => assert_eq!(why, "", "{pattern} was accepted"),
                Err(said) => assert!(!why.is_empty() && said.contains(why), "{pattern}: {said}"),
            }
        }
        assert!(Glob::parse(&format!("job.{}", "a".repeat(300))).is_err());
    }

    #[test]
    fn a_question_mark_stands_for_itself_where_it_is_no_wildcard() {
        assert!(!Glob::new("a?c").matches("abc"));
        assert!(Glob::new("a?c").matches("a?c"));
        assert!(!Glob::new("a?*").matches("abc"));
        assert!(!Glob::new("*?*c").matches("abc"));
        assert_eq!(Glob::new("a?c").literal(), Some("a?c"));
    }

    #[test]
    fn an_empty_pattern_matches_the_empty_text_alone() {
        assert!(Glob::new("").matches("") && !Glob::new("").matches("a"));
    }
}
