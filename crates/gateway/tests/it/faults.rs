//! Servers that are away, and answers that are lost.

use std::collections::BTreeSet;
use std::time::Duration;

use airlock_bus::{Bus, BusConfig, Subscription, subjects};
use airlock_client::SubmitRequest;
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::packet;
use airlock_testkit::{Direction, Proxy, Seen, eventually};
use anyhow::Context as _;

use crate::harness::{ADMIN, BOUND, Running, assert_problem, config, reply, servers};

const BODY: &str = r#"{"topic": "job.echo"}"#;

#[tokio::test]
async fn without_postgres_nothing_is_accepted_until_it_is_back() -> anyhow::Result<()> {
    let (postgres, nats) = servers().await?;
    let mut config = config(&postgres.url(), &nats.url());
    config.database.acquire_timeout_ms = 500;
    config.submit.retry_for = Duration::from_secs(1);
    // Not there at the start.
    postgres.kill()?;
    let gateway = Running::with(config, postgres, nats).await?;
    assert_problem(&gateway.submit(BODY).await?, 503, None);
    assert_problem(&gateway.get("/api/v1/jobs", ADMIN).await?, 503, None);
    assert_eq!(gateway.get("/health/ready", "").await?.status, 503);
    gateway.postgres.restart().await?;
    gateway.until_ready().await?;
    let first = gateway.submit(BODY).await?;
    assert_eq!(first.status, 202, "{}", first.text);

    // Gone in the middle.
    gateway.postgres.kill()?;
    let refused = gateway.submit(BODY).await?;
    assert_problem(&refused, 503, None);
    assert!(refused.headers.contains_key("retry-after"));
    let read = gateway
        .get(&format!("/api/v1/jobs/{}", first.job_id()), ADMIN)
        .await?;
    assert_problem(&read, 503, None);
    gateway.postgres.restart().await?;
    let back = eventually(BOUND, "submissions to be accepted again", || async {
        let got = gateway.submit(BODY).await?;
        Ok(match got.status {
            202 => Seen::Done(got),
            503 => Seen::NotYet(got.text),
            _ => Seen::Never(got.text),
        })
    })
    .await?;
    assert_eq!(
        gateway
            .get(&format!("/api/v1/jobs/{}", back.job_id()), ADMIN)
            .await?
            .status,
        200
    );
    gateway.stop().await
}

#[tokio::test]
async fn a_restart_of_postgres_is_no_error_for_a_client_that_retries() -> anyhow::Result<()> {
    let gateway = Running::start().await?;
    let client = gateway.client(ADMIN);
    // Opens several connections, all of which will be broken.
    let warm = (0..8).map(|_| gateway.get("/api/v1/jobs", ADMIN));
    futures::future::try_join_all(warm).await?;
    gateway.postgres.restart().await?;
    let accepted = client.submit(&SubmitRequest::new("job.echo")).await?;
    assert_eq!(client.get(&accepted.job_id).await?.job_id, accepted.job_id);
    assert_eq!(gateway.stored().await?, 1);
    gateway.stop().await
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_makes_one_job() -> anyhow::Result<()> {
    let (postgres, nats) = servers().await?;
    let proxy = Proxy::start(postgres.addr()).await?;
    let mut config = config(&proxy.rewrite(&postgres.url())?, &nats.url());
    config.submit.retry_for = Duration::from_secs(20);
    config.database.max_connections = 1;
    let gateway = Running::with(config, postgres, nats).await?;
    gateway.until_ready().await?;
    // From now on the one connection knows the statement, and one message runs it.
    assert_eq!(gateway.submit(BODY).await?.status, 202);

    // Somebody holds the table for two seconds, so that the submission is surely inside
    // the server when its way back is cut.
    let hold = gateway
        .postgres
        .query("BEGIN; LOCK TABLE job_request IN EXCLUSIVE MODE; SELECT pg_sleep(2); COMMIT");
    let submit = async {
        let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        let holds = "SELECT count(*) FROM pg_locks WHERE mode = 'ExclusiveLock' \
                     AND relation = 'job_request'::regclass";
        let counted = async |sql: &str, what: &str| {
            eventually(BOUND, what, || async {
                let rows = gateway.postgres.query(sql).await?;
                Ok(Seen::when(rows[0][0].as_deref() != Some("0"), "nobody"))
            })
            .await
        };
        counted(holds, "the table to be held").await?;
        let pending = tokio::spawn(reply(gateway.request("/api/v1/jobs", ADMIN, BODY)));
        counted(waits, "the submission to wait inside the server").await?;
        proxy.cut_one_way(Direction::ToClient);
        eventually(BOUND, "the job to be committed unheard", || async {
            let stored = gateway.stored().await?;
            Ok(Seen::when(stored == 2, format!("{stored} stored")))
        })
        .await?;
        proxy.reset_connections();
        proxy.heal().await?;
        anyhow::Ok(pending)
    };
    let (held, pending) = tokio::join!(hold, submit);
    held?;
    let pending = pending?;
    let answer = pending.await??;
    assert_eq!(answer.status, 202, "{}", answer.text);
    assert_eq!(gateway.stored().await?, 2);
    assert_eq!(
        gateway
            .get(&format!("/api/v1/jobs/{}", answer.job_id()), ADMIN)
            .await?
            .status,
        200
    );
    gateway.stop().await
}

#[tokio::test]
async fn without_nats_jobs_are_accepted_all_the_same() -> anyhow::Result<()> {
    let (postgres, nats) = servers().await?;
    let config = config(&postgres.url(), &nats.url());
    nats.kill()?;
    let gateway = Running::with(config, postgres, nats).await?;
    eventually(BOUND, "readiness without NATS", || async {
        let ready = gateway.get("/health/ready", "").await?;
        Ok(Seen::when(ready.status == 200, &ready.text))
    })
    .await?;
    assert_eq!(gateway.submit(BODY).await?.status, 202);
    gateway.nats.restart().await?;
    gateway.until_ready().await?;
    assert_eq!(gateway.submit(BODY).await?.status, 202);
    gateway.nats.kill()?;
    for _ in 0..50 {
        assert_eq!(gateway.submit(BODY).await?.status, 202);
    }
    assert_eq!(gateway.stored().await?, 52);
    gateway.stop().await
}

/// The job ids of wake-ups, until there are so many.
async fn woken(submits: &mut Subscription, count: usize) -> anyhow::Result<BTreeSet<String>> {
    let mut ids = BTreeSet::new();
    while ids.len() < count {
        let message = tokio::time::timeout(BOUND, submits.recv()).await?;
        let (_, payload) = packet::decode(message.context("no more messages")?.payload)?;
        if let Payload::Wake(wake) = payload {
            ids.extend(wake.job_ids);
        }
    }
    Ok(ids)
}

#[tokio::test]
async fn wake_ups_wait_for_a_bus_that_hangs_or_is_away() -> anyhow::Result<()> {
    let (postgres, nats) = servers().await?;
    let mut config = config(&postgres.url(), &nats.url());
    // The second one finds no room.
    config.submit.publishers = 1;
    let gateway = Running::with(config, postgres, nats).await?;
    gateway.until_ready().await?;
    let bus = BusConfig {
        url: gateway.nats.url().into(),
        ..BusConfig::default()
    };
    let bus = Bus::connect(&bus, "test").await?;
    let mut submits = bus.subscribe(subjects::JOB_SUBMIT, None).await?;
    let submit = async |count: usize| {
        let mut ids = BTreeSet::new();
        for _ in 0..count {
            let accepted = gateway.submit(BODY).await?;
            assert_eq!(accepted.status, 202, "{}", accepted.text);
            ids.insert(accepted.job_id().to_owned());
        }
        anyhow::Ok(ids)
    };
    gateway.nats.stop()?;
    let hung = submit(10).await?;
    gateway.nats.cont()?;
    assert_eq!(woken(&mut submits, hung.len()).await?, hung);

    gateway.nats.kill()?;
    let away = submit(10).await?;
    gateway.nats.restart().await?;
    assert_eq!(woken(&mut submits, away.len()).await?, away);
    let scrape = gateway.get("/metrics", "").await?;
    let lost = "cordum_gateway_wakeups_lost_total 0";
    assert!(scrape.text.lines().any(|l| l == lost), "{}", scrape.text);
    gateway.stop().await
}
