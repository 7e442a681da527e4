//! What a policy may look at. Everything is borrowed, because a verdict is wanted
//! thousands of times a second and keeps nothing of its request.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

/// One job, as the policy sees it. An empty string and a zero mean "not given".
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    pub topic: &'a str,
    /// Empty: the policy's default tenant.
    pub tenant: &'a str,
    pub principal_id: &'a str,
    pub capability: &'a str,
    pub risk_tags: &'a [String],
    pub requires: &'a [String],
    pub labels: &'a BTreeMap<String, String>,
    pub pack_id: &'a str,
    pub actor_id: &'a str,
    /// `human` or `service`.
    pub actor_type: &'a str,
    /// `interactive`, `batch` or `critical`.
    pub priority: &'a str,
    pub budget: Budget,
    pub estimated_cost: f64,
    /// The job's input. `None`: it has none.
    pub content: Option<Content<'a>>,
}

/// What a job says it may use up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budget {
    pub max_input_tokens: i64,
    pub max_output_tokens: i64,
    pub max_total_tokens: i64,
    pub deadline_ms: i64,
}

/// The input of a job, for the rules about content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content<'a> {
    /// `None`: there is an input, but whoever asks could not show it. Rules that would
    /// look into it then take it for the worst.
    pub bytes: Option<&'a [u8]>,
    pub content_type: &'a str,
    /// Bytes of the whole input.
    pub size: u64,
}

/// Why a request is denied before any rule is asked. The texts never repeat what was
/// given: it may be huge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestFault {
    #[error("the job names no topic")]
    NoTopic,
    #[error("the topic is {0} bytes long; at most {max} are allowed", max = Request::MAX_TOPIC)]
    LongTopic(usize),
    #[error("the topic contains {0:?}; only letters, digits and - _ . : / @ + are allowed")]
    BadChar(char),
    #[error("the topic has an empty part between its dots")]
    EmptyPart,
    #[error("the job has {count} {field}; at most {max} are allowed", max = Request::MAX_LIST)]
    TooMany { field: &'static str, count: usize },
    #[error("two of the labels have the same name but for its case, space or hidden characters")]
    SameLabels,
    #[error("one of the {field} is {len} bytes long; at most {max} are allowed", max = Request::MAX_WORD)]
    TooLong { field: &'static str, len: usize },
}

impl<'a> Request<'a> {
    /// Bytes of a topic.
    pub const MAX_TOPIC: usize = 256;
    /// Risk tags, requirements, or labels.
    pub const MAX_LIST: usize = 256;
    /// Bytes of the tenant, the capability, a tag, a requirement, a label's name or
    /// its value.
    pub const MAX_WORD: usize = 4_096;

    /// A request that has a topic and nothing else, to be filled in.
    pub fn new(topic: &'a str) -> Self {
        Self {
            topic,
            tenant: "",
            principal_id: "",
            capability: "",
            risk_tags: &[],
            requires: &[],
            labels: &NO_LABELS,
            pack_id: "",
            actor_id: "",
            actor_type: "",
            priority: "",
            budget: Budget::default(),
            estimated_cost: 0.0,
            content: None,
        }
    }

    /// Whether the rules can be asked about this at all. What is too large is denied
    /// here, so that no job can make asking ten thousand rules expensive.
    pub fn check(&self) -> Result<(), RequestFault> {
        self.check_topic()?;
        let words = [
            ("tenants", self.tenant),
            ("principals", self.principal_id),
            ("capabilities", self.capability),
            ("pack ids", self.pack_id),
            ("actor ids", self.actor_id),
            ("actor types", self.actor_type),
            ("priorities", self.priority),
        ];
        for (field, word) in words {
            check_list(field, 1, [word])?;
        }
        let tags = self.risk_tags;
        check_list("risk tags", tags.len(), tags.iter().map(String::as_str))?;
        let requires = self.requires;
        check_list(
            "requirements",
            requires.len(),
            requires.iter().map(String::as_str),
        )?;
        let labels = self.labels;
        let words = labels.iter().flat_map(|(k, v)| [k.as_str(), v.as_str()]);
        check_list("labels", labels.len(), words)?;
        // Rules find a label however its name is written, so there must be one to find.
        match airlock_model::text::find_duplicate_labels(labels) {
            Some(_) => Err(RequestFault::SameLabels),
            None => Ok(()),
        }
    }

    /// A topic is made of dot-separated parts that could be a subject on the bus.
    /// Wildcards are refused here, so a job cannot be called `job.*`.
    fn check_topic(&self) -> Result<(), RequestFault> {
        let topic = self.topic;
        if topic.is_empty() {
            return Err(RequestFault::NoTopic);
        }
        if topic.len() > Self::MAX_TOPIC {
            return Err(RequestFault::LongTopic(topic.len()));
        }
        let fits = |c: char| {
            c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '/' | '@' | '+')
        };
        if let Some(c) = topic.chars().find(|c| !fits(*c)) {
            return Err(RequestFault::BadChar(c));
        }
        if topic.split('.').any(str::is_empty) {
            return Err(RequestFault::EmptyPart);
        }
        Ok(())
    }
}

fn check_list<'a>(
    field: &'static str,
    count: usize,
    words: impl IntoIterator<Item = &'a str>,
) -> Result<(), RequestFault> {
    if count > Request::MAX_LIST {
        return Err(RequestFault::TooMany { field, count });
    }
    let long = words
        .into_iter()
        .map(str::len)
        .find(|len| *len > Request::MAX_WORD);
    long.map_or(Ok(()), |len| Err(RequestFault::TooLong { field, len }))
}
