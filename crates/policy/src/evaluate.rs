//! The question itself: one job, one policy, one answer.
//!
//! In this order: a malformed request is denied; the tenant's own lists may deny; the
//! first enforced rule that matches decides, or else the default; what is in the
//! input may make that stricter. What must stay true: whatever goes wrong on the way,
//! a panic included, the answer is deny.

use std::cell::OnceCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde::Serialize;

use crate::Policy;
use crate::clause::Facts;
use crate::decision::Decision;
use crate::request::Request;
use crate::rule::Head;
use crate::terms::{ApprovalTerms, Constraints, Remediation};
use crate::velocity::Counters;
use airlock_model::reads::Reads;

/// The answer about one job. The texts are shared with the policy, so that most
/// answers cost a few reference counts and no copying.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evaluation {
    pub decision: Decision,
    /// In plain words, naming the rule.
    pub reason: Arc<str>,
    /// `None`: no rule decided, but the default, a tenant's list or a malformed request.
    pub rule_id: Option<Arc<str>>,
    /// Names the content of that rule. An approval is bound to it.
    pub rule_hash: Option<Arc<str>>,
    /// The policy this was decided under.
    pub snapshot: Arc<str>,
    /// What bounds the job. With `require_approval`: once it is approved.
    pub constraints: Option<Arc<Constraints>>,
    pub remediations: Arc<[Remediation]>,
    /// There exactly when the decision is `require_approval`.
    pub approval: Option<Arc<ApprovalTerms>>,
    /// Rules that are only tried out and would have decided.
    pub shadows: Vec<ShadowHit>,
    /// How many jobs of the tenant may run at once.
    pub tenant_concurrency: Option<u32>,
    /// What the rules on the way read.
    pub reads: Arc<Reads>,
    /// A counter was asked, so the next job may be answered otherwise.
    pub counted: bool,
    /// A rule about content was asked, and the input is no part of `reads`.
    pub content_read: bool,
}

/// What a rule that is not enforced would have decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShadowHit {
    /// `None`: a tenant's list in a file that is not enforced.
    pub rule_id: Option<Arc<str>>,
    pub rule_hash: Option<Arc<str>>,
    pub decision: Decision,
    /// `would be denied by rule "…"`
    pub reason: Arc<str>,
}

impl Evaluation {
    /// Whether the same answer holds for every request that agrees on `reads`.
    pub fn is_cacheable(&self) -> bool {
        !self.counted && !self.content_read
    }

    /// Whether the job may run as it is.
    pub fn may_run(&self) -> bool {
        self.decision.may_run()
    }

    /// A denial that no rule made.
    fn new_denial(policy: &Policy, reason: Arc<str>) -> Self {
        Self {
            decision: Decision::Deny,
            reason,
            rule_id: None,
            rule_hash: None,
            snapshot: policy.snapshot.clone(),
            constraints: None,
            remediations: Arc::new([]),
            approval: None,
            shadows: Vec::new(),
            tenant_concurrency: None,
            reads: policy.base_reads.clone(),
            counted: false,
            content_read: false,
        }
    }

    fn apply_rule(&mut self, head: &Head) {
        self.decision = head.decision;
        self.reason = head.reason.clone();
        self.rule_id = Some(head.id.clone());
        self.rule_hash = Some(head.hash.clone());
        self.constraints = head.constraints.clone();
        self.remediations = head.remediations.clone();
        self.approval = head.approval.clone();
    }
}

impl ShadowHit {
    fn from_rule(head: &Head) -> Self {
        Self {
            rule_id: Some(head.id.clone()),
            rule_hash: Some(head.hash.clone()),
            decision: head.decision,
            reason: head.would.clone(),
        }
    }
}

/// The reason of a denial after a panic.
pub const PANICKED: &str = "denied: asking the policy failed";

impl Policy {
    /// The answer about one job.
    pub fn evaluate(&self, request: &Request<'_>, counters: &mut dyn Counters) -> Evaluation {
        // A policy never changes, so a panic cannot leave it half changed.
        catch_unwind(AssertUnwindSafe(|| {
            self.evaluate_excluding_rule(request, counters, None)
        }))
        .unwrap_or_else(|_| {
            Evaluation {
                // What was read and counted cannot be told any more.
                counted: true,
                ..Evaluation::new_denial(self, PANICKED.into())
            }
        })
    }

    /// `without`: as if the rule of this number were not there.
    pub(crate) fn evaluate_excluding_rule(
        &self,
        request: &Request<'_>,
        counters: &mut dyn Counters,
        without: Option<usize>,
    ) -> Evaluation {
        if let Err(fault) = request.check() {
            // Denied whatever the rules say, because a pattern such as `*` would
            // otherwise allow what no worker could ever be asked to do.
            return Evaluation {
                // The limits look at fields that no rule may have read.
                counted: true,
                ..Evaluation::new_denial(self, format!("denied: {fault}").into())
            };
        }
        let facts = Facts::new(request, self.tenant_or_default(request));
        let mut answer = Evaluation::new_denial(self, self.default_reason.clone());
        if self.apply_tenant_lists(&facts, &mut answer) {
            return answer;
        }
        self.evaluate_rules(&facts, counters, without, &mut answer);
        self.evaluate_content_rules(&facts, &mut answer);
        answer
    }

    /// The request's tenant, or the default one when it names none.
    pub(crate) fn tenant_or_default<'a>(&'a self, request: &Request<'a>) -> &'a str {
        match request.tenant.trim() {
            "" => &self.default_tenant,
            named => named,
        }
    }

    fn apply_tenant_lists(&self, facts: &Facts<'_>, answer: &mut Evaluation) -> bool {
        let name = facts.tenant;
        answer.tenant_concurrency = self.tenants.max_concurrent_jobs(name);
        for tenant in self.tenants.get(name) {
            let Some(why) = tenant.denial_reason(facts.request) else {
                continue;
            };
            if tenant.enforced {
                answer.reason = format!("denied for tenant {name:?}: {why}").into();
                return true;
            }
            answer.shadows.push(ShadowHit {
                rule_id: None,
                rule_hash: None,
                decision: Decision::Deny,
                reason: format!("would be denied for tenant {name:?}: {why}").into(),
            });
        }
        false
    }

    fn evaluate_rules(
        &self,
        facts: &Facts<'_>,
        counters: &mut dyn Counters,
        without: Option<usize>,
        answer: &mut Evaluation,
    ) {
        for number in self.index.candidate_rules(facts).iter() {
            let Some(rule) = self.rules.get(number).filter(|_| without != Some(number)) else {
                continue;
            };
            let asked = rule.evaluate(facts, counters);
            answer.counted |= asked.counted;
            if !asked.matched {
                continue;
            }
            if rule.head.enforced {
                answer.apply_rule(&rule.head);
                answer.reads = rule.reads.clone();
                return;
            }
            answer.shadows.push(ShadowHit::from_rule(&rule.head));
        }
        answer.decision = self.default_decision;
        answer.reads = self.all_reads.clone();
    }

    /// The strictest rule about content that is stricter than what was decided; the
    /// first of equals.
    fn evaluate_content_rules(&self, facts: &Facts<'_>, answer: &mut Evaluation) {
        let views = OnceCell::new();
        for rule in &self.content {
            if !rule.head.matches(facts) {
                continue;
            }
            answer.content_read = true;
            if rule.head.enforced && rule.head.decision.strictness() <= answer.decision.strictness()
            {
                continue;
            }
            let Some(found) = rule.scan(facts.request, &views) else {
                continue;
            };
            if rule.head.enforced {
                // What bounds the job stays, in case it is approved.
                let constraints = answer.constraints.take();
                answer.apply_rule(&rule.head);
                if answer.decision == Decision::RequireApproval {
                    answer.constraints = constraints;
                }
                answer.reason = format!("{}: {}", rule.head.reason, found.describe()).into();
            } else {
                answer.shadows.push(ShadowHit {
                    reason: format!("{}: {}", rule.head.would, found.describe()).into(),
                    ..ShadowHit::from_rule(&rule.head)
                });
            }
        }
    }
}
