//! Which rules can be about a topic at all.
//!
//! A large policy has many rules that each name a few topics. Asking those about every
//! job is most of what a decision would cost, so they are found by the topic instead.
//! The order of the rules stays what it is: the two lists are walked together.

use std::collections::HashMap;

use crate::clause::Clause;
use crate::rule::Rule;

#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Rules that name topics without wildcards, by topic; ascending.
    exact: HashMap<Box<str>, Vec<u32>>,
    /// All others; ascending.
    rest: Vec<u32>,
}

impl Index {
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let mut index = Self::default();
        for (rule, number) in rules.iter().zip(0_u32..) {
            match literals(rule) {
                Some(topics) => {
                    for topic in topics {
                        let numbers = index.exact.entry(topic.into()).or_default();
                        // A topic that one rule names twice is one entry.
                        if numbers.last() != Some(&number) {
                            numbers.push(number);
                        }
                    }
                }
                None => index.rest.push(number),
            }
        }
        index
    }

    /// The rules that may be about the topic, in their order.
    pub(crate) fn candidates<'a>(&'a self, topic: &str) -> impl Iterator<Item = usize> + 'a {
        let mut exact = self
            .exact
            .get(topic)
            .map_or(&[][..], Vec::as_slice)
            .iter()
            .peekable();
        let mut rest = self.rest.iter().peekable();
        std::iter::from_fn(move || {
            let first = match (exact.peek(), rest.peek()) {
                (Some(a), Some(b)) if a < b => exact.next(),
                (_, Some(_)) => rest.next(),
                (_, None) => exact.next(),
            };
            first.map(|n| *n as usize)
        })
    }
}

/// The topics of a rule, if it names them all without wildcards.
fn literals(rule: &Rule) -> Option<Vec<&str>> {
    let globs = rule.head.clauses.iter().find_map(|c| {
        if let Clause::Topics(globs) = c {
            Some(globs)
        } else {
            None
        }
    })?;
    globs.iter().map(|g| g.literal()).collect()
}
