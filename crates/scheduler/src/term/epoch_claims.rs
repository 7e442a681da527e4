//! The epoch goes on above whatever has been seen of this ledger.
//!
//! A ledger that was restored from a backup, or failed over to a replica that had not got
//! every commit, does not know all of its own past: the bus holds consumers of later
//! epochs, and workers refuse every word of an epoch below the highest they have heard.
//! So a term that is not above all of that is given back and begun again above it, in the
//! same process. Epochs of other ledgers say nothing about ours.

use std::time::Duration;

use airlock_bus::Bus;
use airlock_election::Leadership;
use airlock_ledger::Ledger;
use airlock_model::{Epoch, LedgerId, Shard};
use airlock_proto::cap::bus_packet::Payload;
use airlock_service::Context;
use airlock_settings::Backoff;
use tokio::sync::watch;

/// A term is at least this long before a worker's word ends it: what all workers say is
/// gathered, and one that says nonsense cannot stop everything.
const FIRST: Duration = Duration::from_secs(1);

/// A worker that claims an epoch further ahead than this is not believed: so many terms
/// are not lost with any backup, and the numbers must not run out.
const FURTHEST: u64 = 1_000_000;

/// This term's epoch is not above what was seen of its ledger.
#[derive(Debug, thiserror::Error)]
#[error("epoch {by} of this ledger was seen {place}; the next term goes on above it")]
pub struct Overtaken {
    pub by: Epoch,
    place: &'static str,
}

/// What the bus has seen of this ledger. Waits for a bus that is away: nothing can be led
/// without it.
pub async fn find_later_epoch_on_bus(
    ctx: &Context,
    bus: &Bus,
    leadership: &Leadership,
) -> anyhow::Result<Option<Overtaken>> {
    let mut backoff = Backoff::from_millis(100, 2_000);
    let lost = leadership.lost_token();
    loop {
        match bus.leaders_seen(leadership.shard()).await {
            Ok(seen) => {
                let by = seen.highest.filter(|by| *by >= leadership.epoch());
                return Ok(by.map(|by| Overtaken {
                    by,
                    place: "on the bus",
                }));
            }
            Err(error) => {
                tracing::warn!(%error, "reading earlier leaders from the bus failed, retrying")
            }
        }
        tokio::select! {
            () = ctx.shutdown.cancelled() => return Ok(None),
            () = lost.cancelled() => anyhow::bail!("the leader lease was lost"),
            () = tokio::time::sleep(backoff.pause()) => {}
        }
    }
}

/// A later epoch is also seen when this process was simply replaced and is the last to
/// learn of it: then the ledger has it too, nothing was set back, and this term is over
/// as with any lost lease.
pub async fn ensure_not_replaced(
    ledger: &Ledger,
    shard: Shard,
    epoch: Epoch,
) -> anyhow::Result<()> {
    let later = ledger.leader(shard).await?.filter(|l| l.epoch > epoch);
    match later {
        Some(later) => anyhow::bail!(
            "the leader lease was lost: {} leads with epoch {}",
            later.leader,
            later.epoch
        ),
        None => Ok(()),
    }
}

/// What workers say they have seen of this ledger.
pub struct EpochClaims {
    ledger: LedgerId,
    epoch: Epoch,
    highest: watch::Sender<u64>,
}

impl EpochClaims {
    pub fn new(ledger: LedgerId, epoch: Epoch) -> Self {
        Self {
            ledger,
            epoch,
            highest: watch::Sender::new(0),
        }
    }

    pub fn observe_packet(&self, payload: &Payload) {
        let (ledger, epoch) = match payload {
            Payload::Handshake(h) => match &h.airlock {
                Some(own) => (&own.ledger_id, own.highest_epoch),
                None => return,
            },
            Payload::WorkerInventory(i) => (&i.ledger_id, i.highest_epoch),
            _ => return,
        };
        if epoch <= self.epoch.0 || *ledger != self.ledger.as_str() {
            return;
        }
        if epoch - self.epoch.0 > FURTHEST {
            tracing::warn!(epoch, "impossible epoch claimed by a worker, ignored");
            return;
        }
        self.highest.send_if_modified(|highest| {
            let higher = epoch > *highest;
            *highest = epoch.max(*highest);
            higher
        });
    }

    /// Waits until a worker has seen a later epoch than this term's.
    pub async fn wait_until_overtaken(&self) -> Overtaken {
        tokio::time::sleep(FIRST).await;
        let mut claims = self.highest.subscribe();
        // The sender is ours, so that it cannot fail.
        let _ = claims.wait_for(|claim| *claim > self.epoch.0).await;
        Overtaken {
            by: Epoch(*claims.borrow()),
            place: "by a worker",
        }
    }
}

#[cfg(test)]
mod tests {
    use airlock_ledger::LedgerConfig;
    use airlock_proto::{cap, own};
    use airlock_testkit::Postgres;

    use super::*;

    #[tokio::test]
    async fn a_term_that_the_ledger_knows_a_later_one_of_is_lost_and_not_set_back()
    -> anyhow::Result<()> {
        let postgres = Postgres::start().await?;
        let ledger = Ledger::connect(&LedgerConfig::from_url(&postgres.url()), "test").await?;
        ledger.migrate().await?;
        let first = ledger.raise_epoch(Shard(0), "one").await?;
        ensure_not_replaced(&ledger, Shard(0), first).await?;
        let second = ledger.raise_epoch(Shard(0), "two").await?;
        let lost = ensure_not_replaced(&ledger, Shard(0), first).await;
        let text = lost.expect_err("replaced").to_string();
        assert_eq!(text, "the leader lease was lost: two leads with epoch 2");
        ensure_not_replaced(&ledger, Shard(0), second).await
    }

    fn handshake(ledger: &str, epoch: u64) -> Payload {
        Payload::Handshake(cap::Handshake {
            airlock: Some(own::WorkerHello {
                ledger_id: ledger.to_owned(),
                highest_epoch: epoch,
                ..own::WorkerHello::default()
            }),
            ..cap::Handshake::default()
        })
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_later_and_possible_epoch_of_this_ledger_ends_a_term() {
        let ours = LedgerId::new("ours").expect("an id");
        let claims = EpochClaims::new(ours, Epoch(5));
        for (ledger, epoch) in [
            ("ours", 5),
            ("ours", 0),
            ("other", 41),
            ("", 41),
            ("ours", u64::MAX),
        ] {
            claims.observe_packet(&handshake(ledger, epoch));
        }
        let long = Duration::from_secs(60);
        assert!(
            tokio::time::timeout(long, claims.wait_until_overtaken())
                .await
                .is_err()
        );
        claims.observe_packet(&handshake("ours", 40));
        claims.observe_packet(&Payload::WorkerInventory(own::WorkerInventory {
            ledger_id: "ours".to_owned(),
            highest_epoch: 41,
            ..own::WorkerInventory::default()
        }));
        assert_eq!(claims.wait_until_overtaken().await.by, Epoch(41));
    }
}
