//! The connection to Redis, and what everybody does while it is away.
//!
//! What must stay true: after one failure nobody calls Redis until a ping in the
//! background succeeded, so a hung Redis costs one bounded wait and not one per call.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use airlock_model::Timestamp;
use airlock_settings::lock;
use fred::clients::Client;
use fred::interfaces::{ClientLike, KeysInterface};
use fred::types::config::{
    Config, ConnectionConfig, PerformanceConfig, ReconnectPolicy, TcpConfig, UnresponsiveConfig,
};
use fred::types::scripts::Script;
use fred::types::{Builder, FromValue, Value};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::config::GuardConfig;
use crate::counters::{self, Counters};
use crate::keys::Keys;
use crate::local::LocalLocks;
use crate::scripts::Scripts;
use crate::tls;

/// Whether Redis is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    Shared,
    /// Duplicate checks answer "not seen", locks hold within this process, payloads are not there.
    Local {
        since: Timestamp,
        reason: String,
    },
}

impl Mode {
    pub fn is_local(&self) -> bool {
        match self {
            Self::Shared => false,
            Self::Local { .. } => true,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    #[error("Redis configuration: {0}")]
    Config(String),
    /// Redis is away; it may have done what it was asked.
    #[error("Redis is not available: {0}")]
    Unavailable(String),
    /// Redis answered that this cannot be done.
    #[error("Redis refused: {0}")]
    Refused(String),
}

impl GuardError {
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable(_) => true,
            Self::Config(_) | Self::Refused(_) => false,
        }
    }
}

/// A connection to Redis that never blocks its users for long. Clones share it.
#[derive(Clone)]
pub struct Guard {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub client: Client,
    pub config: GuardConfig,
    pub keys: Keys,
    pub scripts: Scripts,
    pub counters: Arc<Counters>,
    mode: watch::Sender<Mode>,
    local: Mutex<LocalLocks>,
    tasks: Mutex<Vec<AbortHandle>>,
    /// Another ledger has claimed this Redis; see `owner`.
    pub foreign: AtomicBool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for task in lock(&self.tasks).drain(..) {
            task.abort();
        }
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Guard({})", self.inner.config.url)
    }
}

impl Guard {
    /// Starts connecting. Waits up to `op_timeout` for Redis and goes on without it if it
    /// is not there; fails only for a configuration that can never work.
    pub async fn connect(config: &GuardConfig) -> Result<Self, GuardError> {
        let problems = config.validate();
        if !problems.is_empty() {
            return Err(GuardError::Config(problems.join("; ")));
        }
        let client = build_client(config)?;
        let connection = client.connect();
        let guard = Self {
            inner: Arc::new(Inner {
                client,
                config: config.clone(),
                keys: Keys::new(config.prefix.clone()),
                scripts: Scripts::default(),
                counters: Arc::default(),
                mode: watch::Sender::new(Mode::Local {
                    since: now(),
                    reason: "connecting".to_owned(),
                }),
                local: Mutex::default(),
                tasks: Mutex::default(),
                foreign: AtomicBool::new(false),
            }),
        };
        let recovery = tokio::spawn(ping_until_recovered(
            Arc::downgrade(&guard.inner),
            guard.mode(),
        ));
        lock(&guard.inner.tasks).extend([connection.abort_handle(), recovery.abort_handle()]);
        let mut mode = guard.mode();
        let shared = mode.wait_for(|mode| !mode.is_local());
        if !matches!(timeout(config.op_timeout, shared).await, Ok(Ok(_))) {
            tracing::warn!(url = %config.url, "Redis unavailable, continuing without it");
        }
        Ok(guard)
    }

    /// Whether Redis is used, and why not.
    pub fn mode(&self) -> watch::Receiver<Mode> {
        self.inner.mode.subscribe()
    }

    /// Reads from Redis, so that the mode is true also where Redis is seldom used.
    pub async fn probe(&self) {
        let client = &self.inner.client;
        let call = client.exists::<i64, _>(crate::keys::WORKERS_SNAPSHOT);
        // The outcome shows in the mode.
        let _ = self.call_redis(self.inner.config.op_timeout, call).await;
    }

    pub fn keys(&self) -> &Keys {
        &self.inner.keys
    }

    pub fn config(&self) -> &GuardConfig {
        &self.inner.config
    }

    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// The names of its counters in a service's metrics, and the gauge beside them.
    pub const METRICS: (
        &'static str,
        &'static [(&'static str, &'static str)],
        (&'static str, &'static str),
    ) = (
        "cordum_guard",
        Counters::NAMES,
        ("shared", "1 while Redis is used, 0 in the local mode"),
    );

    /// A function that reads the counters, in the order of [`Counters::NAMES`], and whether
    /// Redis is used. It does not keep the connection: for a service's metrics.
    pub fn metrics_reader(&self) -> impl Fn() -> (Vec<u64>, bool) + Send + Sync + use<> {
        let (counters, mode) = (Arc::clone(&self.inner.counters), self.mode());
        move || (counters.values(), !mode.borrow().is_local())
    }

    pub(crate) fn local_locks(&self) -> MutexGuard<'_, LocalLocks> {
        lock(&self.inner.local)
    }

    /// Runs a script on the path of a job; `None` in local mode, and while this Redis is
    /// another ledger's.
    pub(crate) async fn run_script<T: FromValue>(
        &self,
        script: &Script,
        keys: Vec<String>,
        args: Vec<Value>,
    ) -> Option<T> {
        if self.is_claimed_by_other_ledger() {
            counters::add_to_counter(&self.inner.counters.answered_locally, 1);
            return None;
        }
        let call = script.evalsha_with_reload(&self.inner.client, keys, args);
        self.call_redis(self.inner.config.hot_timeout, call)
            .await
            .ok()
    }

    /// Awaits a call of Redis, within a bound. One failure begins the local mode.
    pub(crate) async fn call_redis<T>(
        &self,
        bound: Duration,
        call: impl Future<Output = Result<T, fred::error::Error>>,
    ) -> Result<T, GuardError> {
        if let Mode::Local { reason, .. } = &*self.inner.mode.borrow() {
            counters::add_to_counter(&self.inner.counters.answered_locally, 1);
            return Err(GuardError::Unavailable(reason.clone()));
        }
        let reason = match timeout(bound, call).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) if is_data_error(&error) => {
                return Err(GuardError::Refused(error.to_string()));
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {bound:?}"),
        };
        self.enter_local_mode(&reason);
        Err(GuardError::Unavailable(reason))
    }

    fn enter_local_mode(&self, reason: &str) {
        let began = self.inner.mode.send_if_modified(|mode| {
            let begins = !mode.is_local();
            if begins {
                *mode = Mode::Local {
                    since: now(),
                    reason: reason.to_owned(),
                };
            }
            begins
        });
        if began {
            counters::add_to_counter(&self.inner.counters.went_local, 1);
            tracing::warn!(reason, "Redis unavailable, continuing without it");
        }
    }
}

/// A key of another type than expected says nothing about Redis.
fn is_data_error(error: &fred::error::Error) -> bool {
    error.details().starts_with("WRONGTYPE")
}

fn build_client(config: &GuardConfig) -> Result<Client, GuardError> {
    let wrong = |_| GuardError::Config(format!("url {} is no Redis URL", config.url));
    let mut fred_config = Config::from_url(config.url.expose()).map_err(wrong)?;
    // Otherwise a Redis that is not there at the start would end the client for good.
    fred_config.fail_fast = false;
    if let Some(tls) = tls::build_tls_config(config)? {
        fred_config.tls = Some(tls);
    }
    let mut builder = Builder::from_config(fred_config);
    let delay = u32::try_from(config.ping_interval.as_millis() / 2).unwrap_or(250);
    let mut policy = ReconnectPolicy::new_constant(0, delay.max(10));
    policy.set_jitter(0);
    builder.set_policy(policy);
    builder.set_performance_config(PerformanceConfig {
        default_command_timeout: config.op_timeout,
        ..PerformanceConfig::default()
    });
    builder.set_connection_config(ConnectionConfig {
        connection_timeout: config.op_timeout,
        internal_command_timeout: config.op_timeout,
        // A command that was cut off is never sent a second time behind our back.
        max_command_attempts: 1,
        tcp: TcpConfig {
            nodelay: Some(true),
            ..TcpConfig::default()
        },
        // A connection that was cut without a word would otherwise stay for ever.
        unresponsive: UnresponsiveConfig {
            max_timeout: Some(config.op_timeout + Duration::from_secs(1)),
            interval: Duration::from_millis(500),
        },
        ..ConnectionConfig::default()
    });
    builder.build().map_err(wrong)
}

/// Pings while Redis is away, and ends the local mode when it answers.
async fn ping_until_recovered(inner: std::sync::Weak<Inner>, mut mode: watch::Receiver<Mode>) {
    while mode.wait_for(Mode::is_local).await.is_ok() {
        let Some(guard) = inner.upgrade().map(|inner| Guard { inner }) else {
            return;
        };
        let config = &guard.inner.config;
        // A read and not PING: a server that is still loading, or lost its primary's
        // data, answers PING all the same.
        let probe = guard
            .inner
            .client
            .exists::<i64, _>(crate::keys::WORKERS_SNAPSHOT);
        if matches!(timeout(config.hot_timeout, probe).await, Ok(Ok(_))) {
            guard.local_locks().clear();
            let was = guard.inner.mode.send_replace(Mode::Shared);
            if let Mode::Local { since, .. } = was {
                tracing::info!(away = ?now().since(since), "Redis available again");
            }
            continue;
        }
        let pause = config.ping_interval;
        drop(guard);
        tokio::time::sleep(pause).await;
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
