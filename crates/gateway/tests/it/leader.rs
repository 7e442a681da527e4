//! What health says of the scheduler's leader, which the gateway knows from the ledger.

use std::time::Duration;

use airlock_ledger::{Ledger, LedgerConfig};
use airlock_model::Shard;
use airlock_testkit::{Seen, eventually};

use crate::harness::{BOUND, Running};

/// The gateway stays ready and shows its component `leader` so.
async fn shows(gateway: &Running, status: &str, reason: &str) -> anyhow::Result<()> {
    eventually(BOUND, &format!("leader {status}: {reason}"), || async {
        let reply = gateway.get("/health/ready", "").await?;
        anyhow::ensure!(reply.status == 200, "{}", reply.text);
        let leader = &reply.json["components"]["leader"];
        let so = leader["status"] == status && leader.to_string().contains(reason);
        Ok(Seen::when(so, leader))
    })
    .await
}

#[tokio::test]
async fn health_shows_a_leader_that_is_missing_or_does_not_work() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    shows(&gateway, "degraded", "no scheduler has led yet").await?;
    let ledger = Ledger::connect(&LedgerConfig::from_url(&gateway.postgres.url()), "test").await?;
    let epoch = ledger.raise_epoch(Shard(0), "test").await?;
    let mut term = ledger.term_connection("test");
    let leader = ledger.as_leader(Shard(0), epoch);
    // It renews its lease all the time, and its rounds are as the test says.
    let (rounds, mut seen) = tokio::sync::watch::channel(Duration::ZERO);
    let renewing = tokio::spawn(async move {
        while term.note_renewal(Shard(0), epoch, BOUND).await? {
            let ago = *seen.borrow_and_update();
            leader.record_round(ago).await?;
            tokio::select! {
                changed = seen.changed() => if changed.is_err() { break },
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
            }
        }
        term.close(BOUND).await;
        anyhow::Ok(())
    });
    shows(&gateway, "ok", "").await?;
    rounds.send(Duration::from_secs(60))?;
    shows(&gateway, "degraded", "last good round is 6").await?;
    rounds.send(Duration::ZERO)?;
    shows(&gateway, "ok", "").await?;
    drop(rounds);
    renewing.await??;
    shows(&gateway, "degraded", "no scheduler leads since").await?;
    gateway.stop().await
}
