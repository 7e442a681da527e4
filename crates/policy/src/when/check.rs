//! Which expressions are accepted: small ones, over names and functions that exist,
//! whose cost is bounded whatever the job says.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, operators};

use super::WhenError;
use super::pattern::{self, Pattern};
use super::shape::{check_size, may_be_list, yields_bool};
use super::vars::{MCP_FIELDS, VariableNames};
use crate::problem::limits;
use airlock_model::reads::{Field, Reads};
use airlock_model::text::fold_name;
use airlock_settings::hint::{nearest, suggest};

/// What was learnt on the way.
#[derive(Default)]
pub(super) struct CheckedExpr {
    pub(super) patterns: Vec<Pattern>,
    pub(super) reads: Reads,
}

/// Functions and methods that may be called, beside operators.
const FUNCTIONS: [&str; 12] = [
    "size",
    "startsWith",
    "endsWith",
    "contains",
    "matches",
    "int",
    "uint",
    "double",
    "string",
    "lowerAscii",
    "upperAscii",
    "trim",
];

/// Macros, which the parser has already turned into comprehensions. Here for hints.
const MACROS: [&str; 6] = ["has", "all", "exists", "exists_one", "map", "filter"];

const OPERATORS: [&str; 19] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::SUBSTRACT,
    operators::ADD,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::GREATER_EQUALS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::LESS,
    operators::NEGATE,
    operators::INDEX,
    operators::NOT_STRICTLY_FALSE,
    operators::IN,
];

pub(super) fn check_expression(
    expr: &mut IdedExpr,
    source: &str,
    names: &VariableNames,
) -> Result<CheckedExpr, WhenError> {
    check_size(expr)?;
    let mut walk = ExprVisitor {
        source,
        names,
        checked: CheckedExpr::default(),
        loops: None,
    };
    walk.visit(expr)?;
    if !yields_bool(&expr.expr) {
        return Err(
            WhenError::new("the expression gives neither true nor false")
                .with_hint("compare something, as in topic == 'job.a'"),
        );
    }
    Ok(walk.checked)
}

/// What a field of something is.
enum Member {
    /// The label of this name.
    Label(String),
    /// To be looked at like anything else.
    Other,
}

/// One label as a variable of its own, so that asking about it makes no map of all.
fn label_variable(label: &str) -> Expr {
    Expr::Ident(format!("{}{label}", super::LABEL_PREFIX))
}

struct ExprVisitor<'a> {
    source: &'a str,
    names: &'a VariableNames,
    checked: CheckedExpr,
    /// The names of the loop we are in: its variables and its accumulator.
    loops: Option<Vec<String>>,
}

impl ExprVisitor<'_> {
    fn visit(&mut self, expr: &mut IdedExpr) -> Result<(), WhenError> {
        match &mut expr.expr {
            Expr::Unspecified => Err(WhenError::new("the expression cannot be read")),
            Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.visit_variable(name),
            Expr::List(list) => {
                self.check_list_len(list.elements.len())?;
                list.elements.iter_mut().try_for_each(|e| self.visit(e))
            }
            Expr::Select(select) => {
                let Expr::Ident(name) = &select.operand.expr else {
                    return self.visit(&mut select.operand);
                };
                match self.visit_member(name, &select.field)? {
                    // Whether it is there is asked of the map.
                    Member::Label(label) if select.test => {
                        if name == "labels" {
                            select.field = label;
                        }
                        Ok(())
                    }
                    Member::Label(label) => {
                        expr.expr = label_variable(&label);
                        Ok(())
                    }
                    Member::Other => self.visit(&mut select.operand),
                }
            }
            Expr::Call(call) => {
                // `labels['x']` is `labels.x`.
                if call.func_name == operators::INDEX
                    && let [of, key] = call.args.as_slice()
                    && let (Expr::Ident(of), Some(key)) = (&of.expr, as_string_literal(key))
                    && let Member::Label(label) = self.visit_member(of, key)?
                {
                    expr.expr = label_variable(&label);
                    return Ok(());
                }
                self.visit_call(call)
            }
            Expr::Comprehension(c) => self.visit_comprehension(c),
            Expr::Map(_) | Expr::Struct(_) => {
                Err(WhenError::new("an expression cannot make maps or messages"))
            }
        }
    }

    /// Notes what `labels.x`, `mcp.x` and `budget.x` read.
    fn visit_member(&mut self, name: &str, field: &str) -> Result<Member, WhenError> {
        if self.is_loop_variable(name) {
            return Ok(Member::Other);
        }
        // A name that does not exist here is told by whoever looks at the variable.
        if self.find_name(name).is_none() {
            return Ok(Member::Other);
        }
        match name {
            "labels" => {
                let label = fold_name(field);
                self.checked.reads.add_label(&label);
                Ok(Member::Label(label))
            }
            "mcp" => {
                let Some((_, label)) = MCP_FIELDS.iter().find(|(f, _)| *f == field) else {
                    return Err(self.unknown_field_error(name, field, &MCP_FIELDS.map(|(f, _)| f)));
                };
                self.checked.reads.add_label(label);
                Ok(Member::Label((*label).to_owned()))
            }
            "budget" => {
                let fields = [
                    "max_input_tokens",
                    "max_output_tokens",
                    "max_total_tokens",
                    "deadline_ms",
                ];
                if !fields.contains(&field) {
                    return Err(self.unknown_field_error(name, field, &fields));
                }
                Ok(Member::Other)
            }
            _ => Ok(Member::Other),
        }
    }

    fn unknown_field_error(&self, name: &str, field: &str, known: &[&str]) -> WhenError {
        WhenError::new(format!("{name} has no field {field:?}"))
            .with_hint(suggest(field, known))
            .with_offset(find_word(self.source, field))
    }

    fn find_name(&self, name: &str) -> Option<Option<Field>> {
        let mut names = self.names.iter();
        names.find(|(n, _)| *n == name).map(|(_, field)| *field)
    }

    fn is_loop_variable(&self, name: &str) -> bool {
        self.loops
            .as_ref()
            .is_some_and(|names| names.iter().any(|n| n == name))
    }

    /// A variable on its own.
    fn visit_variable(&mut self, name: &str) -> Result<(), WhenError> {
        if self.is_loop_variable(name) {
            return Ok(());
        }
        let Some(field) = self.find_name(name) else {
            let names: Vec<&str> = self.names.iter().map(|(n, _)| *n).collect();
            return Err(WhenError::new(format!("there is no {name:?}"))
                .with_hint(suggest(name, &names))
                .with_offset(find_word(self.source, name)));
        };
        match field {
            Some(field) => self.checked.reads.add_field(field),
            None if name == "mcp" => MCP_FIELDS
                .iter()
                .for_each(|(_, l)| self.checked.reads.add_label(l)),
            None => self.checked.reads.add_all_labels(),
        }
        Ok(())
    }

    fn visit_call(&mut self, call: &mut CallExpr) -> Result<(), WhenError> {
        let name = call.func_name.as_str();
        let known = OPERATORS.contains(&name) || FUNCTIONS.contains(&name);
        if !known {
            return Err(self.unknown_function_error(name));
        }
        if name == "matches" {
            return self.compile_matches_call(call);
        }
        // `'x' in labels` reads one label.
        if name == operators::IN
            && let [key, of] = call.args.as_mut_slice()
            && let (Expr::Ident(of), Some(written)) = (&of.expr, as_string_literal(key))
            && of == "labels"
            && !self.is_loop_variable(of)
        {
            let label = fold_name(written);
            self.checked.reads.add_label(&label);
            key.expr = Expr::Literal(LiteralValue::String(label.into()));
            return Ok(());
        }
        if name == operators::ADD && call.args.iter().any(|a| may_be_list(&a.expr)) {
            return Err(WhenError::new("lists cannot be joined"));
        }
        if let Some(target) = &mut call.target {
            self.visit(target)?;
        }
        call.args.iter_mut().try_for_each(|a| self.visit(a))
    }

    fn unknown_function_error(&self, name: &str) -> WhenError {
        let all: Vec<&str> = FUNCTIONS.iter().chain(&MACROS).copied().collect();
        let hint = if MACROS.contains(&name) {
            format!("{name} is used as in risk_tags.exists(t, t == 'x') or has(labels.x)")
        } else {
            match nearest(name, &all) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("one of: {}", all.join(", ")),
            }
        };
        WhenError::new(format!("there is no function {name:?}"))
            .with_hint(hint)
            .with_offset(find_word(self.source, name))
    }

    /// Compiles the pattern and lets the call name it.
    fn compile_matches_call(&mut self, call: &mut CallExpr) -> Result<(), WhenError> {
        let at = find_word(self.source, "matches");
        let (mut text, pattern) = match (call.target.take(), call.args.as_mut_slice()) {
            (Some(target), [pattern]) => (*target, std::mem::take(pattern)),
            (None, [text, pattern]) => (std::mem::take(text), std::mem::take(pattern)),
            _ => {
                return Err(WhenError::new("matches takes a text and a pattern")
                    .with_hint("as in labels.env.matches('^prod')")
                    .with_offset(at));
            }
        };
        let Some(source) = as_string_literal(&pattern) else {
            return Err(WhenError::new("the pattern of matches must be written out")
                .with_hint("as in labels.env.matches('^prod')")
                .with_offset(at));
        };
        let compiled = Pattern::compile(source).map_err(|e| WhenError::new(e).with_offset(at))?;
        self.visit(&mut text)?;
        let name = format!("{}{}", pattern::PREFIX, self.checked.patterns.len());
        self.checked.patterns.push(compiled);
        let name = IdedExpr {
            id: pattern.id,
            expr: Expr::Ident(name),
        };
        *call = CallExpr {
            func_name: pattern::FUNCTION.to_owned(),
            target: None,
            args: vec![text, name],
        };
        Ok(())
    }

    fn visit_comprehension(&mut self, c: &mut ComprehensionExpr) -> Result<(), WhenError> {
        if self.loops.is_some() {
            return Err(WhenError::new("a loop cannot stand inside a loop")
                .with_hint("write one of them as a list in the match, or as a second rule"));
        }
        let range = match &c.iter_range.expr {
            Expr::Ident(name) => {
                let lists = ["risk_tags", "requires", "capabilities", "labels", "mcp"];
                lists.contains(&name.as_str()) && self.find_name(name).is_some()
            }
            Expr::List(_) => true,
            _ => false,
        };
        if !range {
            return Err(WhenError::new(
                "a loop can only go over risk_tags, requires, capabilities, labels, mcp or a list that is written out",
            ));
        }
        let own = std::iter::once(&c.iter_var).chain(&c.iter_var2);
        if let Some(taken) = own.clone().find(|v| self.find_name(v).is_some()) {
            return Err(
                WhenError::new(format!("{taken:?} is the name of something else"))
                    .with_hint("give the loop's variable another name"),
            );
        }
        self.visit(&mut c.iter_range)?;
        let mut names: Vec<String> = own.cloned().collect();
        names.push(c.accu_var.clone());
        self.loops = Some(names);
        let walked = self.visit_loop(c);
        self.loops = None;
        walked
    }

    /// The parts that the macro made; only the step holds what somebody wrote.
    fn visit_loop(&mut self, c: &mut ComprehensionExpr) -> Result<(), WhenError> {
        // `map` and `filter` add to the accumulator, which is a list made here.
        if matches!(c.accu_init.expr, Expr::List(_)) {
            return self.visit_append(&mut c.loop_step, &c.accu_var);
        }
        self.visit(&mut c.loop_step)
    }

    /// `@result + [x]`, or `cond ? @result + [x] : @result`.
    fn visit_append(&mut self, step: &mut IdedExpr, accu: &str) -> Result<(), WhenError> {
        let Expr::Call(call) = &mut step.expr else {
            return self.visit(step);
        };
        match (call.func_name.as_str(), call.args.as_mut_slice()) {
            (operators::CONDITIONAL, [cond, then, _]) => {
                self.visit(cond)?;
                self.visit_append(then, accu)
            }
            (operators::ADD, [of, element]) if matches!(&of.expr, Expr::Ident(name) if name == accu) => {
                self.visit(element)
            }
            _ => self.visit(step),
        }
    }

    fn check_list_len(&self, len: usize) -> Result<(), WhenError> {
        if len > limits::WHEN_NODES {
            return Err(WhenError::new(format!(
                "a list of {len} entries; at most {} are allowed",
                limits::WHEN_NODES
            )));
        }
        Ok(())
    }
}

fn as_string_literal(expr: &IdedExpr) -> Option<&str> {
    match &expr.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

/// Where a word stands in the expression. The parser keeps no places of what it could
/// read, so this is the first time the word occurs on its own.
pub(super) fn find_word(source: &str, word: &str) -> Option<usize> {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    source.match_indices(word).map(|(at, _)| at).find(|at| {
        let before = source[..*at].chars().next_back().is_none_or(|c| !part(c));
        let after = source[*at + word.len()..]
            .chars()
            .next()
            .is_none_or(|c| !part(c));
        before && after
    })
}
