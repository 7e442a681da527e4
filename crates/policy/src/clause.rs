//! The conditions of a rule, each by itself.
//!
//! A rule matches when each of its clauses holds. A clause that cannot be judged (an
//! expression that fails) does not hold for a rule that lets a job run and does hold
//! for one that is stricter: nobody gets through by making a condition fail.

use std::fmt::Write as _;

use crate::folded::FoldedText;
use crate::glob::Glob;
use crate::mcp::McpLists;
use crate::request::Request;
use crate::when::{Vars, When};
use airlock_model::reads::{Field, Reads};

/// One job and what can be said about it.
pub(crate) struct Facts<'a> {
    pub(crate) request: &'a Request<'a>,
    /// The request's tenant, or the default one.
    pub(crate) tenant: &'a str,
    pub(crate) vars: Vars<'a>,
}

impl<'a> Facts<'a> {
    pub(crate) fn new(request: &'a Request<'a>, tenant: &'a str) -> Self {
        Self {
            request,
            tenant,
            vars: Vars::new(request, tenant),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClauseResult {
    Yes,
    No,
    /// It cannot be said.
    Failed,
}

impl From<bool> for ClauseResult {
    fn from(held: bool) -> Self {
        if held { Self::Yes } else { Self::No }
    }
}

pub(crate) type FoldedTexts = Box<[FoldedText]>;

/// Labels by their folded names, each with a list of values.
pub(crate) type LabelLists = Box<[(Box<str>, FoldedTexts)]>;

/// A condition, as in the file.
#[derive(Debug, PartialEq)]
pub(crate) enum Clause {
    NoRiskTags,
    Topics(Box<[Glob]>),
    Tenants(FoldedTexts),
    Capabilities(FoldedTexts),
    PackIds(FoldedTexts),
    ActorIds(FoldedTexts),
    ActorTypes(FoldedTexts),
    RiskTags(FoldedTexts),
    Requires(FoldedTexts),
    Labels(Box<[(Box<str>, FoldedText)]>),
    LabelIn(LabelLists),
    LabelNotIn(LabelLists),
    LabelAllowlist(LabelLists),
    LabelThreshold(Box<[(Box<str>, f64)]>),
    SecretsPresent(bool),
    Mcp(Box<McpLists>),
    When(Box<When>),
}

impl Clause {
    /// Its name in the file.
    pub(crate) fn field_name(&self) -> &'static str {
        match self {
            Self::NoRiskTags => "no_risk_tags",
            Self::Topics(_) => "topics",
            Self::Tenants(_) => "tenants",
            Self::Capabilities(_) => "capabilities",
            Self::PackIds(_) => "pack_ids",
            Self::ActorIds(_) => "actor_ids",
            Self::ActorTypes(_) => "actor_types",
            Self::RiskTags(_) => "risk_tags",
            Self::Requires(_) => "requires",
            Self::Labels(_) => "labels",
            Self::LabelIn(_) => "label_in",
            Self::LabelNotIn(_) => "label_not_in",
            Self::LabelAllowlist(_) => "label_allowlist",
            Self::LabelThreshold(_) => "label_threshold",
            Self::SecretsPresent(_) => "secrets_present",
            Self::Mcp(_) => "mcp",
            Self::When(_) => "when",
        }
    }

    pub(crate) fn evaluate(&self, facts: &Facts<'_>) -> ClauseResult {
        let request = facts.request;
        match self {
            // A tag that is blank still counts as one: whoever sends it meant
            // something, and the job is then held to the rules for tagged jobs.
            Self::NoRiskTags => request.risk_tags.is_empty().into(),
            Self::Topics(globs) => globs.iter().any(|g| g.matches(request.topic)).into(),
            Self::Tenants(words) => matches_any(words, facts.tenant).into(),
            Self::Capabilities(words) => matches_any(words, request.capability).into(),
            Self::PackIds(words) => matches_any(words, request.pack_id).into(),
            Self::ActorIds(words) => matches_any(words, request.actor_id).into(),
            Self::ActorTypes(words) => matches_any(words, request.actor_type).into(),
            Self::RiskTags(words) => words
                .iter()
                .any(|w| contains_match(request.risk_tags, w))
                .into(),
            Self::Requires(words) => words
                .iter()
                .all(|w| contains_match(request.requires, w))
                .into(),
            Self::Labels(pairs) => pairs
                .iter()
                .all(|(name, value)| {
                    find_label(request, name).is_some_and(|given| value.matches(given))
                })
                .into(),
            Self::LabelIn(lists) => lists
                .iter()
                .all(|(name, words)| {
                    find_label(request, name).is_some_and(|given| matches_any(words, given))
                })
                .into(),
            // A label that is not there is on no list, and off none: it cannot be said.
            Self::LabelNotIn(lists) => match find_label_off_list(request, lists) {
                LabelOffList::Some => ClauseResult::Yes,
                LabelOffList::Unknown => ClauseResult::Failed,
                LabelOffList::None => ClauseResult::No,
            },
            Self::LabelAllowlist(lists) => {
                matches!(find_label_off_list(request, lists), LabelOffList::Some).into()
            }
            Self::LabelThreshold(limits) => limits
                .iter()
                .all(|(name, limit)| {
                    find_label(request, name).is_some_and(|given| exceeds_limit(given, *limit))
                })
                .into(),
            Self::SecretsPresent(wanted) => (has_secrets(request) == *wanted).into(),
            Self::Mcp(lists) => lists.first_refused_label(request.labels).is_none().into(),
            Self::When(when) => match when.holds(&facts.vars) {
                Ok(held) => held.into(),
                Err(_) => ClauseResult::Failed,
            },
        }
    }

    /// Whether this surely holds for every job there can be.
    pub(crate) fn is_always_true(&self) -> bool {
        match self {
            // The topic of every job begins so.
            Self::Topics(globs) => {
                let every = Glob::new("job.*");
                globs.iter().any(|glob| glob.covers(&every))
            }
            Self::When(when) => when.is_literal_true(),
            _ => false,
        }
    }

    /// Why it could not be judged, for an explanation.
    pub(crate) fn failure_reason(&self, facts: &Facts<'_>) -> Option<String> {
        match self {
            Self::When(when) => when.holds(&facts.vars).err().map(|f| f.to_string()),
            Self::LabelNotIn(lists) => {
                let mut names = lists.iter().map(|(name, _)| name);
                let missing = names.find(|name| find_label(facts.request, name).is_none())?;
                Some(format!("there is no label {missing:?}"))
            }
            _ => None,
        }
    }

    pub(crate) fn collect_reads(&self, reads: &mut Reads) {
        match self {
            Self::NoRiskTags | Self::RiskTags(_) => reads.add_field(Field::RiskTags),
            Self::Topics(_) => reads.add_field(Field::Topic),
            Self::Tenants(_) => reads.add_field(Field::Tenant),
            Self::Capabilities(_) => reads.add_field(Field::Capability),
            Self::PackIds(_) => reads.add_field(Field::PackId),
            Self::ActorIds(_) => reads.add_field(Field::ActorId),
            Self::ActorTypes(_) => reads.add_field(Field::ActorType),
            Self::Requires(_) => reads.add_field(Field::Requires),
            Self::Labels(pairs) => pairs.iter().for_each(|(name, _)| reads.add_label(name)),
            Self::LabelIn(lists) | Self::LabelNotIn(lists) | Self::LabelAllowlist(lists) => {
                lists.iter().for_each(|(name, _)| reads.add_label(name));
            }
            Self::LabelThreshold(limits) => {
                limits.iter().for_each(|(name, _)| reads.add_label(name))
            }
            Self::SecretsPresent(_) => {
                reads.add_field(Field::RiskTags);
                reads.add_label(SECRETS_LABEL);
            }
            Self::Mcp(lists) => lists.collect_reads(reads),
            Self::When(when) => reads.extend(when.reads()),
        }
    }

    /// Whether this surely holds whenever `other` does.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let within =
            |narrow: &FoldedTexts, wide: &FoldedTexts| narrow.iter().all(|w| wide.contains(w));
        match (self, other) {
            (Self::Topics(wide), Self::Topics(narrow)) => {
                narrow.iter().all(|n| wide.iter().any(|w| w.covers(n)))
            }
            (Self::Tenants(wide), Self::Tenants(narrow))
            | (Self::Capabilities(wide), Self::Capabilities(narrow))
            | (Self::PackIds(wide), Self::PackIds(narrow))
            | (Self::ActorIds(wide), Self::ActorIds(narrow))
            | (Self::ActorTypes(wide), Self::ActorTypes(narrow))
            | (Self::RiskTags(wide), Self::RiskTags(narrow)) => within(narrow, wide),
            (Self::Requires(fewer), Self::Requires(more)) => within(fewer, more),
            (Self::Labels(fewer), Self::Labels(more)) => fewer.iter().all(|l| more.contains(l)),
            (Self::LabelIn(wide), Self::Labels(pairs)) => wide.iter().all(|(name, words)| {
                pairs
                    .iter()
                    .any(|(n, value)| n == name && words.contains(value))
            }),
            (Self::LabelIn(wide), Self::LabelIn(narrow)) => wide.iter().all(|(name, words)| {
                narrow
                    .iter()
                    .any(|(n, list)| n == name && within(list, words))
            }),
            (Self::LabelThreshold(low), Self::LabelThreshold(high)) => low
                .iter()
                .all(|(name, limit)| high.iter().any(|(n, other)| n == name && other >= limit)),
            (a, b) => a == b,
        }
    }

    /// What it asks for, in words.
    pub(crate) fn expected_text(&self) -> String {
        match self {
            Self::NoRiskTags => "none".to_owned(),
            Self::Topics(globs) => join_truncated(globs.iter().map(ToString::to_string)),
            Self::Tenants(words)
            | Self::Capabilities(words)
            | Self::PackIds(words)
            | Self::ActorIds(words)
            | Self::ActorTypes(words)
            | Self::RiskTags(words) => format!("one of {}", format_folded_list(words)),
            Self::Requires(words) => format!("all of {}", format_folded_list(words)),
            Self::Labels(pairs) => {
                join_truncated(pairs.iter().map(|(n, v)| format!("{n}={}", v.as_str())))
            }
            Self::LabelIn(lists) => join_truncated(
                lists
                    .iter()
                    .map(|(n, words)| format!("{n} one of {}", format_folded_list(words))),
            ),
            Self::LabelNotIn(lists) | Self::LabelAllowlist(lists) => join_truncated(
                lists
                    .iter()
                    .map(|(n, words)| format!("{n} none of {}", format_folded_list(words))),
            ),
            Self::LabelThreshold(limits) => {
                join_truncated(limits.iter().map(|(n, limit)| format!("{n} over {limit}")))
            }
            Self::SecretsPresent(wanted) => wanted.to_string(),
            Self::Mcp(lists) => expected_mcp_text(lists),
            Self::When(when) => when.source().to_owned(),
        }
    }

    /// What the job has there, in words.
    pub(crate) fn actual_text(&self, facts: &Facts<'_>) -> String {
        let request = facts.request;
        let labels = |names: &mut dyn Iterator<Item = &str>| {
            join_truncated(names.map(|name| match find_label(request, name) {
                Some(value) => format!("{name}={}", truncate_value(value)),
                None => format!("no {name}"),
            }))
        };
        match self {
            Self::NoRiskTags | Self::RiskTags(_) => format_string_list(request.risk_tags),
            Self::Topics(_) => request.topic.to_owned(),
            Self::Tenants(_) => truncate_value(facts.tenant),
            Self::Capabilities(_) => truncate_value(request.capability),
            Self::PackIds(_) => truncate_value(request.pack_id),
            Self::ActorIds(_) => truncate_value(request.actor_id),
            Self::ActorTypes(_) => truncate_value(request.actor_type),
            Self::Requires(_) => format_string_list(request.requires),
            Self::Labels(pairs) => labels(&mut pairs.iter().map(|(n, _)| &**n)),
            Self::LabelIn(lists) | Self::LabelNotIn(lists) | Self::LabelAllowlist(lists) => {
                labels(&mut lists.iter().map(|(n, _)| &**n))
            }
            Self::LabelThreshold(limits) => labels(&mut limits.iter().map(|(n, _)| &**n)),
            Self::SecretsPresent(_) => has_secrets(request).to_string(),
            Self::Mcp(_) => labels(&mut crate::when::MCP_FIELDS.iter().map(|(_, label)| *label)),
            Self::When(when) => match when.holds(&facts.vars) {
                Ok(held) => held.to_string(),
                Err(_) => "failed".to_owned(),
            },
        }
    }
}

const SECRETS_LABEL: &str = "secrets_present";
const SECRETS_TAG: &str = "secrets";

/// A job carries secrets when it says so, by a label or by a risk tag. A label with a
/// word that is no clear no counts as a yes.
fn has_secrets(request: &Request<'_>) -> bool {
    let denied = |value: &str| {
        let value = value.trim();
        value.is_empty()
            || ["false", "no", "0"]
                .iter()
                .any(|no| value.eq_ignore_ascii_case(no))
    };
    find_label(request, SECRETS_LABEL).is_some_and(|value| !denied(value))
        || request
            .risk_tags
            .iter()
            .any(|t| t.trim().eq_ignore_ascii_case(SECRETS_TAG))
}

fn find_label<'a>(request: &Request<'a>, name: &str) -> Option<&'a str> {
    airlock_model::text::find_label(request.labels, name)
}

/// Whether any label has a value that is not on its list.
enum LabelOffList {
    Some,
    /// None has, and one of them is not there.
    Unknown,
    None,
}

fn find_label_off_list(request: &Request<'_>, lists: &[(Box<str>, FoldedTexts)]) -> LabelOffList {
    let mut missing = false;
    for (name, words) in lists {
        match find_label(request, name) {
            Some(given) if !matches_any(words, given) => return LabelOffList::Some,
            Some(_) => {}
            None => missing = true,
        }
    }
    if missing {
        LabelOffList::Unknown
    } else {
        LabelOffList::None
    }
}

/// Whether a label's number is over the limit. What is no number, or no finite one,
/// counts as over it.
fn exceeds_limit(given: &str, limit: f64) -> bool {
    match given.trim().parse::<f64>() {
        Ok(number) if number.is_finite() => number > limit,
        Ok(_) | Err(_) => true,
    }
}

fn matches_any(words: &[FoldedText], given: &str) -> bool {
    words.iter().any(|w| w.matches(given))
}

fn contains_match(given: &[String], word: &FoldedText) -> bool {
    given.iter().any(|g| word.matches(g))
}

/// Entries that are named in an explanation; the rest are counted.
const MAX_NAMED: usize = 10;

fn join_truncated(parts: impl Iterator<Item = String>) -> String {
    let mut text = String::new();
    let mut more = 0;
    for (i, part) in parts.enumerate() {
        if i >= MAX_NAMED {
            more += 1;
        } else {
            let lead = if i == 0 { "" } else { ", " };
            let _ = write!(text, "{lead}{part}");
        }
    }
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

fn format_folded_list(words: &[FoldedText]) -> String {
    format!(
        "[{}]",
        join_truncated(words.iter().map(|w| w.as_str().to_owned()))
    )
}

fn format_string_list(words: &[String]) -> String {
    format!(
        "[{}]",
        join_truncated(words.iter().map(|w| truncate_value(w)))
    )
}

/// Short enough to be shown.
fn truncate_value(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    if text.chars().count() <= MAX_CHARS {
        text.to_owned()
    } else {
        let mut short: String = text.chars().take(MAX_CHARS).collect();
        short.push('…');
        short
    }
}

fn expected_mcp_text(lists: &McpLists) -> String {
    let names = crate::when::MCP_FIELDS.map(|(_, label)| label);
    join_truncated(lists.0.iter().zip(names).flat_map(|(pair, name)| {
        let allow = pair
            .allow
            .as_ref()
            .map(|w| format!("{name} one of {}", format_folded_list(w)));
        let deny = pair
            .deny
            .as_ref()
            .map(|w| format!("{name} none of {}", format_folded_list(w)));
        allow.into_iter().chain(deny)
    }))
}
