//! Rules about what is in a job's input: patterns, keywords, size.
//!
//! They are asked after the other rules and can only make a decision stricter, so
//! that no input can talk a job past a rule.

use std::cell::OnceCell;

use airlock_scan::{PatternSet, Views};

use crate::request::{Content, Request};
use crate::rule::Head;

#[derive(Debug)]
pub(crate) struct ContentRule {
    pub(crate) head: Head,
    /// Patterns and keywords together; `None`: the rule is about the size alone.
    pub(crate) patterns: Option<PatternSet>,
    /// What each entry of `patterns` is, for the reason: never what it found.
    pub(crate) names: Box<[String]>,
    pub(crate) max_bytes: Option<u64>,
}

/// What a rule found in an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ContentMatch {
    Larger {
        size: u64,
        max: u64,
    },
    /// The pattern or keyword, as the rule names it.
    Entry(String),
    /// There is an input and it could not be looked at.
    Unseen,
}

impl ContentMatch {
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Larger { size, max } => {
                format!("the input is {size} bytes long; at most {max} are allowed")
            }
            Self::Entry(name) => format!("the input contains {name}"),
            Self::Unseen => "the input could not be looked at".to_owned(),
        }
    }
}

impl ContentRule {
    /// `views` are of the request's input, made by the first rule that needs them.
    pub(crate) fn scan<'a>(
        &self,
        request: &Request<'a>,
        views: &OnceCell<Views<'a>>,
    ) -> Option<ContentMatch> {
        let Content { bytes, size, .. } = request.content?;
        if let Some(max) = self.max_bytes.filter(|max| size > *max) {
            return Some(ContentMatch::Larger { size, max });
        }
        let patterns = self.patterns.as_ref()?;
        match bytes {
            Some(bytes) if bytes.len() as u64 >= size => {
                let first = patterns.first_match(views.get_or_init(|| Views::from_bytes(bytes)))?;
                let name = self.names.get(first).cloned().unwrap_or_default();
                Some(ContentMatch::Entry(name))
            }
            // Only a part of it is shown: what it contains counts, and what is not
            // shown counts as the worst.
            Some(_) | None => (size > 0).then_some(ContentMatch::Unseen),
        }
    }
}
