//! The read set of a decision: which fields of a job the policy read on its way to it, so
//! that the decision may be used again for every job that is the same in exactly those.
//!
//! What must stay true: two jobs that agree on the fields of a [`Reads`] take the same way
//! through the rules that it stands for. So it may name too much, never too little, and a
//! name that this version does not know makes the decision one for its job alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Serialize, Serializer};

use crate::engine::QueuedJob;
use crate::job::{ActorType, Cost};
use crate::text;

/// Names in one set at most.
const MAX_NAMES: usize = 256;

/// A field of a job, labels aside.
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
    MemoryId,
    InputSize,
}

impl Field {
    pub const ALL: [Self; 14] = [
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
        Self::MemoryId,
        Self::InputSize,
    ];

    pub const fn name(self) -> &'static str {
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
            Self::MemoryId => "memory_id",
            Self::InputSize => "input_size",
        }
    }

    const fn bit(self) -> u16 {
        1 << (self as u16)
    }
}

/// How a single label is written among the names.
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
    pub fn add_field(&mut self, field: Field) {
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

    fn fields(&self) -> impl Iterator<Item = Field> {
        let fields = self.fields;
        Field::ALL
            .into_iter()
            .filter(move |f| fields & f.bit() != 0)
    }

    /// For the wire: `topic`, `labels.customer`, `labels` for all of them.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.fields().map(|f| f.name().to_owned()).collect();
        if self.all_labels {
            names.push(ALL_LABELS.to_owned());
        }
        names.extend(self.labels.iter().map(|l| format!("{LABEL}{l}")));
        names
    }

    /// `None` when a name is not known: what was read cannot be told then, and nothing
    /// that depends on it may be used again.
    pub fn from_names<S: AsRef<str>>(names: &[S]) -> Option<Self> {
        if names.len() > MAX_NAMES {
            return None;
        }
        let mut reads = Self::default();
        for name in names {
            let name = name.as_ref();
            if name == ALL_LABELS {
                reads.add_all_labels();
            } else if let Some(label) = name.strip_prefix(LABEL) {
                reads.add_label(label);
            } else {
                reads.add_field(Field::ALL.into_iter().find(|f| f.name() == name)?);
            }
        }
        Some(reads)
    }

    /// Appends the values of these fields, so that two sources give the same bytes exactly
    /// when they agree on all of them.
    pub fn write_key(&self, source: &impl FieldValues, out: &mut Vec<u8>) {
        let mut key = KeyWriter(out);
        for field in self.fields() {
            source.write_field(field, &mut key);
        }
        let labels = source.labels();
        if self.all_labels {
            key.write_count(labels.len());
            for (name, value) in labels {
                key.write_text(name);
                key.write_text(value);
            }
        }
        for name in &self.labels {
            // However the job spells the name, as the kernel finds it.
            key.write_optional(text::find_label(labels, name));
        }
    }
}

/// What the fields of a [`Reads`] are read from.
pub trait FieldValues {
    /// Writes the value of `field`. Different values must never give the same bytes.
    fn write_field(&self, field: Field, key: &mut KeyWriter<'_>);
    fn labels(&self) -> &BTreeMap<String, String>;
}

/// Writes each value after its length, so that no two sequences run together.
pub struct KeyWriter<'a>(&'a mut Vec<u8>);

impl KeyWriter<'_> {
    pub fn write_bytes(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    fn write_count(&mut self, n: usize) {
        self.write_bytes(&(n as u32).to_le_bytes());
    }

    pub fn write_text(&mut self, text: &str) {
        self.write_count(text.len());
        self.write_bytes(text.as_bytes());
    }

    /// Apart from an empty text.
    pub fn write_optional(&mut self, text: Option<&str>) {
        match text {
            None => self.write_count(u32::MAX as usize),
            Some(text) => self.write_text(text),
        }
    }

    pub fn write_list(&mut self, texts: &[String]) {
        self.write_count(texts.len());
        for text in texts {
            self.write_text(text);
        }
    }

    pub fn write_numbers(&mut self, numbers: [i64; 4]) {
        for n in numbers {
            self.write_bytes(&n.to_le_bytes());
        }
    }
}

impl FieldValues for QueuedJob {
    fn write_field(&self, field: Field, key: &mut KeyWriter<'_>) {
        let spec = &self.spec;
        match field {
            Field::Topic => key.write_text(spec.topic.as_str()),
            Field::Tenant => key.write_text(self.tenant.as_str()),
            Field::PrincipalId => key.write_optional(spec.principal_id.as_deref()),
            Field::Priority => key.write_bytes(&spec.priority.code().to_le_bytes()),
            Field::Capability => key.write_optional(spec.capability.as_deref()),
            Field::RiskTags => key.write_list(&spec.risk_tags),
            Field::Requires => key.write_list(&spec.requires),
            Field::PackId => key.write_optional(spec.pack_id.as_deref()),
            Field::ActorId => key.write_optional(spec.actor_id.as_deref()),
            Field::ActorType => key.write_bytes(&[match spec.actor_type {
                None => 0,
                Some(ActorType::Human) => 1,
                Some(ActorType::Service) => 2,
            }]),
            Field::Budget => match &spec.budget {
                None => key.write_bytes(&[0]),
                Some(b) => {
                    key.write_bytes(&[1]);
                    key.write_numbers(
                        [
                            b.max_input_tokens,
                            b.max_output_tokens,
                            b.max_total_tokens,
                            b.deadline_ms,
                        ]
                        .map(|n| n.unwrap_or(0)),
                    );
                }
            },
            Field::EstimatedCost => {
                let cost = spec.estimated_cost.map_or(0.0, Cost::get);
                key.write_bytes(&cost.to_bits().to_le_bytes());
            }
            Field::MemoryId => key.write_optional(spec.memory_id.as_deref()),
            Field::InputSize => key.write_bytes(&self.payload_len.to_le_bytes()),
        }
    }

    fn labels(&self) -> &BTreeMap<String, String> {
        &self.spec.labels
    }
}

impl fmt::Debug for Reads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

impl Serialize for Reads {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.names().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Labels(BTreeMap<String, String>);

    impl FieldValues for Labels {
        fn write_field(&self, field: Field, key: &mut KeyWriter<'_>) {
            key.write_text(field.name());
        }

        fn labels(&self) -> &BTreeMap<String, String> {
            &self.0
        }
    }

    #[test]
    fn names_go_there_and_back() {
        let mut reads = Reads::default();
        reads.add_field(Field::Topic);
        reads.add_field(Field::Budget);
        reads.add_label("labels.odd");
        reads.add_label("env");
        assert_eq!(Reads::from_names(&reads.names()), Some(reads.clone()));
        reads.add_all_labels();
        reads.add_label("env");
        assert_eq!(reads.names(), ["topic", "budget", "labels"]);
        for field in Field::ALL {
            assert_eq!(
                Reads::from_names(&[field.name()]).unwrap().names(),
                [field.name()]
            );
        }
    }

    #[test]
    fn an_unknown_name_makes_no_set() {
        assert_eq!(Reads::from_names(&["topic", "moon"]), None);
        assert!(Reads::from_names(&["topic", "labels.moon"]).is_some());
        assert_eq!(
            Reads::from_names(&["labels", "labels.a"]),
            Reads::from_names(&["labels"])
        );
        assert_eq!(Reads::from_names(&["topic"; MAX_NAMES + 1]), None);
    }

    #[test]
    fn a_key_has_what_is_read_and_nothing_else() {
        let reads = Reads::from_names(&["topic", "labels.env"]).unwrap();
        let key = |labels: &[(&str, &str)]| {
            let labels = labels
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect();
            let mut key = Vec::new();
            reads.write_key(&Labels(labels), &mut key);
            key
        };
        assert_eq!(key(&[("env", "prod")]), key(&[("env", "prod"), ("a", "7")]));
        assert_ne!(key(&[("env", "prod")]), key(&[]));
        assert_ne!(key(&[("env", "")]), key(&[]), "empty is not absent");
    }
}
