//! Shows in health whether a scheduler leads and gets on with its work.
//!
//! The gateway accepts jobs without a leader, so that its absence is only *degraded*. What
//! the leader writes beside its lease is the source: it is as cheap as a ping, and does not
//! need NATS.

use std::time::Duration;

use airlock_ledger::LeaderHealth;
use airlock_model::Shard;
use airlock_service::{Context, OnFailure, Status};

use crate::connections::Links;

const LEADER: &str = "leader";
const WATCH_EVERY: Duration = Duration::from_secs(2);
/// A leader renews its lease and records its rounds every second. Beyond this it has lost
/// the lease, or its own health is down because of its rounds.
const LIMIT: Duration = Duration::from_secs(7);

pub fn watch_leader_health(links: Links, shards: u16, ctx: &Context) {
    let context = ctx.clone();
    ctx.tasks.spawn("watch-leader", OnFailure::Log, async move {
        loop {
            context
                .health
                .set(LEADER, read_leader_status(&links, shards).await);
            tokio::select! {
                () = context.shutdown.cancelled() => return,
                () = tokio::time::sleep(WATCH_EVERY) => {}
            }
        }
    });
}

/// The first shard whose leader is not as it should be speaks for all.
async fn read_leader_status(links: &Links, shards: u16) -> Status {
    let Some(ledger) = links.ledger() else {
        return Status::Degraded("unknown while the ledger cannot be reached".to_owned());
    };
    for shard in 0..shards {
        let found = match ledger.leader_health(Shard(shard)).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "reading the leader's health failed");
                return Status::Degraded("unknown while the ledger cannot be reached".to_owned());
            }
        };
        if let Some(reason) = describe_trouble(found.as_ref()) {
            let text = format!("{reason}; jobs are accepted and wait in the ledger");
            return Status::Degraded(text);
        }
    }
    Status::Ok
}

fn describe_trouble(leader: Option<&LeaderHealth>) -> Option<String> {
    let Some(leader) = leader else {
        return Some("no scheduler has led yet".to_owned());
    };
    if leader.renewed_ago > LIMIT {
        let ago = leader.renewed_ago.as_secs();
        return Some(format!("no scheduler leads since {ago} s"));
    }
    if leader.round_ago > LIMIT {
        let ago = leader.round_ago.as_secs();
        return Some(format!("the leader's last good round is {ago} s old"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_holds_its_lease_and_gets_on_with_its_work() {
        let of = |renewed, round| {
            describe_trouble(Some(&LeaderHealth {
                renewed_ago: Duration::from_secs(renewed),
                round_ago: Duration::from_secs(round),
            }))
        };
        assert_eq!(of(1, 2), None);
        let gone = of(60, 61).unwrap_or_default();
        assert!(gone.contains("no scheduler leads since 60 s"), "{gone}");
        let stuck = of(1, 9).unwrap_or_default();
        assert!(stuck.contains("last good round is 9 s old"), "{stuck}");
        assert!(describe_trouble(None).is_some());
    }
}
