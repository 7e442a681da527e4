//! The kernel's settings.

use std::path::PathBuf;

use airlock_service::{HttpConfig, ServiceConfig, ShutdownConfig, TelemetryConfig};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub grpc: GrpcConfig,
    pub policy: PolicyConfig,
    pub http: HttpConfig,
    pub telemetry: TelemetryConfig,
    pub shutdown: ShutdownConfig,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GrpcConfig {
    /// Where the scheduler and the gateway ask.
    pub listen: String,
    /// Without it, plain text.
    pub tls: Option<TlsConfig>,
}

/// Paths of PEM files.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    pub cert: String,
    pub key: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyConfig {
    /// Read at start and again whenever it changes.
    pub path: PathBuf,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            grpc: GrpcConfig::default(),
            policy: PolicyConfig::default(),
            http: HttpConfig {
                listen: "127.0.0.1:8082".to_owned(),
            },
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
        }
    }
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self {
            path: "config/safety.yaml".into(),
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
        if self.grpc.listen.is_empty() {
            problems.push("grpc.listen: an address is needed, as in 127.0.0.1:50051".to_owned());
        }
        if self.policy.path.as_os_str().is_empty() {
            problems.push("policy.path: the path of a policy file is needed".to_owned());
        }
        problems
    }
}
