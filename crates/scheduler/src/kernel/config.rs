//! Where the safety kernel is, and how far it is trusted to be there.

use std::time::Duration;

use airlock_kernel_client::ConnectionConfig;
use airlock_model::breaker;
use airlock_service::config::duration;
use serde::{Deserialize, Serialize};

/// What happens to jobs while the kernel cannot be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailMode {
    /// They wait.
    Closed,
    /// They go through, with a warning and a record.
    Open,
}

impl FailMode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Closed, Self::Open]
            .into_iter()
            .find(|mode| mode.as_str() == text)
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KernelConfig {
    pub url: String,
    /// A CA certificate (PEM) means TLS; also `SAFETY_KERNEL_TLS_CA`.
    pub tls_ca: Option<String>,
    /// Never plain text; also `SAFETY_KERNEL_TLS_REQUIRED`.
    pub tls_required: bool,
    /// The name in the kernel's certificate, when it is not the URL's host.
    pub tls_domain: Option<String>,
    /// Plain text is allowed; also `SAFETY_KERNEL_INSECURE`.
    pub insecure: bool,
    #[serde(with = "duration")]
    pub timeout: Duration,
    /// Also `POLICY_CHECK_FAIL_MODE`. Unset: what the policy file says, as the kernel
    /// last told it to any leader; closed before it told anything.
    pub fail_mode: Option<FailMode>,
    /// Decisions remembered; 0 turns the cache off.
    pub cache_entries: usize,
    pub breaker: BreakerConfig,
}

/// The circuit breaker's constants.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BreakerConfig {
    /// Failures in a row that open it.
    pub fail_budget: u32,
    #[serde(with = "duration")]
    pub open_for: Duration,
    /// Probes while it is half-open.
    pub half_open_max: u32,
    /// Successes that close it.
    pub close_after: u32,
    /// How long a job waits that finds it open.
    #[serde(with = "duration")]
    pub open_delay: Duration,
}

impl BreakerConfig {
    /// Everything that is wrong with it, in this section of the configuration.
    pub(crate) fn validate(&self, section: &str) -> Vec<String> {
        let mut problems = Vec::new();
        let mut check = |sound: bool, problem: &str| {
            if !sound {
                problems.push(format!("{section}.breaker.{problem}"));
            }
        };
        check(
            self.fail_budget > 0 && self.half_open_max > 0,
            "fail_budget and half_open_max must be at least 1",
        );
        check(
            (1..=self.half_open_max).contains(&self.close_after),
            "close_after must be between 1 and half_open_max, or it never closes",
        );
        check(
            self.open_for >= Duration::from_millis(1)
                && self.open_delay >= Duration::from_millis(1),
            "open_for and open_delay must be at least 1ms",
        );
        problems
    }

    /// For calls that take no longer than `timeout`.
    pub(crate) fn to_settings(self, timeout: Duration) -> breaker::Settings {
        breaker::Settings {
            fail_budget: self.fail_budget,
            open_for: self.open_for,
            half_open_max: self.half_open_max,
            close_after: self.close_after,
            // A probe answers or times out; twice that and a second is long past.
            probe_lease: timeout * 2 + Duration::from_secs(1),
        }
    }
}

impl Default for KernelConfig {
    fn default() -> Self {
        let connection = ConnectionConfig::default();
        Self {
            url: connection.url,
            tls_ca: connection.tls_ca,
            tls_required: connection.tls_required,
            tls_domain: connection.tls_domain,
            insecure: connection.insecure,
            timeout: connection.timeout,
            fail_mode: None,
            cache_entries: 65_536,
            breaker: BreakerConfig::default(),
        }
    }
}

impl Default for BreakerConfig {
    fn default() -> Self {
        let s = breaker::Settings::default();
        Self {
            fail_budget: s.fail_budget,
            open_for: s.open_for,
            half_open_max: s.half_open_max,
            close_after: s.close_after,
            open_delay: Duration::from_secs(5),
        }
    }
}

impl KernelConfig {
    /// Everything that is wrong with it.
    pub fn validate(&self) -> Vec<String> {
        let connection = self.to_connection_config();
        let mut problems = connection.validate();
        let mut check = |sound: bool, problem: &str| {
            if !sound {
                problems.push(problem.to_owned());
            }
        };
        check(
            connection.is_usable() || self.tls_required,
            "the connection to the safety kernel has no TLS; give kernel.tls_ca \
             (SAFETY_KERNEL_TLS_CA), or set SAFETY_KERNEL_INSECURE=true for development",
        );
        check(
            self.tls_ca.is_some() || !self.url.starts_with("https:"),
            "kernel.url is https, which needs kernel.tls_ca (SAFETY_KERNEL_TLS_CA)",
        );
        check(
            self.cache_entries <= 10_000_000,
            "kernel.cache_entries must be at most 10000000",
        );
        problems.extend(self.breaker.validate("kernel"));
        problems
    }

    /// What the client needs to know. The fields are not flattened into this struct,
    /// because serde then no longer names a misspelt one.
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
        self.breaker.to_settings(self.timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_the_documents() {
        let config = KernelConfig::default();
        let b = config.breaker;
        assert_eq!(config.timeout, Duration::from_secs(2));
        assert_eq!(b.fail_budget, 3);
        assert_eq!(b.open_for, Duration::from_secs(30));
        assert_eq!(b.half_open_max, 3);
        assert_eq!(b.close_after, 2);
        assert_eq!(b.open_delay, Duration::from_secs(5));
        assert_eq!(config.fail_mode, None);
        assert!(!config.insecure && !config.tls_required);
    }

    #[test]
    fn plain_text_must_be_asked_for_and_never_against_required() {
        let ok = |change: fn(&mut KernelConfig)| {
            let mut config = KernelConfig::default();
            change(&mut config);
            config.validate()
        };
        assert!(ok(|_| ())[0].contains("SAFETY_KERNEL_INSECURE"));
        assert!(ok(|c| c.insecure = true).is_empty());
        assert!(ok(|c| c.tls_ca = Some("ca.pem".to_owned())).is_empty());
        assert!(
            ok(|c| {
                c.tls_ca = Some("ca.pem".to_owned());
                c.tls_required = true;
            })
            .is_empty()
        );
        assert!(ok(|c| c.tls_required = true)[0].contains("SAFETY_KERNEL_TLS_CA"));
        let both = ok(|c| {
            c.tls_ca = Some("ca.pem".to_owned());
            c.insecure = true;
            c.tls_required = true;
        });
        assert!(both[0].contains("contradict"), "{both:?}");
        assert!(
            !ok(|c| {
                c.insecure = true;
                c.url = "https://kernel:50051".to_owned();
            })
            .is_empty()
        );
    }
}
