//! How often something happens: rules that match once a limit is exceeded.
//!
//! The counting itself is outside, because it is shared between processes and takes a
//! round trip. The policy says what is to be counted ([`VelocityQuery`]) and is told a
//! number. Whoever has the number at hand answers at once; whoever has to fetch it
//! answers [`Count::Unknown`], fetches it and asks the policy again ([`KnownCounts`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use airlock_model::text::{find_label, fold_name};
use sha2::{Digest, Sha256};

use crate::clause::Facts;
use airlock_model::reads::{Field, Reads};

/// What is to be counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VelocityQuery {
    pub rule_id: Arc<str>,
    /// Names the rule, its window and the values of its key: 32 hexadecimal digits.
    pub key: String,
    /// The rule matches when more than this many are counted.
    pub max_requests: u64,
    pub window_seconds: u64,
    /// To be counted in the ledger, which forgets nothing.
    pub strict: bool,
}

/// How many jobs were counted in the window, the one in question included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    Is(u64),
    /// Then a rule that lets a job run does not match, and a stricter one does.
    Unknown,
}

/// Whoever counts. A job must be counted once per query, however often it is asked
/// about.
pub trait Counters {
    fn count(&mut self, query: &VelocityQuery) -> Count;
}

/// Nothing ever happened: for simulations, explanations and tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoCounters;

impl Counters for NoCounters {
    fn count(&mut self, _: &VelocityQuery) -> Count {
        Count::Is(0)
    }
}

/// The counts that were fetched so far for one job.
#[derive(Debug, Clone, Default)]
pub struct KnownCounts {
    known: HashMap<String, u64>,
    missing: Option<VelocityQuery>,
}

impl KnownCounts {
    pub fn insert(&mut self, key: String, count: u64) {
        self.known.insert(key, count);
        self.missing = None;
    }

    /// The first count that was asked for and not known. Only that one is certain to
    /// be needed: what comes after it depends on its answer. While there is one, the
    /// evaluation that asked for it means nothing.
    pub fn first_missing(&self) -> Option<&VelocityQuery> {
        self.missing.as_ref()
    }
}

impl Counters for KnownCounts {
    fn count(&mut self, query: &VelocityQuery) -> Count {
        match self.known.get(&query.key) {
            Some(count) => Count::Is(*count),
            None => {
                self.missing.get_or_insert_with(|| query.clone());
                Count::Unknown
            }
        }
    }
}

/// A part of what is counted separately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyPart {
    Field(Field),
    Label(Box<str>),
    /// Every label with its value: jobs that are labelled alike are counted together.
    AllLabels,
}

impl KeyPart {
    /// The parts that can be named; `labels.<name>` and `labels` beside them.
    pub(crate) const NAMES: [(&'static str, Field); 10] = [
        ("tenant", Field::Tenant),
        ("topic", Field::Topic),
        ("actor", Field::ActorId),
        ("actor_id", Field::ActorId),
        ("actor_type", Field::ActorType),
        ("principal_id", Field::PrincipalId),
        ("capability", Field::Capability),
        ("pack_id", Field::PackId),
        ("priority", Field::Priority),
        ("principal", Field::PrincipalId),
    ];

    pub(crate) fn parse(word: &str) -> Option<Self> {
        let word = word.trim();
        if let Some(label) = word.strip_prefix("labels.").filter(|l| !l.is_empty()) {
            return Some(Self::Label(fold_name(label).into()));
        }
        if word == "labels" {
            return Some(Self::AllLabels);
        }
        let found = Self::NAMES.iter().find(|(w, _)| *w == word)?;
        Some(Self::Field(found.1))
    }
}

/// The limit of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Velocity {
    pub(crate) max_requests: u64,
    pub(crate) window_seconds: u64,
    pub(crate) key: Box<[KeyPart]>,
    pub(crate) strict: bool,
}

impl Velocity {
    pub(crate) fn to_query(&self, rule_id: &Arc<str>, facts: &Facts<'_>) -> VelocityQuery {
        let mut hash = Sha256::new();
        let mut add = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        };
        add(rule_id);
        add(&self.window_seconds.to_string());
        let request = facts.request;
        for part in &self.key {
            // FoldedTexts that compare as equal count as one, or a change of case would
            // start a new count.
            match part {
                KeyPart::Field(field) => match field {
                    Field::Topic => add(request.topic),
                    Field::Tenant => add(&fold_name(facts.tenant)),
                    Field::PrincipalId => add(&fold_name(request.principal_id)),
                    Field::Priority => add(&fold_name(request.priority)),
                    Field::Capability => add(&fold_name(request.capability)),
                    Field::PackId => add(&fold_name(request.pack_id)),
                    Field::ActorId => add(&fold_name(request.actor_id)),
                    Field::ActorType => add(&fold_name(request.actor_type)),
                    // No word names them.
                    Field::RiskTags
                    | Field::Requires
                    | Field::Budget
                    | Field::EstimatedCost
                    | Field::MemoryId
                    | Field::InputSize => {}
                },
                KeyPart::Label(name) => match find_label(request.labels, name) {
                    Some(value) => {
                        add("=");
                        add(&fold_name(value));
                    }
                    None => add(""),
                },
                KeyPart::AllLabels => {
                    let folded: BTreeMap<String, String> = request
                        .labels
                        .iter()
                        .map(|(name, value)| (fold_name(name), fold_name(value)))
                        .collect();
                    add(&folded.len().to_string());
                    for (name, value) in &folded {
                        add(name);
                        add(value);
                    }
                }
            }
        }
        let digest = hash.finalize();
        VelocityQuery {
            rule_id: rule_id.clone(),
            key: digest.iter().take(16).map(|b| format!("{b:02x}")).collect(),
            max_requests: self.max_requests,
            window_seconds: self.window_seconds,
            strict: self.strict,
        }
    }

    /// Whether jobs of different tenants are counted together.
    pub(crate) fn mixes_tenants(&self) -> bool {
        !self.key.contains(&KeyPart::Field(Field::Tenant))
    }

    pub(crate) fn collect_reads(&self, reads: &mut Reads) {
        for part in &self.key {
            match part {
                KeyPart::Field(field) => reads.add_field(*field),
                KeyPart::Label(name) => reads.add_label(name),
                KeyPart::AllLabels => reads.add_all_labels(),
            }
        }
    }
}
