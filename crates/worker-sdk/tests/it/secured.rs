//! Servers that do not let everybody in.

use std::path::PathBuf;
use std::time::Duration;

use airlock_bus::{Bus, BusConfig, Secret, SecretUrl, subjects};
use airlock_guard::Guard;
use airlock_proto::cap::JobStatus;
use airlock_proto::cap::bus_packet::Payload;
use airlock_testkit::{Nats, PortLease, Redis, TestDir};
use airlock_worker::{GuardConfig, JobContext, Worker, WorkerError};
use anyhow::Context;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::certificates::Authority;
use crate::fake_scheduler::{BOUND, FakeScheduler, next, status};

/// A certificate for this machine that is its own authority, and its key.
fn certificate(dir: &TestDir) -> anyhow::Result<(PathBuf, PathBuf)> {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
    let paths = (dir.path().join("nats.pem"), dir.path().join("nats.key"));
    std::fs::write(&paths.0, made.cert.pem())?;
    std::fs::write(&paths.1, made.signing_key.serialize_pem())?;
    Ok(paths)
}

fn plain() -> airlock_worker::Builder {
    Worker::builder("secured")
        .id("secured")
        .ignore_environment()
        .on("job.x", |_: JobContext, (): ()| async move { Ok(()) })
}

fn worker(bus: BusConfig) -> airlock_worker::Builder {
    plain().bus(bus)
}

#[tokio::test]
async fn nats_with_a_password_over_tls() -> anyhow::Result<()> {
    let dir = TestDir::new()?;
    let (cert, key) = certificate(&dir)?;
    let (cert_arg, key_arg) = (cert.to_string_lossy(), key.to_string_lossy());
    let args = [
        "--tls",
        "--tlscert",
        &cert_arg,
        "--tlskey",
        &key_arg,
        "--user",
        "me",
        "--pass",
        "hush",
    ];
    let nats = Nats::start_with(&dir, &args).await?;
    let config = |password: &str| BusConfig {
        url: SecretUrl::new(nats.url().replace("nats://", "tls://")),
        user: Some("me".to_owned()),
        password: Some(Secret::new(password)),
        tls_ca: Some(cert.clone()),
        connect_timeout: Duration::from_secs(20),
        ..BusConfig::default()
    };
    let bus = Bus::connect(&config("hush"), "test").await?;
    let mut handshakes = bus.subscribe(subjects::HANDSHAKE, None).await?;
    let task = tokio::spawn(worker(config("hush")).run_until(CancellationToken::new()));
    let Payload::Handshake(handshake) = next(&mut handshakes, "a handshake").await? else {
        panic!("not a handshake");
    };
    assert_eq!(handshake.component_id, "secured");
    task.abort();

    let refused = worker(config("guess")).run_until(CancellationToken::new());
    let error = timeout(BOUND, refused).await.context("it goes on trying")?;
    let Err(WorkerError::Bus(error)) = error else {
        panic!("let in with a wrong password: {error:?}");
    };
    assert!(!error.to_string().contains("guess"), "{error}");
    Ok(())
}

#[tokio::test]
async fn redis_with_a_password() -> anyhow::Result<()> {
    let mut fake = FakeScheduler::start().await?;
    let plain = fake.redis.url();
    fake.redis
        .command(&["ACL", "SETUSER", "worker", "on", ">hush", "~*", "+@all"])
        .await?;
    fake.redis
        .command(&["ACL", "SETUSER", "default", "nopass", "-@write"])
        .await?;
    let url = plain.replace("redis://", "redis://worker:hush@");
    let _worker = fake
        .worker(|w| {
            w.redis_url(url)
                .on("job.fill", |_: JobContext, size: usize| async move {
                    Ok("x".repeat(size))
                })
        })
        .await?;
    // Too large for NATS, so it can only have gone through Redis, as that user.
    let order = fake.send("job.fill", "2000000").await?;
    let result = fake.result_of(&order).await?;
    assert_eq!(status(&result), JobStatus::Succeeded, "{result:?}");
    let key = result
        .result_ptr
        .strip_prefix("redis://")
        .context("a pointer")?;
    let size = fake.redis.command(&["STRLEN", key]).await?;
    assert_eq!(size.as_deref(), Some("2000002"));
    Ok(())
}

#[tokio::test]
async fn nats_that_asks_for_a_certificate() -> anyhow::Result<()> {
    let dir = TestDir::new()?;
    let authority = Authority::new(&dir, "ours")?;
    let (server, mine) = (authority.sign("server")?, authority.sign("worker")?);
    let path = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let (cert, key, ca) = (path(&server.cert), path(&server.key), path(&authority.ca));
    let args = [
        "--tlsverify",
        "--tlscert",
        &cert,
        "--tlskey",
        &key,
        "--tlscacert",
        &ca,
    ];
    let nats = Nats::start_with(&dir, &args).await?;
    let url = nats.url().replace("nats://", "tls://");
    let admin = BusConfig {
        url: SecretUrl::new(&url),
        tls_ca: Some(authority.ca.clone()),
        tls_cert: Some(server.cert.clone()),
        tls_key: Some(server.key.clone()),
        ..BusConfig::default()
    };
    let bus = Bus::connect(&admin, "test").await?;
    let mut handshakes = bus.subscribe(subjects::HANDSHAKE, None).await?;
    let known = plain()
        .nats_url(&url)
        .nats_tls_ca(&authority.ca)
        .nats_client_certificate(&mine.cert, &mine.key);
    let task = tokio::spawn(known.run_until(CancellationToken::new()));
    let Payload::Handshake(handshake) = next(&mut handshakes, "a handshake").await? else {
        panic!("not a handshake");
    };
    assert_eq!(handshake.component_id, "secured");
    task.abort();

    // Without a certificate, with a stranger's, and with a server one does not trust.
    let strangers = Authority::new(&dir, "theirs")?;
    let theirs = strangers.sign("stranger")?;
    let soon = |ca: &std::path::Path| BusConfig {
        url: SecretUrl::new(&url),
        tls_ca: Some(ca.to_owned()),
        connect_timeout: Duration::from_secs(3),
        ..BusConfig::default()
    };
    let refused = [
        plain().bus(soon(&authority.ca)),
        plain()
            .bus(soon(&authority.ca))
            .nats_client_certificate(&theirs.cert, &theirs.key),
        plain()
            .bus(soon(&strangers.ca))
            .nats_client_certificate(&mine.cert, &mine.key),
    ];
    for (n, worker) in refused.into_iter().enumerate() {
        let ended = worker.run_until(CancellationToken::new());
        let ended = timeout(BOUND, ended).await.context("it goes on trying")?;
        assert!(matches!(ended, Err(WorkerError::Bus(_))), "{n}: {ended:?}");
    }
    Ok(())
}

#[tokio::test]
async fn redis_over_tls_with_an_authority_and_a_certificate_of_ones_own() -> anyhow::Result<()> {
    let dir = TestDir::new()?;
    let authority = Authority::new(&dir, "ours")?;
    let (server, mine) = (authority.sign("server")?, authority.sign("worker")?);
    let path = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let (cert, key, ca) = (path(&server.cert), path(&server.key), path(&authority.ca));
    let port = PortLease::new()?;
    let number = port.addr().port().to_string();
    let args = [
        "--tls-port",
        &number,
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &ca,
        "--tls-auth-clients",
        "yes",
    ];
    let redis = Redis::start_with(&dir, &args).await?;
    let url = format!("rediss://127.0.0.1:{number}");
    let mut fake = FakeScheduler::start().await?;
    let fill = |_: JobContext, size: usize| async move { Ok("x".repeat(size)) };
    let worker = fake
        .worker(|w| {
            w.redis_url(&url)
                .redis_tls_ca(&authority.ca)
                .redis_client_certificate(&mine.cert, &mine.key)
                .on("job.fill", fill)
        })
        .await?;
    // Too large for NATS, so it can only have gone through Redis.
    let order = fake.send("job.fill", "2000000").await?;
    let result = fake.result_of(&order).await?;
    assert_eq!(status(&result), JobStatus::Succeeded, "{result:?}");
    let key = result.result_ptr.strip_prefix("redis://");
    let key = key.context("a pointer")?;
    let size = redis.command(&["STRLEN", key]).await?;
    assert_eq!(size.as_deref(), Some("2000002"));
    drop(worker);

    // One who trusts others, or has nothing to show, gets nowhere and says why.
    let strangers = Authority::new(&dir, "theirs")?;
    for (ca, shows) in [(&strangers.ca, true), (&authority.ca, false)] {
        let config = GuardConfig {
            url: SecretUrl::new(&url),
            tls_ca: Some(ca.clone()),
            tls_cert: shows.then(|| mine.cert.clone()),
            tls_key: shows.then(|| mine.key.clone()),
            ..GuardConfig::default()
        };
        let guard = Guard::connect(&config).await?;
        assert!(guard.get("x").await.is_err(), "{ca:?} {shows}");
    }
    let nowhere = GuardConfig {
        url: SecretUrl::new(&url),
        tls_ca: Some("/nonexistent/ca.pem".into()),
        ..GuardConfig::default()
    };
    let error = Guard::connect(&nowhere).await.expect_err("no such file");
    assert!(error.to_string().contains("/nonexistent/ca.pem"), "{error}");
    Ok(())
}
