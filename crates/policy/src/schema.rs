//! Everything that is wrong with the form of a file, at once.
//!
//! Reading a file stops at the first field that does not fit. Then, and only then, the file
//! is read again as a plain tree and held against `config/safety.schema.json`, the schema
//! that editors use, so that one look at the error is enough to mend all of it. The result
//! is only ever a list of mistakes: what a policy means is never read from here.

use std::fmt;
use std::sync::LazyLock;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_saphyr::{Location, Spanned};

use crate::Decision;
use crate::load::{NO_SUCH_FIELD, cordum_field_hint, parse_yaml};
use crate::problem::Problem;
use airlock_settings::hint::{nearest, suggest};

static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let text = include_str!("../../../config/safety.schema.json");
    // A test reads it; without it there is only the first mistake.
    serde_json::from_str(text).unwrap_or(Value::Null)
});

/// A file as a tree, with the place of each part.
enum Node {
    Null,
    Bool,
    Whole { negative: bool },
    Decimal,
    Text(String),
    List(Vec<Spanned<Node>>),
    Map(Vec<(Spanned<String>, Spanned<Node>)>),
}

/// The mistakes in the form of a file, in their order. Empty: none is known here.
pub(crate) fn find_problems(text: &str) -> Vec<Problem> {
    let Ok(tree) = parse_yaml::<Spanned<Node>>(text) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    check_node(&SCHEMA, &tree, "", &mut found);
    found.sort_by_key(|p| (p.line, p.column));
    found
}

fn check_node(schema: &Value, node: &Spanned<Node>, path: &str, found: &mut Vec<Problem>) {
    let schema = resolve_ref(schema);
    let place = node.referenced;
    let mut wrong = |wanted: &str| {
        found.push(Problem::at(place, path, format!("this must be {wanted}")));
    };
    match (schema["type"].as_str(), &node.value) {
        (Some("object"), Node::Map(entries)) => check_map(schema, entries, place, path, found),
        (Some("array"), Node::List(items)) => {
            for (i, item) in items.iter().enumerate() {
                check_node(&schema["items"], item, &format!("{path}[{i}]"), found);
            }
        }
        (Some("object"), _) => wrong("a mapping of names to values"),
        (Some("array"), _) => wrong("a list"),
        (Some("string"), Node::List(_) | Node::Map(_) | Node::Null) => wrong("a text"),
        (Some("boolean"), Node::Bool) | (Some("integer"), Node::Whole { negative: false }) => {}
        (Some("boolean"), _) => wrong("true or false"),
        (Some("integer"), _) => wrong("a whole number that is not negative"),
        (Some("number"), Node::Whole { .. } | Node::Decimal) => {}
        (Some("number"), _) => wrong("a number"),
        (None, value) => check_enum(schema, value, place, path, found),
        (Some(_), _) => {}
    }
}

/// A word that decides. The other lists of words are held to by the compiler.
fn check_enum(schema: &Value, value: &Node, place: Location, path: &str, found: &mut Vec<Problem>) {
    let Some(words) = schema["enum"].as_array() else {
        return;
    };
    if !["decision", "fail_mode", "severity"]
        .iter()
        .any(|end| path.ends_with(end))
    {
        return;
    }
    let Node::Text(given) = value else {
        found.push(Problem::at(place, path, "this must be a word"));
        return;
    };
    let known: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
    // What is a decision but none for here is told why by the compiler.
    let input_decision = path.ends_with("decision") && !path.starts_with("output_rules");
    let meant =
        input_decision && serde_json::from_value::<Decision>(Value::String(given.clone())).is_ok();
    if known.contains(&given.as_str()) || meant {
        return;
    }
    let own: Vec<&str> = known
        .iter()
        .copied()
        .filter(|w| !input_decision || Decision::parse(w).is_some())
        .collect();
    let hint = match given.as_str() {
        "approve" | "approval" if own.contains(&"require_approval") => {
            "did you mean require_approval?".to_owned()
        }
        other => suggest(other, &own),
    };
    let given: String = given.chars().take(64).collect();
    found.push(Problem::at(place, path, format!("unknown word {given:?}")).with_hint(hint));
}

fn check_map(
    schema: &Value,
    entries: &[(Spanned<String>, Spanned<Node>)],
    place: Location,
    path: &str,
    found: &mut Vec<Problem>,
) {
    let known = schema["properties"].as_object();
    for (key, value) in entries {
        let name = key.value.as_str();
        let shown: String = name.chars().take(64).collect();
        let path = match path {
            "" => shown,
            path => format!("{path}.{shown}"),
        };
        if let Some(of) = known.and_then(|known| known.get(name)) {
            check_node(of, value, &path, found);
        } else if schema["additionalProperties"].is_object() {
            check_node(&schema["additionalProperties"], value, &path, found);
        } else if let Some(instead) = output_policy_hint(&path).or_else(|| cordum_field_hint(name))
        {
            let message = "this field of Cordum is not supported";
            found.push(Problem::at(key.referenced, path, message).with_hint(instead));
        } else {
            let names: Vec<&str> = known
                .into_iter()
                .flat_map(|known| known.keys().map(String::as_str))
                .collect();
            let hint = suggest(name, &names);
            found.push(Problem::at(key.referenced, path, NO_SUCH_FIELD).with_hint(hint));
        }
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        let Some(name) = name.as_str() else { continue };
        // A slip of the pen is named once, where it stands.
        let there = |key: &str| key == name || nearest(key, &[name]).is_some();
        if !entries.iter().any(|(key, _)| there(&key.value)) {
            let path = match path {
                "" => name.to_owned(),
                path => format!("{path}.{name}"),
            };
            found.push(Problem::at(place, path, "this field is missing"));
        }
    }
}

/// What to do instead of a field that Cordum has in `output_policy`.
fn output_policy_hint(path: &str) -> Option<&'static str> {
    match path {
        "output_policy.enabled" => Some("OUTPUT_POLICY_ENABLED=true switches it on"),
        _ => None,
    }
}

fn resolve_ref(schema: &Value) -> &Value {
    match schema["$ref"].as_str().and_then(|r| r.strip_prefix('#')) {
        Some(pointer) => SCHEMA.pointer(pointer).unwrap_or(schema),
        None => schema,
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Bool)
    }

    fn visit_i64<E>(self, n: i64) -> Result<Node, E> {
        Ok(Node::Whole { negative: n < 0 })
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Whole { negative: false })
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Decimal)
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<Node, D::Error> {
        Node::deserialize(inner)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Node::Map(entries))
    }
}
