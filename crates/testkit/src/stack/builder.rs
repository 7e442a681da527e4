//! Putting a stack together.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, ensure};

use super::{Links, Node, Service, Stack, journal};
use crate::binary::repository_root;
use crate::dir::TestDir;
use crate::nats::Nats;
use crate::port::PortLease;
use crate::postgres::Postgres;
use crate::process::Process;
use crate::proxy::Proxy;
use crate::random;
use crate::redis::Redis;

/// How a stack is to be set up.
pub struct StackBuilder {
    services: Vec<Service>,
    schedulers: usize,
    workers: usize,
    proxies: bool,
    fsync: bool,
    policy: Option<String>,
    config_dir: Option<PathBuf>,
    config_files: Vec<(String, String)>,
    env: Vec<(Option<Service>, String, String)>,
    postgres_settings: Vec<(String, String)>,
    dir: Option<TestDir>,
}

impl Default for StackBuilder {
    fn default() -> Self {
        Self {
            services: Service::ALL.to_vec(),
            schedulers: 1,
            workers: 1,
            proxies: false,
            fsync: false,
            policy: None,
            config_dir: None,
            config_files: Vec::new(),
            env: Vec::new(),
            postgres_settings: Vec::new(),
            dir: None,
        }
    }
}

impl StackBuilder {
    /// Which of our processes run; all by default.
    pub fn services(mut self, services: &[Service]) -> Self {
        self.services = services.to_vec();
        self
    }

    pub fn schedulers(mut self, count: usize) -> Self {
        self.schedulers = count;
        self
    }

    pub fn workers(mut self, count: usize) -> Self {
        self.workers = count;
        self
    }

    /// Whether each process gets its own proxies to what it depends on.
    pub fn proxies(mut self, on: bool) -> Self {
        self.proxies = on;
        self
    }

    /// Whether Postgres waits for the disk.
    pub fn fsync(mut self, on: bool) -> Self {
        self.fsync = on;
        self
    }

    pub fn postgres_setting(mut self, name: &str, value: &str) -> Self {
        self.postgres_settings
            .push((name.to_owned(), value.to_owned()));
        self
    }

    /// The safety policy; the repository's `config/safety.yaml` by default.
    pub fn policy(mut self, yaml: &str) -> Self {
        self.policy = Some(yaml.to_owned());
        self
    }

    /// The folder with configuration files; a fresh one by default.
    pub fn config_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.config_dir = Some(dir.into());
        self
    }

    /// A file in the fresh configuration folder, `scheduler.yaml` say.
    pub fn config_file(mut self, name: &str, contents: &str) -> Self {
        self.config_files
            .push((name.to_owned(), contents.to_owned()));
        self
    }

    /// For every process. Wins over what the stack sets itself.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((None, name.to_owned(), value.to_owned()));
        self
    }

    /// For the processes of one kind.
    pub fn env_for(mut self, service: Service, name: &str, value: &str) -> Self {
        self.env
            .push((Some(service), name.to_owned(), value.to_owned()));
        self
    }

    /// The folder for all logs; a fresh one by default.
    pub fn dir(mut self, dir: &TestDir) -> Self {
        self.dir = Some(dir.clone());
        self
    }

    /// Starts the servers, then our processes, and waits until each is ready.
    pub async fn start(self) -> anyhow::Result<Stack> {
        let dir = match &self.dir {
            Some(dir) => dir.clone(),
            None => TestDir::new()?,
        };
        let postgres = self
            .postgres_settings
            .iter()
            .fold(
                Postgres::builder().fsync(self.fsync).dir(&dir),
                |builder, (name, value)| builder.setting(name, value),
            )
            .start();
        let (postgres, redis, nats) =
            tokio::try_join!(postgres, Redis::start_in(&dir), Nats::start_in(&dir))?;

        let policy = self.write_policy(&dir)?;
        let kernel_port = PortLease::new()?;
        let parts = Parts {
            dir: &dir,
            policy: policy.clone(),
            config: self.write_config_folder(&dir)?,
            kernel: kernel_port.addr(),
            api_key: random_key()?,
            postgres: &postgres,
            redis: &redis,
            nats: &nats,
        };

        let mut nodes = Vec::new();
        // The kernel first: what asks it for decisions may wait for it, but a
        // test of something else should not begin with that.
        if self.services.contains(&Service::SafetyKernel) {
            let kernel = self.spawn_node(&parts, Service::SafetyKernel, 0).await?;
            kernel.wait_ready().await?;
            nodes.push(kernel);
        }
        let first_of_rest = nodes.len();
        for (service, count) in [
            (Service::Scheduler, self.schedulers),
            (Service::Gateway, 1),
            (Service::SagaManager, 1),
            (Service::Worker, self.workers),
        ] {
            if self.services.contains(&service) {
                for index in 0..count {
                    nodes.push(self.spawn_node(&parts, service, index).await?);
                }
            }
        }
        for node in nodes.iter().skip(first_of_rest) {
            node.wait_ready().await?;
        }

        let api_key = parts.api_key;
        Ok(Stack {
            nodes,
            postgres,
            redis,
            nats,
            _kernel_port: kernel_port,
            api_key,
            policy,
            dir,
        })
    }

    async fn spawn_node(
        &self,
        parts: &Parts<'_>,
        service: Service,
        index: usize,
    ) -> anyhow::Result<Node> {
        let name = format!("{}-{index}", service.short_name());
        let links = match self.proxies {
            true => parts.start_proxies(service).await?,
            false => Links::default(),
        };
        let http = match service {
            Service::Worker => None,
            Service::SafetyKernel
            | Service::Scheduler
            | Service::Gateway
            | Service::SagaManager => Some(PortLease::new()?),
        };
        let mut builder = Process::builder(service.program())
            .name(&name)
            .dir(parts.dir);
        for (key, value) in parts.node_env(service, &name, http.as_ref(), &links)? {
            builder = builder.env(key, value);
        }
        for (only, key, value) in &self.env {
            if only.is_none_or(|only| only == service) {
                builder = builder.env(key, value);
            }
        }
        let process = builder
            .spawn()
            .await
            .with_context(|| format!("starting {name}"))?;
        Ok(Node {
            process,
            service,
            http,
            links,
        })
    }

    /// Always a copy in the test's folder, so that a test may change it.
    fn write_policy(&self, dir: &TestDir) -> anyhow::Result<PathBuf> {
        let path = dir.unique_path("safety", ".yaml");
        let text = match &self.policy {
            Some(text) => text.clone(),
            None => {
                let ours = repository_root().join("config/safety.yaml");
                std::fs::read_to_string(&ours)
                    .with_context(|| format!("reading {}", ours.display()))?
            }
        };
        std::fs::write(&path, text).context("writing the policy")?;
        Ok(path)
    }

    fn write_config_folder(&self, dir: &TestDir) -> anyhow::Result<PathBuf> {
        let folder = match &self.config_dir {
            Some(given) => {
                ensure!(
                    self.config_files.is_empty(),
                    "config_dir and config_file do not go together"
                );
                given.clone()
            }
            None => dir.create_folder("config")?,
        };
        for (name, contents) in &self.config_files {
            std::fs::write(folder.join(name), contents)
                .with_context(|| format!("writing the configuration file {name}"))?;
        }
        Ok(folder)
    }
}

/// What the processes are wired to.
struct Parts<'a> {
    dir: &'a TestDir,
    policy: PathBuf,
    config: PathBuf,
    kernel: SocketAddr,
    api_key: String,
    postgres: &'a Postgres,
    redis: &'a Redis,
    nats: &'a Nats,
}

impl Parts<'_> {
    async fn start_proxies(&self, service: Service) -> anyhow::Result<Links> {
        let postgres = match service {
            Service::Worker => None,
            Service::SafetyKernel
            | Service::Scheduler
            | Service::Gateway
            | Service::SagaManager => Some(Proxy::start(self.postgres.addr()).await?),
        };
        let kernel = match service {
            Service::Scheduler => Some(Proxy::start(self.kernel).await?),
            Service::SafetyKernel | Service::Gateway | Service::Worker | Service::SagaManager => {
                None
            }
        };
        Ok(Links {
            postgres,
            redis: Some(Proxy::start(self.redis.addr()).await?),
            nats: Some(Proxy::start(self.nats.addr()).await?),
            kernel,
        })
    }

    fn node_env(
        &self,
        service: Service,
        name: &str,
        http: Option<&PortLease>,
        links: &Links,
    ) -> anyhow::Result<Vec<(&'static str, String)>> {
        let through = |proxy: &Option<Proxy>, url: String| match proxy {
            Some(proxy) => proxy.rewrite(&url),
            None => Ok(url),
        };
        let mut env = vec![
            ("NATS_URL", through(&links.nats, self.nats.url())?),
            ("REDIS_URL", through(&links.redis, self.redis.url())?),
        ];
        if service == Service::Worker {
            let journal = journal::journal_path(self.dir, name);
            env.push(("WORKER_ID", name.to_owned()));
            let state = self.dir.path().join("worker-state");
            env.push(("AIRLOCK_WORKER__STATE_DIR", path_to_text(state)?));
            env.push(("DEMO_JOURNAL", path_to_text(journal)?));
            return Ok(env);
        }
        let kernel = through(&links.kernel, format!("http://{}", self.kernel))?;
        env.extend([
            (
                "DATABASE_URL",
                through(&links.postgres, self.postgres.url())?,
            ),
            ("SAFETY_POLICY_PATH", path_to_text(self.policy.clone())?),
            ("SAFETY_KERNEL_INSECURE", "true".to_owned()),
            ("AIRLOCK_CONFIG_DIR", path_to_text(self.config.clone())?),
        ]);
        if let Some(http) = http {
            env.push(("AIRLOCK_HTTP__LISTEN", http.addr().to_string()));
        }
        match service {
            Service::SafetyKernel => env.push(("AIRLOCK_GRPC__LISTEN", self.kernel.to_string())),
            Service::Scheduler => env.push(("AIRLOCK_KERNEL__URL", kernel)),
            Service::Gateway => {
                env.push(("AIRLOCK_API_KEY", self.api_key.clone()));
                env.push(("AIRLOCK_KERNEL__URL", kernel));
            }
            Service::Worker | Service::SagaManager => {}
        }
        Ok(env)
    }
}

fn path_to_text(path: PathBuf) -> anyhow::Result<String> {
    path.into_os_string()
        .into_string()
        .map_err(|path| anyhow::anyhow!("{} is not UTF-8", path.display()))
}

fn random_key() -> anyhow::Result<String> {
    let (a, b) = (random::random_u64()?, random::random_u64()?);
    Ok(format!("{a:016x}{b:016x}"))
}
