//! What the safety kernels have loaded: for those who publish policy, and for health.
//!
//! Kernels write it to the ledger themselves. What a tenant must not read (a refused rule
//! may name another one) is for administrators; `/health/ready`, which has no key, only says
//! that there is something.

use std::time::Duration;

use airlock_api::LoadedBy;
use airlock_ledger::{KernelStatus, Ledger};
use airlock_service::{Context, OnFailure, Status};
use tokio::time::Instant;

use crate::connections::Links;
use crate::policy::kernel::Kernel;

/// How long a publication waits for the kernels.
const LOAD_WAIT: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often health is looked after.
const WATCH_EVERY: Duration = Duration::from_secs(2);

/// How a kernel stands to this change of the bundles.
pub fn to_loaded_by(kernel: &KernelStatus, generation: u64) -> LoadedBy {
    let report = &kernel.report;
    let reason = if report.generation < generation {
        Some("it has not read this change yet".to_owned())
    } else {
        report.refused.clone()
    };
    LoadedBy {
        kernel: report.instance.clone(),
        snapshot: report.snapshot.clone(),
        loaded: reason.is_none(),
        reason,
    }
}

/// Whether there are kernels and each has loaded it.
pub fn is_loaded_by_all(kernels: &[LoadedBy]) -> bool {
    !kernels.is_empty() && kernels.iter().all(|k| k.loaded)
}

/// Waits until every kernel that is there has read the newest change, and tells what each
/// made of it. What the ledger does not tell in time counts as not loaded.
pub async fn wait_until_loaded(ledger: &Ledger) -> Vec<LoadedBy> {
    let until = Instant::now() + LOAD_WAIT;
    let mut last = Vec::new();
    let Ok(generation) = ledger.bundles_generation().await else {
        return last;
    };
    while let Ok(kernels) = ledger.kernels().await {
        let read = |k: &KernelStatus| k.report.generation >= generation;
        let all = kernels.iter().all(read);
        last = kernels
            .iter()
            .map(|k| to_loaded_by(k, generation))
            .collect();
        if all || Instant::now() >= until {
            break;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    last
}

/// Shows in health whether the kernel can be asked, and how the policy stands.
pub fn watch_kernel_status(kernel: Kernel, links: Links, ctx: &Context) {
    let context = ctx.clone();
    ctx.tasks
        .spawn("watch-kernels", OnFailure::Log, async move {
            loop {
                let asked = kernel.fetch_active_policy().await;
                let listed = match links.ledger() {
                    Some(ledger) => ledger.kernels().await.unwrap_or_default(),
                    None => Vec::new(),
                };
                let health = &context.health;
                health.set(
                    "safety-kernel",
                    match &asked {
                        Ok(_) => Status::Ok,
                        Err(why) => Status::Degraded(format!("it cannot be asked: {why}")),
                    },
                );
                let refusing = asked.as_ref().is_ok_and(|a| !a.refused.is_empty())
                    || listed.iter().any(|k| k.report.refused.is_some());
                let none = asked.as_ref().is_ok_and(|a| a.snapshot.is_empty());
                health.set("policy", policy_status(refusing, none));
                let alone = listed.iter().any(|k| k.report.alone.is_some());
                health.set(
                    "redis",
                    match alone {
                        true => Status::Degraded("a safety kernel cannot reach it".to_owned()),
                        false => Status::Ok,
                    },
                );
                tokio::select! {
                    () = context.shutdown.cancelled() => return,
                    () = tokio::time::sleep(WATCH_EVERY) => {}
                }
            }
        });
}

fn policy_status(refusing: bool, none: bool) -> Status {
    if none {
        Status::Degraded("no policy is loaded; every job is denied".to_owned())
    } else if refusing {
        let text = "a safety kernel refuses the newest policy and keeps the one before; \
                    airlock policy status says why";
        Status::Degraded(text.to_owned())
    } else {
        Status::Ok
    }
}

#[cfg(test)]
mod tests {
    use airlock_ledger::KernelReport;
    use airlock_model::Timestamp;

    use super::*;

    fn kernel(generation: u64, refused: Option<&str>) -> KernelStatus {
        KernelStatus {
            report: KernelReport {
                instance: "k".to_owned(),
                generation,
                refused: refused.map(str::to_owned),
                ..KernelReport::default()
            },
            loaded_at: None,
            refused_at: None,
            seen_at: Timestamp(0),
        }
    }

    #[test]
    fn loaded_is_read_and_not_refused_by_each() {
        let of = |k: KernelStatus| to_loaded_by(&k, 5);
        let good = of(kernel(5, None));
        assert!(good.loaded && is_loaded_by_all(std::slice::from_ref(&good)));
        let late = of(kernel(4, None));
        assert!(!late.loaded && late.reason.is_some());
        let refused = of(kernel(6, Some("line 2")));
        assert_eq!(refused.reason.as_deref(), Some("line 2"));
        assert!(!is_loaded_by_all(&[good, refused]));
        assert!(!is_loaded_by_all(&[]), "nobody is not everybody");
    }
}
