//! `matches`, with a pattern that was compiled when the policy was loaded.
//!
//! The interpreter would compile the pattern anew for each question. So a call
//! `x.matches('…')` is rewritten to name a compiled pattern, which the expression
//! meets as a variable that nobody can write.

use std::any::Any;
use std::sync::Arc;

use cel::common::types::{CelBool, CelString, STRING_TYPE, Type};
use cel::common::value::{CowVal, StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError};
use regex::{Regex, RegexBuilder};

use crate::problem::limits;

/// What the rewritten call is named. No expression can spell it.
pub(super) const FUNCTION: &str = "@matches";
/// How the variables begin that hold patterns.
pub(super) const PREFIX: &str = "@pattern";

static PATTERN_TYPE: Type = Type::new_unspecified_type("airlock.pattern");

#[derive(Debug, Clone)]
pub(super) struct Pattern(Arc<Regex>);

impl Pattern {
    pub(super) fn compile(pattern: &str) -> Result<Self, String> {
        compile_regex(pattern).map(|r| Self(Arc::new(r)))
    }
}

/// A bounded regular expression; the error is in words.
fn compile_regex(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > limits::PATTERN_BYTES {
        return Err(format!(
            "the pattern is {} bytes long; at most {} are allowed",
            pattern.len(),
            limits::PATTERN_BYTES
        ));
    }
    RegexBuilder::new(pattern)
        .size_limit(limits::PATTERN_COMPILED)
        .dfa_size_limit(limits::PATTERN_COMPILED)
        .nest_limit(50)
        .build()
        .map_err(|e| regex_error_text(&e))
}

/// The last line of a regex error says what is wrong; those above draw it.
pub(crate) fn regex_error_text(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    let last = last.strip_prefix("error: ").unwrap_or(last);
    format!("the pattern cannot be used: {last}")
}

impl Val for Pattern {
    fn get_type(&self) -> &Type {
        &PATTERN_TYPE
    }

    fn cel_type() -> &'static Type {
        &PATTERN_TYPE
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Pattern {}

pub(super) fn register_matches(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_overload(
        FUNCTION,
        "airlock_matches",
        vec![STRING_TYPE, Type::new_unspecified_type("airlock.pattern")],
        call_matches,
    )
}

fn call_matches<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let text = args.first().and_then(|a| a.downcast_ref::<CelString<'_>>());
    let pattern = args.get(1).and_then(|a| a.downcast_ref::<Pattern>());
    match (text, pattern) {
        (Some(text), Some(pattern)) => Ok(CowVal::owned(CelBool::from(
            pattern.0.is_match(text.inner()),
        ))),
        (Some(_) | None, _) => Err(ExecutionError::MissingArgumentOrTarget),
    }
}
