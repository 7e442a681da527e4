//! Whether Redis and NATS are this ledger's alone.
//!
//! Two installations on one Redis or one NATS disturb each other. It shows as
//! degraded, and nothing that belongs to the other one is used: of a foreign Redis only
//! payloads by the ids of our own jobs, of a foreign NATS no consumer and no epoch.

use std::sync::Arc;
use std::time::Duration;

use crate::term::{Stores, TermContext};

const POLL: Duration = Duration::from_secs(5);

/// Claims Redis for our ledger and says whether it is another's. Without Redis there is
/// nothing to claim.
pub async fn claim_redis(ctx: &TermContext, stores: &Stores) {
    const COMPONENT: &str = "redis_ledger";
    match stores.guard.claim_for_ledger(&ctx.ledger_id).await {
        Ok(None) => ctx.health.ok(COMPONENT),
        Ok(Some(other)) => ctx.health.degraded(
            COMPONENT,
            format!(
                "ledger {other} uses this Redis under the same prefix; ours is {}: its locks, \
                 counters and workers are not used. Give each installation a Redis or a \
                 redis.prefix of its own",
                ctx.ledger_id
            ),
        ),
        Err(error) => tracing::debug!(%error, "claiming Redis failed, retrying"),
    }
}

async fn check_bus_owner(ctx: &TermContext, stores: &Stores) {
    const COMPONENT: &str = "nats_ledger";
    match stores.bus.leaders_seen(ctx.shard).await {
        Ok(seen) if seen.others.is_empty() => ctx.health.ok(COMPONENT),
        Ok(seen) => {
            let others: Vec<String> = seen.others.into_iter().collect();
            ctx.health.degraded(
                COMPONENT,
                format!(
                    "a leader of ledger {} reads this NATS; ours is {}. Give each installation \
                     a NATS account or a nats.stream_prefix of its own",
                    others.join(", "),
                    ctx.ledger_id
                ),
            );
        }
        Err(error) => tracing::debug!(%error, "reading the leaders on NATS failed, retrying"),
    }
}

/// Renews the claim and checks both stores until the term is over.
pub async fn watch_ownership(ctx: Arc<TermContext>, stores: Arc<Stores>) -> anyhow::Result<()> {
    loop {
        claim_redis(&ctx, &stores).await;
        check_bus_owner(&ctx, &stores).await;
        if !ctx.sleep_unless_over(POLL).await {
            return Ok(());
        }
    }
}
