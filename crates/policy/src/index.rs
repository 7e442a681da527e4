//! Which rules can be about a job at all.
//!
//! Asking a thousand rules about every job is most of what a decision would cost, and
//! nearly all of them name something the job does not have. So each rule is filed
//! under one of its conditions that lists plain words, and is found by the words of
//! the job. What must stay true: a rule that matches is among the candidates. It may
//! be one of too many, because each is still asked in full, in the order of the rules.

use std::collections::HashMap;

use airlock_model::text::{find_label, fold_name};

use crate::clause::{Clause, Facts};
use crate::folded::FoldedText;
use crate::glob::Glob;
use crate::rule::Rule;
use crate::when::MCP_FIELDS;

#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Patterns without wildcards; the case of a topic counts.
    topics: RulesByText,
    tenants: RulesByText,
    capabilities: RulesByText,
    pack_ids: RulesByText,
    actor_ids: RulesByText,
    actor_types: RulesByText,
    risk_tags: RulesByText,
    requires: RulesByText,
    labels: HashMap<Box<str>, LabelRules>,
    /// What no word tells about; these are asked about every job.
    rest: RuleSet,
}

/// Rules that one label tells about.
#[derive(Debug, Default)]
struct LabelRules {
    values: RulesByText,
    /// Those that want a label of this name, whatever it says.
    present: Vec<u32>,
}

#[derive(Debug, Default)]
struct RulesByText(HashMap<Box<str>, Vec<u32>>);

impl RulesByText {
    fn insert<'a>(&mut self, words: impl IntoIterator<Item = &'a str>, number: u32) {
        for word in words {
            self.0.entry(word.into()).or_default().push(number);
        }
    }

    fn collect_rules_into(&self, word: &str, found: &mut RuleSet) {
        if !self.0.is_empty() {
            found.insert_all(self.0.get(fold_name(word).as_str()));
        }
    }
}

impl Index {
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let mut index = Self::default();
        for (rule, number) in rules.iter().zip(0_u32..) {
            // One condition that does not hold is enough, so one is enough to file by.
            let filed = rule
                .head
                .clauses
                .iter()
                .any(|c| index.insert_clause(c, number));
            if !filed {
                index.rest.insert(number);
            }
        }
        index
    }

    /// Whether the rule can be found by this condition.
    fn insert_clause(&mut self, clause: &Clause, number: u32) -> bool {
        let (place, words) = match clause {
            Clause::Topics(globs) => return self.insert_topics(globs, number),
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
                self.requires.insert([word.as_str()], number);
                return true;
            }
            Clause::Labels(pairs) => {
                let Some((name, value)) = pairs.first() else {
                    return false;
                };
                self.label_entry(name)
                    .values
                    .insert([value.as_str()], number);
                return true;
            }
            Clause::LabelIn(lists) => {
                let Some((name, words)) = lists.first() else {
                    return false;
                };
                self.label_entry(name).values.insert(as_strs(words), number);
                return true;
            }
            Clause::LabelThreshold(limits) => {
                let Some((name, _)) = limits.first() else {
                    return false;
                };
                self.label_entry(name).present.push(number);
                return true;
            }
            Clause::Mcp(lists) => {
                let mut pairs = lists.0.iter().zip(MCP_FIELDS);
                let allowed =
                    pairs.find_map(|(pair, (_, label))| Some((label, pair.allow.as_ref()?)));
                let Some((label, words)) = allowed else {
                    return false;
                };
                self.label_entry(label)
                    .values
                    .insert(as_strs(words), number);
                return true;
            }
            // A job without the label may be meant too, or one of several labels is enough.
            Clause::LabelNotIn(_) | Clause::LabelAllowlist(_) => return false,
            Clause::NoRiskTags | Clause::SecretsPresent(_) | Clause::When(_) => return false,
        };
        place.insert(as_strs(words), number);
        true
    }

    fn insert_topics(&mut self, globs: &[Glob], number: u32) -> bool {
        let literals: Option<Vec<&str>> = globs.iter().map(Glob::literal).collect();
        let Some(literals) = literals else {
            return false;
        };
        self.topics.insert(literals, number);
        true
    }

    fn label_entry(&mut self, name: &str) -> &mut LabelRules {
        self.labels.entry(name.into()).or_default()
    }

    /// The rules that may be about the job, in their order.
    pub(crate) fn candidate_rules(&self, facts: &Facts<'_>) -> RuleSet {
        let request = facts.request;
        let mut found = self.rest.clone();
        found.insert_all(self.topics.0.get(request.topic));
        self.tenants.collect_rules_into(facts.tenant, &mut found);
        self.capabilities
            .collect_rules_into(request.capability, &mut found);
        self.pack_ids
            .collect_rules_into(request.pack_id, &mut found);
        self.actor_ids
            .collect_rules_into(request.actor_id, &mut found);
        self.actor_types
            .collect_rules_into(request.actor_type, &mut found);
        for tag in request.risk_tags {
            self.risk_tags.collect_rules_into(tag, &mut found);
        }
        for word in request.requires {
            self.requires.collect_rules_into(word, &mut found);
        }
        if !self.labels.is_empty() {
            self.collect_label_rules(facts, &mut found);
        }
        found
    }

    fn collect_label_rules(&self, facts: &Facts<'_>, found: &mut RuleSet) {
        let given = facts.request.labels;
        for (name, value) in given {
            let exact = self.labels.get(name.as_str());
            if let Some(label) = exact.or_else(|| self.labels.get(fold_name(name).as_str())) {
                found.insert_all(Some(&label.present));
                label.values.collect_rules_into(value, found);
            }
        }
        // To the lists about tools, a label that is not there is an empty one.
        for (_, name) in MCP_FIELDS
            .iter()
            .filter(|(_, name)| find_label(given, name).is_none())
        {
            if let Some(label) = self.labels.get(*name) {
                label.values.collect_rules_into("", found);
            }
        }
    }
}

fn as_strs(words: &[FoldedText]) -> impl Iterator<Item = &str> {
    words.iter().map(FoldedText::as_str)
}

/// A set of rules by their numbers.
#[derive(Debug, Clone, Default)]
pub(crate) struct RuleSet(Vec<u64>);

impl RuleSet {
    fn insert(&mut self, number: u32) {
        let at = number as usize / 64;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        if let Some(block) = self.0.get_mut(at) {
            *block |= 1 << (number % 64);
        }
    }

    fn insert_all(&mut self, numbers: Option<&Vec<u32>>) {
        numbers.into_iter().flatten().for_each(|n| self.insert(*n));
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
        let mut numbers = RuleSet::default();
        for n in [129, 3, 64, 0, 63, 3, 500] {
            numbers.insert(n);
        }
        let all: Vec<usize> = numbers.iter().collect();
        assert_eq!(all, [0, 3, 63, 64, 129, 500]);
        assert_eq!(RuleSet::default().iter().count(), 0);
    }
}
