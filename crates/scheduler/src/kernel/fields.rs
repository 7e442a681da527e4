//! Which fields of a job a decision depends on, and what they are worth for one job.
//!
//! The kernel says by name what its rules read on their way to an answer. Two jobs that
//! agree on all of it take the same way and get the same answer. A name that is not
//! known here means that nobody can tell: such an answer is not kept.

use airlock_model::engine::QueuedJob;
use airlock_model::job::{ActorType, Cost};
use airlock_model::text::label;

/// Fields in one set at most.
const MOST_FIELDS: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Field {
    Topic,
    Tenant,
    Principal,
    Priority,
    Capability,
    RiskTags,
    Requires,
    Pack,
    Actor,
    ActorType,
    Budget,
    Cost,
    Memory,
    Size,
    AllLabels,
    Label(Box<str>),
}

/// The fields that one kind of answer depends on, in a fixed order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape(Vec<Field>);

impl Shape {
    /// `None` when one of the names is not known.
    pub fn of(names: &[String]) -> Option<Self> {
        if names.len() > MOST_FIELDS {
            return None;
        }
        let mut fields = Vec::with_capacity(names.len());
        for name in names {
            fields.push(field(name)?);
        }
        if fields.contains(&Field::AllLabels) {
            fields.retain(|f| !matches!(f, Field::Label(_)));
        }
        fields.sort();
        fields.dedup();
        Some(Self(fields))
    }

    /// Writes what these fields are worth for `job`, so that two jobs get the same bytes
    /// exactly when they agree on all of them.
    pub fn key(&self, job: &QueuedJob, out: &mut Vec<u8>) {
        let spec = &job.spec;
        for field in &self.0 {
            match field {
                Field::Topic => text(out, spec.topic.as_str()),
                Field::Tenant => text(out, job.tenant.as_str()),
                Field::Principal => maybe(out, spec.principal_id.as_deref()),
                Field::Priority => out.extend(spec.priority.code().to_le_bytes()),
                Field::Capability => maybe(out, spec.capability.as_deref()),
                Field::RiskTags => list(out, &spec.risk_tags),
                Field::Requires => list(out, &spec.requires),
                Field::Pack => maybe(out, spec.pack_id.as_deref()),
                Field::Actor => maybe(out, spec.actor_id.as_deref()),
                Field::ActorType => out.push(match spec.actor_type {
                    None => 0,
                    Some(ActorType::Human) => 1,
                    Some(ActorType::Service) => 2,
                }),
                Field::Budget => match &spec.budget {
                    None => out.push(0),
                    Some(b) => {
                        out.push(1);
                        for n in [
                            b.max_input_tokens,
                            b.max_output_tokens,
                            b.max_total_tokens,
                            b.deadline_ms,
                        ] {
                            out.extend(n.unwrap_or(0).to_le_bytes());
                        }
                    }
                },
                Field::Cost => {
                    let cost = spec.estimated_cost.map_or(0.0, Cost::get);
                    out.extend(cost.to_bits().to_le_bytes());
                }
                Field::Memory => maybe(out, spec.memory_id.as_deref()),
                Field::Size => out.extend(job.payload_len.to_le_bytes()),
                Field::AllLabels => {
                    number(out, spec.labels.len());
                    for (key, value) in &spec.labels {
                        text(out, key);
                        text(out, value);
                    }
                }
                // However the job writes its name, as the kernel finds it.
                Field::Label(name) => maybe(out, label(&spec.labels, name)),
            }
        }
    }
}

/// The field of this name.
fn field(name: &str) -> Option<Field> {
    Some(match name {
        "topic" => Field::Topic,
        "tenant" => Field::Tenant,
        "principal_id" => Field::Principal,
        "priority" => Field::Priority,
        "capability" => Field::Capability,
        "risk_tags" => Field::RiskTags,
        "requires" => Field::Requires,
        "pack_id" => Field::Pack,
        "actor_id" => Field::Actor,
        "actor_type" => Field::ActorType,
        "budget" => Field::Budget,
        "memory_id" => Field::Memory,
        "input_size" => Field::Size,
        "labels" => Field::AllLabels,
        "estimated_cost" => Field::Cost,
        other => Field::Label(other.strip_prefix("labels.")?.into()),
    })
}

fn number(out: &mut Vec<u8>, n: usize) {
    out.extend((n as u32).to_le_bytes());
}

fn text(out: &mut Vec<u8>, text: &str) {
    number(out, text.len());
    out.extend(text.as_bytes());
}

fn maybe(out: &mut Vec<u8>, given: Option<&str>) {
    match given {
        None => number(out, u32::MAX as usize),
        Some(given) => text(out, given),
    }
}

fn list(out: &mut Vec<u8>, words: &[String]) {
    number(out, words.len());
    for word in words {
        text(out, word);
    }
}
