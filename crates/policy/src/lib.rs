//! The safety policy: what `safety.yaml` says, and what that means for one job.
//!
//! [`Policy::load_files`] turns the texts of one or more files into a [`Policy`], or
//! into a [`LoadError`] that names every mistake by file, line and column.
//! [`Policy::evaluate`] asks it about one job, [`Policy::explain`] tells why. What must
//! stay true: the same policy, the same request and the same counts give the same
//! answer, always. So nothing here reads a clock, a file or a socket; whoever owns the
//! file does.
//!
//! The first rule that matches decides, and the files' order is the only order there
//! is. Priorities on rules and "the strictest match wins" were rejected: with either,
//! one cannot tell what a file does by reading it from the top.

mod clause;
mod compile;
mod content;
mod decision;
mod document;
mod evaluate;
mod explain;
pub mod fixtures;
mod folded;
pub mod fuzz;
mod glob;
mod index;
mod load;
mod mcp;
pub mod output;
mod owned;
mod problem;
pub mod replay;
mod request;
mod rule;
mod schema;
pub mod signature;
mod tenants;
mod terms;
mod velocity;
mod when;

use std::sync::Arc;

pub use airlock_model::reads::Reads;
pub use decision::{Decision, FailMode};
pub use evaluate::{Evaluation, PANICKED, ShadowHit};
pub use explain::{Change, Condition, Explanation, Outcome, Step};
pub use glob::{Glob, GlobError, parse_glob};
pub use load::Source;
pub use owned::{Meta, OwnedRequest};
pub use problem::{LoadError, Problem, limits};
pub use request::{Budget, Content, Request, RequestFault};
pub use rule::RuleInfo;
pub use terms::{
    ApprovalTerms, Budgets, Constraints, Diff, NOTHING, Remediation, Sandbox, Toolchain,
};
pub use velocity::{Count, Counters, KnownCounts, NoCounters, VelocityQuery};

use content::ContentRule;
use index::Index;
use output::OutputRules;
use rule::Rule;
use tenants::Tenants;

/// A loaded policy. It never changes: a new file makes a new one.
#[derive(Debug)]
pub struct Policy {
    snapshot: Arc<str>,
    rules: Box<[Rule]>,
    index: Index,
    content: Box<[ContentRule]>,
    tenants: Tenants,
    default_decision: Decision,
    default_reason: Arc<str>,
    default_tenant: Box<str>,
    fail_mode: FailMode,
    output: OutputRules,
    /// What is read before any rule is asked, and by the rules about content.
    base_reads: Arc<Reads>,
    /// What is read when no rule matches.
    all_reads: Arc<Reads>,
    warnings: Box<[Problem]>,
}

impl Policy {
    /// Names this content: `sha256:` and 16 hexadecimal digits. Comments, layout, the
    /// order of keys and how the rules are spread over files do not count, anything
    /// that could change an answer does.
    pub fn snapshot(&self) -> &Arc<str> {
        &self.snapshot
    }

    /// What is probably not meant, and does no harm: a rule that can never match, say.
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// All rules in the order in which they are asked, those about content last.
    pub fn rules(&self) -> impl Iterator<Item = RuleInfo> + '_ {
        let content = self.content.iter().map(|r| r.head.to_info("content"));
        self.rules.iter().map(Rule::to_info).chain(content)
    }

    /// Rules, without those about content.
    pub fn rule_count(&self) -> usize {
        self.rules.len()
    }

    /// Whether anything looks into the input of a job. If not, nobody needs to send it.
    pub fn reads_content(&self) -> bool {
        self.content.iter().any(|r| r.patterns.is_some())
    }

    /// Whether a rule counts in the ledger.
    pub fn counts_strictly(&self) -> bool {
        let mut limits = self.rules.iter().filter_map(|r| r.velocity.as_ref());
        limits.any(|v| v.strict)
    }

    /// What the scheduler does while the kernel cannot be asked.
    pub fn fail_mode(&self) -> FailMode {
        self.fail_mode
    }

    /// The rules about what jobs put out.
    pub fn output(&self) -> &OutputRules {
        &self.output
    }

    pub fn default_decision(&self) -> Decision {
        self.default_decision
    }

    pub fn default_tenant(&self) -> &str {
        &self.default_tenant
    }

    /// How many jobs of a tenant may run at once; `None`: the policy does not say.
    pub fn tenant_concurrency(&self, tenant: &str) -> Option<u32> {
        let tenant = match tenant.trim() {
            "" => &self.default_tenant,
            named => named,
        };
        self.tenants.max_concurrent_jobs(tenant)
    }
}
