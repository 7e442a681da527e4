//! Whether outputs are judged, by whom, and what an absent scanner means.

use std::time::Duration;

use airlock_kernel_client::{ConnectionConfig, Peer};
use airlock_model::breaker;
use airlock_model::output::OutputSwitch;
use airlock_service::config::duration;
use serde::{Deserialize, Serialize};

use crate::kernel::{BreakerConfig, FailMode};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutputConfig {
    /// Also `OUTPUT_POLICY_ENABLED`.
    pub enabled: bool,
    /// What holds before any scanner was heard; also `OUTPUT_POLICY_FAIL_MODE`. Unset:
    /// every output is held until then.
    pub fail_mode: Option<FailMode>,
    pub url: String,
    /// A CA certificate (PEM) means TLS; also `OUTPUT_POLICY_TLS_CA`.
    pub tls_ca: Option<String>,
    /// Never plain text; also `OUTPUT_POLICY_TLS_REQUIRED`.
    pub tls_required: bool,
    /// The name in the service's certificate, when it is not the URL's host.
    pub tls_domain: Option<String>,
    /// Plain text is allowed; also `OUTPUT_POLICY_INSECURE`.
    pub insecure: bool,
    /// The deadline of a check before the commit.
    #[serde(with = "duration")]
    pub timeout: Duration,
    /// The deadline of a scan after it.
    #[serde(with = "duration")]
    pub scan_timeout: Duration,
    pub breaker: BreakerConfig,
}

impl Default for OutputConfig {
    fn default() -> Self {
        let connection = ConnectionConfig::output_policy();
        Self {
            enabled: false,
            fail_mode: None,
            url: connection.url,
            tls_ca: connection.tls_ca,
            tls_required: connection.tls_required,
            tls_domain: connection.tls_domain,
            insecure: connection.insecure,
            timeout: connection.timeout,
            scan_timeout: Duration::from_secs(30),
            breaker: BreakerConfig::default(),
        }
    }
}

impl OutputConfig {
    pub fn switch(&self) -> OutputSwitch {
        match self.enabled {
            true => OutputSwitch::On,
            false => OutputSwitch::Off,
        }
    }

    pub fn validate(&self) -> Vec<String> {
        if !self.enabled {
            return Vec::new();
        }
        let connection = self.to_connection_config();
        let mut problems = connection.validate_for(Peer::OutputPolicy);
        let mut check = |sound: bool, problem: &str| {
            if !sound {
                problems.push(problem.to_owned());
            }
        };
        check(
            connection.is_usable() || self.tls_required,
            "the connection to the output policy has no TLS; give output.tls_ca \
             (OUTPUT_POLICY_TLS_CA), or set OUTPUT_POLICY_INSECURE=true for development",
        );
        check(
            self.scan_timeout >= self.timeout,
            "output.scan_timeout must be at least output.timeout",
        );
        problems.extend(self.breaker.validate("output"));
        problems
    }

    pub(crate) fn to_connection_config(&self) -> ConnectionConfig {
        ConnectionConfig {
            url: self.url.clone(),
            tls_ca: self.tls_ca.clone(),
            tls_required: self.tls_required,
            tls_domain: self.tls_domain.clone(),
            insecure: self.insecure,
            timeout: self.timeout,
        }
    }

    pub(crate) fn to_breaker_settings(&self) -> breaker::Settings {
        self.breaker.to_settings(self.scan_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_by_default_and_every_default_is_the_documents() {
        let config = OutputConfig::default();
        assert_eq!(config.switch(), OutputSwitch::Off);
        assert_eq!(config.timeout, Duration::from_secs(2));
        assert_eq!(config.scan_timeout, Duration::from_secs(30));
        assert_eq!(config.fail_mode, None);
        assert!(config.validate().is_empty(), "nothing is asked of it");
    }

    #[test]
    fn plain_text_must_be_asked_for_once_it_is_on() {
        let mut config = OutputConfig {
            enabled: true,
            ..OutputConfig::default()
        };
        assert!(config.validate()[0].contains("OUTPUT_POLICY_INSECURE"));
        config.insecure = true;
        assert!(config.validate().is_empty());
        config.breaker.fail_budget = 0;
        assert!(config.validate()[0].contains("output.breaker"));
    }
}
