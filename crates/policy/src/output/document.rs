//! `output_policy` and `output_rules` as written in the file.

use airlock_model::output::OutputDecision;
use airlock_scan::Severity;
use serde::{Deserialize, Serialize};
use serde_saphyr::Spanned;

use crate::decision::FailMode;
use crate::document::{List, default_enforce, deserialize_present, is_true};

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputPolicyDoc {
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) fail_mode: Option<FailMode>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputRuleDoc {
    pub(crate) id: Spanned<String>,
    #[serde(default = "default_enforce", skip_serializing_if = "is_true")]
    pub(crate) enabled: bool,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) severity: Option<Severity>,
    #[serde(rename = "match")]
    pub(crate) matches: Spanned<OutputMatchDoc>,
    pub(crate) decision: Spanned<OutputDecision>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<Spanned<String>>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) fail_mode: Option<FailMode>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputMatchDoc {
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
    pub(crate) content_types: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) output_size_gt: Option<Spanned<u64>>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) has_error: Option<Spanned<bool>>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) detectors: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) scanners: Option<List>,
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
    pub(crate) content_patterns: Option<List>,
    #[serde(
        default,
        deserialize_with = "deserialize_present",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) when: Option<Spanned<String>>,
}
