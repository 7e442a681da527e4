//! The file as written: the shape serde reads, with the place of each value.
//!
//! A condition is an `Option` that `null` cannot make `None` (see [`deserialize_present`]):
//! `tenants:` with its value forgotten must be a mistake, not "any tenant".
//!
//! Serialised as JSON, this is also the canonical content that the snapshot and the
//! rules' hashes name. So a field added here is in them by itself.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_saphyr::{Location, Spanned};

use crate::decision::{Decision, FailMode};
use crate::output::{OutputPolicyDoc, OutputRuleDoc};
use crate::terms::{ApprovalTerms, Constraints, Remediation};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    pub(crate) version: Spanned<Version>,
    #[serde(default, deserialize_with = "deserialize_present")]
    pub(crate) default_decision: Option<Spanned<Decision>>,
    #[serde(default, deserialize_with = "deserialize_present")]
    pub(crate) default_tenant: Option<Spanned<String>>,
    #[serde(default = "default_enforce")]
    pub(crate) enforce: bool,
    #[serde(default)]
    pub(crate) input_policy: InputPolicy,
    #[serde(default)]
    pub(crate) tenants: BTreeMap<String, Spanned<TenantDoc>>,
    pub(crate) rules: Vec<Spanned<RuleDoc>>,
    #[serde(default)]
    pub(crate) output_policy: OutputPolicyDoc,
    #[serde(default)]
    pub(crate) output_rules: Vec<Spanned<OutputRuleDoc>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InputPolicy {
    #[serde(default, deserialize_with = "deserialize_present")]
    pub(crate) fail_mode: Option<FailMode>,
    #[serde(default)]
    pub(crate) content_rules: Vec<Spanned<ContentDoc>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleDoc {
    pub(crate) id: Spanned<String>,
    #[serde(rename = "match")]
    pub(crate) matches: Spanned<MatchDoc>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) velocity: Option<Spanned<VelocityDoc>>,
    pub(crate) decision: Spanned<Decision>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<Spanned<String>>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) constraints: Option<Spanned<Constraints>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) remediations: Vec<Spanned<Remediation>>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) approval: Option<Spanned<ApprovalTerms>>,
    #[serde(default = "default_enforce", skip_serializing_if = "is_true")]
    pub(crate) enforce: bool,
}

/// A rule about what is in a job's input.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ContentDoc {
    pub(crate) id: Spanned<String>,
    #[serde(
        rename = "match",
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) matches: Option<Spanned<MatchDoc>>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) patterns: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) keywords: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) max_bytes: Option<Spanned<u64>>,
    pub(crate) decision: Spanned<Decision>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<Spanned<String>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) remediations: Vec<Spanned<Remediation>>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) approval: Option<Spanned<ApprovalTerms>>,
    #[serde(default = "default_enforce", skip_serializing_if = "is_true")]
    pub(crate) enforce: bool,
}

pub(crate) type List = Spanned<Vec<Spanned<String>>>;
pub(crate) type Labels<T> = Spanned<BTreeMap<String, T>>;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MatchDoc {
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) topics: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) tenants: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) capabilities: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) risk_tags: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) no_risk_tags: Option<Spanned<bool>>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) requires: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) pack_ids: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) actor_ids: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) actor_types: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) labels: Option<Labels<Spanned<String>>>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) label_in: Option<Labels<List>>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) label_not_in: Option<Labels<List>>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) label_allowlist: Option<Labels<List>>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) label_threshold: Option<Labels<Spanned<f64>>>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) secrets_present: Option<Spanned<bool>>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) mcp: Option<Spanned<McpDoc>>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) when: Option<Spanned<String>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct McpDoc {
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) allow_servers: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) deny_servers: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) allow_tools: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) deny_tools: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) allow_resources: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) deny_resources: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) allow_actions: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) deny_actions: Option<List>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VelocityDoc {
    pub(crate) max_requests: Spanned<u64>,
    pub(crate) window_seconds: Spanned<u64>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) key: Option<Spanned<KeyDoc>>,
    /// Counted in the ledger instead of Redis.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) strict: bool,
}

/// `1`, or the text that Cordum's files have: `"1"`, `v1`.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Version(pub(crate) String);

impl Version {
    pub(crate) fn is_known(&self) -> bool {
        matches!(self.0.trim(), "1" | "v1" | "1.0" | "v1.0")
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

/// What is counted apart: a list of words, or one text with colons between them, as in
/// Cordum's `tenant:topic`. In the canonical content it is a list either way.
#[derive(Debug)]
pub(crate) enum KeyDoc {
    Text(String),
    List(Vec<Spanned<String>>),
}

impl KeyDoc {
    /// Each word with its place; those of a text are all where the text is.
    pub(crate) fn split_parts(
        &self,
        referenced: Location,
        defined: Location,
    ) -> Vec<Spanned<String>> {
        match self {
            Self::Text(text) => text
                .split(':')
                .map(|word| Spanned::new(word.trim().to_owned(), referenced, defined))
                .collect(),
            Self::List(words) => words.clone(),
        }
    }
}

impl Serialize for KeyDoc {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.collect_seq(text.split(':').map(str::trim)),
            Self::List(words) => words.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for KeyDoc {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = KeyDoc;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a word such as tenant, or a list of them")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<KeyDoc, E> {
                Ok(KeyDoc::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<KeyDoc, A::Error> {
                let mut words = Vec::new();
                while let Some(word) = list.next_element()? {
                    words.push(word);
                }
                Ok(KeyDoc::List(words))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TenantDoc {
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) allow_topics: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) deny_topics: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) max_concurrent_jobs: Option<Spanned<u32>>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) mcp: Option<Spanned<McpDoc>>,
}

/// A key that is there has a value: `null` is read as the value, and refused or found
/// empty, instead of being taken for an absent key.
pub(crate) fn deserialize_present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

pub(crate) fn default_enforce() -> bool {
    true
}

pub(crate) fn is_true(flag: &bool) -> bool {
    *flag
}
