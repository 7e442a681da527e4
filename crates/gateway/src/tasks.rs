//! Tasks: the plainest way in. A time and a payload, nothing else; what is missing of a
//! job is settled here.

use std::net::SocketAddr;
use std::time::Duration;

use airlock_model::job::{RetryPlan, limits};
use airlock_model::{JobSpec, JobState, Millis, TenantId, Topic};
use airlock_service::config::duration;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_TYPE, FORWARDED, ORIGIN};
use serde::{Deserialize, Serialize};

use crate::config::AuthConfig;
use crate::problem::Problem;

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
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.retry_after.len() > limits::RETRY_DELAYS {
            let most = limits::RETRY_DELAYS;
            problems.push(format!("tasks.retry_after: at most {most} pauses"));
        }
        if let Err(e) = self.spec().validate() {
            problems.push(format!("tasks: {e}"));
        }
        problems
    }

    /// The job that a task is, without its time.
    pub fn spec(&self) -> JobSpec {
        let retries = u32::try_from(self.retry_after.len()).unwrap_or(u32::MAX);
        JobSpec {
            max_attempts: Some(retries.saturating_add(1)),
            retry: Some(RetryPlan {
                delays_ms: self.retry_after.iter().copied().map(millis).collect(),
                on_failed: true,
                visibility_ms: Some(millis(self.visibility_timeout)),
            }),
            ..JobSpec::new(self.topic.clone())
        }
    }
}

fn millis(time: Duration) -> Millis {
    Millis::try_from(time.as_millis()).unwrap_or(Millis::MAX)
}

/// Whether tasks may come without a key: in development, that is when there is a
/// development key and only this machine can reach us.
pub fn open_door(auth: &AuthConfig, listen: &str) -> bool {
    let local = match listen.parse::<SocketAddr>() {
        Ok(address) => address.ip().is_loopback(),
        Err(_) => listen.starts_with("localhost:"),
    };
    local && !auth.development_key.is_empty()
}

/// Keeps a web page that the developer happens to look at, and a proxy that lets
/// strangers in, from using the open door.
pub fn from_here(headers: &HeaderMap) -> Result<(), Problem> {
    let json = headers
        .get(CONTENT_TYPE)
        .is_some_and(|v| v.as_bytes().starts_with(b"application/json"));
    let foreign = headers.contains_key(ORIGIN)
        || headers.contains_key(FORWARDED)
        || headers.contains_key("x-forwarded-for")
        || headers.contains_key("sec-fetch-site");
    if foreign || !json {
        return Err(Problem::unauthorized(
            "an API key is needed, as X-API-Key or Authorization: Bearer; without one, tasks are \
             taken as application/json and from this machine only",
        ));
    }
    Ok(())
}

/// What the document calls a state.
pub fn status(state: JobState) -> &'static str {
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
    use airlock_service::Secret;

    use super::*;

    #[test]
    fn the_defaults_are_the_documents() {
        let spec = TasksConfig::default().spec();
        assert_eq!(spec.topic.as_str(), "job.default");
        assert_eq!(spec.max_attempts, Some(6));
        let plan = spec.retry.unwrap();
        let minutes: Vec<u64> = plan.delays_ms.iter().map(|ms| ms / 60_000).collect();
        assert_eq!(minutes, [1, 5, 15, 15, 15]);
        assert_eq!(plan.visibility_ms, Some(120_000));
        assert!(plan.on_failed);
        assert_eq!(TasksConfig::default().problems(), Vec::<String>::new());
        let json = serde_json::to_string(&TasksConfig::default()).unwrap();
        assert!(json.contains(r#"["1m","5m","15m","15m","15m"]"#), "{json}");
    }

    #[test]
    fn the_door_is_open_in_development_on_this_machine_only() {
        let mut auth = AuthConfig::default();
        assert!(!open_door(&auth, "127.0.0.1:8080"));
        auth.development_key = Secret::from("k");
        assert!(open_door(&auth, "127.0.0.1:8080") && open_door(&auth, "[::1]:8080"));
        assert!(!open_door(&auth, "0.0.0.0:8080") && !open_door(&auth, "10.0.0.5:80"));
    }

    #[test]
    fn a_page_in_a_browser_does_not_come_through_it() {
        let with = |pairs: &[(&'static str, &'static str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in pairs {
                map.insert(*name, value.parse().unwrap());
            }
            from_here(&map).is_ok()
        };
        let json = ("content-type", "application/json");
        assert!(with(&[json]));
        assert!(!with(&[]) && !with(&[("content-type", "text/plain")]));
        assert!(!with(&[json, ("origin", "https://example.org")]));
        assert!(!with(&[json, ("x-forwarded-for", "10.1.2.3")]));
    }
}
