//! What a detector is: the built-in ones as they are written in tables, and any detector
//! as the scanner runs it.

use std::borrow::Cow;
use std::sync::OnceLock;

use regex_automata::meta::Regex;
use regex_automata::util::syntax;

use crate::limits;
use crate::report::{Kind, Severity};

/// What a match must pass beside its pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    None,
    /// Its last six characters are a CRC-32 of the rest after a prefix of so many bytes.
    Base62Crc(usize),
    /// It ends in a CRC-32, and begins with a prefix of so many bytes.
    AtlassianCrc(usize),
    /// Its first part is a header in base64 that names an algorithm.
    Jwt,
    /// It does not stand for a password, as `$PASSWORD` does.
    Password,
    /// It is an address of the public internet.
    PublicIp,
}

/// How a built-in detector finds what it looks for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum How {
    /// A pattern that is tried wherever one of the keywords stands. The keyword begins
    /// `back` bytes or fewer after the pattern's start; with 0 it begins the match.
    /// Only group 1 is the finding, where the pattern has one.
    Token {
        keywords: &'static [&'static str],
        pattern: &'static str,
        back: usize,
        check: Check,
    },
    /// A pattern that is searched for in a text with one of the keywords in it.
    /// Without keywords, in every text.
    Search {
        keywords: &'static [&'static str],
        pattern: &'static str,
        check: Check,
    },
    /// Code of its own, which asks for the detector by its name.
    Code,
}

/// A built-in detector.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) severity: Severity,
    /// In percent.
    pub(crate) confidence: u8,
    pub(crate) how: How,
    /// When two matches of one kind overlap, the lower rank is reported.
    pub(crate) rank: u8,
    pub(crate) enabled: bool,
}

impl Spec {
    /// A token with a distinctive format.
    pub(crate) const fn token(
        name: &'static str,
        keywords: &'static [&'static str],
        pattern: &'static str,
    ) -> Self {
        Self {
            name,
            kind: Kind::SecretLeak,
            severity: Severity::Critical,
            confidence: 95,
            how: How::Token {
                keywords,
                pattern,
                back: 0,
                check: Check::None,
            },
            rank: 0,
            enabled: true,
        }
    }

    /// The keyword stands up to `bytes` after the start of the token.
    pub(crate) const fn back(mut self, bytes: usize) -> Self {
        if let How::Token { back, .. } = &mut self.how {
            *back = bytes;
        }
        self
    }

    pub(crate) const fn checked(mut self, with: Check) -> Self {
        if let How::Token { check, .. } | How::Search { check, .. } = &mut self.how {
            *check = with;
        }
        self
    }

    pub(crate) const fn code(name: &'static str, kind: Kind) -> Self {
        Self {
            name,
            kind,
            severity: Severity::High,
            confidence: 90,
            how: How::Code,
            rank: 3,
            enabled: true,
        }
    }

    pub(crate) const fn injection(
        name: &'static str,
        keywords: &'static [&'static str],
        pattern: &'static str,
    ) -> Self {
        Self {
            name,
            kind: Kind::CodeInjection,
            severity: Severity::High,
            confidence: 75,
            how: How::Search {
                keywords,
                pattern,
                check: Check::None,
            },
            rank: 0,
            enabled: true,
        }
    }

    pub(crate) const fn rated(mut self, severity: Severity, confidence: u8) -> Self {
        self.severity = severity;
        self.confidence = confidence;
        self
    }

    pub(crate) const fn ranked(mut self, rank: u8) -> Self {
        self.rank = rank;
        self
    }
}

/// A pattern that is compiled when it is first needed: most outputs need few of them.
#[derive(Debug)]
pub(crate) struct Pattern {
    source: Cow<'static, str>,
    compiled: OnceLock<Option<Regex>>,
}

impl Pattern {
    pub(crate) fn builtin(source: &'static str) -> Self {
        Self {
            source: Cow::Borrowed(source),
            compiled: OnceLock::new(),
        }
    }

    /// A pattern of a user, which must compile within the limits.
    pub(crate) fn configured(source: &str) -> Result<Self, String> {
        let config = Regex::config()
            .nfa_size_limit(Some(limits::PATTERN_COMPILED))
            .hybrid_cache_capacity(4 * limits::PATTERN_COMPILED);
        let compiled = Regex::builder()
            .configure(config)
            .syntax(syntax::Config::new().nest_limit(50))
            .build(source)
            .map_err(|e| compile_message(&e))?;
        Ok(Self {
            source: Cow::Owned(source.to_owned()),
            compiled: OnceLock::from(Some(compiled)),
        })
    }

    /// `None` only for a built-in pattern that does not compile, which a test rules out.
    pub(crate) fn get(&self) -> Option<&Regex> {
        let build = || {
            Regex::builder()
                .configure(Regex::config().utf8_empty(false))
                .syntax(syntax::Config::new().utf8(false))
                .build(&self.source)
                .ok()
        };
        self.compiled.get_or_init(build).as_ref()
    }
}

fn compile_message(error: &regex_automata::meta::BuildError) -> String {
    match (error.syntax_error(), error.size_limit()) {
        (Some(syntax), _) => syntax.to_string(),
        (None, Some(limit)) => format!("the pattern needs more than {limit} bytes of memory"),
        (None, None) => error.to_string(),
    }
}

/// How a compiled detector runs.
#[derive(Debug)]
pub(crate) enum Run {
    Token {
        pattern: Pattern,
        back: usize,
        check: Check,
    },
    Search {
        pattern: Pattern,
        check: Check,
    },
    Code,
}

/// A detector that is switched on.
#[derive(Debug)]
pub(crate) struct Detector {
    pub(crate) name: Cow<'static, str>,
    pub(crate) kind: Kind,
    pub(crate) severity: Severity,
    pub(crate) confidence: f64,
    pub(crate) run: Run,
    /// In lower case. A match that one of them stands beside is more certain.
    pub(crate) keywords: Box<[String]>,
    /// A match that no keyword stands beside is no finding.
    pub(crate) context_required: bool,
    /// A match that one of these finds something in is no finding.
    pub(crate) allow: Box<[Pattern]>,
    /// When two matches of one kind overlap, the lower rank is reported.
    pub(crate) rank: u8,
}
