//! Every subject and stream name, built and parsed here and nowhere else.
//!
//! What must stay true: [`Subject::parse`] gives back what [`Subject::to_string`] was
//! made from, and [`Subject::stream`] agrees with [`StreamName::subjects`]; otherwise a
//! message would be published where no stream keeps it.

use std::fmt;

use airlock_model::ids::{Epoch, Incarnation, Shard, Topic, WorkerId};

pub const JOB_SUBMIT: &str = "sys.job.submit";
pub const JOB_RESULT: &str = "sys.job.result";
pub const JOB_DLQ: &str = "sys.job.dlq";
pub const JOB_EVENT: &str = "sys.job.event";
pub const SAGA_ROLLBACK: &str = "sys.saga.rollback";
/// All audit subjects; one of them is [`Subject::Audit`].
pub const AUDIT_ALL: &str = "sys.audit.>";
pub const HEARTBEAT: &str = "sys.heartbeat";
pub const HANDSHAKE: &str = "sys.handshake";
pub const JOB_PROGRESS: &str = "sys.job.progress";
pub const JOB_CANCEL: &str = "sys.job.cancel";
pub const CONFIG_CHANGED: &str = "sys.config.changed";
pub const ALERT: &str = "sys.alert";
/// Asks the leader what a job waits for.
pub const EXPLAIN: &str = "sys.scheduler.explain";
/// Tells the leader of jobs while they are being committed, and that they are.
pub const AHEAD: &str = "sys.scheduler.ahead";

const AUDIT: &str = "sys.audit.";
const WORKER: &str = "worker.";
const WORKER_JOBS: &str = ".jobs";
const CONTROL: &str = "sys.worker.";
const CONTROL_END: &str = ".control";

/// The header W3C trace context travels in.
pub(crate) const TRACEPARENT: &str = "traceparent";

/// The two streams. Their names start with a configurable prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StreamName {
    /// What services tell each other about jobs.
    Sys,
    /// Dispatches to workers.
    Jobs,
}

impl StreamName {
    pub const ALL: [Self; 2] = [Self::Sys, Self::Jobs];

    /// `CORDUM_SYS`, `CORDUM_JOBS`, or with another prefix.
    pub fn with_prefix(self, prefix: &str) -> String {
        match self {
            Self::Sys => format!("{prefix}_SYS"),
            Self::Jobs => format!("{prefix}_JOBS"),
        }
    }

    /// What the stream keeps.
    pub fn subjects(self) -> &'static [&'static str] {
        match self {
            Self::Sys => &[
                JOB_SUBMIT,
                JOB_RESULT,
                JOB_DLQ,
                AUDIT_ALL,
                JOB_EVENT,
                SAGA_ROLLBACK,
            ],
            Self::Jobs => &["worker.>", "job.>"],
        }
    }

    pub(crate) fn index(self) -> usize {
        match self {
            Self::Sys => 0,
            Self::Jobs => 1,
        }
    }
}

/// A subject of ours, by its meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    JobSubmit,
    JobResult,
    JobDlq,
    JobEvent,
    SagaRollback,
    /// `sys.audit.<kind>`; the kind is one or more tokens.
    Audit(String),
    Heartbeat,
    Handshake,
    JobProgress,
    JobCancel,
    ConfigChanged,
    Alert,
    /// A question to the leader, with a subject for the answer.
    Explain,
    Ahead,
    /// `worker.<id>.jobs`: dispatches to one worker.
    WorkerJobs(WorkerId),
    /// `sys.worker.<id>.control`: receipts and inventory calls for one worker.
    WorkerControl(WorkerId),
    /// `job.…`: dispatches to whoever serves the topic.
    Topic(Topic),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::JobSubmit => f.write_str(JOB_SUBMIT),
            Self::JobResult => f.write_str(JOB_RESULT),
            Self::JobDlq => f.write_str(JOB_DLQ),
            Self::JobEvent => f.write_str(JOB_EVENT),
            Self::SagaRollback => f.write_str(SAGA_ROLLBACK),
            Self::Audit(kind) => write!(f, "{AUDIT}{kind}"),
            Self::Heartbeat => f.write_str(HEARTBEAT),
            Self::Handshake => f.write_str(HANDSHAKE),
            Self::JobProgress => f.write_str(JOB_PROGRESS),
            Self::JobCancel => f.write_str(JOB_CANCEL),
            Self::ConfigChanged => f.write_str(CONFIG_CHANGED),
            Self::Alert => f.write_str(ALERT),
            Self::Explain => f.write_str(EXPLAIN),
            Self::Ahead => f.write_str(AHEAD),
            Self::WorkerJobs(id) => write!(f, "{WORKER}{id}{WORKER_JOBS}"),
            Self::WorkerControl(id) => write!(f, "{CONTROL}{id}{CONTROL_END}"),
            Self::Topic(topic) => f.write_str(topic.as_str()),
        }
    }
}

impl Subject {
    /// The meaning of a subject, if it is one of ours.
    pub fn parse(s: &str) -> Option<Self> {
        Some(match s {
            JOB_SUBMIT => Self::JobSubmit,
            JOB_RESULT => Self::JobResult,
            JOB_DLQ => Self::JobDlq,
            JOB_EVENT => Self::JobEvent,
            SAGA_ROLLBACK => Self::SagaRollback,
            HEARTBEAT => Self::Heartbeat,
            HANDSHAKE => Self::Handshake,
            JOB_PROGRESS => Self::JobProgress,
            JOB_CANCEL => Self::JobCancel,
            CONFIG_CHANGED => Self::ConfigChanged,
            ALERT => Self::Alert,
            EXPLAIN => Self::Explain,
            AHEAD => Self::Ahead,
            other => return Self::parse_named(other),
        })
    }

    fn parse_named(s: &str) -> Option<Self> {
        if let Some(kind) = s.strip_prefix(AUDIT) {
            return has_valid_tokens(kind).then(|| Self::Audit(kind.to_owned()));
        }
        if let Some(id) = strip_prefix_and_suffix(s, CONTROL, CONTROL_END) {
            return parse_worker_id(id).map(Self::WorkerControl);
        }
        if let Some(id) = strip_prefix_and_suffix(s, WORKER, WORKER_JOBS) {
            return parse_worker_id(id).map(Self::WorkerJobs);
        }
        Topic::new(s).ok().map(Self::Topic)
    }

    /// The stream that keeps messages on this subject; `None` for core NATS.
    pub fn stream(&self) -> Option<StreamName> {
        match self {
            Self::JobSubmit
            | Self::JobResult
            | Self::JobDlq
            | Self::JobEvent
            | Self::SagaRollback
            | Self::Audit(_) => Some(StreamName::Sys),
            Self::WorkerJobs(_) | Self::Topic(_) => Some(StreamName::Jobs),
            Self::Heartbeat
            | Self::Handshake
            | Self::JobProgress
            | Self::JobCancel
            | Self::ConfigChanged
            | Self::Alert
            | Self::Explain
            | Self::Ahead
            | Self::WorkerControl(_) => None,
        }
    }
}

/// `worker.<id>.jobs`
pub fn worker_jobs(id: &WorkerId) -> String {
    format!("{WORKER}{id}{WORKER_JOBS}")
}

/// `sys.worker.<id>.control`
pub fn worker_control(id: &WorkerId) -> String {
    format!("{CONTROL}{id}{CONTROL_END}")
}

/// Whether a worker of this name can be reached at all. Ids may contain dots, and one
/// that starts or ends with a dot, or has two in a row, makes no subject.
pub fn is_addressable(id: &WorkerId) -> bool {
    has_valid_tokens(id.as_str())
}

fn strip_prefix_and_suffix<'a>(s: &'a str, start: &str, end: &str) -> Option<&'a str> {
    s.strip_prefix(start)?.strip_suffix(end)
}

fn parse_worker_id(id: &str) -> Option<WorkerId> {
    WorkerId::new(id).ok().filter(is_addressable)
}

fn has_valid_tokens(s: &str) -> bool {
    s.split('.')
        .all(|token| !token.is_empty() && !token.contains(char::is_whitespace))
        && !s.contains(['*', '>'])
}

/// The name of one generation of a leader's consumer: `<base>-s<shard>-e<epoch>`, with
/// `-r<n>` when the same leader had to open it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Generation {
    pub epoch: Epoch,
    pub reopened: u32,
}

pub(crate) fn leader_consumer_name(base: &str, shard: Shard, generation: Generation) -> String {
    let Generation { epoch, reopened } = generation;
    match reopened {
        0 => format!("{base}-s{shard}-e{epoch}"),
        n => format!("{base}-s{shard}-e{epoch}-r{n}"),
    }
}

/// The generation a consumer's name tells, if it is of this shard, and of this base if
/// one is given.
pub(crate) fn parse_leader_consumer_name(
    name: &str,
    base: Option<&str>,
    shard: Shard,
) -> Option<Generation> {
    let (found, rest) = name.rsplit_once(&format!("-s{shard}-e"))?;
    if base.is_some_and(|base| base != found) {
        return None;
    }
    let (epoch, reopened) = match rest.split_once("-r") {
        Some((epoch, n)) => (epoch, n.parse().ok().filter(|n| *n > 0)?),
        None => (rest, 0),
    };
    Some(Generation {
        epoch: Epoch(epoch.parse().ok()?),
        reopened,
    })
}

/// The name of a worker's own consumer. What a consumer's name may not contain is
/// replaced; the incarnation, random per process, keeps the names apart.
pub(crate) fn worker_consumer_name(
    id: &WorkerId,
    incarnation: &Incarnation,
    reopened: u32,
) -> String {
    let id = to_consumer_token(id.as_str(), 100);
    let incarnation = to_consumer_token(incarnation.as_str(), 64);
    format!("worker-{id}-{incarnation}-r{reopened}")
}

/// The part of a worker's consumer name that is the same in all its generations.
pub(crate) fn worker_consumer_prefix(id: &WorkerId) -> String {
    format!("worker-{}", to_consumer_token(id.as_str(), 100))
}

fn to_consumer_token(s: &str, max: usize) -> String {
    s.chars()
        .take(max)
        .map(|c| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => c,
            _ => '_',
        })
        .collect()
}

/// Whether a string may be part of a stream's or consumer's name.
pub(crate) fn is_valid_name_part(s: &str) -> bool {
    !s.is_empty()
        && s.len() <= 128
        && s.chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker_id(s: &str) -> WorkerId {
        WorkerId::new(s).expect("a worker id")
    }

    fn all() -> Vec<Subject> {
        vec![
            Subject::JobSubmit,
            Subject::JobResult,
            Subject::JobDlq,
            Subject::JobEvent,
            Subject::SagaRollback,
            Subject::Audit("policy.decision".to_owned()),
            Subject::Heartbeat,
            Subject::Handshake,
            Subject::JobProgress,
            Subject::JobCancel,
            Subject::ConfigChanged,
            Subject::Alert,
            Subject::Explain,
            Subject::Ahead,
            Subject::WorkerJobs(worker_id("w-1")),
            Subject::WorkerJobs(worker_id("host.example.jobs")),
            Subject::WorkerControl(worker_id("w-1")),
            Subject::Topic(Topic::new("job.image.resize").expect("a topic")),
        ]
    }

    #[test]
    fn subjects_round_trip() {
        for subject in all() {
            assert_eq!(Subject::parse(&subject.to_string()), Some(subject.clone()));
        }
        for foreign in [
            "sys.other",
            "worker..jobs",
            "worker.a",
            "sys.audit.",
            "$JS.API",
        ] {
            assert_eq!(Subject::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_subject_is_in_the_stream_it_says() {
        for subject in all() {
            let text = subject.to_string();
            let holders: Vec<_> = StreamName::ALL
                .into_iter()
                .filter(|s| s.subjects().iter().any(|filter| matches(filter, &text)))
                .collect();
            assert_eq!(holders, Vec::from_iter(subject.stream()), "{text}");
        }
    }

    fn matches(filter: &str, subject: &str) -> bool {
        match filter.strip_suffix('>') {
            Some(prefix) => subject.starts_with(prefix),
            None => filter == subject,
        }
    }

    #[test]
    fn stream_names_follow_the_prefix() {
        assert_eq!(StreamName::Sys.with_prefix("CORDUM"), "CORDUM_SYS");
        assert_eq!(StreamName::Jobs.with_prefix("AIRLOCK"), "AIRLOCK_JOBS");
    }

    #[test]
    fn leader_consumers_round_trip_and_keep_shards_apart() {
        for (epoch, reopened) in [(0, 0), (7, 0), (7, 3)] {
            let generation = Generation {
                epoch: Epoch(epoch),
                reopened,
            };
            let name = leader_consumer_name("scheduler-submit", Shard(1), generation);
            assert_eq!(
                parse_leader_consumer_name(&name, Some("scheduler-submit"), Shard(1)),
                Some(generation)
            );
            assert_eq!(
                parse_leader_consumer_name(&name, Some("scheduler-submit"), Shard(11)),
                None
            );
            assert_eq!(
                parse_leader_consumer_name(&name, Some("scheduler"), Shard(1)),
                None
            );
            assert_eq!(
                parse_leader_consumer_name(&name, None, Shard(1)),
                Some(generation)
            );
        }
        assert_eq!(
            parse_leader_consumer_name("a-s0-ex", Some("a"), Shard(0)),
            None
        );
        assert_eq!(
            parse_leader_consumer_name("a-s0-e1-r0", None, Shard(0)),
            None
        );
    }

    #[test]
    fn worker_consumers_have_names_nats_takes() {
        let incarnation = Incarnation::new("x/y.z").expect("an incarnation");
        let name = worker_consumer_name(&worker_id("host.a/b@c"), &incarnation, 2);
        assert_eq!(name, "worker-host_a_b_c-x_y_z-r2");
        let longest = worker_consumer_name(
            &worker_id(&"w".repeat(128)),
            &Incarnation::new("i".repeat(64)).expect("an incarnation"),
            u32::MAX,
        );
        assert!(longest.len() <= 255);
    }

    #[test]
    fn some_ids_have_no_subject() {
        assert!(is_addressable(&worker_id("a.b")));
        for bad in [".a", "a.", "a..b"] {
            assert!(!is_addressable(&worker_id(bad)), "{bad}");
        }
    }
}
