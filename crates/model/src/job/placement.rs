//! What placement reads of a job: its topic, what it requires, and the labels that narrow
//! where it may go.

use std::collections::BTreeMap;

use super::JobSpec;
use crate::ids::Topic;

const PREFERRED_POOL: &str = "preferred_pool";
const PREFERRED_WORKER: &str = "preferred_worker_id";

/// The part of a [`JobSpec`] that decides which workers may run it. Jobs with equal ones can
/// go to the same workers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placement<'a> {
    pub topic: &'a Topic,
    /// Capabilities of the pool, and of the worker where it announces any.
    pub requires: &'a [String],
    labels: &'a BTreeMap<String, String>,
}

/// What a label demands of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selector<'a> {
    /// A label of the worker with this value.
    Label(&'a str, &'a str),
    Capability(&'a str),
}

impl JobSpec {
    pub(crate) fn placement(&self) -> Placement<'_> {
        Placement {
            topic: &self.topic,
            requires: &self.requires,
            labels: &self.labels,
        }
    }
}

impl<'a> Placement<'a> {
    /// The only pool that the job may go to.
    pub fn preferred_pool(self) -> Option<&'a str> {
        self.labels.get(PREFERRED_POOL).map(String::as_str)
    }

    /// The worker that gets the job when it can take it; otherwise another one does.
    pub fn preferred_worker(self) -> Option<&'a str> {
        self.labels.get(PREFERRED_WORKER).map(String::as_str)
    }

    /// What a worker must have beside what the job requires.
    pub fn selectors(self) -> impl Iterator<Item = Selector<'a>> {
        self.labels.iter().filter_map(|(k, v)| parse_selector(k, v))
    }

    /// The labels that decide where the job may go, in the order of their names.
    pub fn labels(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.labels
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .filter(|(key, value)| {
                *key == PREFERRED_POOL
                    || *key == PREFERRED_WORKER
                    || parse_selector(key, value).is_some()
            })
    }

    /// The labels without which more workers could take the job.
    pub fn narrowing_labels(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.labels().filter(|(key, _)| *key != PREFERRED_WORKER)
    }
}

fn parse_selector<'a>(key: &'a str, value: &'a str) -> Option<Selector<'a>> {
    if let Some(name) = key.strip_prefix("placement.") {
        Some(Selector::Label(name, value))
    } else if let Some(name) = key.strip_prefix("node.") {
        Some(Selector::Label(name, value))
    } else {
        let name = key.strip_prefix("constraint.")?;
        Some(Selector::Capability(if value == "true" {
            name
        } else {
            value
        }))
    }
}
