//! Servers that do not let everybody in.

use std::path::PathBuf;
use std::time::Duration;

use airlock_bus::{Bus, BusConfig, Secret, SecretUrl, subjects};
use airlock_proto::cap::JobStatus;
use airlock_proto::cap::bus_packet::Payload;
use airlock_testkit::{Nats, TestDir};
use airlock_worker::{JobContext, Worker, WorkerError};
use anyhow::Context;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::fake::{BOUND, Fake, next, status};

/// A certificate for this machine that is its own authority, and its key.
fn certificate(dir: &TestDir) -> anyhow::Result<(PathBuf, PathBuf)> {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
    let paths = (dir.path().join("nats.pem"), dir.path().join("nats.key"));
    std::fs::write(&paths.0, made.cert.pem())?;
    std::fs::write(&paths.1, made.signing_key.serialize_pem())?;
    Ok(paths)
}

fn worker(bus: BusConfig) -> airlock_worker::Builder {
    Worker::builder("secured")
        .ignore_environment()
        .bus(bus)
        .on("job.x", |_: JobContext, (): ()| async move { Ok(()) })
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
    let mut hellos = bus.subscribe(subjects::HANDSHAKE, None).await?;
    let task = tokio::spawn(worker(config("hush")).run_until(CancellationToken::new()));
    let Payload::Handshake(hello) = next(&mut hellos, "a handshake").await? else {
        panic!("not a handshake");
    };
    assert_eq!(hello.component_id, "secured");
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
    let mut fake = Fake::start().await?;
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
