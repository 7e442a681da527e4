//! The file as written: the shape serde reads, with the place of each value.
//!
//! A condition is an `Option` that `null` cannot make `None` (see [`present`]):
//! `tenants:` with its value forgotten must be a mistake, not "any tenant".

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_saphyr::Spanned;

use crate::decision::{Decision, FailMode};

/// Serialised as JSON, this is also the canonical content that the snapshot names. So
/// a field added here is in the snapshot by itself.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    pub(crate) version: Spanned<u32>,
    #[serde(default = "deny")]
    pub(crate) default_decision: Decision,
    #[serde(default = "default_tenant")]
    pub(crate) default_tenant: Spanned<String>,
    #[serde(default)]
    pub(crate) input_policy: InputPolicy,
    pub(crate) rules: Vec<Spanned<RuleDoc>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InputPolicy {
    #[serde(default)]
    pub(crate) fail_mode: FailMode,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleDoc {
    pub(crate) id: Spanned<String>,
    #[serde(rename = "match")]
    pub(crate) when: Spanned<MatchDoc>,
    pub(crate) decision: Decision,
    #[serde(default)]
    pub(crate) reason: Option<Spanned<String>>,
}

pub(crate) type List = Spanned<Vec<Spanned<String>>>;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MatchDoc {
    #[serde(default, deserialize_with = "present")]
    pub(crate) topics: Option<List>,
    #[serde(default, deserialize_with = "present")]
    pub(crate) tenants: Option<List>,
    #[serde(default, deserialize_with = "present")]
    pub(crate) capabilities: Option<List>,
    #[serde(default, deserialize_with = "present")]
    pub(crate) risk_tags: Option<List>,
    #[serde(default, deserialize_with = "present")]
    pub(crate) no_risk_tags: Option<Spanned<bool>>,
    #[serde(default, deserialize_with = "present")]
    pub(crate) requires: Option<List>,
    #[serde(default, deserialize_with = "present")]
    pub(crate) labels: Option<Spanned<BTreeMap<String, Spanned<String>>>>,
}

/// A key that is there has a value: `null` is read as the value, and refused or found
/// empty, instead of being taken for an absent key.
fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

fn deny() -> Decision {
    Decision::Deny
}

fn default_tenant() -> Spanned<String> {
    Spanned::new(
        "default".to_owned(),
        serde_saphyr::Location::UNKNOWN,
        serde_saphyr::Location::UNKNOWN,
    )
}
