//! What the engine reports about itself: where a job stands and why, how many wait where.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Engine, Phase, QueuedJob};
use crate::explain::{Lane, WaitStatus};
use crate::ids::{JobId, PoolName, TenantId};
use crate::job::Verdict;
use crate::routing::{PoolStatus, WaitReason};
use crate::time::Timestamp;

impl Engine {
    /// Where a job stands.
    pub fn explain(&mut self, id: &JobId) -> WaitStatus {
        let reason = self.wait_reason(id);
        let Some(job) = self.jobs.get(id) else {
            return WaitStatus::Unknown;
        };
        let since = job.since;
        match &job.phase {
            Phase::Checking => WaitStatus::Checking { since },
            Phase::Held => WaitStatus::Held { since },
            Phase::OutputHeld { reason, .. } => WaitStatus::OutputHeld {
                detail: reason.to_string(),
                since,
            },
            Phase::Sleeping {
                until,
                reason,
                detail,
            } => WaitStatus::Sleeping {
                reason: reason.code().to_owned(),
                detail: detail.as_deref().unwrap_or_default().to_owned(),
                since,
                until: *until,
            },
            Phase::Assigned(a) => WaitStatus::Assigned {
                worker: a.worker.clone(),
                attempt: a.attempt.0,
                max_attempts: a.limits.max_attempts,
                since: a.scheduled_at,
                accepted: a.accepted,
                started_at: a.started_at,
                last_heartbeat: self.now - self.listening.now().since(a.liveness.last_heartbeat),
            },
            Phase::Waiting { retry_at, verdict } => {
                let class = job.place.map_or(0, |p| p.class);
                let tenant = &job.queued.tenant;
                let pools = self.ready.pools(class).cloned().unwrap_or_default();
                // Without a reason of its own, other jobs of its kind are before it.
                let reason = reason.unwrap_or(WaitReason::PoolOverloaded);
                let detail = self.wait_detail(&job.queued, verdict, reason, &pools);
                WaitStatus::Waiting {
                    reason: reason.code().to_owned(),
                    detail,
                    since,
                    pools: pools.to_vec(),
                    tries: job.tries,
                    counted_since: job.taken_over,
                    max_tries: self.settings.max_scheduling_retries,
                    next_try_at: *retry_at,
                    lane: self.ready.lane_len(class, tenant) as u64,
                }
            }
        }
    }

    /// What a job waits for, in words.
    fn wait_detail(
        &self,
        job: &QueuedJob,
        verdict: &Verdict,
        reason: WaitReason,
        pools: &[PoolName],
    ) -> String {
        let (tenant, topic) = (&job.tenant, job.spec.topic.as_str());
        match reason {
            _ if !self.listening.is_on() => "the message bus cannot be reached".to_owned(),
            WaitReason::PoolInactive => format!(
                "every pool of topic {topic} is inactive (no_pool_mapping){}",
                narrowing_text(&job.spec)
            ),
            WaitReason::NoPoolMapping => format!(
                "no pool is configured for topic {topic} (no_pool_mapping){}",
                narrowing_text(&job.spec)
            ),
            WaitReason::NoWorkers | WaitReason::PoolDraining => format!(
                "no worker {} can take a job of topic {topic} (no_workers){}{}",
                in_pools_text(pools),
                self.draining_text(pools),
                narrowing_text(&job.spec)
            ),
            WaitReason::TenantLimit => match self.reached_rule_limit(tenant, verdict) {
                Some(n) => format!(
                    "rule {} lets tenant {tenant} have {n} jobs in flight, and it has \
                     (tenant_limit)",
                    verdict.rule_id
                ),
                None => format!(
                    "tenant {tenant} has {} jobs in flight and may have {} (tenant_limit)",
                    self.in_flight.of_tenant(tenant),
                    self.tenant_limit(tenant, verdict)
                        .map_or_else(|| "no more".to_owned(), |n| n.to_string())
                ),
            },
            WaitReason::PoolOverloaded
            | WaitReason::DispatchFailed
            | WaitReason::SafetyUnavailable
            | WaitReason::Throttled
            | WaitReason::Backoff => format!(
                "every worker {} that can take it is full or overloaded (pool_overloaded)",
                in_pools_text(pools)
            ),
        }
    }

    fn draining_text(&self, pools: &[PoolName]) -> String {
        let draining: Vec<&str> = pools
            .iter()
            .filter(|p| {
                let pool = self.rules.routing.pools.get(*p);
                pool.is_some_and(|p| p.status == PoolStatus::Draining)
            })
            .map(PoolName::as_str)
            .collect();
        match draining.as_slice() {
            [] => String::new(),
            names => format!("; {} takes nothing new (draining)", names.join(", ")),
        }
    }

    /// Each lane (pool and tenant) in which jobs wait. As many as there are lanes, however
    /// many jobs there are.
    pub fn lanes(&self) -> Vec<Lane> {
        let mut lanes: BTreeMap<(&Arc<str>, &TenantId), Lane> = BTreeMap::new();
        for (pool, tenant, waiting, first, class) in self.ready.flows() {
            let since = self.jobs.get(first).map_or(self.now, |job| job.since);
            let reason = self.ready.wait_reason(class, tenant);
            let lane = lanes.entry((pool, tenant)).or_insert_with(|| Lane {
                pool: pool.to_string(),
                tenant: tenant.clone(),
                reason: WaitReason::PoolOverloaded,
                waiting: 0,
                oldest: Timestamp::MAX,
            });
            lane.waiting += waiting as u64;
            if since < lane.oldest {
                lane.oldest = since;
                lane.reason = reason.unwrap_or(WaitReason::PoolOverloaded);
            }
        }
        lanes.into_values().collect()
    }
}

fn in_pools_text(pools: &[PoolName]) -> String {
    let names: Vec<&str> = pools.iter().map(PoolName::as_str).collect();
    match names.as_slice() {
        [] => "anywhere".to_owned(),
        [one] => format!("in pool {one}"),
        many => format!("in pools {}", many.join(", ")),
    }
}

/// What the job asks for that not every worker has.
fn narrowing_text(spec: &crate::job::JobSpec) -> String {
    let placement = spec.placement();
    let requires = placement.requires.iter().map(|r| format!("requires {r}"));
    let labels = placement
        .narrowing_labels()
        .map(|(key, value)| format!("{key}={value}"));
    let wants: Vec<String> = requires.chain(labels).collect();
    if wants.is_empty() {
        String::new()
    } else {
        format!("; it asks for {}", wants.join(", "))
    }
}
