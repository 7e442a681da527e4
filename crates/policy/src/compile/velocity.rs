//! Velocity rules that count the jobs of several tenants together: one of them can use up
//! what all of them share. A warning, because that may be meant.

use serde_saphyr::Location;

use crate::clause::Clause;
use crate::problem::{Problem, Problems};
use crate::rule::Rule;

pub(super) fn warn_shared_counts(rules: &[Rule], problems: &mut Problems) {
    for rule in rules {
        let mixes = rule.velocity.as_ref().is_some_and(|v| v.mixes_tenants());
        let tenants = |c: &Clause| matches!(c, Clause::Tenants(_));
        if !mixes || rule.head.clauses.iter().any(tenants) {
            continue;
        }
        let message = format!(
            "rule {:?} counts the jobs of all tenants together: one tenant can use up the limit of \
             the others",
            rule.head.id
        );
        let place = &rule.head.place;
        let warning = Problem {
            line: place.line,
            column: place.column,
            ..Problem::at(Location::UNKNOWN, rule.head.id.to_string(), message)
        };
        let hint = "add tenant to velocity.key, unless that is meant";
        problems.warn(warning.with_hint(hint).in_file(&place.file));
    }
}
