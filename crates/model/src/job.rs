//! What was asked for: the immutable part of a job, and the decision made about it.

mod cost;
mod decision;
pub(crate) mod placement;
mod released;
mod retry;

use std::collections::BTreeMap;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::identity::Claim;
use crate::ids::Topic;
use crate::text;
use crate::time::{Millis, Timestamp};

pub use cost::Cost;
pub use decision::{Allowed, Decision, Verdict};
pub use released::Released;
pub use retry::RetryPlan;

/// Labels that only Airlock itself may set. A client that could send them could
/// approve its own job or pass for a compensation.
pub(crate) fn is_reserved_label(key: &str) -> bool {
    let key = text::fold_name(key);
    key.starts_with("approval_") || key.starts_with("saga_") || key == "is_compensation"
}

/// Limits on a request. Each has a clear error.
pub mod limits {
    pub(crate) const LABELS: usize = 64;
    pub(crate) const LABEL_KEY: usize = 128;
    pub(crate) const LABEL_VALUE: usize = 1024;
    pub(crate) const TAGS: usize = 64;
    pub const TAG: usize = 128;
    pub const NAME: usize = 256;
    pub const IDEMPOTENCY_KEY: usize = 256;
    /// All texts of a request together, its payload left out: what the policy, every
    /// restart and every list must read of each job.
    pub(crate) const SPEC_BYTES: usize = 64 * 1024;
    pub const MAX_ATTEMPTS: u32 = 100;
    /// One pause per attempt that may follow the first.
    pub const RETRY_DELAYS: usize = 99;
    /// A year: longer waits are calendar entries, not jobs.
    pub(crate) const MAX_DELAY_MS: u64 = 366 * 24 * 3600 * 1000;
    pub const MAX_TIMEOUT_MS: u64 = 7 * 24 * 3600 * 1000;
}

/// A field of a request that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    pub field: String,
    pub message: String,
}

impl FieldError {
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

/// How urgent. The ready queue obeys it without starving anyone.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[repr(i16)]
pub enum Priority {
    Batch = 2,
    #[default]
    Interactive = 1,
    Critical = 3,
}

impl Priority {
    /// Most urgent first.
    pub const ALL: [Self; 3] = [Self::Critical, Self::Interactive, Self::Batch];

    /// CAP's number, which the ledger stores.
    pub const fn code(self) -> i16 {
        self as i16
    }

    pub fn from_code(code: i16) -> Option<Self> {
        match code {
            0 | 1 => Some(Self::Interactive),
            2 => Some(Self::Batch),
            3 => Some(Self::Critical),
            _ => None,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Interactive => "INTERACTIVE",
            Self::Batch => "BATCH",
            Self::Critical => "CRITICAL",
        }
    }
}

impl std::str::FromStr for Priority {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|p| p.as_str().eq_ignore_ascii_case(s))
            .ok_or_else(|| {
                format!("unknown priority {s:?}; expected INTERACTIVE, BATCH or CRITICAL")
            })
    }
}

/// Who acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActorType {
    Human,
    Service,
}

/// When a job may run, as it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Due {
    /// At this time; in the past means now.
    At(Timestamp),
    /// This many milliseconds after acceptance, by the ledger's clock.
    After(Millis),
}

/// Token and time limits that travel with a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_input_tokens: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_total_tokens: Option<i64>,
    /// The job must have ended this many milliseconds after acceptance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<i64>,
}

/// Which ends of a job its compensation undoes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UndoWhen {
    /// Only a success.
    #[default]
    Succeeded,
    /// Every end after a run may have begun: its effect is unknown.
    Attempted,
}

impl UndoWhen {
    /// What the ledger stores.
    pub const fn code(self) -> i16 {
        match self {
            Self::Succeeded => 1,
            Self::Attempted => 2,
        }
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How to undo a job. What is absent is taken from the job itself; labels and environment
/// are added to the job's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compensation {
    pub topic: Topic,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<serde_json::Value>,
    /// The input is `{"payload": …, "result": …}`, the result being the undone job's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub include_result: bool,
    #[serde(default, skip_serializing_if = "UndoWhen::is_default")]
    pub when: UndoWhen,
    #[serde(
        default,
        deserialize_with = "deserialize_unique_map",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub labels: BTreeMap<String, String>,
    #[serde(
        default,
        deserialize_with = "deserialize_unique_map",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Accepted and checked; a compensation is CRITICAL whatever it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub risk_tags: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requires: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

impl Compensation {
    /// A compensation of this topic that takes everything else from the job.
    pub fn new(topic: Topic) -> Self {
        Self {
            topic,
            payload: None,
            include_result: false,
            when: UndoWhen::default(),
            labels: BTreeMap::new(),
            env: BTreeMap::new(),
            budget: None,
            priority: None,
            capability: None,
            risk_tags: None,
            requires: None,
            timeout_ms: None,
            max_attempts: None,
            idempotency_key: None,
        }
    }

    /// The bytes of its texts without its input.
    fn text_bytes(&self) -> usize {
        let names = [&self.capability, &self.idempotency_key];
        let names = names.into_iter().flatten().map(String::len).sum::<usize>();
        let lists = [&self.risk_tags, &self.requires];
        let lists = lists.into_iter().flatten().map(|l| list_bytes(l));
        self.topic.as_str().len()
            + map_bytes(&self.labels)
            + map_bytes(&self.env)
            + names
            + lists.sum::<usize>()
    }

    fn validate(&self) -> Result<(), FieldError> {
        check_labels("compensation.labels", &self.labels)?;
        check_map("compensation.env", &self.env)?;
        check_tags(
            "compensation.risk_tags",
            self.risk_tags.as_deref().unwrap_or_default(),
        )?;
        check_tags(
            "compensation.requires",
            self.requires.as_deref().unwrap_or_default(),
        )?;
        if let Some(capability) = &self.capability {
            check_text("compensation.capability", capability, limits::NAME)?;
            if let Some(fault) = text::find_name_fault(capability) {
                return Err(FieldError::new("compensation.capability", fault));
            }
        }
        if let Some(key) = &self.idempotency_key {
            check_text("compensation.idempotency_key", key, limits::IDEMPOTENCY_KEY)?;
        }
        check_attempts("compensation.max_attempts", self.max_attempts)?;
        check_timeout("compensation.timeout_ms", self.timeout_ms)?;
        match &self.budget {
            Some(budget) => check_budget("compensation.budget", budget),
            None => Ok(()),
        }
    }
}

/// A job as it was asked for, without its payload. Never changes once accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    pub topic: Topic,
    #[serde(default)]
    pub priority: Priority,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub risk_tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// What the job will cost, as its sender expects, in the unit the policy has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_cost: Option<Cost>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Due>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPlan>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_job_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_index: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensation: Option<Compensation>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor_type: Option<ActorType>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_id: Option<String>,
    /// Names the request gave without the right to them; seldom there, so in a box.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<Box<Claim>>,
}

impl JobSpec {
    /// A job of this topic and nothing else.
    pub fn new(topic: Topic) -> Self {
        Self {
            topic,
            priority: Priority::default(),
            labels: BTreeMap::new(),
            env: BTreeMap::new(),
            capability: None,
            risk_tags: Vec::new(),
            requires: Vec::new(),
            budget: None,
            estimated_cost: None,
            due: None,
            max_attempts: None,
            timeout_ms: None,
            retry: None,
            workflow_id: None,
            parent_job_id: None,
            step_index: None,
            compensation: None,
            principal_id: None,
            actor_id: None,
            actor_type: None,
            pack_id: None,
            adapter_id: None,
            memory_id: None,
            on_behalf_of: None,
        }
    }

    /// Whether readers of the change log see it SCHEDULED and RUNNING too, as live views of a
    /// workflow do. Others see the end of a job, which is all that plain jobs pay for.
    pub fn is_followed(&self) -> bool {
        self.workflow_id.is_some()
    }

    /// The bytes of its texts by part, names and values alike. The input of a compensation
    /// is a payload and does not count.
    fn text_parts(&self) -> [(&'static str, usize); 6] {
        let Self {
            topic,
            labels,
            env,
            capability,
            risk_tags,
            requires,
            workflow_id,
            parent_job_id,
            compensation,
            principal_id,
            actor_id,
            pack_id,
            adapter_id,
            memory_id,
            // No texts.
            priority: _,
            budget: _,
            estimated_cost: _,
            due: _,
            max_attempts: _,
            timeout_ms: _,
            retry: _,
            step_index: _,
            actor_type: _,
            // Was counted under the names it came as.
            on_behalf_of: _,
        } = self;
        let names = [
            capability,
            workflow_id,
            parent_job_id,
            principal_id,
            actor_id,
            pack_id,
            adapter_id,
            memory_id,
        ];
        let names = names.into_iter().flatten().map(String::len).sum::<usize>();
        let undo = compensation.as_ref().map_or(0, Compensation::text_bytes);
        [
            ("labels", map_bytes(labels)),
            ("env", map_bytes(env)),
            ("risk_tags", list_bytes(risk_tags)),
            ("requires", list_bytes(requires)),
            ("compensation", undo),
            ("topic", topic.as_str().len() + names),
        ]
    }

    /// The bytes of all its texts, which are what makes a request large.
    pub fn text_bytes(&self) -> usize {
        self.text_parts().iter().map(|(_, bytes)| bytes).sum()
    }

    fn check_size(&self) -> Result<(), FieldError> {
        let parts = self.text_parts();
        let bytes: usize = parts.iter().map(|(_, bytes)| bytes).sum();
        if bytes <= limits::SPEC_BYTES {
            return Ok(());
        }
        let largest = parts.into_iter().max_by_key(|(_, bytes)| *bytes);
        let (field, of_it) = largest.unwrap_or(("labels", bytes));
        Err(FieldError::new(
            field,
            format!(
                "the job has {bytes} bytes without its payload, {of_it} of them here; at most {} \
                 are allowed",
                limits::SPEC_BYTES
            ),
        ))
    }

    /// Holds a client's request to the limits; the first field that breaks one.
    pub fn validate(&self) -> Result<(), FieldError> {
        check_labels("labels", &self.labels)?;
        check_map("env", &self.env)?;
        check_tags("risk_tags", &self.risk_tags)?;
        check_tags("requires", &self.requires)?;
        let names = [
            ("capability", &self.capability),
            ("workflow_id", &self.workflow_id),
            ("parent_job_id", &self.parent_job_id),
            ("principal_id", &self.principal_id),
            ("actor_id", &self.actor_id),
            ("pack_id", &self.pack_id),
            ("adapter_id", &self.adapter_id),
            ("memory_id", &self.memory_id),
        ];
        for (field, value) in names {
            if let Some(value) = value {
                check_text(field, value, limits::NAME)?;
            }
        }
        if let Some(fault) = self.capability.as_deref().and_then(text::find_name_fault) {
            return Err(FieldError::new("capability", fault));
        }
        check_attempts("max_attempts", self.max_attempts)?;
        check_timeout("timeout_ms", self.timeout_ms)?;
        if let Some(Due::After(ms)) = self.due
            && ms > limits::MAX_DELAY_MS
        {
            return Err(FieldError::new(
                "delay_ms",
                format!("{ms} is more than a year ({})", limits::MAX_DELAY_MS),
            ));
        }
        if let Some(retry) = &self.retry {
            retry.validate()?;
        }
        if self.step_index.is_some_and(|i| i < 0) {
            return Err(FieldError::new("step_index", "must not be negative"));
        }
        if let Some(budget) = &self.budget {
            check_budget("budget", budget)?;
        }
        if let Some(undo) = &self.compensation {
            if self.workflow_id.is_none() {
                return Err(FieldError::new(
                    "workflow_id",
                    "is missing: a job with a compensation belongs to a workflow's run",
                ));
            }
            undo.validate()?;
        }
        self.check_size()
    }
}

fn map_bytes(map: &BTreeMap<String, String>) -> usize {
    map.iter().map(|(key, value)| key.len() + value.len()).sum()
}

fn list_bytes(list: &[String]) -> usize {
    list.iter().map(String::len).sum()
}

fn check_budget(field: &str, b: &Budget) -> Result<(), FieldError> {
    let parts = [
        ("max_input_tokens", b.max_input_tokens),
        ("max_output_tokens", b.max_output_tokens),
        ("max_total_tokens", b.max_total_tokens),
        ("deadline_ms", b.deadline_ms),
    ];
    for (name, value) in parts {
        if value.is_some_and(|v| v < 0) {
            return Err(FieldError::new(
                format!("{field}.{name}"),
                "must not be negative",
            ));
        }
    }
    Ok(())
}

fn check_attempts(field: &str, attempts: Option<u32>) -> Result<(), FieldError> {
    match attempts {
        Some(n) if !(1..=limits::MAX_ATTEMPTS).contains(&n) => Err(FieldError::new(
            field,
            format!("{n} is not between 1 and {}", limits::MAX_ATTEMPTS),
        )),
        Some(_) | None => Ok(()),
    }
}

fn check_timeout(field: &str, timeout_ms: Option<Millis>) -> Result<(), FieldError> {
    match timeout_ms {
        Some(ms) if !(1..=limits::MAX_TIMEOUT_MS).contains(&ms) => Err(FieldError::new(
            field,
            format!("{ms} is not between 1 and {}", limits::MAX_TIMEOUT_MS),
        )),
        Some(_) | None => Ok(()),
    }
}

fn check_text(field: &str, value: &str, max: usize) -> Result<(), FieldError> {
    if value.is_empty() {
        return Err(FieldError::new(
            field,
            "must not be empty; leave it out instead",
        ));
    }
    if value.len() > max {
        return Err(FieldError::new(
            field,
            format!("is {} bytes long; at most {max} are allowed", value.len()),
        ));
    }
    // Postgres cannot store NUL in text, and other control characters only hide things.
    if value.chars().any(char::is_control) {
        return Err(FieldError::new(
            field,
            "must not contain control characters",
        ));
    }
    Ok(())
}

fn check_tags(field: &str, tags: &[String]) -> Result<(), FieldError> {
    if tags.len() > limits::TAGS {
        return Err(FieldError::new(
            field,
            format!(
                "{} entries; at most {} are allowed",
                tags.len(),
                limits::TAGS
            ),
        ));
    }
    for (i, tag) in tags.iter().enumerate() {
        let field = format!("{field}[{i}]");
        check_text(&field, tag, limits::TAG)?;
        if let Some(fault) = text::find_name_fault(tag) {
            return Err(FieldError::new(field, fault));
        }
    }
    Ok(())
}

/// Labels that rules can tell apart and that are the sender's to set.
fn check_labels(field: &str, labels: &BTreeMap<String, String>) -> Result<(), FieldError> {
    check_map(field, labels)?;
    for key in labels.keys() {
        if is_reserved_label(key) {
            return Err(FieldError::new(
                format!("{field}.{key}"),
                "this label is reserved; approvals and compensations are made by Airlock itself",
            ));
        }
        if let Some(fault) = text::find_name_fault(key) {
            return Err(FieldError::new(format!("{field}.{key}"), fault));
        }
    }
    match text::find_duplicate_labels(labels) {
        None => Ok(()),
        Some((first, second)) => Err(FieldError::new(
            format!("{field}.{second}"),
            format!("is the same label as {first:?}: case and surrounding space do not count"),
        )),
    }
}

/// Reads a map of texts in which no key comes twice. A plain map would keep the last.
pub fn deserialize_unique_map<'de, D: Deserializer<'de>>(
    reader: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    struct Distinct;
    impl<'de> Visitor<'de> for Distinct {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a map of texts")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut read = BTreeMap::new();
            while let Some((key, value)) = map.next_entry::<String, String>()? {
                if read.contains_key(&key) {
                    let key: String = key.chars().take(64).collect();
                    return Err(serde::de::Error::custom(format!("{key:?} is given twice")));
                }
                read.insert(key, value);
            }
            Ok(read)
        }
    }
    reader.deserialize_map(Distinct)
}

fn check_map(field: &str, map: &BTreeMap<String, String>) -> Result<(), FieldError> {
    if map.len() > limits::LABELS {
        return Err(FieldError::new(
            field,
            format!(
                "{} entries; at most {} are allowed",
                map.len(),
                limits::LABELS
            ),
        ));
    }
    for (key, value) in map {
        check_text(&format!("{field}.{key}"), key, limits::LABEL_KEY)?;
        if value.len() > limits::LABEL_VALUE {
            return Err(FieldError::new(
                format!("{field}.{key}"),
                format!(
                    "is {} bytes long; at most {} are allowed",
                    value.len(),
                    limits::LABEL_VALUE
                ),
            ));
        }
        if value.contains('\0') {
            return Err(FieldError::new(
                format!("{field}.{key}"),
                "must not contain NUL",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> JobSpec {
        JobSpec::new(Topic::new("job.echo").unwrap())
    }

    #[test]
    fn reserved_labels_are_refused_by_name() {
        for key in [
            "approval_granted",
            "saga_compensation",
            "is_compensation",
            "Approval_X",
            " approval_granted",
            "approval\u{200b}_granted",
        ] {
            let mut s = spec();
            s.labels.insert(key.into(), "true".into());
            assert_eq!(s.validate().unwrap_err().field, format!("labels.{key}"));
        }
    }

    #[test]
    fn a_request_is_bounded_as_a_whole_and_its_largest_part_named() {
        let many = |bytes: usize| -> BTreeMap<String, String> {
            (0..64)
                .map(|i| (format!("k{i:03}"), "x".repeat(bytes)))
                .collect()
        };
        let mut s = spec();
        s.labels = many(1_000);
        assert_eq!(s.validate(), Ok(()), "64 labels of 1,000 bytes fit");
        s.env = many(100);
        let wrong = s.validate().unwrap_err();
        assert_eq!(wrong.field, "labels");
        assert!(wrong.message.contains("65536"), "{wrong}");
        let mut s = spec();
        s.workflow_id = Some("w".into());
        s.compensation = Some(Compensation {
            payload: Some("x".repeat(limits::SPEC_BYTES).into()),
            labels: many(600),
            ..Compensation::new(Topic::new("job.undo").unwrap())
        });
        assert_eq!(s.validate(), Ok(()), "an input is not part of it");
        s.labels = many(500);
        assert_eq!(s.validate().unwrap_err().field, "compensation");
        assert_eq!(s.text_bytes(), 64 * (604 + 504) + "job.echojob.undow".len());
    }

    #[test]
    fn names_that_only_look_like_others_are_refused() {
        type Change = fn(&mut JobSpec);
        let cases: [(&str, Change); 7] = [
            ("labels.e\u{200b}nv", |s| {
                s.labels.insert("e\u{200b}nv".into(), "x".into());
            }),
            ("labels.ｅｎｖ", |s| {
                s.labels.insert("ｅｎｖ".into(), "x".into());
            }),
            ("labels.env", |s| {
                s.labels.insert("Env".into(), "a".into());
                s.labels.insert("env".into(), "b".into());
            }),
            ("labels.env ", |s| {
                s.labels.insert("env".into(), "a".into());
                s.labels.insert("env ".into(), "b".into());
            }),
            ("risk_tags[1]", |s| {
                s.risk_tags = vec!["fine".into(), "de\u{200b}structive".into()];
            }),
            ("requires[0]", |s| s.requires = vec!["ｇｐｕ".into()]),
            ("capability", |s| s.capability = Some("p\u{ad}ay".into())),
        ];
        for (field, change) in cases {
            let mut s = spec();
            change(&mut s);
            assert_eq!(s.validate().unwrap_err().field, field);
        }
        let mut s = spec();
        s.labels.insert("Größe".into(), "x\u{200b}".into());
        s.labels.insert("Env".into(), "x".into());
        s.risk_tags = vec!["gefährlich".into()];
        assert_eq!(s.validate(), Ok(()));
    }

    #[test]
    fn a_key_that_comes_twice_is_no_map() {
        let read = |text: &str| {
            let mut reader = serde_json::Deserializer::from_str(text);
            deserialize_unique_map(&mut reader).map_err(|e| e.to_string())
        };
        assert_eq!(read(r#"{"a":"1","b":"2"}"#).unwrap().len(), 2);
        assert!(
            read(r#"{"a":"1","\u0061":"2"}"#)
                .unwrap_err()
                .contains("\"a\" is given twice")
        );
    }

    #[test]
    fn a_compensation_is_checked_like_a_job_and_needs_a_workflow() {
        type Change = fn(&mut JobSpec, &mut Compensation);
        let cases: [(&str, Change); 8] = [
            ("workflow_id", |s, _| s.workflow_id = None),
            ("compensation.max_attempts", |_, c| c.max_attempts = Some(0)),
            ("compensation.timeout_ms", |_, c| c.timeout_ms = Some(0)),
            ("compensation.risk_tags[0]", |_, c| {
                c.risk_tags = Some(vec![String::new()]);
            }),
            ("compensation.requires[0]", |_, c| {
                c.requires = Some(vec!["ｇｐｕ".into()]);
            }),
            ("compensation.capability", |_, c| {
                c.capability = Some("a\0".into());
            }),
            ("compensation.idempotency_key", |_, c| {
                c.idempotency_key = Some(String::new());
            }),
            ("compensation.labels.is_compensation", |_, c| {
                c.labels.insert("is_compensation".into(), "true".into());
            }),
        ];
        for (field, change) in cases {
            let mut s = spec();
            s.workflow_id = Some("w".into());
            let mut undo = Compensation::new(Topic::new("job.undo").unwrap());
            s.compensation = Some(undo.clone());
            assert_eq!(s.validate(), Ok(()));
            change(&mut s, &mut undo);
            s.compensation = Some(undo);
            assert_eq!(s.validate().unwrap_err().field, field);
        }
    }

    #[test]
    fn a_plain_compensation_is_stored_as_before() {
        let undo = Compensation::new(Topic::new("job.undo").unwrap());
        let text = serde_json::to_string(&undo).unwrap();
        assert_eq!(text, r#"{"topic":"job.undo"}"#, "job hashes are made of it");
    }

    #[test]
    fn limits_name_the_field() {
        let mut s = spec();
        s.risk_tags = vec!["x".repeat(129)];
        assert_eq!(s.validate().unwrap_err().field, "risk_tags[0]");
        let mut s = spec();
        s.max_attempts = Some(0);
        assert_eq!(s.validate().unwrap_err().field, "max_attempts");
        let mut s = spec();
        s.labels = (0..65).map(|i| (format!("k{i}"), String::new())).collect();
        assert_eq!(s.validate().unwrap_err().field, "labels");
        let mut s = spec();
        s.principal_id = Some("a\0b".into());
        assert_eq!(s.validate().unwrap_err().field, "principal_id");
    }
}
