//! A request that owns what it says, in the shape in which people and programs write
//! one: the body of an evaluation over REST, a case of `airlock policy test`, a line
//! of a replay.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::request::{Budget, Content, Request};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OwnedRequest {
    pub topic: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub principal_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub priority: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_cost: Option<f64>,
    pub meta: Meta,
    /// The job's input as text, for the rules about content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub input_content_type: String,
    /// The size of an input that is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_size_bytes: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Meta {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub capability: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub risk_tags: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pack_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub actor_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub actor_type: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl OwnedRequest {
    /// Moves the metadata's labels up to the request's own, which win. Whoever reads a
    /// request from outside does this once; [`OwnedRequest::as_request`] looks only at
    /// the request's own.
    pub fn hoist_meta_labels(mut self) -> Self {
        for (key, value) in std::mem::take(&mut self.meta.labels) {
            self.labels.entry(key).or_insert(value);
        }
        self
    }

    pub fn as_request(&self) -> Request<'_> {
        let size = self.input.as_ref().map(|i| i.len() as u64);
        let content = size.or(self.input_size_bytes).map(|size| Content {
            bytes: self.input.as_deref().map(str::as_bytes),
            content_type: &self.input_content_type,
            size,
        });
        Request {
            topic: &self.topic,
            tenant: &self.tenant,
            principal_id: &self.principal_id,
            capability: &self.meta.capability,
            risk_tags: &self.meta.risk_tags,
            requires: &self.meta.requires,
            labels: &self.labels,
            pack_id: &self.meta.pack_id,
            actor_id: &self.meta.actor_id,
            actor_type: &self.meta.actor_type,
            priority: &self.priority,
            budget: self.budget.unwrap_or_default(),
            estimated_cost: self.estimated_cost.unwrap_or_default(),
            content,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_own_labels_win_over_the_metadatas() {
        let text = r#"{"topic":"job.a","labels":{"env":"prod"},"meta":{"labels":{"env":"dev","team":"x"},"risk_tags":["net"]}}"#;
        let request: OwnedRequest = serde_json::from_str(text).unwrap();
        let request = request.hoist_meta_labels();
        let asked = request.as_request();
        assert_eq!(asked.labels["env"], "prod");
        assert_eq!(asked.labels["team"], "x");
        assert_eq!(asked.risk_tags, ["net"]);
        assert!(asked.content.is_none());
    }

    #[test]
    fn an_unknown_field_is_refused() {
        assert!(serde_json::from_str::<OwnedRequest>(r#"{"topik":"job.a"}"#).is_err());
        assert!(serde_json::from_str::<OwnedRequest>(r#"{"meta":{"risktags":[]}}"#).is_err());
    }
}
