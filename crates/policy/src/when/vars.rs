//! What an expression can name, as the interpreter's values.
//!
//! FoldedTexts are borrowed. The lists and maps are made once per job, by the first
//! expression that asks, and shared by all others.

use std::collections::HashMap;
use std::sync::OnceLock;

use airlock_model::text::{find_label, fold_name};
use cel::common::types::{CelDouble, CelInt, CelList, CelMap, CelMapKey, CelString};
use cel::common::value::{CowVal, Val};

use crate::request::Request;
use airlock_model::reads::Field;

/// What an expression may name, and which field of a request each name reads. `mcp` and
/// `labels` read labels; what no cache depends on reads nothing.
pub(crate) type VariableNames = [(&'static str, Option<Field>)];

/// What has the values of the names that an expression uses.
pub(crate) trait Variables: Send + Sync {
    fn variable_value(&self, name: &str) -> Option<CowVal<'_, '_>>;
}

/// The names of an input rule.
pub(crate) const INPUT_VARIABLES: &VariableNames = &[
    ("topic", Some(Field::Topic)),
    ("tenant", Some(Field::Tenant)),
    ("principal_id", Some(Field::PrincipalId)),
    ("priority", Some(Field::Priority)),
    ("labels", None),
    ("capability", Some(Field::Capability)),
    ("risk_tags", Some(Field::RiskTags)),
    ("requires", Some(Field::Requires)),
    ("pack_id", Some(Field::PackId)),
    ("actor_id", Some(Field::ActorId)),
    ("actor_type", Some(Field::ActorType)),
    ("budget", Some(Field::Budget)),
    ("estimated_cost", Some(Field::EstimatedCost)),
    ("mcp", None),
];

/// The fields of `mcp`, which are labels.
pub(crate) const MCP_FIELDS: [(&str, &str); 4] = [
    ("server", "mcp.server"),
    ("tool", "mcp.tool"),
    ("resource", "mcp.resource"),
    ("action", "mcp.action"),
];

pub(crate) type LazyVal<'a> = OnceLock<Box<dyn Val + 'a>>;

pub(crate) struct Vars<'a> {
    request: &'a Request<'a>,
    tenant: &'a str,
    labels: LazyVal<'a>,
    risk_tags: LazyVal<'a>,
    requires: LazyVal<'a>,
    budget: LazyVal<'a>,
    mcp: LazyVal<'a>,
}

impl<'a> Vars<'a> {
    pub(crate) fn new(request: &'a Request<'a>, tenant: &'a str) -> Self {
        Self {
            request,
            tenant,
            labels: OnceLock::new(),
            risk_tags: OnceLock::new(),
            requires: OnceLock::new(),
            budget: OnceLock::new(),
            mcp: OnceLock::new(),
        }
    }

    fn budget_map(&self) -> Box<dyn Val + 'a> {
        let budget = self.request.budget;
        let number = |n: i64| -> Box<dyn Val + 'a> { Box::new(CelInt::from(n)) };
        cel_map([
            ("max_input_tokens", number(budget.max_input_tokens)),
            ("max_output_tokens", number(budget.max_output_tokens)),
            ("max_total_tokens", number(budget.max_total_tokens)),
            ("deadline_ms", number(budget.deadline_ms)),
        ])
    }
}

impl<'a> Variables for Vars<'a> {
    fn variable_value(&self, name: &str) -> Option<CowVal<'_, '_>> {
        let request = self.request;
        let word = |word: &'a str| Some(CowVal::owned(CelString::from(word)));
        if let Some(label) = name.strip_prefix(super::LABEL_PREFIX) {
            return find_label(request.labels, label).and_then(word);
        }
        match name {
            "topic" => word(request.topic),
            "tenant" => word(self.tenant),
            "principal_id" => word(request.principal_id),
            "priority" => word(request.priority),
            "capability" => word(request.capability),
            "pack_id" => word(request.pack_id),
            "actor_id" => word(request.actor_id),
            "actor_type" => word(request.actor_type),
            "estimated_cost" => Some(CowVal::owned(CelDouble::from(request.estimated_cost))),
            "labels" => get_or_make(&self.labels, || {
                let folded = request
                    .labels
                    .iter()
                    .map(|(k, v)| (fold_name(k), cel_string(v)));
                cel_map(folded)
            }),
            "risk_tags" => get_or_make(&self.risk_tags, || cel_list(request.risk_tags)),
            "requires" => get_or_make(&self.requires, || cel_list(request.requires)),
            "budget" => get_or_make(&self.budget, || self.budget_map()),
            "mcp" => get_or_make(&self.mcp, || {
                cel_map(MCP_FIELDS.iter().filter_map(|(field, label)| {
                    let value = find_label(request.labels, label)?;
                    Some((*field, cel_string(value)))
                }))
            }),
            _ => None,
        }
    }
}

pub(crate) fn get_or_make<'b, 'a: 'b>(
    cell: &'b LazyVal<'a>,
    make: impl FnOnce() -> Box<dyn Val + 'a>,
) -> Option<CowVal<'b, 'b>> {
    Some(CowVal::Borrowed(cell.get_or_init(make).as_ref()))
}

pub(crate) fn cel_string<'a>(s: &'a str) -> Box<dyn Val + 'a> {
    Box::new(CelString::from(s))
}

pub(crate) fn cel_list<'a>(words: &'a [String]) -> Box<dyn Val + 'a> {
    let words: Vec<Box<dyn Val + 'a>> = words.iter().map(|w| cel_string(w)).collect();
    Box::new(CelList::from(words))
}

pub(crate) fn cel_map<'a, K>(
    entries: impl IntoIterator<Item = (K, Box<dyn Val + 'a>)>,
) -> Box<dyn Val + 'a>
where
    CelMapKey<'a>: From<K>,
{
    let entries: HashMap<CelMapKey<'a>, Box<dyn Val + 'a>> = entries
        .into_iter()
        .map(|(key, value)| (CelMapKey::from(key), value))
        .collect();
    Box::new(CelMap::from(entries))
}
