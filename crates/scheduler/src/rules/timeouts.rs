//! `timeouts.yaml`: what the runs of a topic may take, and which of their ends are
//! followed by another run.

use std::path::Path;
use std::time::Duration;

use airlock_model::job::limits;
use airlock_model::rules::{ByTopic, RetryOn, TopicRule};
use airlock_service::config::duration;
use serde::Deserialize;
use serde_saphyr::Spanned;

use crate::rules::pools_file::{FileError, Ordered, Problems, read_yaml_file};

/// What the file says, compiled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timeouts(pub ByTopic<TopicRule>);

impl Timeouts {
    pub fn load(path: &Path) -> Result<Self, FileError> {
        compile_timeouts(path, read_yaml_file(path)?)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Document {
    topics: Ordered<Entry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Entry {
    timeout: Option<Spanned<String>>,
    max_attempts: Option<Spanned<i64>>,
    retry_on: Option<Vec<End>>,
}

/// How a run can end that may be followed by another.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum End {
    Failed,
    FailedRetryable,
    Timeout,
    WorkerLost,
}

fn compile_timeouts(path: &Path, document: Document) -> Result<Timeouts, FileError> {
    let mut problems = Problems::new(path);
    let mut topics = ByTopic::default();
    for (key, entry) in document.topics.0 {
        let field = format!("topics.{:?}", key.value);
        let rule = TopicRule {
            timeout: entry
                .timeout
                .and_then(|t| parse_timeout(&t, &format!("{field}.timeout"), &mut problems)),
            max_attempts: entry
                .max_attempts
                .and_then(|n| parse_attempts(&n, &format!("{field}.max_attempts"), &mut problems)),
            retry_on: entry.retry_on.map(to_retry_on),
        };
        if let Some(glob) = problems.parse_glob(&key, "topics") {
            topics.insert(glob, rule);
        }
    }
    problems.into_result(Timeouts(topics))
}

fn parse_timeout(text: &Spanned<String>, field: &str, problems: &mut Problems) -> Option<Duration> {
    let (at, text) = (text.referenced, text.value.trim());
    if text.starts_with('-') {
        problems.add(at, field, format!("`{text}` is negative"));
        return None;
    }
    let most = Duration::from_millis(limits::MAX_TIMEOUT_MS);
    match duration::parse(text) {
        Ok(Duration::ZERO) => problems.add(at, field, "must be more than 0"),
        Ok(d) if d > most => problems.add(at, field, format!("`{text}` is more than 7d")),
        Ok(d) => return Some(d),
        Err(error) => problems.add(at, field, error),
    }
    None
}

fn parse_attempts(n: &Spanned<i64>, field: &str, problems: &mut Problems) -> Option<u32> {
    match u32::try_from(n.value) {
        Ok(n @ 1..=limits::MAX_ATTEMPTS) => Some(n),
        Ok(_) | Err(_) => {
            let most = limits::MAX_ATTEMPTS;
            let message = format!("{} is not between 1 and {most}", n.value);
            problems.add(n.referenced, field, message);
            None
        }
    }
}

fn to_retry_on(ends: Vec<End>) -> RetryOn {
    let mut on = RetryOn {
        failed: false,
        failed_retryable: false,
        timeout: false,
        worker_lost: false,
    };
    for end in ends {
        match end {
            End::Failed => on.failed = true,
            End::FailedRetryable => on.failed_retryable = true,
            End::Timeout => on.timeout = true,
            End::WorkerLost => on.worker_lost = true,
        }
    }
    on
}

#[cfg(test)]
mod tests {
    use airlock_model::Topic;

    use super::*;
    use crate::rules::pools_file::parse_yaml;

    fn load(text: &str) -> Result<Timeouts, String> {
        let path = Path::new("timeouts.yaml");
        parse_yaml(path, text)
            .and_then(|document| compile_timeouts(path, document))
            .map_err(|e| e.to_string())
    }

    #[test]
    fn the_shipped_file_changes_nothing() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/timeouts.yaml");
        assert_eq!(Timeouts::load(&path).unwrap(), Timeouts::default());
    }

    #[test]
    fn each_setting_is_read() {
        let rules = load(
            "topics:\n  job.slow.*:\n    timeout: 1m30s\n    max_attempts: 5\n    \
             retry_on: [failed, timeout]\n  job.plain: {}\n",
        )
        .unwrap();
        let get = |t: &str| *rules.0.get(&Topic::new(t).unwrap()).unwrap();
        let slow = get("job.slow.one");
        assert_eq!(slow.timeout, Some(Duration::from_secs(90)));
        assert_eq!(slow.max_attempts, Some(5));
        let on = slow.retry_on.unwrap();
        assert!(on.failed && on.timeout && !on.failed_retryable && !on.worker_lost);
        assert_eq!(get("job.plain"), TopicRule::default());
    }

    #[test]
    fn mistakes_are_named_with_file_line_and_reason() {
        for (text, line, why) in [
            ("topics:\n  job.a:\n    timeout: -5s\n", 3, "negative"),
            ("topics:\n  job.a:\n    timeout: 0s\n", 3, "more than 0"),
            ("topics:\n  job.a:\n    timeout: '30'\n", 3, "no unit"),
            ("topics:\n  job.a:\n    timeout: 8d\n", 3, "more than 7d"),
            ("topics:\n  job.a:\n    max_attempts: 0\n", 3, "between 1"),
            ("topics:\n  job.a:\n    max_attempts: -1\n", 3, "between 1"),
            ("topics:\n  job.a:\n    retry_on: [denied]\n", 3, "denied"),
            ("topics:\n  job.>: {}\n", 2, "bad pattern"),
            ("topics:\n  job.a:\n    retries: 3\n", 3, "retries"),
        ] {
            let said = load(text).expect_err(text);
            let place = format!("timeouts.yaml:{line}:");
            assert!(
                said.starts_with(&place) && said.contains(why),
                "{text}: {said}"
            );
        }
        assert_eq!(load("").unwrap(), Timeouts::default());
    }
}
