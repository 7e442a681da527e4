//! What a policy may look at. Everything is borrowed, because a verdict is wanted
//! thousands of times a second and keeps nothing of its input.

use std::collections::BTreeMap;

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

/// One job, as the policy sees it. An empty string means "not given".
#[derive(Debug, Clone, Copy)]
pub struct PolicyInput<'a> {
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
}

/// Why an input is denied before any rule is asked. The texts never repeat what was
/// given: it may be huge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InputFault {
    #[error("the job names no topic")]
    NoTopic,
    #[error("the topic is {0} bytes long; at most {max} are allowed", max = PolicyInput::MAX_TOPIC)]
    LongTopic(usize),
    #[error("the topic contains {0:?}; only letters, digits and - _ . : / @ + are allowed")]
    BadChar(char),
    #[error("the topic has an empty part between its dots")]
    EmptyPart,
    #[error("the job has {count} {field}; at most {max} are allowed", max = PolicyInput::MAX_LIST)]
    TooMany { field: &'static str, count: usize },
    #[error("one of the {field} is {len} bytes long; at most {max} are allowed", max = PolicyInput::MAX_WORD)]
    TooLong { field: &'static str, len: usize },
}

impl<'a> PolicyInput<'a> {
    /// Bytes of a topic.
    pub const MAX_TOPIC: usize = 256;
    /// Risk tags, requirements, or labels.
    pub const MAX_LIST: usize = 256;
    /// Bytes of the tenant, the capability, a tag, a requirement or a label's value.
    pub const MAX_WORD: usize = 4_096;

    /// An input that has a topic and nothing else, to be filled in.
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
        }
    }

    /// Whether the rules can be asked about this at all. What is too large is denied
    /// here, so that no job can make asking ten thousand rules expensive.
    pub fn check(&self) -> Result<(), InputFault> {
        self.check_topic()?;
        check_list("tenants", 1, [self.tenant])?;
        check_list("capabilities", 1, [self.capability])?;
        let tags = self.risk_tags;
        check_list("risk tags", tags.len(), tags.iter().map(String::as_str))?;
        let requires = self.requires;
        check_list(
            "requirements",
            requires.len(),
            requires.iter().map(String::as_str),
        )?;
        let labels = self.labels;
        check_list("labels", labels.len(), labels.values().map(String::as_str))
    }

    /// A topic is made of dot-separated parts that could be a subject on the bus.
    /// Wildcards are refused here, so a job cannot be called `job.*`.
    fn check_topic(&self) -> Result<(), InputFault> {
        let topic = self.topic;
        if topic.is_empty() {
            return Err(InputFault::NoTopic);
        }
        if topic.len() > Self::MAX_TOPIC {
            return Err(InputFault::LongTopic(topic.len()));
        }
        let fits = |c: char| {
            c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '/' | '@' | '+')
        };
        if let Some(c) = topic.chars().find(|c| !fits(*c)) {
            return Err(InputFault::BadChar(c));
        }
        if topic.split('.').any(str::is_empty) {
            return Err(InputFault::EmptyPart);
        }
        Ok(())
    }
}

fn check_list<'a>(
    field: &'static str,
    count: usize,
    words: impl IntoIterator<Item = &'a str>,
) -> Result<(), InputFault> {
    if count > PolicyInput::MAX_LIST {
        return Err(InputFault::TooMany { field, count });
    }
    let long = words
        .into_iter()
        .map(str::len)
        .find(|len| *len > PolicyInput::MAX_WORD);
    long.map_or(Ok(()), |len| Err(InputFault::TooLong { field, len }))
}
