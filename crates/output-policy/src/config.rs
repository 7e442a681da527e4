//! The service's settings.

use std::path::PathBuf;

use airlock_ledger::LedgerConfig;
use airlock_policy::FailMode;
pub use airlock_policy_source::PolicyConfig;
use airlock_service::{HttpConfig, ServiceConfig, ShutdownConfig, TelemetryConfig};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub grpc: GrpcConfig,
    pub policy: PolicyConfig,
    pub output: OutputConfig,
    pub scanners: ScannersConfig,
    /// Where published bundles are stored; without it there are only files.
    pub database: Option<LedgerConfig>,
    pub http: HttpConfig,
    pub telemetry: TelemetryConfig,
    pub shutdown: ShutdownConfig,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GrpcConfig {
    /// The address the scheduler calls.
    pub listen: String,
    pub tls: Option<TlsConfig>,
    /// Never plain text; also `OUTPUT_POLICY_TLS_REQUIRED`.
    pub tls_required: bool,
    /// Plain text is allowed; also `OUTPUT_POLICY_INSECURE`.
    pub insecure: bool,
}

/// Paths of PEM files.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    pub cert: String,
    pub key: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutputConfig {
    /// Stands over the file's `output_policy.fail_mode`; also `OUTPUT_POLICY_FAIL_MODE`.
    /// The scheduler has the same setting, and both need the same value.
    pub fail_mode: Option<FailMode>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScannersConfig {
    /// Read at start and again whenever it changes; also `OUTPUT_SCANNERS_PATH`.
    pub path: PathBuf,
    /// Contents that are scanned at once; 0: as many as there are cores, and at least two.
    pub threads: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            grpc: GrpcConfig::default(),
            policy: PolicyConfig::default(),
            output: OutputConfig::default(),
            scanners: ScannersConfig::default(),
            database: None,
            http: HttpConfig::at("127.0.0.1:8083"),
            telemetry: TelemetryConfig::default(),
            shutdown: ShutdownConfig::default(),
        }
    }
}

impl Default for GrpcConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:50052".to_owned(),
            tls: None,
            tls_required: false,
            insecure: false,
        }
    }
}

impl Default for ScannersConfig {
    fn default() -> Self {
        Self {
            path: "config/output_scanners.yaml".into(),
            threads: 0,
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
        let mut problems = self.policy.validate();
        problems.extend(self.database.iter().flat_map(LedgerConfig::validate));
        let mut check = |sound: bool, problem: &str| {
            if !sound {
                problems.push(problem.to_owned());
            }
        };
        let g = &self.grpc;
        check(
            !g.listen.is_empty(),
            "grpc.listen: an address is needed, as in 127.0.0.1:50052",
        );
        check(
            !(g.tls_required && g.insecure),
            "grpc.tls_required and grpc.insecure contradict each other; unset one \
             (OUTPUT_POLICY_TLS_REQUIRED, OUTPUT_POLICY_INSECURE)",
        );
        check(
            !g.tls_required || g.tls.is_some(),
            "grpc.tls_required needs grpc.tls.cert and grpc.tls.key",
        );
        check(
            g.tls.is_some() || g.insecure || g.tls_required,
            "the output policy would serve plain text; set grpc.tls.cert and grpc.tls.key, \
             or set OUTPUT_POLICY_INSECURE=true for development",
        );
        check(
            !self.scanners.path.as_os_str().is_empty(),
            "scanners.path: the path of a scanner configuration is needed",
        );
        check(
            self.scanners.threads <= 256,
            "scanners.threads: at most 256 are allowed",
        );
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
        assert!(with(false, false, false).contains("OUTPUT_POLICY_INSECURE"));
        assert!(with(false, true, false).contains("grpc.tls.cert"));
        assert!(with(true, true, true).contains("contradict"));
    }
}
