//! Where the safety kernel or the output policy is, and how the connection is secured.

use std::time::Duration;

use airlock_settings::duration;
use serde::{Deserialize, Serialize};
use tonic::transport::Endpoint;

/// A shorter deadline would make a kernel on a busy machine look absent.
const MIN_TIMEOUT: Duration = Duration::from_millis(10);

/// What a connection leads to, for the words of its mistakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    SafetyKernel,
    OutputPolicy,
}

impl Peer {
    /// The section of the configuration.
    pub const fn section(self) -> &'static str {
        match self {
            Self::SafetyKernel => "kernel",
            Self::OutputPolicy => "output",
        }
    }

    /// The beginning of its environment variables.
    const fn env_prefix(self) -> &'static str {
        match self {
            Self::SafetyKernel => "SAFETY_KERNEL",
            Self::OutputPolicy => "OUTPUT_POLICY",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConnectionConfig {
    pub url: String,
    /// A CA certificate (PEM) means TLS; also `SAFETY_KERNEL_TLS_CA`.
    pub tls_ca: Option<String>,
    /// Never plain text; also `SAFETY_KERNEL_TLS_REQUIRED`.
    pub tls_required: bool,
    /// The name in the peer's certificate, when it is not the URL's host.
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
    /// The defaults of a connection to the output policy: another port, all else the same.
    pub fn output_policy() -> Self {
        Self {
            url: "http://127.0.0.1:50052".to_owned(),
            ..Self::default()
        }
    }

    /// Everything that is wrong with it as a connection to the safety kernel. A
    /// configuration with neither TLS nor leave to do without is not wrong in itself; see
    /// [`Self::is_usable`].
    pub fn validate(&self) -> Vec<String> {
        self.validate_for(Peer::SafetyKernel)
    }

    /// The same for any peer: the problems name its settings.
    pub fn validate_for(&self, peer: Peer) -> Vec<String> {
        let (section, env) = (peer.section(), peer.env_prefix());
        let mut problems = Vec::new();
        let mut check = |sound: bool, problem: String| {
            if !sound {
                problems.push(problem);
            }
        };
        check(
            !(self.tls_required && self.insecure),
            format!(
                "{section}.tls_required and {section}.insecure contradict each other; unset \
                 one ({env}_TLS_REQUIRED, {env}_INSECURE)"
            ),
        );
        check(
            !self.tls_required || self.tls_ca.is_some(),
            format!("{section}.tls_required needs {section}.tls_ca ({env}_TLS_CA)"),
        );
        check(
            self.timeout >= MIN_TIMEOUT,
            format!("{section}.timeout must be at least 10ms"),
        );
        check(
            Endpoint::from_shared(self.secured_url()).is_ok(),
            format!("{section}.url {:?} is not a URL", self.url),
        );
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
    fn problems_name_the_settings_of_the_peer() {
        let config = ConnectionConfig {
            tls_required: true,
            ..ConnectionConfig::output_policy()
        };
        let problems = config.validate_for(Peer::OutputPolicy);
        assert_eq!(
            problems,
            ["output.tls_required needs output.tls_ca (OUTPUT_POLICY_TLS_CA)"]
        );
    }

    #[test]
    fn what_could_never_connect_is_reported() {
        assert!(problems(|c| c.url = "no url".to_owned())[0].contains("is not a URL"));
        assert!(problems(|c| c.timeout = Duration::from_millis(9))[0].contains("10ms"));
    }
}
