//! A gateway hosted in the test, with servers of its own.

use std::time::Duration;

use airlock_client::Client;
use airlock_gateway::config::{KeyConfig, Role};
use airlock_gateway::{Gateway, GatewayConfig};
use airlock_ledger::LedgerConfig;
use airlock_model::TenantId;
use airlock_service::{Context, HostError, Secret, host_service};
use airlock_testkit::{Nats, Postgres, Seen, eventually};
use anyhow::Context as _;
use reqwest::header::HeaderMap;
use serde_json::Value;
use tokio::task::JoinHandle;

pub const ADMIN: &str = "admin-key";
pub const ACME: &str = "acme-key";
pub const GLOBEX: &str = "globex-key";
pub const BOUND: Duration = Duration::from_secs(30);

pub struct Running {
    pub postgres: Postgres,
    pub nats: Nats,
    pub ctx: Context,
    pub url: String,
    pub http: reqwest::Client,
    task: JoinHandle<Result<(), HostError>>,
}

/// What came back.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub json: Value,
    pub text: String,
}

impl Reply {
    pub fn job_id(&self) -> String {
        self.json["job_id"].as_str().unwrap_or_default().to_owned()
    }
}

pub fn config(postgres: &str, nats: &str) -> GatewayConfig {
    let key = |name: &str, key: &str| KeyConfig {
        name: name.to_owned(),
        key: Secret::from(key),
        key_sha256: String::new(),
        tenant: TenantId::new(name).expect("a tenant"),
        role: Role::User,
        principal: None,
        roles: Vec::new(),
        act_for: Vec::new(),
        expires_at: None,
    };
    let mut config = GatewayConfig::default();
    config.http.listen = "127.0.0.1:0".to_owned();
    config.auth.keys = vec![key("acme", ACME), key("globex", GLOBEX)];
    config.auth.development_key = Secret::from(ADMIN);
    config.auth.anonymous_tasks = true;
    config.database = LedgerConfig::from_url(postgres);
    config.nats.url = nats.into();
    config.nats.connect_timeout = Duration::from_secs(1);
    config.nats.publish_timeout = Duration::from_secs(1);
    config
}

pub async fn servers() -> anyhow::Result<(Postgres, Nats)> {
    Ok((Postgres::start().await?, Nats::start().await?))
}

impl Running {
    /// With everything there, and ready.
    pub async fn start() -> anyhow::Result<Self> {
        let (postgres, nats) = servers().await?;
        let config = config(&postgres.url(), &nats.url());
        let running = Self::with(config, postgres, nats).await?;
        running.until_ready().await?;
        Ok(running)
    }

    /// Listening, perhaps not ready.
    pub async fn with(
        config: GatewayConfig,
        postgres: Postgres,
        nats: Nats,
    ) -> anyhow::Result<Self> {
        Self::in_context(Context::for_host("gateway"), config, postgres, nats).await
    }

    /// The same in a context of the test's.
    pub async fn in_context(
        ctx: Context,
        config: GatewayConfig,
        postgres: Postgres,
        nats: Nats,
    ) -> anyhow::Result<Self> {
        let task = tokio::spawn(host_service::<Gateway>(config, ctx.clone()));
        let address = ctx.http_address().await.context("it never listened")?;
        Ok(Self {
            postgres,
            nats,
            ctx,
            url: format!("http://{address}"),
            http: reqwest::Client::new(),
            task,
        })
    }

    pub async fn until_ready(&self) -> anyhow::Result<()> {
        eventually(BOUND, "the gateway to be ready with both links", || async {
            let reply = self.get("/health/ready", "").await?;
            let links = ["database", "nats"]
                .iter()
                .all(|name| reply.json["components"][name]["status"] == "ok");
            Ok(Seen::when(reply.status == 200 && links, &reply.text))
        })
        .await
    }

    pub fn client(&self, key: &str) -> Client {
        Client::new(&self.url, key).expect("a client")
    }

    pub async fn get(&self, path: &str, key: &str) -> anyhow::Result<Reply> {
        reply(
            self.http
                .get(format!("{}{path}", self.url))
                .header("x-api-key", key),
        )
        .await
    }

    pub async fn post(&self, path: &str, key: &str, body: &str) -> anyhow::Result<Reply> {
        reply(self.request(path, key, body)).await
    }

    pub async fn submit(&self, body: &str) -> anyhow::Result<Reply> {
        self.post("/api/v1/jobs", ADMIN, body).await
    }

    pub fn request(&self, path: &str, key: &str, body: &str) -> reqwest::RequestBuilder {
        self.http
            .post(format!("{}{path}", self.url))
            .header("x-api-key", key)
            .header("content-type", "application/json")
            .body(body.to_owned())
    }

    /// How many jobs the ledger holds.
    pub async fn stored(&self) -> anyhow::Result<u64> {
        let sql = "SELECT count(*) FROM job_request r JOIN job_state s USING (job_id)";
        let rows = self.postgres.query(sql).await?;
        Ok(rows[0][0].as_deref().unwrap_or_default().parse()?)
    }

    /// Ends a job as the scheduler would.
    pub async fn finish(&self, job_id: &str, state: i16, result: &str) -> anyhow::Result<()> {
        let hex: String = result.bytes().map(|b| format!("{b:02x}")).collect();
        let sql = format!(
            "UPDATE job_state SET state = {state}, open = false, finished_at = clock_timestamp(), \
             attempt = 1, result = '\\x{hex}' WHERE job_id = '{job_id}'"
        );
        self.postgres.query(&sql).await.map(drop)
    }

    /// Stops it and sees that it ends in time and well.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.ctx.shutdown.cancel();
        tokio::time::timeout(BOUND, self.task)
            .await
            .context("it did not stop")???;
        Ok(())
    }
}

pub async fn reply(request: reqwest::RequestBuilder) -> anyhow::Result<Reply> {
    let response = request.send().await?;
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let text = response.text().await?;
    let json = serde_json::from_str(&text).unwrap_or(Value::Null);
    Ok(Reply {
        status,
        headers,
        json,
        text,
    })
}

/// Sees that it is a whole problem of this status.
#[track_caller]
pub fn assert_problem(reply: &Reply, status: u16, field: Option<&str>) {
    let text = &reply.text;
    assert_eq!(reply.status, status, "{text}");
    assert_eq!(
        reply.headers["content-type"], "application/problem+json",
        "{text}"
    );
    assert_eq!(reply.json["status"], status, "{text}");
    assert_eq!(reply.json["field"].as_str(), field, "{text}");
    assert_eq!(
        reply.json["trace_id"].as_str().map(str::len),
        Some(32),
        "{text}"
    );
    for name in ["type", "title", "detail"] {
        assert!(
            reply.json[name].as_str().is_some_and(|s| !s.is_empty()),
            "{name}: {text}"
        );
    }
}
