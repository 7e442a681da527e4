//! The gateway's settings.

use std::path::{Path, PathBuf};
use std::time::Duration;

use airlock_bus::BusConfig;
use airlock_ledger::LedgerConfig;
use airlock_model::{TenantId, Timestamp};
use airlock_service::config::duration;
use airlock_service::{HttpConfig, Secret, ServiceConfig, ShutdownConfig, TelemetryConfig};
use serde::{Deserialize, Serialize};

use crate::auth;
use crate::policy::bundle_check::PublicKey;
pub use crate::tasks::TasksConfig;
use airlock_kernel_client::ConnectionConfig;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewayConfig {
    pub http: HttpConfig,
    pub auth: AuthConfig,
    pub limits: LimitsConfig,
    pub submit: SubmitConfig,
    pub tasks: TasksConfig,
    pub database: LedgerConfig,
    pub nats: BusConfig,
    pub kernel: ConnectionConfig,
    pub policy: PolicyConfig,
    pub output: OutputConfig,
    /// How many parts the jobs are divided into, each with a leader of its own. Must be
    /// the schedulers' number.
    pub shards: u16,
    pub telemetry: TelemetryConfig,
    pub shutdown: ShutdownConfig,
}

/// Who may come in. One key is one tenant, except an administrator's.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthConfig {
    pub keys: Vec<KeyConfig>,
    /// An administrator's key for development, of the tenant `default`; also
    /// `AIRLOCK_API_KEY`.
    pub development_key: Secret,
    /// A second key for development, a user's of the same tenant: nobody approves their
    /// own job, so whoever tries approvals out needs two. Also `AIRLOCK_APPROVER_KEY`.
    pub approver_key: Secret,
    /// Takes tasks without a key from this machine, for development. Only with
    /// `http.listen` on a loopback address.
    pub anonymous_tasks: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyConfig {
    /// How logs and cancellations name the caller.
    pub name: String,
    /// The key itself, or
    #[serde(default)]
    pub key: Secret,
    /// its SHA-256 in hexadecimal, so that the file need not hold the key.
    #[serde(default)]
    pub key_sha256: String,
    pub tenant: TenantId,
    #[serde(default)]
    pub role: Role,
    /// The person behind it. Two keys of one person are one voice in an approval, and
    /// none of them approves a job of that person.
    #[serde(default)]
    pub principal: Option<String>,
    /// What a rule's `approval.approver_roles` may name, besides `user` and `admin`. The role
    /// `output_reviewer` lets the key review quarantined outputs of its tenant.
    #[serde(default)]
    pub roles: Vec<String>,
    /// As whom it may submit besides its principal: names, in which `*` stands for any
    /// characters. An administrator's key may be anybody. What is claimed without this is
    /// kept as `on_behalf_of` and counts for nothing.
    #[serde(default)]
    pub act_for: Vec<String>,
    /// From this moment on the key is refused; without it the key does not expire.
    #[serde(default, with = "expiry")]
    pub expires_at: Option<Timestamp>,
}

/// A moment as RFC 3339, or none.
mod expiry {
    use airlock_model::Timestamp;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(at: &Option<Timestamp>, to: S) -> Result<S::Ok, S::Error> {
        at.map(Timestamp::to_rfc3339).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
        let Some(text) = Option::<String>::deserialize(from)? else {
            return Ok(None);
        };
        // The text is not repeated: fields may have been mixed up.
        let at = Timestamp::parse_rfc3339(&text).map_err(|_| {
            D::Error::custom("expires_at must be an RFC 3339 time, as in 2027-01-31T00:00:00Z")
        })?;
        Ok(Some(at))
    }
}

/// What is asked of policy bundles that are published here. The kernel has its own say.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyConfig {
    /// Ed25519 public keys, in base64 or hexadecimal; a signature must be by one of them.
    pub public_keys: Vec<String>,
    /// Refuses bundles without a signature.
    pub require_signature: bool,
}

/// What the gateway knows of the output policy, which the scheduler applies.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutputConfig {
    /// Whether the scheduler applies an output policy, as it is told; also
    /// `OUTPUT_POLICY_ENABLED`. Messages of workers that nobody could read are then not
    /// shown with their dead letters.
    pub enabled: bool,
    /// Patterns for `/api/v1/output/scan` and `/redact` beside the built-in detectors; also
    /// `OUTPUT_SCANNERS_PATH`. The file is read again when it changes.
    pub scanners_path: Option<PathBuf>,
}

impl OutputConfig {
    /// The file, unless it is left empty.
    pub fn scanners_file(&self) -> Option<&Path> {
        let path = self.scanners_path.as_deref();
        path.filter(|path| !path.as_os_str().is_empty())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sees and submits its own tenant's jobs.
    #[default]
    User,
    /// Acts for any tenant by `X-Tenant-ID` and sees all of them.
    Admin,
}

/// What one client, and all of them together, may ask for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// The largest payload of a job.
    pub payload_bytes: usize,
    /// The largest body of a batch.
    pub batch_bytes: usize,
    pub batch_items: usize,
    /// Requests handled at once, reads apart from the others; beyond it the answer is 503.
    /// Waiting clients do not count, they have their own limit. No key gets all of it.
    pub max_inflight: usize,
    /// Bytes of request bodies held at once.
    pub max_inflight_bytes: usize,
    /// Clients that wait for a job's end.
    pub max_waiters: usize,
    /// How much of the three is kept for administrators' keys.
    pub admin_reserve_percent: usize,
    /// How long nothing of a body may come; after it the answer is 408.
    #[serde(with = "duration")]
    pub body_timeout: Duration,
    /// Jobs of one tenant that have not ended; beyond it the answer is 429.
    pub max_open_jobs_per_tenant: u64,
    /// The same of all tenants together.
    pub max_open_jobs: u64,
    /// How long a request may take, waiting for a job's end not counted.
    #[serde(with = "duration")]
    pub request_timeout: Duration,
    /// The longest `?wait=`.
    #[serde(with = "duration")]
    pub max_wait: Duration,
}

/// How submissions reach the ledger.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SubmitConfig {
    /// The most jobs in one commit.
    pub batch: usize,
    /// Requests that may wait for the next commit; beyond it the answer is 503.
    pub queue: usize,
    /// Commits under way at once.
    pub committers: usize,
    /// How long a commit is tried when the ledger does not answer.
    #[serde(with = "duration")]
    pub retry_for: Duration,
    /// Batches of wake-ups under way on the bus at once. Those beyond are left to the
    /// scheduler's replayer.
    pub publishers: usize,
    /// Announces jobs that come alone to the leader while they are committed. Off: it
    /// learns of them after their commit.
    pub speculation: bool,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            http: HttpConfig::at("127.0.0.1:8080"),
            auth: AuthConfig::default(),
            limits: LimitsConfig::default(),
            submit: SubmitConfig::default(),
            tasks: TasksConfig::default(),
            database: LedgerConfig::default(),
            nats: BusConfig::default(),
            kernel: ConnectionConfig::default(),
            policy: PolicyConfig::default(),
            output: OutputConfig::default(),
            shards: 1,
            telemetry: TelemetryConfig::default(),
            shutdown: ShutdownConfig::default(),
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            payload_bytes: 1 << 20,
            batch_bytes: 32 << 20,
            batch_items: 1_000,
            max_inflight: 4_096,
            max_inflight_bytes: 256 << 20,
            max_waiters: 4_096,
            admin_reserve_percent: 10,
            body_timeout: Duration::from_secs(5),
            max_open_jobs_per_tenant: 100_000,
            max_open_jobs: 1_000_000,
            request_timeout: Duration::from_secs(30),
            max_wait: Duration::from_secs(60),
        }
    }
}

impl Default for SubmitConfig {
    fn default() -> Self {
        Self {
            batch: 500,
            queue: 4_096,
            committers: 1,
            retry_for: Duration::from_secs(5),
            publishers: 32,
            speculation: true,
        }
    }
}

impl PolicyConfig {
    pub fn parse_public_keys(&self) -> Result<Vec<PublicKey>, String> {
        self.public_keys
            .iter()
            .map(|key| PublicKey::parse(key).map_err(|e| format!("policy.public_keys: {e}")))
            .collect()
    }

    fn validate(&self) -> Vec<String> {
        let mut problems: Vec<String> = self.parse_public_keys().err().into_iter().collect();
        if self.require_signature && self.public_keys.is_empty() {
            problems.push(
                "policy.require_signature needs policy.public_keys to verify against".to_owned(),
            );
        }
        problems
    }
}

impl LimitsConfig {
    /// What a request may have besides its payload.
    const OVERHEAD: usize = 256 << 10;

    /// The largest body of a single submission.
    pub fn max_body_bytes(&self) -> usize {
        self.payload_bytes.saturating_add(Self::OVERHEAD)
    }
}

impl ServiceConfig for GatewayConfig {
    fn telemetry(&self) -> &TelemetryConfig {
        &self.telemetry
    }

    fn http(&self) -> &HttpConfig {
        &self.http
    }

    fn shutdown(&self) -> &ShutdownConfig {
        &self.shutdown
    }

    fn validate(&self) -> Vec<String> {
        let mut problems = auth::validate_keys(&self.auth, &self.http.listen);
        let mut need = |sound: bool, problem: &str| {
            if !sound {
                problems.push(problem.to_owned());
            }
        };
        need(
            !self.http.listen.is_empty(),
            "http.listen: an address is needed, as in 127.0.0.1:8080",
        );
        need(self.shards >= 1, "shards must be at least 1");
        let limits = &self.limits;
        need(
            limits.payload_bytes >= 1 && limits.batch_items >= 1 && limits.max_inflight >= 1,
            "limits.payload_bytes, limits.batch_items and limits.max_inflight must be at least 1",
        );
        need(
            limits.batch_bytes >= limits.max_body_bytes(),
            "limits.batch_bytes must hold at least one job: limits.payload_bytes and 256 KiB",
        );
        need(
            limits.max_inflight_bytes / 2 >= limits.batch_bytes,
            "limits.max_inflight_bytes must be at least twice limits.batch_bytes",
        );
        need(
            limits.admin_reserve_percent <= 50,
            "limits.admin_reserve_percent must be at most 50",
        );
        need(
            !limits.body_timeout.is_zero(),
            "limits.body_timeout must not be 0",
        );
        need(
            limits.max_open_jobs_per_tenant >= 1 && limits.max_open_jobs >= 1,
            "limits.max_open_jobs_per_tenant and limits.max_open_jobs must be at least 1",
        );
        need(
            !limits.request_timeout.is_zero() && !self.submit.retry_for.is_zero(),
            "limits.request_timeout and submit.retry_for must not be 0",
        );
        need(
            self.submit.retry_for < limits.request_timeout,
            "submit.retry_for must be shorter than limits.request_timeout, or a client hears \
             of a timeout before its submission was given up",
        );
        need(
            (1..=10_000).contains(&self.submit.batch),
            "submit.batch must be between 1 and 10000",
        );
        need(
            (1..=64).contains(&self.submit.committers),
            "submit.committers must be between 1 and 64",
        );
        need(
            self.submit.queue >= 1 && self.submit.publishers >= 1,
            "submit.queue and submit.publishers must be at least 1",
        );
        problems.extend(self.policy.validate());
        problems.extend(self.kernel.validate());
        problems.extend(self.tasks.validate());
        problems.extend(self.database.validate());
        problems.extend(
            self.nats
                .validate()
                .into_iter()
                .map(|p| format!("nats.{p}")),
        );
        problems
    }
}

#[cfg(test)]
mod tests {
    use airlock_service::config::{Sources, load};

    use crate::Gateway;

    #[test]
    fn no_key_is_in_what_is_said_of_a_bad_configuration() {
        let key = "topsecret123";
        let refused = |name: &str, text: String| {
            let folder = std::env::temp_dir().join("airlock-no-such-folder");
            let sources = Sources {
                env: [(name.to_owned(), text)].into(),
                directory: folder,
                ..Sources::default()
            };
            load::<Gateway>(&sources)
                .expect_err("a bad configuration")
                .to_string()
        };
        for text in [
            // A tenant's name that is none, as YAML; a list that is not closed; a word alone;
            // fields mixed up; a field that is not known.
            format!("[{{name: x, key: {key}, tenant: \"a b\"}}]"),
            format!("[{{name: x, key: {key}"),
            key.to_owned(),
            format!("[{{name: x, tenant: t, key: k, role: {key}}}]"),
            format!("[{{name: x, tenant: \"{key} {key}\", key: k}}]"),
            format!("[{{name: x, tenant: t, {key}: k}}]"),
            format!("{{name: x, key: {key}, tenant: t}}"),
            format!("[{{name: x, tenant: t, key: k, expires_at: {key}}}]"),
        ] {
            let error = refused("AIRLOCK_AUTH__KEYS", text);
            assert!(error.contains("AIRLOCK_AUTH__KEYS"), "{error}");
            assert!(error.contains("auth.keys"), "{error}");
            assert!(!error.contains(key), "{error}");
        }
    }
}
