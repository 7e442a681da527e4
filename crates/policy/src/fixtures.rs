//! Tests of a policy, written beside it: requests, and what must come of them.
//!
//! ```yaml
//! tests:
//!   - name: wiping is denied
//!     request: {topic: job.disk.wipe, meta: {risk_tags: [destructive]}}
//!     expect: {decision: deny, rule: destructive}
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_saphyr::{Location, Spanned};

use crate::Policy;
use crate::decision::Decision;
use crate::evaluate::Evaluation;
use crate::load::parse_yaml;
use crate::owned::OwnedRequest;
use crate::problem::{LoadError, Problem};
use crate::velocity::{Count, Counters, VelocityQuery};

/// Cases of one file.
pub const MAX_CASES: usize = 10_000;

/// The tests of one file.
#[derive(Debug)]
pub struct Suite {
    name: String,
    cases: Vec<Spanned<Case>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    tests: Vec<Spanned<Case>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    request: OwnedRequest,
    expect: Expect,
    /// How often something has happened, by the id of the rule that counts it.
    #[serde(default)]
    velocity: BTreeMap<String, u64>,
}

/// What must come of a request. What is left out is not looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    pub decision: Decision,
    /// The rule that decides; `default` when none may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// A text that the reason contains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Rules that are not enforced and would have decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadows: Option<Vec<String>>,
}

/// The word for "no rule".
pub const DEFAULT: &str = "default";

impl Suite {
    /// Reads a file of tests; `name` is what it is called in reports.
    pub fn load(name: &str, text: &str) -> Result<Self, LoadError> {
        let fail = |problem: Problem| LoadError::from(problem.in_file(name));
        let file: File = parse_yaml(text).map_err(fail)?;
        if file.tests.is_empty() || file.tests.len() > MAX_CASES {
            let message = format!(
                "{} tests; from 1 to {MAX_CASES} are possible",
                file.tests.len()
            );
            return Err(fail(Problem::at(Location::UNKNOWN, "tests", message)));
        }
        let cases = file
            .tests
            .into_iter()
            .map(|mut case| {
                case.value.request = std::mem::take(&mut case.value.request).hoist_meta_labels();
                case
            })
            .collect();
        Ok(Self {
            name: name.to_owned(),
            cases,
        })
    }

    pub fn len(&self) -> usize {
        self.cases.len()
    }

    pub fn is_empty(&self) -> bool {
        self.cases.is_empty()
    }
}

/// What came of all tests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    pub cases: Vec<CaseResult>,
    /// Rules that decided, or would have, in at least one test.
    pub covered: Vec<Arc<str>>,
    pub uncovered: Vec<Arc<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CaseResult {
    pub suite: String,
    pub line: u64,
    pub name: String,
    pub passed: bool,
    pub expected: Expect,
    pub got: Evaluation,
    /// Why it failed.
    pub why: Option<String>,
}

impl Report {
    pub fn all_passed(&self) -> bool {
        self.cases.iter().all(|c| c.passed)
    }

    pub fn failure_count(&self) -> usize {
        self.cases.iter().filter(|c| !c.passed).count()
    }
}

/// Runs all tests against a policy.
pub fn run_suites(policy: &Policy, suites: &[Suite]) -> Report {
    let mut hit: BTreeSet<Arc<str>> = BTreeSet::new();
    let mut cases = Vec::new();
    for suite in suites {
        for case in &suite.cases {
            let result = run_case(policy, &suite.name, case);
            hit.extend(result.got.rule_id.clone());
            hit.extend(result.got.shadows.iter().filter_map(|s| s.rule_id.clone()));
            cases.push(result);
        }
    }
    let (covered, uncovered) = policy
        .rules()
        .map(|r| r.id)
        .partition(|id| hit.contains(id));
    Report {
        cases,
        covered,
        uncovered,
    }
}

fn run_case(policy: &Policy, suite: &str, case: &Spanned<Case>) -> CaseResult {
    let Case {
        name,
        request,
        expect,
        velocity,
    } = &case.value;
    let got = policy.evaluate(&request.as_request(), &mut FixtureCounts(velocity));
    let why = first_mismatch(expect, &got);
    CaseResult {
        suite: suite.to_owned(),
        line: case.referenced.line(),
        name: name.clone(),
        passed: why.is_none(),
        expected: expect.clone(),
        got,
        why,
    }
}

/// The counts that a test writes down; what it does not name never happened.
struct FixtureCounts<'a>(&'a BTreeMap<String, u64>);

impl Counters for FixtureCounts<'_> {
    fn count(&mut self, query: &VelocityQuery) -> Count {
        Count::Is(self.0.get(&*query.rule_id).copied().unwrap_or_default())
    }
}

/// The first thing that is not as expected.
fn first_mismatch(expect: &Expect, got: &Evaluation) -> Option<String> {
    let rule = got.rule_id.as_deref().unwrap_or(DEFAULT);
    if expect.decision != got.decision {
        return Some(format!(
            "expected {}, got {}: {}",
            expect.decision, got.decision, got.reason
        ));
    }
    if let Some(wanted) = &expect.rule
        && wanted != rule
    {
        return Some(format!("expected rule {wanted:?} to decide, {rule:?} did"));
    }
    if let Some(part) = &expect.reason
        && !got.reason.contains(part.as_str())
    {
        return Some(format!(
            "expected a reason with {part:?}, got {:?}",
            got.reason
        ));
    }
    let shadows: Vec<&str> = got
        .shadows
        .iter()
        .filter_map(|s| s.rule_id.as_deref())
        .collect();
    if let Some(wanted) = &expect.shadows
        && *wanted != shadows
    {
        return Some(format!("expected the shadows {wanted:?}, got {shadows:?}"));
    }
    None
}
