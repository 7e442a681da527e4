//! The shape of an expression: how large it is, and what it could give.

use cel::IdedExpr;
use cel::common::ast::{EntryExpr, Expr, LiteralValue, operators};

use super::WhenError;
use super::pattern;
use crate::problem::limits;

/// Counts nodes and depth without recursion, because what is too deep to walk must be
/// found before it is walked.
pub(super) fn check_size(expr: &IdedExpr) -> Result<(), WhenError> {
    let mut open = vec![(expr, 1_usize)];
    let mut nodes = 0_usize;
    while let Some((expr, depth)) = open.pop() {
        nodes += 1;
        if depth > limits::WHEN_DEPTH {
            return Err(WhenError::new(format!(
                "the expression nests deeper than {} levels",
                limits::WHEN_DEPTH
            ))
            .with_hint("test membership with `in [...]`, or split the rule"));
        }
        if nodes > limits::WHEN_NODES {
            return Err(WhenError::new(format!(
                "the expression has more than {} parts",
                limits::WHEN_NODES
            ))
            .with_hint("split the rule, or use the lists of the match"));
        }
        open.extend(
            child_exprs(&expr.expr)
                .into_iter()
                .map(|child| (child, depth + 1)),
        );
    }
    Ok(())
}

fn child_exprs(expr: &Expr) -> Vec<&IdedExpr> {
    match expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(call) => call
            .target
            .as_deref()
            .into_iter()
            .chain(&call.args)
            .collect(),
        Expr::Comprehension(c) => vec![
            &c.iter_range,
            &c.accu_init,
            &c.loop_cond,
            &c.loop_step,
            &c.result,
        ],
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => entry_exprs(map.entries.iter().map(|e| &e.expr)),
        Expr::Select(select) => vec![&select.operand],
        Expr::Struct(made) => entry_exprs(made.entries.iter().map(|e| &e.expr)),
    }
}

fn entry_exprs<'a>(entries: impl Iterator<Item = &'a EntryExpr>) -> Vec<&'a IdedExpr> {
    entries
        .flat_map(|entry| match entry {
            EntryExpr::StructField(field) => vec![&field.value],
            EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
        })
        .collect()
}

/// Whether something could be a list, so that adding to it could grow one.
pub(super) fn may_be_list(expr: &Expr) -> bool {
    match expr {
        Expr::Ident(name) => {
            matches!(name.as_str(), "risk_tags" | "requires" | "capabilities")
                || name.starts_with('@')
        }
        Expr::List(_) | Expr::Comprehension(_) => true,
        Expr::Call(call) => match call.func_name.as_str() {
            operators::CONDITIONAL | operators::ADD | operators::INDEX => {
                call.args.iter().any(|a| may_be_list(&a.expr))
            }
            _ => false,
        },
        Expr::Unspecified | Expr::Literal(_) | Expr::Map(_) | Expr::Select(_) | Expr::Struct(_) => {
            false
        }
    }
}

/// Whether an expression can be a condition. What only turns out while asking (a
/// variable of a loop, say) does not come to the top of an expression.
pub(super) fn yields_bool(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(LiteralValue::Boolean(_)) => true,
        Expr::Ident(name) => name == "has_error",
        Expr::Select(select) => select.test,
        Expr::Comprehension(c) => !matches!(c.accu_init.expr, Expr::List(_)),
        Expr::Call(call) => match call.func_name.as_str() {
            operators::CONDITIONAL => call.args.iter().skip(1).all(|a| yields_bool(&a.expr)),
            operators::LOGICAL_AND
            | operators::LOGICAL_OR
            | operators::LOGICAL_NOT
            | operators::EQUALS
            | operators::NOT_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS
            | operators::LESS
            | operators::LESS_EQUALS
            | operators::IN
            | "startsWith"
            | "endsWith"
            | "contains"
            | pattern::FUNCTION => true,
            _ => false,
        },
        Expr::Unspecified | Expr::List(_) | Expr::Literal(_) | Expr::Map(_) | Expr::Struct(_) => {
            false
        }
    }
}
