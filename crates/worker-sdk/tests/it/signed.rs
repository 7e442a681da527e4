//! Signatures: what the worker says carries one, and what the scheduler did not sign is
//! not obeyed.

use airlock_bus::subjects;
use airlock_proto::cap::JobStatus;
use airlock_proto::signing::SigningKey;
use airlock_testkit::{Seen, eventually};
use airlock_worker::JobContext;
use base64::Engine as _;

use crate::fake_scheduler::{BOUND, FakeScheduler, status};

/// A new key, and its PEM.
fn key() -> anyhow::Result<(SigningKey, String)> {
    let (key, pkcs8) = SigningKey::generate()?;
    let text = base64::engine::general_purpose::STANDARD.encode(pkcs8);
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n");
    Ok((key, pem))
}

#[tokio::test]
async fn both_sides_sign_and_nothing_else_is_obeyed() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let (scheduler, _) = key()?;
    let (stranger, _) = key()?;
    let (own, own_pem) = key()?;
    let mut heartbeats = fake.bus.subscribe(subjects::HEARTBEAT, None).await?;
    let worker = fake
        .worker(|w| {
            w.sign_with(own_pem)
                .verify_scheduler(scheduler.verifying_key().to_pem())
                .on("job.echo", |_: JobContext, n: u32| async move { Ok(n) })
        })
        .await?;
    let heartbeat = tokio::time::timeout(BOUND, heartbeats.recv())
        .await?
        .expect("a heartbeat");
    own.verifying_key().verify(&heartbeat.payload)?;

    let unsigned = fake.order("job.echo", "1");
    let forged = fake.order("job.echo", "2");
    let good = fake.order("job.echo", "3");
    fake.dispatch(&unsigned).await?;
    for (order, key) in [(&forged, &stranger), (&good, &scheduler)] {
        let mut outgoing = fake.packet(order)?;
        outgoing.payload = key.sign(&outgoing.payload)?;
        fake.bus.publish(outgoing).await?;
    }
    // They come in order: when the last is done, the others were decided on.
    let result = fake.result().await?;
    assert_eq!(result.job_id, good.job_id);
    assert_eq!(status(&result), JobStatus::Succeeded);
    let stats = worker.stats.snapshot();
    assert_eq!((stats.accepted, stats.dropped_signature), (1, 2));
    // An unsigned receipt is none.
    fake.receipt(&good).await?;
    eventually(BOUND, "the receipt to be dropped", || async {
        let dropped = worker.stats.snapshot().dropped_signature;
        Ok(Seen::when(dropped == 3, dropped))
    })
    .await?;
    Ok(())
}
