//! Where the safety kernel is, and how the connection to it is secured.

use std::time::Duration;

use airlock_settings::duration;
use serde::{Deserialize, Serialize};
use tonic::transport::Endpoint;

/// A shorter deadline would make a kernel on a busy machine look absent.
const MIN_TIMEOUT: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConnectionConfig {
    pub url: String,
    /// A CA certificate (PEM) means TLS; also `SAFETY_KERNEL_TLS_CA`.
    pub tls_ca: Option<String>,
    /// Never plain text; also `SAFETY_KERNEL_TLS_REQUIRED`.
    pub tls_required: bool,
    /// The name in the kernel's certificate, when it is not the URL's host.
    pub tls_domain: Option<String>,
    /// Plain text is allowed; also `SAFETY_KERNEL_INSECURE`.
    pub insecure: bool,
    /// The deadline of one call, and of connecting.
    #[serde(with = "duration")]
    pub timeout: Duration,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        Self {
            url: "http://127.0.0.1:50051".to_owned(),
            tls_ca: None,
            tls_required: false,
            tls_domain: None,
            insecure: false,
            timeout: Duration::from_secs(2),
        }
    }
}

impl ConnectionConfig {
    /// Everything that is wrong with it. A configuration with neither TLS nor leave to do
    /// without is not wrong in itself; see [`Self::is_usable`].
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut check = |sound: bool, problem: &str| {
            if !sound {
                problems.push(problem.to_owned());
            }
        };
        check(
            !(self.tls_required && self.insecure),
            "kernel.tls_required and kernel.insecure contradict each other; unset one \
             (SAFETY_KERNEL_TLS_REQUIRED, SAFETY_KERNEL_INSECURE)",
        );
        check(
            !self.tls_required || self.tls_ca.is_some(),
            "kernel.tls_required needs kernel.tls_ca (SAFETY_KERNEL_TLS_CA)",
        );
        check(
            self.timeout >= MIN_TIMEOUT,
            "kernel.timeout must be at least 10ms",
        );
        if Endpoint::from_shared(self.secured_url()).is_err() {
            problems.push(format!("kernel.url {:?} is not a URL", self.url));
        }
        problems
    }

    /// Whether the kernel may be called at all: over TLS, or in plain text where the
    /// configuration allows it.
    pub fn is_usable(&self) -> bool {
        self.tls_ca.is_some() || self.insecure
    }

    /// For an http URL tonic speaks plain text whatever else it is given, so a CA changes
    /// the scheme.
    pub(crate) fn secured_url(&self) -> String {
        match (&self.tls_ca, self.url.strip_prefix("http://")) {
            (Some(_), Some(rest)) => format!("https://{rest}"),
            (Some(_), None) | (None, _) => self.url.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(change: fn(&mut ConnectionConfig)) -> Vec<String> {
        let mut config = ConnectionConfig::default();
        change(&mut config);
        config.validate()
    }

    #[test]
    fn the_default_timeout_is_two_seconds_and_plain_text_is_not_allowed() {
        let config = ConnectionConfig::default();
        assert_eq!(config.timeout, Duration::from_secs(2));
        assert!(!config.insecure && !config.tls_required && !config.is_usable());
        assert_eq!(config.validate(), Vec::<String>::new());
    }

    #[test]
    fn a_ca_means_tls_and_contradictions_are_reported() {
        let mut config = ConnectionConfig {
            tls_ca: Some("/ca.pem".to_owned()),
            ..ConnectionConfig::default()
        };
        assert_eq!(config.secured_url(), "https://127.0.0.1:50051");
        assert!(config.validate().is_empty() && config.is_usable());
        config.tls_required = true;
        config.insecure = true;
        assert_eq!(config.validate().len(), 1);
        config.tls_ca = None;
        assert_eq!(config.validate().len(), 2);
    }

    #[test]
    fn what_could_never_connect_is_reported() {
        assert!(problems(|c| c.url = "no url".to_owned())[0].contains("is not a URL"));
        assert!(problems(|c| c.timeout = Duration::from_millis(9))[0].contains("10ms"));
    }
}
