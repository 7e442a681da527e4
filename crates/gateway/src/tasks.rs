//! Tasks: the plainest way in. A time and a payload, nothing else; what is missing of a
//! job is settled here.

use std::time::Duration;

use airlock_model::job::{RetryPlan, limits};
use airlock_model::{JobSpec, JobState, Millis, TenantId, Topic};
use airlock_service::config::duration;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{HeaderName, Method, Uri};
use serde::{Deserialize, Serialize};

use crate::http::problem::Problem;

/// How tasks become jobs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TasksConfig {
    /// The topic every task is a job of.
    pub topic: Topic,
    /// Whose jobs tasks are that come without a key.
    pub tenant: TenantId,
    /// A task that fails is tried again after each of these.
    #[serde(with = "pauses")]
    pub retry_after: Vec<Duration>,
    /// A task without a sign of life for this long is given to another worker.
    #[serde(with = "duration")]
    pub visibility_timeout: Duration,
}

impl Default for TasksConfig {
    fn default() -> Self {
        let minutes = |n: u64| Duration::from_secs(60 * n);
        Self {
            topic: Topic::new("job.default").unwrap_or_else(|_| unreachable!()),
            tenant: TenantId::new("default").unwrap_or_else(|_| unreachable!()),
            retry_after: [1, 5, 15, 15, 15].map(minutes).to_vec(),
            visibility_timeout: minutes(2),
        }
    }
}

/// A list of durations, each as text.
mod pauses {
    use std::time::Duration;

    use airlock_service::config::duration;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(all: &[Duration], to: S) -> Result<S::Ok, S::Error> {
        let texts: Vec<String> = all.iter().map(|d| duration::format(*d)).collect();
        texts.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Duration>, D::Error> {
        Vec::<String>::deserialize(from)?
            .iter()
            .map(|text| duration::parse(text).map_err(serde::de::Error::custom))
            .collect()
    }
}

impl TasksConfig {
    pub fn validate(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.retry_after.len() > limits::RETRY_DELAYS {
            let most = limits::RETRY_DELAYS;
            problems.push(format!("tasks.retry_after: at most {most} pauses"));
        }
        if let Err(e) = self.to_job_spec().validate() {
            problems.push(format!("tasks: {e}"));
        }
        problems
    }

    /// The job that a task is, without its time.
    pub fn to_job_spec(&self) -> JobSpec {
        let retries = u32::try_from(self.retry_after.len()).unwrap_or(u32::MAX);
        JobSpec {
            max_attempts: Some(retries.saturating_add(1)),
            retry: Some(RetryPlan {
                delays_ms: self.retry_after.iter().copied().map(to_millis).collect(),
                on_failed: true,
                visibility_ms: Some(to_millis(self.visibility_timeout)),
            }),
            ..JobSpec::new(self.topic.clone())
        }
    }
}

fn to_millis(time: Duration) -> Millis {
    Millis::try_from(time.as_millis()).unwrap_or(Millis::MAX)
}

/// What browsers and proxies add; nothing on this machine that speaks to us directly does.
fn is_forwarding_header(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(
        name,
        "origin"
            | "referer"
            | "forwarded"
            | "via"
            | "x-real-ip"
            | "x-client-ip"
            | "x-cluster-client-ip"
            | "x-original-host"
            | "x-original-forwarded-for"
            | "client-ip"
            | "true-client-ip"
            | "fastly-client-ip"
            | "fly-client-ip"
            | "x-envoy-external-address"
            | "proxy-connection"
    ) || [
        "x-forwarded",
        "sec-fetch-",
        "cf-",
        "x-amzn-",
        "x-goog-",
        "x-azure-",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix))
}

/// Whether a request was addressed to this machine by a name that no resolver can turn
/// elsewhere: a page at a name that points here would come with that name.
fn is_for_localhost(headers: &HeaderMap, uri: &Uri) -> bool {
    let authority = match headers.get(HOST) {
        Some(host) => host.to_str().ok().and_then(|h| h.parse().ok()),
        None => uri.authority().cloned(),
    };
    let Some(authority) = authority else {
        return false;
    };
    let host = authority.host();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || bare
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Keeps a web page that the developer happens to look at, and a proxy that lets
/// strangers in, from coming without a key.
pub fn check_local_request(method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    // A page may send a form anywhere, but JSON only with leave.
    let json = *method == Method::GET
        || headers
            .get(CONTENT_TYPE)
            .is_some_and(|v| v.as_bytes().starts_with(b"application/json"));
    if !json || headers.keys().any(is_forwarding_header) || !is_for_localhost(headers, uri) {
        return Err(Problem::unauthorized(
            "an API key is needed, as X-API-Key or Authorization: Bearer; without one, tasks are \
             taken as application/json and from this machine only",
        ));
    }
    Ok(())
}

/// What the document calls a state.
pub fn to_task_status(state: JobState) -> &'static str {
    match state {
        JobState::Pending | JobState::ApprovalRequired => "PENDING",
        JobState::Scheduled | JobState::Dispatched | JobState::Running => "RUNNING",
        JobState::Succeeded => "COMPLETED",
        JobState::Failed
        | JobState::Timeout
        | JobState::Cancelled
        | JobState::Denied
        | JobState::OutputQuarantined => "FAILED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_documents() {
        let spec = TasksConfig::default().to_job_spec();
        assert_eq!(spec.topic.as_str(), "job.default");
        assert_eq!(spec.max_attempts, Some(6));
        let plan = spec.retry.unwrap();
        let minutes: Vec<u64> = plan.delays_ms.iter().map(|ms| ms / 60_000).collect();
        assert_eq!(minutes, [1, 5, 15, 15, 15]);
        assert_eq!(plan.visibility_ms, Some(120_000));
        assert!(plan.on_failed);
        assert_eq!(TasksConfig::default().validate(), Vec::<String>::new());
        let json = serde_json::to_string(&TasksConfig::default()).unwrap();
        assert!(json.contains(r#"["1m","5m","15m","15m","15m"]"#), "{json}");
    }

    #[test]
    fn neither_a_page_nor_a_proxy_comes_without_a_key() {
        let with = |method: Method, pairs: &[(&'static str, &'static str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in pairs {
                map.insert(*name, value.parse().unwrap());
            }
            check_local_request(&method, &"/tasks".parse().unwrap(), &map).is_ok()
        };
        let json = ("content-type", "application/json");
        let here = ("host", "127.0.0.1:8080");
        assert!(with(Method::POST, &[json, here]));
        for host in ["localhost:8080", "LOCALHOST", "[::1]:8080", "127.8.0.1"] {
            assert!(with(Method::POST, &[json, ("host", host)]), "{host}");
        }
        for host in [
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.5",
            "user@evil.example",
            "",
        ] {
            assert!(!with(Method::POST, &[json, ("host", host)]), "{host}");
            assert!(!with(Method::GET, &[("host", host)]), "{host}");
        }
        assert!(!with(Method::POST, &[json]), "no host");
        assert!(!with(Method::POST, &[here]), "no content type");
        assert!(!with(Method::POST, &[here, ("content-type", "text/plain")]));
        assert!(with(Method::GET, &[here]));
        for foreign in [
            "origin",
            "forwarded",
            "via",
            "x-real-ip",
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-proto",
            "cf-connecting-ip",
            "true-client-ip",
            "sec-fetch-site",
        ] {
            assert!(
                !with(Method::POST, &[json, here, (foreign, "x")]),
                "{foreign}"
            );
            assert!(!with(Method::GET, &[here, (foreign, "x")]), "{foreign}");
        }
    }
}
