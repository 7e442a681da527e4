//! `when`: a condition written as an expression of the Common Expression Language.
//!
//! What must stay true: asking one costs little, whatever the job says. The
//! interpreter knows no limits of its own, so all of them are set when the policy is
//! loaded (`check.rs`, `shape.rs`): length, nodes, depth, no loop in a loop, loops only over what
//! a job or the rule lists, patterns compiled beforehand, and no function that could
//! make a large value out of small ones.
//!
//! Expressions are read with the crate's operator-precedence parser. Its other one,
//! generated from a grammar, needs so much stack that sixteen brackets around a number
//! end an unoptimised process.

mod check;
mod pattern;
mod shape;
mod types;
mod vars;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

use cel::common::ast::{Expr, LiteralValue};
use cel::common::types::CelBool;
use cel::common::value::CowVal;
use cel::context::VariableResolver;
use cel::parser::PrattParser;
use cel::{Context, Env, ExecutionError, IdedExpr, Value};

pub(crate) use pattern::regex_error_text;
pub(crate) use vars::{
    INPUT_VARIABLES, LazyVal, MCP_FIELDS, VariableNames, Variables, Vars, cel_list, cel_map,
    cel_string, get_or_make,
};

use crate::problem::limits;
use airlock_model::reads::Reads;
use pattern::Pattern;

/// The functions there are. Which of them may be called is for `check.rs`.
static CEL_ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    // Neither can fail: the names are free. Were one missing, calling it would fail,
    // and a failing expression is on the safe side.
    let _ = env.add_extension(cel::extensions::strings);
    let _ = pattern::register_matches(&mut env);
    Arc::new(env)
});

/// How the variables begin that stand for one label. No expression can spell it.
pub(crate) const LABEL_PREFIX: &str = "@label.";

/// Why it cannot be said whether an expression holds.
#[derive(Debug)]
pub(crate) enum Failure {
    NotBool,
    Error(Box<ExecutionError>),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBool => f.write_str("the expression gives neither true nor false"),
            Self::Error(error) => {
                if let ExecutionError::UndeclaredReference(name) = &**error {
                    let label = name.strip_prefix(LABEL_PREFIX).unwrap_or(name);
                    write!(f, "there is no label {label:?}")
                } else {
                    write!(f, "{error}")
                }
            }
        }
    }
}

/// A compiled expression.
pub(crate) struct When {
    source: Box<str>,
    expr: IdedExpr,
    patterns: Box<[Pattern]>,
    reads: Reads,
}

/// Why an expression is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WhenError {
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// Where in the expression, counted in bytes, if it is known.
    pub(crate) offset: Option<usize>,
}

impl WhenError {
    fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: None,
            offset: None,
        }
    }

    fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    fn with_offset(mut self, offset: Option<usize>) -> Self {
        self.offset = offset;
        self
    }
}

impl When {
    /// `names` are what the expression may name.
    pub(crate) fn compile(source: &str, names: &VariableNames) -> Result<Self, WhenError> {
        if source.trim().is_empty() {
            return Err(WhenError::new("the expression is empty").with_hint("leave it out"));
        }
        if source.len() > limits::WHEN_BYTES {
            return Err(WhenError::new(format!(
                "the expression is {} bytes long; at most {} are allowed",
                source.len(),
                limits::WHEN_BYTES
            )));
        }
        let when = Self::compile_untyped(source, names)?;
        types::check_types(&when.expr, source)?;
        Ok(when)
    }

    /// Without looking at what kinds of values meet.
    fn compile_untyped(source: &str, names: &VariableNames) -> Result<Self, WhenError> {
        let mut expr = parse_expression(source)?;
        let checked = check::check_expression(&mut expr, source, names)?;
        Ok(Self {
            source: source.trim().into(),
            expr,
            patterns: checked.patterns.into(),
            reads: checked.reads,
        })
    }

    /// Whether it holds, or why that cannot be said.
    pub(crate) fn holds(&self, vars: &dyn Variables) -> Result<bool, Failure> {
        let scope = Scope {
            vars,
            patterns: &self.patterns,
        };
        let mut context = Context::with_env(CEL_ENV.clone());
        context.set_variable_resolver(&scope);
        match Value::resolve_val(&self.expr, &context) {
            Ok(value) => value
                .downcast_ref::<CelBool>()
                .map(|b| *b.inner())
                .ok_or(Failure::NotBool),
            Err(error) => Err(Failure::Error(Box::new(error))),
        }
    }

    /// Whether it is `true` and nothing else.
    pub(crate) fn is_literal_true(&self) -> bool {
        matches!(&self.expr.expr, Expr::Literal(LiteralValue::Boolean(b)) if *b.inner())
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    pub(crate) fn reads(&self) -> &Reads {
        &self.reads
    }
}

impl fmt::Debug for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("When").field(&self.source).finish()
    }
}

impl PartialEq for When {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

/// What an expression can name: the job's facts, and its own patterns.
struct Scope<'s> {
    vars: &'s dyn Variables,
    patterns: &'s [Pattern],
}

impl VariableResolver for Scope<'_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        match variable.strip_prefix(pattern::PREFIX) {
            Some(number) => {
                let pattern = self.patterns.get(number.parse::<usize>().ok()?)?;
                Some(CowVal::Borrowed(pattern))
            }
            None => self.vars.variable_value(variable),
        }
    }
}

fn parse_expression(source: &str) -> Result<IdedExpr, WhenError> {
    let depth = u16::try_from(limits::WHEN_DEPTH).unwrap_or(u16::MAX);
    let parser = PrattParser::new()
        .max_recursion_depth(depth)
        .max_expression_node_count(limits::WHEN_NODES * 4)
        .error_reporting_limit(1)
        .error_recovery_limit(1);
    // Not ours, and fed with whatever stands in a file.
    let parsed = catch_unwind(AssertUnwindSafe(|| parser.parse(source)))
        .map_err(|_| WhenError::new("the expression cannot be read"))?;
    parsed.map_err(|errors| {
        let Some(first) = errors.errors.first() else {
            return WhenError::new("the expression cannot be read");
        };
        let text = first
            .msg
            .strip_prefix("Syntax error: ")
            .unwrap_or(&first.msg);
        let offset = byte_offset(source, first.pos);
        let error =
            WhenError::new(format!("the expression cannot be read: {text}")).with_offset(offset);
        if text.contains("'=' expecting") {
            error.with_hint("write == to compare")
        } else {
            error
        }
    })
}

/// The byte at a line and column, both counted from 1.
fn byte_offset(source: &str, (line, column): (isize, isize)) -> Option<usize> {
    let line = usize::try_from(line).ok()?.checked_sub(1)?;
    let column = usize::try_from(column).ok()?.checked_sub(1)?;
    let start: usize = source.split_inclusive('\n').take(line).map(str::len).sum();
    Some((start + column).min(source.len()))
}

#[cfg(test)]
mod tests;
