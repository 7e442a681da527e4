//! Whether Redis and NATS are this ledger's alone.
//!
//! Two installations on one Redis or one NATS disturb each other. It is said loudly, shows
//! as degraded, and nothing that belongs to the other one is used: of a foreign Redis only
//! payloads by the ids of our own jobs, of a foreign NATS no consumer and no epoch.

use std::sync::Arc;
use std::time::Duration;

use airlock_service::Health;

use crate::background::upkeep::pause;
use crate::term::Term;

const POLL: Duration = Duration::from_secs(5);

/// Claims Redis for our ledger and says whether it is another's. Without Redis there is
/// nothing to claim.
pub async fn claim(term: &Term, health: &Health) {
    const COMPONENT: &str = "redis_ledger";
    match term.guard.claim(&term.ledger_id).await {
        Ok(None) => health.ok(COMPONENT),
        Ok(Some(other)) => health.degraded(
            COMPONENT,
            format!(
                "ledger {other} uses this Redis under the same prefix; ours is {}: its locks, \
                 counters and workers are not used. Give each installation a Redis or a \
                 redis.prefix of its own",
                term.ledger_id
            ),
        ),
        Err(error) => tracing::debug!(%error, "Redis cannot be claimed"),
    }
}

async fn look_at_bus(term: &Term, health: &Health) {
    const COMPONENT: &str = "nats_ledger";
    match term.bus.leaders_seen(term.shard).await {
        Ok(seen) if seen.others.is_empty() => health.ok(COMPONENT),
        Ok(seen) => {
            let others: Vec<String> = seen.others.into_iter().collect();
            health.degraded(
                COMPONENT,
                format!(
                    "a leader of ledger {} reads this NATS; ours is {}. Give each installation \
                     a NATS account or a nats.stream_prefix of its own",
                    others.join(", "),
                    term.ledger_id
                ),
            );
        }
        Err(error) => tracing::debug!(%error, "NATS cannot be asked for other leaders"),
    }
}

/// Keeps the claim alive, and looks, until the term is over.
pub async fn watch(term: Arc<Term>, health: Health) -> anyhow::Result<()> {
    loop {
        claim(&term, &health).await;
        look_at_bus(&term, &health).await;
        if !pause(&term, POLL).await {
            return Ok(());
        }
    }
}
