//! Which rules can be about a job at all.
//!
//! Asking a thousand rules about every job is most of what a decision would cost, and
//! nearly all of them name something the job does not have. So each rule is filed
//! under one of its conditions that lists plain words, and is found by the words of
//! the job. What must stay true: a rule that matches is among the candidates. It may
//! be one of too many, because each is still asked in full, in the order of the rules.

use std::collections::HashMap;

use airlock_model::text::label;

use crate::clause::{Clause, Facts};
use crate::glob::Glob;
use crate::rule::Rule;
use crate::when::MCP;
use crate::words::{Word, fold};

#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Patterns without wildcards; the case of a topic counts.
    topics: Filed,
    tenants: Filed,
    capabilities: Filed,
    pack_ids: Filed,
    actor_ids: Filed,
    actor_types: Filed,
    risk_tags: Filed,
    requires: Filed,
    labels: HashMap<Box<str>, Label>,
    /// What no word tells about; these are asked about every job.
    rest: Numbers,
}

/// Rules that one label tells about.
#[derive(Debug, Default)]
struct Label {
    values: Filed,
    /// Those that want a label of this name, whatever it says.
    present: Vec<u32>,
}

#[derive(Debug, Default)]
struct Filed(HashMap<Box<str>, Vec<u32>>);

impl Filed {
    fn file<'a>(&mut self, words: impl IntoIterator<Item = &'a str>, number: u32) {
        for word in words {
            self.0.entry(word.into()).or_default().push(number);
        }
    }

    fn find(&self, word: &str, found: &mut Numbers) {
        if !self.0.is_empty() {
            found.extend(self.0.get(fold(word).as_str()));
        }
    }
}

impl Index {
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let mut index = Self::default();
        for (rule, number) in rules.iter().zip(0_u32..) {
            // One condition that does not hold is enough, so one is enough to file by.
            let filed = rule.head.clauses.iter().any(|c| index.file(c, number));
            if !filed {
                index.rest.add(number);
            }
        }
        index
    }

    /// Whether the rule can be found by this condition.
    fn file(&mut self, clause: &Clause, number: u32) -> bool {
        let (place, words) = match clause {
            Clause::Topics(globs) => return self.file_topics(globs, number),
            Clause::Tenants(words) => (&mut self.tenants, words),
            Clause::Capabilities(words) => (&mut self.capabilities, words),
            Clause::PackIds(words) => (&mut self.pack_ids, words),
            Clause::ActorIds(words) => (&mut self.actor_ids, words),
            Clause::ActorTypes(words) => (&mut self.actor_types, words),
            Clause::RiskTags(words) => (&mut self.risk_tags, words),
            Clause::Requires(words) => {
                // All are wanted, so any one of them will do.
                let Some(word) = words.first() else {
                    return false;
                };
                self.requires.file([word.as_str()], number);
                return true;
            }
            Clause::Labels(pairs) => {
                let Some((name, value)) = pairs.first() else {
                    return false;
                };
                self.label(name).values.file([value.as_str()], number);
                return true;
            }
            Clause::LabelIn(lists) => {
                let Some((name, words)) = lists.first() else {
                    return false;
                };
                self.label(name).values.file(texts(words), number);
                return true;
            }
            Clause::LabelThreshold(limits) => {
                let Some((name, _)) = limits.first() else {
                    return false;
                };
                self.label(name).present.push(number);
                return true;
            }
            Clause::Mcp(lists) => {
                let mut pairs = lists.0.iter().zip(MCP);
                let allowed =
                    pairs.find_map(|(pair, (_, label))| Some((label, pair.allow.as_ref()?)));
                let Some((label, words)) = allowed else {
                    return false;
                };
                self.label(label).values.file(texts(words), number);
                return true;
            }
            // A job without the label may be meant too, or one of several labels is enough.
            Clause::LabelNotIn(_) | Clause::LabelAllowlist(_) => return false,
            Clause::NoRiskTags | Clause::SecretsPresent(_) | Clause::When(_) => return false,
        };
        place.file(texts(words), number);
        true
    }

    fn file_topics(&mut self, globs: &[Glob], number: u32) -> bool {
        let literals: Option<Vec<&str>> = globs.iter().map(Glob::literal).collect();
        let Some(literals) = literals else {
            return false;
        };
        self.topics.file(literals, number);
        true
    }

    fn label(&mut self, name: &str) -> &mut Label {
        self.labels.entry(name.into()).or_default()
    }

    /// The rules that may be about the job, in their order.
    pub(crate) fn candidates(&self, facts: &Facts<'_>) -> Numbers {
        let request = facts.request;
        let mut found = self.rest.clone();
        found.extend(self.topics.0.get(request.topic));
        self.tenants.find(facts.tenant, &mut found);
        self.capabilities.find(request.capability, &mut found);
        self.pack_ids.find(request.pack_id, &mut found);
        self.actor_ids.find(request.actor_id, &mut found);
        self.actor_types.find(request.actor_type, &mut found);
        for tag in request.risk_tags {
            self.risk_tags.find(tag, &mut found);
        }
        for word in request.requires {
            self.requires.find(word, &mut found);
        }
        if !self.labels.is_empty() {
            self.find_labels(facts, &mut found);
        }
        found
    }

    fn find_labels(&self, facts: &Facts<'_>, found: &mut Numbers) {
        let given = facts.request.labels;
        for (name, value) in given {
            let exact = self.labels.get(name.as_str());
            if let Some(label) = exact.or_else(|| self.labels.get(fold(name).as_str())) {
                found.extend(Some(&label.present));
                label.values.find(value, found);
            }
        }
        // To the lists about tools, a label that is not there is an empty one.
        for (_, name) in MCP.iter().filter(|(_, name)| label(given, name).is_none()) {
            if let Some(label) = self.labels.get(*name) {
                label.values.find("", found);
            }
        }
    }
}

fn texts(words: &[Word]) -> impl Iterator<Item = &str> {
    words.iter().map(Word::as_str)
}

/// A set of rules by their numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Numbers(Vec<u64>);

impl Numbers {
    fn add(&mut self, number: u32) {
        let at = number as usize / 64;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        if let Some(block) = self.0.get_mut(at) {
            *block |= 1 << (number % 64);
        }
    }

    fn extend(&mut self, numbers: Option<&Vec<u32>>) {
        numbers.into_iter().flatten().for_each(|n| self.add(*n));
    }

    /// Ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(at, block)| {
            let mut left = *block;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                left &= left.checked_sub(1)?;
                Some(at * 64 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_in_order_and_once() {
        let mut numbers = Numbers::default();
        for n in [129, 3, 64, 0, 63, 3, 500] {
            numbers.add(n);
        }
        let all: Vec<usize> = numbers.iter().collect();
        assert_eq!(all, [0, 3, 63, 64, 129, 500]);
        assert_eq!(Numbers::default().iter().count(), 0);
    }
}
