//! How many jobs are open, by tenant, and a count of them that asks seldom.
//!
//! What must stay true: submitting costs no write and no lock in the ledger for it. The
//! ledger is counted now and then, and what was admitted since the last count begins is
//! added here. So one process alone never lets in more than the limit, and several let in
//! at most what the others admit between two counts, and what was being committed while
//! the ledger was counted.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use airlock_model::TenantId;

use crate::Ledger;
use crate::error::{LedgerError, corrupt_error};

/// Open jobs by tenant.
pub type OpenByTenant = HashMap<TenantId, u64>;

// A row from before the column was there has none.
const OPEN: &str = r#"
SELECT coalesce(s.tenant, (SELECT r.tenant FROM job_request r WHERE r.job_id = s.job_id), ''),
       count(*)
FROM job_state s WHERE s.open GROUP BY 1"#;

impl Ledger {
    /// Counts the open jobs of all tenants.
    pub async fn count_open_jobs(&self) -> Result<OpenByTenant, LedgerError> {
        let rows: Vec<(String, i64)> = self
            .with_timeout("counting open jobs", async {
                sqlx::query_as(OPEN).fetch_all(&self.pool).await
            })
            .await?;
        rows.into_iter()
            .filter(|(tenant, _)| !tenant.is_empty())
            .map(|(tenant, n)| {
                let tenant = TenantId::new(tenant).map_err(corrupt_error)?;
                Ok((tenant, u64::try_from(n).unwrap_or(0)))
            })
            .collect()
    }
}

/// The most open jobs there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenLimits {
    pub per_tenant: u64,
    pub in_all: u64,
}

/// Which limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// The tenant's own limit; otherwise that of all together.
    pub of_tenant: bool,
    pub open: u64,
    pub limit: u64,
}

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let whose = if self.of_tenant {
            "the tenant has"
        } else {
            "there are"
        };
        let (open, limit) = (self.open, self.limit);
        write!(f, "{whose} {open} open jobs; at most {limit} are allowed")
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    /// As the ledger was counted last.
    counted: u64,
    /// Admitted since, while no count is under way.
    admitted: u64,
    /// Admitted since the count under way began.
    meanwhile: u64,
}

impl Count {
    fn open(&self) -> u64 {
        self.counted + self.admitted + self.meanwhile
    }
}

#[derive(Debug, Default)]
struct Counts {
    tenants: HashMap<TenantId, Count>,
    all: Count,
}

/// What is open as far as this process knows.
#[derive(Debug)]
pub struct OpenJobs {
    limits: OpenLimits,
    counts: Mutex<Counts>,
    /// When the ledger was counted last.
    at: Mutex<Option<Instant>>,
}

impl OpenJobs {
    pub fn new(limits: OpenLimits) -> Self {
        Self {
            limits,
            counts: Mutex::default(),
            at: Mutex::default(),
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits as many of `wanted` jobs as there is room for; how many, and what stands in
    /// the way of the rest.
    pub fn admit(&self, tenant: &TenantId, wanted: usize) -> (usize, Option<Full>) {
        let mut counts = self.counts();
        let own = counts.tenants.get(tenant).map_or(0, Count::open);
        let all = counts.all.open();
        let full = [
            Full {
                of_tenant: true,
                open: own,
                limit: self.limits.per_tenant,
            },
            Full {
                of_tenant: false,
                open: all,
                limit: self.limits.in_all,
            },
        ];
        let room = |f: &Full| f.limit.saturating_sub(f.open);
        let [of_tenant, of_all] = &full;
        let least = if room(of_tenant) <= room(of_all) {
            of_tenant
        } else {
            of_all
        };
        let granted = room(least).min(wanted as u64);
        if granted > 0 {
            match counts.tenants.get_mut(tenant) {
                Some(count) => count.meanwhile += granted,
                None => {
                    let count = Count {
                        meanwhile: granted,
                        ..Count::default()
                    };
                    counts.tenants.insert(tenant.clone(), count);
                }
            }
            counts.all.meanwhile += granted;
        }
        let short = (granted < wanted as u64).then(|| Full {
            open: least.open + granted,
            ..*least
        });
        (usize::try_from(granted).unwrap_or(wanted), short)
    }

    /// Jobs that were admitted and did not come to be.
    pub fn release(&self, tenant: &TenantId, n: usize) {
        let mut counts = self.counts();
        if let Some(count) = counts.tenants.get_mut(tenant) {
            count.meanwhile = count.meanwhile.saturating_sub(n as u64);
        }
        counts.all.meanwhile = counts.all.meanwhile.saturating_sub(n as u64);
    }

    /// Counts the ledger. What was counted before stays when that fails, and what is
    /// admitted is added to it.
    pub async fn recount(&self, ledger: &Ledger) -> Result<(), LedgerError> {
        self.begin_recount();
        self.finish_recount(&ledger.count_open_jobs().await?);
        Ok(())
    }

    /// Counts the ledger unless that was done within `every`.
    pub async fn recount_if_stale(
        &self,
        ledger: &Ledger,
        every: Duration,
    ) -> Result<(), LedgerError> {
        {
            let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
            if at.is_some_and(|at| at.elapsed() < every) {
                return Ok(());
            }
            *at = Some(Instant::now());
        }
        self.recount(ledger).await
    }

    /// The ledger is about to be counted.
    fn begin_recount(&self) {
        let mut counts = self.counts();
        let Counts { tenants, all } = &mut *counts;
        for count in tenants.values_mut().chain([all]) {
            count.admitted += std::mem::take(&mut count.meanwhile);
        }
    }

    /// The ledger was counted: what was admitted before that is in the number.
    fn finish_recount(&self, open: &OpenByTenant) {
        let mut counts = self.counts();
        counts.tenants.retain(|tenant, count| {
            count.counted = open.get(tenant).copied().unwrap_or(0);
            count.admitted = 0;
            count.open() > 0
        });
        for (tenant, n) in open {
            if !counts.tenants.contains_key(tenant) {
                let count = Count {
                    counted: *n,
                    ..Count::default()
                };
                counts.tenants.insert(tenant.clone(), count);
            }
        }
        counts.all.counted = open.values().sum();
        counts.all.admitted = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    #[test]
    fn a_tenant_has_its_limit_and_all_have_theirs() {
        let open = OpenJobs::new(OpenLimits {
            per_tenant: 3,
            in_all: 5,
        });
        let (acme, globex) = (tenant("acme"), tenant("globex"));
        assert_eq!(open.admit(&acme, 2), (2, None));
        let (granted, full) = open.admit(&acme, 4);
        let full = full.unwrap();
        assert_eq!(
            (granted, full.of_tenant, full.open, full.limit),
            (1, true, 3, 3)
        );
        assert_eq!(open.admit(&globex, 2), (2, None));
        let (granted, full) = open.admit(&globex, 1);
        let full = full.unwrap();
        assert_eq!(
            (granted, full.of_tenant, full.open, full.limit),
            (0, false, 5, 5)
        );
        open.release(&acme, 1);
        assert_eq!(open.admit(&globex, 1), (1, None));
    }

    #[test]
    fn what_is_admitted_while_the_ledger_is_counted_is_not_forgotten() {
        let open = OpenJobs::new(OpenLimits {
            per_tenant: 4,
            in_all: 100,
        });
        let acme = tenant("acme");
        open.admit(&acme, 2);
        open.begin_recount();
        open.admit(&acme, 1);
        // Both of the first two had been committed, and one of them has ended.
        open.finish_recount(&HashMap::from([(acme.clone(), 1)]));
        assert_eq!(open.admit(&acme, 3).0, 2);
        open.begin_recount();
        // A count that failed changes nothing.
        assert_eq!(open.admit(&acme, 1).0, 0);
        open.begin_recount();
        open.finish_recount(&HashMap::new());
        assert_eq!(open.admit(&acme, 5).0, 4);
    }
}
