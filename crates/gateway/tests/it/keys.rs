//! API keys follow the configuration file of a running gateway.

use std::path::Path;

use airlock_gateway::Gateway;
use airlock_service::Context;
use airlock_service::config::{Sources, load};
use airlock_testkit::{Nats, Postgres, Process, Seen, eventually, free_port};
use tempfile::TempDir;

use crate::harness::{ACME, ADMIN, BOUND, GLOBEX, Reply, Running, assert_problem, reply, servers};

const INITECH: &str = "initech-key";
const JOBS: &str = "/api/v1/jobs";

/// A file with one key for each name; what follows a comma in it are further fields.
fn file(keys: &[(&str, &str)]) -> String {
    let keys: String = keys
        .iter()
        .map(|(key, more)| {
            let name = key.trim_end_matches("-key");
            format!("    - {{name: {name}, tenant: {name}, key: {key}{more}}}\n")
        })
        .collect();
    format!("auth:\n  keys:\n{keys}")
}

/// As tools do it: the old content or the new one, never a half.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, text)?;
    Ok(std::fs::rename(new, path)?)
}

async fn start(path: &Path, postgres: Postgres, nats: Nats) -> anyhow::Result<Running> {
    let env = [
        ("DATABASE_URL", postgres.url()),
        ("NATS_URL", nats.url()),
        ("AIRLOCK_API_KEY", ADMIN.to_owned()),
    ];
    let sources = Sources {
        file: Some(path.to_owned()),
        set: vec!["http.listen=127.0.0.1:0".to_owned()],
        env: env.map(|(name, value)| (name.to_owned(), value)).into(),
        ..Sources::default()
    };
    let config = load::<Gateway>(&sources)?.config;
    let ctx = Context::for_host("gateway").with_sources(sources);
    let running = Running::in_context(ctx, config, postgres, nats).await?;
    running.until_ready().await?;
    Ok(running)
}

/// Asks with this key until the answer has this status.
async fn until(gateway: &Running, key: &str, status: u16) -> anyhow::Result<Reply> {
    eventually(BOUND, &format!("{status} for {key}"), || async {
        let reply = gateway.get(JOBS, key).await?;
        Ok(if reply.status == status {
            Seen::Done(reply)
        } else {
            Seen::NotYet(reply.text)
        })
    })
    .await
}

/// The component once it has this status; the gateway stays ready.
async fn component(gateway: &Running, status: &str) -> anyhow::Result<String> {
    eventually(BOUND, &format!("keys {status}"), || async {
        let reply = gateway.get("/health/ready", "").await?;
        let keys = &reply.json["components"]["keys"];
        Ok(match reply.status {
            200 if keys["status"] == status => Seen::Done(keys.to_string()),
            200 => Seen::NotYet(keys.to_string()),
            _ => Seen::Never(reply.text),
        })
    })
    .await
}

async fn statuses<const N: usize>(gateway: &Running, keys: [&str; N]) -> anyhow::Result<[u16; N]> {
    let mut found = [0; N];
    for (status, key) in found.iter_mut().zip(keys) {
        *status = gateway.get(JOBS, key).await?.status;
    }
    Ok(found)
}

#[tokio::test]
async fn keys_come_and_go_with_the_file() -> anyhow::Result<()> {
    let folder = TempDir::new()?;
    let path = folder.path().join("gateway.yaml");
    replace(&path, &file(&[(ACME, ""), (GLOBEX, "")]))?;
    let (postgres, nats) = servers().await?;
    let gateway = start(&path, postgres, nats).await?;
    let everyone = [ACME, GLOBEX, INITECH, ADMIN];
    assert_eq!(statuses(&gateway, everyone).await?, [200, 200, 401, 200]);
    component(&gateway, "ok").await?;

    // A client of the key that will go waits for its job.
    let job = gateway.post(JOBS, ACME, r#"{"topic": "job.echo"}"#).await?;
    assert_eq!(job.status, 202, "{}", job.text);
    let url = format!("{}{JOBS}/{}?wait=60s", gateway.url, job.job_id());
    let request = gateway.http.get(url).header("x-api-key", ACME);
    let waiting = tokio::spawn(reply(request));
    eventually(BOUND, "the waiter to be counted", || async {
        let text = gateway.get("/metrics", "").await?.text;
        Ok(Seen::when(
            text.contains("cordum_gateway_waiters 1"),
            "none",
        ))
    })
    .await?;

    replace(&path, &file(&[(GLOBEX, ""), (INITECH, "")]))?;
    assert_problem(&until(&gateway, ACME, 401).await?, 401, None);
    assert_eq!(statuses(&gateway, everyone).await?, [401, 200, 200, 200]);
    assert!(!waiting.is_finished(), "it waits on");
    gateway.finish(&job.job_id(), 10, "1").await?;
    let answer = waiting.await??;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.json["state"], "SUCCEEDED", "{}", answer.text);

    // Written in place, as editors do.
    std::fs::write(&path, file(&[(ACME, ""), (INITECH, "")]))?;
    until(&gateway, ACME, 200).await?;
    assert_eq!(statuses(&gateway, everyone).await?, [200, 401, 200, 200]);
    gateway.stop().await
}

#[tokio::test]
async fn a_bad_file_keeps_the_keys_and_health_says_so() -> anyhow::Result<()> {
    let folder = TempDir::new()?;
    let path = folder.path().join("gateway.yaml");
    replace(&path, &file(&[(ACME, "")]))?;
    let (postgres, nats) = servers().await?;
    let gateway = start(&path, postgres, nats).await?;
    let everyone = [ACME, GLOBEX, ADMIN];
    for (bad, reason) in [
        // The second key would be good.
        (
            file(&[(ACME, ", role: topsecret123"), (GLOBEX, "")]),
            "line 3, column",
        ),
        (file(&[(GLOBEX, ""), (GLOBEX, "")]), "stands twice"),
        (
            format!("{}limits: {{max_inflight: 0}}\n", file(&[(GLOBEX, "")])),
            "max_inflight",
        ),
    ] {
        replace(&path, &bad)?;
        let keys = component(&gateway, "degraded").await?;
        assert!(
            keys.contains(reason) && keys.contains("gateway.yaml"),
            "{keys}"
        );
        assert!(!keys.contains("topsecret123"), "{keys}");
        assert_eq!(statuses(&gateway, everyone).await?, [200, 401, 200]);
        replace(&path, &file(&[(ACME, "")]))?;
        component(&gateway, "ok").await?;
        assert_eq!(statuses(&gateway, everyone).await?, [200, 401, 200]);
    }
    std::fs::remove_file(&path)?;
    let keys = component(&gateway, "degraded").await?;
    assert!(keys.contains("gone"), "{keys}");
    assert_eq!(statuses(&gateway, everyone).await?, [200, 401, 200]);
    replace(&path, &file(&[(GLOBEX, "")]))?;
    until(&gateway, ACME, 401).await?;
    assert_eq!(statuses(&gateway, everyone).await?, [401, 200, 200]);
    component(&gateway, "ok").await?;
    gateway.stop().await
}

#[tokio::test]
async fn an_expired_key_is_refused_and_says_that_it_expired() -> anyhow::Result<()> {
    let folder = TempDir::new()?;
    let path = folder.path().join("gateway.yaml");
    let future = ", expires_at: 2999-12-31T23:59:59+01:00";
    let past = ", expires_at: \"2020-01-31T00:00:00Z\"";
    replace(&path, &file(&[(ACME, future), (GLOBEX, past)]))?;
    let (postgres, nats) = servers().await?;
    let gateway = start(&path, postgres, nats).await?;
    assert_eq!(
        statuses(&gateway, [ACME, GLOBEX, "no"]).await?,
        [200, 401, 401]
    );
    let expired = gateway.get(JOBS, GLOBEX).await?;
    assert_problem(&expired, 401, None);
    assert_eq!(expired.json["type"], "urn:airlock:problem:key-expired");
    assert!(!expired.text.contains("globex"), "{}", expired.text);
    let unknown = gateway.get(JOBS, "no").await?;
    assert_eq!(unknown.json["type"], "urn:airlock:problem:unauthorized");

    // An expiry that comes with the file counts, and so does a renewal.
    replace(&path, &file(&[(ACME, past), (GLOBEX, future)]))?;
    let expired = until(&gateway, ACME, 401).await?;
    assert_eq!(expired.json["type"], "urn:airlock:problem:key-expired");
    assert_eq!(statuses(&gateway, [ACME, GLOBEX]).await?, [401, 200]);
    gateway.stop().await
}

/// The program itself, without its servers: a known key is answered 503.
#[tokio::test]
async fn the_program_follows_its_file_and_logs_what_it_does() -> anyhow::Result<()> {
    let folder = TempDir::new()?;
    let path = folder.path().join("gateway.yaml");
    let past = ", expires_at: 2020-01-31T00:00:00Z";
    replace(&path, &file(&[(ACME, ""), (GLOBEX, past)]))?;
    let address = format!("127.0.0.1:{}", free_port()?);
    let process = Process::builder("airlock-gateway")
        .path(env!("CARGO_BIN_EXE_airlock-gateway"))
        .args(["--config".into(), path.clone().into_os_string()])
        .env("AIRLOCK_HTTP__LISTEN", &address)
        .env("DATABASE_URL", "postgres://nobody@127.0.0.1:1/nothing")
        .env("NATS_URL", "nats://127.0.0.1:1")
        .env("AIRLOCK_API_KEY", ADMIN)
        .env("RUST_LOG", "info")
        .spawn()
        .await?;
    let http = reqwest::Client::new();
    let answer = async |key: &str, status: u16| {
        eventually(BOUND, &format!("{status} for {key}"), || async {
            let request = http.get(format!("http://{address}{JOBS}"));
            let reply = reply(request.header("x-api-key", key)).await?;
            Ok(Seen::when(reply.status == status, &reply.text))
        })
        .await
    };
    answer(ACME, 503).await?;
    answer(GLOBEX, 401).await?;
    process
        .wait_for_log("the API key has expired", BOUND)
        .await?;
    let log = process.log();
    let refused = log.lines().find(|line| line.contains("caller rejected"));
    assert!(refused.is_some_and(|line| line.contains("globex")), "{log}");

    replace(&path, &file(&[(ACME, ", role: topsecret123")]))?;
    process.wait_for_log("line 3, column", BOUND).await?;
    let more = "limits: {max_wait: 9s}\n";
    replace(&path, &format!("{more}{}", file(&[(INITECH, "")])))?;
    answer(ACME, 401).await?;
    answer(INITECH, 503).await?;
    answer(ADMIN, 503).await?;
    process.wait_for_log("API keys replaced", BOUND).await?;
    process.wait_for_log("limits.max_wait", BOUND).await?;
    let log = process.log();
    for secret in ["topsecret123", ACME, GLOBEX, INITECH, ADMIN] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
    process.term()?;
    anyhow::ensure!(process.wait(BOUND).await?.success(), "{}", process.log());
    Ok(())
}
