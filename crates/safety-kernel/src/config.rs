//! The kernel's settings.

use airlock_bus::BusConfig;
use airlock_guard::GuardConfig;
use airlock_ledger::LedgerConfig;
pub use airlock_policy_source::PolicyConfig;
use airlock_service::{HttpConfig, ServiceConfig, ShutdownConfig, TelemetryConfig};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub grpc: GrpcConfig,
    pub policy: PolicyConfig,
    /// Where velocity is counted for all kernels; without it each kernel counts alone.
    pub redis: Option<GuardConfig>,
    /// Where `sys.config.changed` is received; without it changes are found by polling.
    pub nats: Option<BusConfig>,
    /// Where published bundles are stored; without it there are only files.
    pub database: Option<LedgerConfig>,
    pub http: HttpConfig,
    pub telemetry: TelemetryConfig,
    pub shutdown: ShutdownConfig,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GrpcConfig {
    /// The address the scheduler and the gateway call.
    pub listen: String,
    pub tls: Option<TlsConfig>,
    /// Never plain text; also `SAFETY_KERNEL_TLS_REQUIRED`.
    pub tls_required: bool,
    /// Plain text is allowed; also `SAFETY_KERNEL_INSECURE`.
    pub insecure: bool,
}

/// Paths of PEM files.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    pub cert: String,
    pub key: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            grpc: GrpcConfig::default(),
            policy: PolicyConfig::default(),
            redis: None,
            nats: None,
            database: None,
            http: HttpConfig::at("127.0.0.1:8082"),
            telemetry: TelemetryConfig::default(),
            shutdown: ShutdownConfig::default(),
        }
    }
}

impl Default for GrpcConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:50051".to_owned(),
            tls: None,
            tls_required: false,
            insecure: false,
        }
    }
}

impl ServiceConfig for Config {
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
        let mut problems = Vec::new();
        problems.extend(self.redis.iter().flat_map(GuardConfig::validate));
        problems.extend(self.nats.iter().flat_map(BusConfig::validate));
        problems.extend(self.database.iter().flat_map(LedgerConfig::validate));
        let mut check = |sound: bool, problem: &str| {
            if !sound {
                problems.push(problem.to_owned());
            }
        };
        let g = &self.grpc;
        check(
            !g.listen.is_empty(),
            "grpc.listen: an address is needed, as in 127.0.0.1:50051",
        );
        check(
            !(g.tls_required && g.insecure),
            "grpc.tls_required and grpc.insecure contradict each other; unset one \
             (SAFETY_KERNEL_TLS_REQUIRED, SAFETY_KERNEL_INSECURE)",
        );
        check(
            !g.tls_required || g.tls.is_some(),
            "grpc.tls_required needs grpc.tls.cert and grpc.tls.key",
        );
        check(
            g.tls.is_some() || g.insecure || g.tls_required,
            "the safety kernel would serve plain text; set grpc.tls.cert and grpc.tls.key, \
             or set SAFETY_KERNEL_INSECURE=true for development",
        );
        problems.extend(self.policy.validate());
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_must_be_set_explicitly_and_contradicts_required() {
        let with = |tls: bool, required: bool, insecure: bool| {
            let mut config = Config::default();
            config.grpc.tls = tls.then(|| TlsConfig {
                cert: "c".to_owned(),
                key: "k".to_owned(),
            });
            config.grpc.tls_required = required;
            config.grpc.insecure = insecure;
            config.validate().join("\n")
        };
        assert_eq!(with(true, false, false), "");
        assert_eq!(with(true, true, false), "");
        assert_eq!(with(false, false, true), "");
        assert!(with(false, false, false).contains("SAFETY_KERNEL_INSECURE"));
        assert!(with(false, true, false).contains("grpc.tls.cert"));
        assert!(with(true, true, true).contains("contradict"));
    }

    #[test]
    fn a_required_signature_needs_a_key() {
        let mut config = Config::default();
        config.grpc.insecure = true;
        config.policy.require_signature = true;
        assert!(config.validate()[0].contains("public_keys"));
        config.policy.public_keys = vec!["not a key".to_owned()];
        assert!(config.validate()[0].contains("policy.public_keys[0]"));
    }
}
