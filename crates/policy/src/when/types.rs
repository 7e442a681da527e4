//! What kind of value each part of an expression gives, so that one that could only fail
//! is refused when the policy is loaded: failing, it would match every job that a stricter
//! rule is asked about.
//!
//! What must stay true: a part that can succeed, and give one thing for one job and another
//! for the next, is never refused. What cannot be told here is [`Kind::Any`], which fits
//! everywhere.

use std::fmt;

use cel::IdedExpr;
use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, operators};

use super::WhenError;
use super::check::find_word;
use super::{LABEL_PREFIX, pattern};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Null,
    List(Box<Kind>),
    /// From texts.
    Map(Box<Kind>),
    Any,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bool => "true or false",
            Self::Int | Self::Uint => "a whole number",
            Self::Double => "a decimal number",
            Self::Text => "a text",
            Self::Bytes => "bytes",
            Self::Null => "null",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
            Self::Any => "something",
        })
    }
}

impl Kind {
    fn is_number(&self) -> bool {
        matches!(self, Self::Int | Self::Uint | Self::Double)
    }

    /// Whether one can ever equal the other.
    fn may_equal(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) => true,
            (Self::List(a), Self::List(b)) | (Self::Map(a), Self::Map(b)) => a.may_equal(b),
            (a, b) => a == b || (a.is_number() && b.is_number()),
        }
    }

    fn is_comparable_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) => true,
            (Self::Text, Self::Text) | (Self::Bool, Self::Bool) | (Self::Bytes, Self::Bytes) => {
                true
            }
            (a, b) => a.is_number() && b.is_number(),
        }
    }

    /// What is either of the two.
    fn unify(self, other: Self) -> Self {
        if self == other { self } else { Self::Any }
    }
}

/// Refuses an expression, already walked by `check.rs`, that cannot be evaluated.
pub(super) fn check_types(expr: &IdedExpr, source: &str) -> Result<(), WhenError> {
    let mut checker = Checker {
        source,
        bound: Vec::new(),
    };
    let kind = checker.infer_kind(expr)?;
    match kind {
        Kind::Bool | Kind::Any => Ok(()),
        other => Err(WhenError::new(format!(
            "the expression gives neither true nor false but {other}"
        ))
        .with_hint("compare something, as in topic == 'job.a'")),
    }
}

struct Checker<'a> {
    source: &'a str,
    /// The variables of the loop we are in.
    bound: Vec<(String, Kind)>,
}

type KindResult = Result<Kind, WhenError>;

impl Checker<'_> {
    fn infer_kind(&mut self, expr: &IdedExpr) -> KindResult {
        match &expr.expr {
            Expr::Literal(literal) => Ok(match literal {
                LiteralValue::Boolean(_) => Kind::Bool,
                LiteralValue::Int(_) => Kind::Int,
                LiteralValue::UInt(_) => Kind::Uint,
                LiteralValue::Double(_) => Kind::Double,
                LiteralValue::String(_) => Kind::Text,
                LiteralValue::Bytes(_) => Kind::Bytes,
                LiteralValue::Null => Kind::Null,
            }),
            Expr::Ident(name) => Ok(self.variable_kind(name)),
            Expr::List(list) => {
                let mut of = None;
                for element in &list.elements {
                    let kind = self.infer_kind(element)?;
                    of = Some(match of {
                        None => kind,
                        Some(known) => Kind::unify(known, kind),
                    });
                }
                Ok(Kind::List(Box::new(of.unwrap_or(Kind::Any))))
            }
            Expr::Select(select) => match self.infer_kind(&select.operand)? {
                Kind::Map(_) | Kind::Any if select.test => Ok(Kind::Bool),
                Kind::Map(of) => Ok(*of),
                Kind::Any => Ok(Kind::Any),
                other => Err(self.error_at(
                    &select.operand,
                    format!("{other} has no field {:?}", select.field),
                )),
            },
            Expr::Call(call) => self.infer_call(call),
            Expr::Comprehension(c) => self.infer_comprehension(c),
            Expr::Unspecified | Expr::Map(_) | Expr::Struct(_) => Ok(Kind::Any),
        }
    }

    fn variable_kind(&self, name: &str) -> Kind {
        if let Some((_, kind)) = self.bound.iter().find(|(n, _)| n == name) {
            return kind.clone();
        }
        match name {
            "topic" | "tenant" | "principal_id" | "priority" | "capability" | "pack_id"
            | "actor_id" | "actor_type" | "content_type" | "error_code" | "worker_id"
            | "workflow_id" | "step_id" => Kind::Text,
            "output_size_bytes" | "execution_ms" => Kind::Int,
            "has_error" => Kind::Bool,
            "risk_tags" | "requires" | "capabilities" => Kind::List(Box::new(Kind::Text)),
            "labels" | "mcp" => Kind::Map(Box::new(Kind::Text)),
            "budget" => Kind::Map(Box::new(Kind::Int)),
            "estimated_cost" => Kind::Double,
            label if label.starts_with(LABEL_PREFIX) => Kind::Text,
            _ => Kind::Any,
        }
    }

    fn infer_call(&mut self, call: &CallExpr) -> KindResult {
        let name = call.func_name.as_str();
        match (name, &call.target, call.args.as_slice()) {
            (operators::CONDITIONAL, None, [cond, then, other]) => {
                self.expect_bool(cond)?;
                Ok(self.infer_kind(then)?.unify(self.infer_kind(other)?))
            }
            (operators::LOGICAL_AND | operators::LOGICAL_OR, None, [a, b]) => {
                self.expect_bool(a)?;
                self.expect_bool(b)
            }
            (operators::LOGICAL_NOT, None, [a]) => self.expect_bool(a),
            (operators::NOT_STRICTLY_FALSE, None, [_]) => Ok(Kind::Bool),
            (operators::NEGATE, None, [a]) => match self.infer_kind(a)? {
                kind @ (Kind::Int | Kind::Double | Kind::Any) => Ok(kind),
                other => Err(self.error_at(a, format!("{other} has no negative"))),
            },
            (operators::INDEX, None, [of, key]) => self.infer_index(of, key),
            (operators::IN, None, [a, of]) => self.infer_in(a, of),
            (_, None, [a, b]) if operator_symbol(name).is_some() => self.infer_binary(name, a, b),
            _ => self.infer_function(call),
        }
    }

    fn expect_bool(&mut self, expr: &IdedExpr) -> KindResult {
        match self.infer_kind(expr)? {
            Kind::Bool | Kind::Any => Ok(Kind::Bool),
            other => Err(self
                .error_at(expr, format!("{other} is neither true nor false"))
                .with_hint("compare it with something")),
        }
    }

    fn infer_index(&mut self, of: &IdedExpr, key: &IdedExpr) -> KindResult {
        let (list, index) = (self.infer_kind(of)?, self.infer_kind(key)?);
        match (list, index) {
            (Kind::Any, _) => Ok(Kind::Any),
            (Kind::Map(of), Kind::Text | Kind::Any) => Ok(*of),
            (Kind::List(of), Kind::Int | Kind::Uint | Kind::Double | Kind::Any) => Ok(*of),
            (list, index) => Err(self.error_at(key, format!("{index} is no place in {list}"))),
        }
    }

    fn infer_in(&mut self, a: &IdedExpr, of: &IdedExpr) -> KindResult {
        let (kind, list) = (self.infer_kind(a)?, self.infer_kind(of)?);
        let found = match &list {
            Kind::Any => true,
            Kind::List(of) => kind.may_equal(of),
            Kind::Map(_) => kind.may_equal(&Kind::Text),
            Kind::Text => {
                return Err(self
                    .error_at(of, "in looks into lists and maps, not into a text")
                    .with_hint("write contains, as in topic.contains('x')"));
            }
            _ => false,
        };
        if found {
            return Ok(Kind::Bool);
        }
        Err(self.error_at(a, format!("{kind} is never in {list} of that kind")))
    }

    fn infer_binary(&mut self, name: &str, a: &IdedExpr, b: &IdedExpr) -> KindResult {
        let (left, right) = (self.infer_kind(a)?, self.infer_kind(b)?);
        let sign = operator_symbol(name).unwrap_or(name);
        let any = left == Kind::Any || right == Kind::Any;
        let gives = match name {
            operators::EQUALS | operators::NOT_EQUALS => {
                left.may_equal(&right).then_some(Kind::Bool)
            }
            operators::LESS
            | operators::LESS_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS => left.is_comparable_with(&right).then_some(Kind::Bool),
            operators::MODULO if any => Some(Kind::Any),
            operators::MODULO => {
                let fits = left == right && matches!(left, Kind::Int | Kind::Uint);
                fits.then_some(left.clone())
            }
            _ if any => Some(Kind::Any),
            operators::ADD if matches!((&left, &right), (Kind::List(_), Kind::List(_))) => {
                Some(left.clone().unify(right.clone()))
            }
            operators::ADD => {
                let joins = left.is_number() || matches!(left, Kind::Text | Kind::Bytes);
                (left == right && joins).then_some(left.clone())
            }
            _ => (left == right && left.is_number()).then_some(left.clone()),
        };
        gives.ok_or_else(|| {
            let at = match (&a.expr, &b.expr) {
                (Expr::Literal(_), _) => a,
                _ => b,
            };
            self.error_at(at, mismatch_message(sign, &left, &right))
                .with_hint(mismatch_hint(&left, &right, a, b))
        })
    }

    fn infer_function(&mut self, call: &CallExpr) -> KindResult {
        let name = call.func_name.as_str();
        let mut all = Vec::with_capacity(call.args.len() + 1);
        for expr in call.target.as_deref().into_iter().chain(&call.args) {
            all.push((self.infer_kind(expr)?, expr));
        }
        let method = call.target.is_some();
        let text = |kind: &Kind| matches!(kind, Kind::Text | Kind::Any);
        let whole = |kind: &Kind| kind.is_number() || text(kind);
        let (fits, gives, usage) = match (name, all.as_slice()) {
            ("size", [(kind, _)]) => {
                let fits = matches!(
                    kind,
                    Kind::Text | Kind::Bytes | Kind::List(_) | Kind::Map(_) | Kind::Any
                );
                (fits, Kind::Int, "size(risk_tags)")
            }
            ("startsWith" | "endsWith" | "contains", [(of, _), (part, _)]) => (
                method && text(of) && text(part),
                Kind::Bool,
                "topic.startsWith('job.'); a list has in, as in 'x' in risk_tags",
            ),
            (pattern::FUNCTION, [(of, _), _]) => {
                (text(of), Kind::Bool, "labels.env.matches('^prod')")
            }
            ("lowerAscii" | "upperAscii" | "trim", [(of, _)]) => (
                method && text(of),
                Kind::Text,
                "labels.env.lowerAscii(); a list is mapped, as in risk_tags.exists(t, t.lowerAscii() == 'x')",
            ),
            ("int", [(of, _)]) => (!method && whole(of), Kind::Int, "int(labels.amount)"),
            ("uint", [(of, _)]) => (!method && whole(of), Kind::Uint, "uint(labels.amount)"),
            ("double", [(of, _)]) => (!method && whole(of), Kind::Double, "double(labels.amount)"),
            ("string", [(of, _)]) => {
                let fits = whole(of) || matches!(of, Kind::Bool | Kind::Bytes);
                (!method && fits, Kind::Text, "string(budget.deadline_ms)")
            }
            _ => (
                false,
                Kind::Any,
                "size(risk_tags) or topic.startsWith('job.')",
            ),
        };
        if fits {
            return Ok(gives);
        }
        let shown = if name == pattern::FUNCTION {
            "matches"
        } else {
            name
        };
        let kinds: Vec<String> = all.iter().map(|(k, _)| k.to_string()).collect();
        Err(WhenError::new(format!(
            "{shown} cannot be called so with {}",
            if kinds.is_empty() {
                "nothing".to_owned()
            } else {
                kinds.join(" and ")
            }
        ))
        .with_hint(format!("as in {usage}"))
        .with_offset(find_word(self.source, shown)))
    }

    fn infer_comprehension(&mut self, c: &ComprehensionExpr) -> KindResult {
        let range = self.infer_kind(&c.iter_range)?;
        let (first, second) = match (range, c.iter_var2.is_some()) {
            (Kind::List(of), false) => (*of, Kind::Any),
            (Kind::List(of), true) => (Kind::Int, *of),
            (Kind::Map(of), _) => (Kind::Text, *of),
            _ => (Kind::Any, Kind::Any),
        };
        let accu = self.infer_kind(&c.accu_init)?;
        self.bound = vec![(c.iter_var.clone(), first)];
        self.bound
            .extend(c.iter_var2.clone().map(|name| (name, second)));
        self.bound.push((c.accu_var.clone(), accu));
        let step = self.infer_kind(&c.loop_step);
        let result = step.and_then(|step| {
            // What the loop has made by its end; `map` and `filter` tell of what kind.
            if let Some(accu) = self.bound.last_mut() {
                accu.1 = match step {
                    Kind::Any => Kind::Any,
                    made => made,
                };
            }
            self.infer_kind(&c.result)
        });
        self.bound.clear();
        result
    }

    fn error_at(&self, expr: &IdedExpr, message: impl Into<String>) -> WhenError {
        WhenError::new(message).with_offset(find_offset(expr, self.source))
    }
}

fn operator_symbol(operator: &str) -> Option<&'static str> {
    Some(match operator {
        operators::EQUALS => "==",
        operators::NOT_EQUALS => "!=",
        operators::LESS => "<",
        operators::LESS_EQUALS => "<=",
        operators::GREATER => ">",
        operators::GREATER_EQUALS => ">=",
        operators::ADD => "+",
        operators::SUBSTRACT => "-",
        operators::MULTIPLY => "*",
        operators::DIVIDE => "/",
        operators::MODULO => "%",
        _ => return None,
    })
}

fn mismatch_message(sign: &str, left: &Kind, right: &Kind) -> String {
    match sign {
        "==" | "!=" => format!("{left} is never equal to {right}"),
        "<" | "<=" | ">" | ">=" => format!("{left} and {right} cannot be compared with {sign}"),
        _ => format!("{left} and {right} do not go together with {sign}"),
    }
}

/// What was probably meant.
fn mismatch_hint(left: &Kind, right: &Kind, a: &IdedExpr, b: &IdedExpr) -> String {
    let quoted = [a, b].into_iter().find_map(|e| match &e.expr {
        Expr::Literal(LiteralValue::String(text)) => {
            let text = text.inner().trim();
            text.parse::<f64>().is_ok().then(|| text.to_owned())
        }
        _ => None,
    });
    let number = left.is_number() || right.is_number();
    if let Some(text) = quoted.filter(|_| number) {
        return format!("write {text} without quotes");
    }
    if *left == Kind::Null || *right == Kind::Null {
        return "has(labels.x) tells whether a label is there".to_owned();
    }
    if number && (*left == Kind::Text || *right == Kind::Text) {
        return "int(…) or double(…) makes a number of a text".to_owned();
    }
    if left.is_number() && right.is_number() {
        return "double(…) makes a decimal number of a whole one, and 2.0 is one".to_owned();
    }
    "texts go with texts and numbers with numbers".to_owned()
}

/// Where a part stands. The parser keeps no places, so this is where its first word does.
fn find_offset(expr: &IdedExpr, source: &str) -> Option<usize> {
    match &expr.expr {
        Expr::Ident(name) => {
            let name = name.strip_prefix(LABEL_PREFIX).unwrap_or(name);
            find_word(source, name)
        }
        Expr::Select(select) => find_offset(&select.operand, source),
        Expr::Call(call) => {
            let named = find_word(source, &call.func_name);
            let mut parts = call.target.as_deref().into_iter().chain(&call.args);
            named.or_else(|| parts.find_map(|p| find_offset(p, source)))
        }
        Expr::Literal(LiteralValue::String(text)) => ['"', '\''].into_iter().find_map(|quote| {
            let written = format!("{quote}{}{quote}", text.inner());
            source.find(&written)
        }),
        Expr::Literal(LiteralValue::Int(n)) => find_word(source, &n.inner().to_string()),
        Expr::Literal(LiteralValue::Boolean(b)) => find_word(source, &b.inner().to_string()),
        Expr::Literal(LiteralValue::Null) => find_word(source, "null"),
        Expr::List(list) => list.elements.iter().find_map(|e| find_offset(e, source)),
        Expr::Comprehension(c) => find_offset(&c.iter_range, source),
        Expr::Unspecified | Expr::Literal(_) | Expr::Map(_) | Expr::Struct(_) => None,
    }
}
