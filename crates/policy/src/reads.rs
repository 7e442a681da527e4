//! Which fields of a request a decision depended on, so that one may be kept for
//! every job that is the same in exactly those.
//!
//! What must stay true: two requests that agree on the fields of a [`Reads`] take the
//! same way through the rules that it stands for. So it may name too much, never too
//! little.

use std::collections::BTreeSet;
use std::fmt;

use airlock_model::text;
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::request::Request;

/// A field of a request, labels aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Field {
    Topic,
    Tenant,
    PrincipalId,
    Priority,
    Capability,
    RiskTags,
    Requires,
    PackId,
    ActorId,
    ActorType,
    Budget,
    EstimatedCost,
}

impl Field {
    pub const ALL: [Self; 12] = [
        Self::Topic,
        Self::Tenant,
        Self::PrincipalId,
        Self::Priority,
        Self::Capability,
        Self::RiskTags,
        Self::Requires,
        Self::PackId,
        Self::ActorId,
        Self::ActorType,
        Self::Budget,
        Self::EstimatedCost,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Tenant => "tenant",
            Self::PrincipalId => "principal_id",
            Self::Priority => "priority",
            Self::Capability => "capability",
            Self::RiskTags => "risk_tags",
            Self::Requires => "requires",
            Self::PackId => "pack_id",
            Self::ActorId => "actor_id",
            Self::ActorType => "actor_type",
            Self::Budget => "budget",
            Self::EstimatedCost => "estimated_cost",
        }
    }

    fn bit(self) -> u16 {
        1 << (self as u16)
    }
}

/// How a single label is written among the words.
const LABEL: &str = "labels.";
const ALL_LABELS: &str = "labels";

/// A set of fields and labels.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Reads {
    fields: u16,
    all_labels: bool,
    /// Empty when all are read anyway.
    labels: BTreeSet<Box<str>>,
}

impl Reads {
    pub fn add(&mut self, field: Field) {
        self.fields |= field.bit();
    }

    pub fn add_label(&mut self, name: &str) {
        if !self.all_labels && !self.labels.contains(name) {
            self.labels.insert(name.into());
        }
    }

    pub fn add_all_labels(&mut self) {
        self.all_labels = true;
        self.labels.clear();
    }

    pub fn extend(&mut self, other: &Self) {
        self.fields |= other.fields;
        if other.all_labels {
            self.add_all_labels();
        }
        for label in &other.labels {
            self.add_label(label);
        }
    }

    pub fn has(&self, field: Field) -> bool {
        self.fields & field.bit() != 0
    }

    /// As words, for the wire: `topic`, `labels.customer`, `labels` for all of them.
    pub fn words(&self) -> Vec<String> {
        let fields = Field::ALL.into_iter().filter(|f| self.has(*f));
        let mut words: Vec<String> = fields.map(|f| f.word().to_owned()).collect();
        if self.all_labels {
            words.push(ALL_LABELS.to_owned());
        }
        words.extend(self.labels.iter().map(|l| format!("{LABEL}{l}")));
        words
    }

    /// `None`: a word is not known, so what was read cannot be told and nothing that
    /// depends on it may be kept.
    pub fn from_words<S: AsRef<str>>(words: &[S]) -> Option<Self> {
        let mut reads = Self::default();
        for word in words {
            let word = word.as_ref();
            if word == ALL_LABELS {
                reads.add_all_labels();
            } else if let Some(label) = word.strip_prefix(LABEL) {
                reads.add_label(label);
            } else {
                reads.add(Field::ALL.into_iter().find(|f| f.word() == word)?);
            }
        }
        Some(reads)
    }

    /// Names the request by exactly these fields: two requests have the same key if
    /// they agree on all of them. `None`: it is malformed, which no kept decision can
    /// tell.
    pub fn key(&self, request: &Request<'_>) -> Option<[u8; 32]> {
        request.check().ok()?;
        let mut hash = Lengths(Sha256::new());
        for field in Field::ALL {
            if self.has(field) {
                hash.field(field, request);
            }
        }
        if self.all_labels {
            hash.count(request.labels.len());
            for (name, value) in request.labels {
                hash.text(name);
                hash.text(value);
            }
        }
        for label in &self.labels {
            match text::label(request.labels, label) {
                Some(value) => {
                    hash.count(1);
                    hash.text(value);
                }
                None => hash.count(0),
            }
        }
        Some(hash.0.finalize().into())
    }
}

/// Hashes each value after its length, so that no two sequences run together.
struct Lengths(Sha256);

impl Lengths {
    fn count(&mut self, n: usize) {
        self.0.update((n as u64).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.update(text.as_bytes());
    }

    fn list(&mut self, words: &[String]) {
        self.count(words.len());
        words.iter().for_each(|w| self.text(w));
    }

    fn field(&mut self, field: Field, request: &Request<'_>) {
        match field {
            Field::Topic => self.text(request.topic),
            Field::Tenant => self.text(request.tenant),
            Field::PrincipalId => self.text(request.principal_id),
            Field::Priority => self.text(request.priority),
            Field::Capability => self.text(request.capability),
            Field::RiskTags => self.list(request.risk_tags),
            Field::Requires => self.list(request.requires),
            Field::PackId => self.text(request.pack_id),
            Field::ActorId => self.text(request.actor_id),
            Field::ActorType => self.text(request.actor_type),
            Field::Budget => {
                let budget = request.budget;
                for n in [
                    budget.max_input_tokens,
                    budget.max_output_tokens,
                    budget.max_total_tokens,
                    budget.deadline_ms,
                ] {
                    self.0.update(n.to_le_bytes());
                }
            }
            Field::EstimatedCost => self
                .0
                .update(request.estimated_cost.to_bits().to_le_bytes()),
        }
    }
}

impl fmt::Debug for Reads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.words()).finish()
    }
}

impl Serialize for Reads {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.words().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_go_there_and_back() {
        let mut reads = Reads::default();
        reads.add(Field::Topic);
        reads.add(Field::Budget);
        reads.add_label("labels.odd");
        reads.add_label("env");
        assert_eq!(Reads::from_words(&reads.words()), Some(reads.clone()));
        reads.add_all_labels();
        reads.add_label("env");
        assert_eq!(reads.words(), ["topic", "budget", "labels"]);
        assert_eq!(Reads::from_words(&["topic", "moon"]), None);
    }

    #[test]
    fn a_key_sees_what_is_read_and_nothing_else() {
        let reads = Reads::from_words(&["topic", "labels.env"]).unwrap();
        let labels = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect::<std::collections::BTreeMap<_, _>>()
        };
        let (none, prod, other, empty) = (
            labels(&[]),
            labels(&[("env", "prod")]),
            labels(&[("env", "prod"), ("customer", "7")]),
            labels(&[("env", "")]),
        );
        let key = |labels, tenant| {
            reads
                .key(&Request {
                    labels,
                    tenant,
                    ..Request::new("job.a")
                })
                .unwrap()
        };
        assert_eq!(key(&prod, "a"), key(&other, "b"));
        assert_ne!(key(&prod, "a"), key(&none, "a"));
        assert_ne!(key(&empty, "a"), key(&none, "a"));
        assert_eq!(reads.key(&Request::new("job..a")), None);
    }
}
