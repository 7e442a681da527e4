//! Typed ids. Each is checked once, where it enters, and trusted from then on.
//!
//! Ids from outside are bounded strings, because clients of the agent protocol name
//! their own jobs and workers; ours are version 7 UUIDs, whose order is the order of
//! creation, which keeps the ledger's index inserts at its right edge.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::routing::Addressing;
use crate::run_end::RunEnd;
use crate::state::JobState;
use crate::time::Timestamp;

/// Why a string is not a valid id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("{kind} must not be empty")]
    Empty { kind: &'static str },
    #[error("{kind} is {len} characters long; at most {max} are allowed")]
    TooLong {
        kind: &'static str,
        len: usize,
        max: usize,
    },
    #[error("{kind} contains {ch:?} at position {at}; {allowed}")]
    BadChar {
        kind: &'static str,
        ch: char,
        at: usize,
        allowed: &'static str,
    },
}

/// A rule for the characters of an id.
struct Charset {
    allowed: fn(char) -> bool,
    description: &'static str,
}

/// Anything printable without white space: safe in a Redis key and a log line.
const VISIBLE: Charset = Charset {
    allowed: |c| c.is_ascii_graphic(),
    description: "only visible ASCII characters are allowed",
};

/// What may be one or more tokens of a NATS subject.
const SUBJECT: Charset = Charset {
    allowed: |c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '/' | '@' | '+'),
    description: "only letters, digits and - _ . : / @ + are allowed",
};

fn check_id(kind: &'static str, s: &str, max: usize, set: &Charset) -> Result<(), IdError> {
    if s.is_empty() {
        return Err(IdError::Empty { kind });
    }
    if s.len() > max {
        return Err(IdError::TooLong {
            kind,
            len: s.chars().count(),
            max,
        });
    }
    match s.chars().enumerate().find(|(_, c)| !(set.allowed)(*c)) {
        Some((at, ch)) => Err(IdError::BadChar {
            kind,
            ch,
            at,
            allowed: set.description,
        }),
        None => Ok(()),
    }
}

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $max:literal, $set:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// The most characters one may have.
            pub const MAX_LEN: usize = $max;

            /// Checks and takes a string.
            pub fn new(s: impl AsRef<str>) -> Result<Self, IdError> {
                let s = s.as_ref();
                check_id($kind, s, $max, &$set)?;
                Ok(Self(Arc::from(s)))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(s: String) -> Result<Self, IdError> {
                Self::new(s)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0.as_ref().to_owned()
            }
        }

        impl std::str::FromStr for $name {
            type Err = IdError;
            fn from_str(s: &str) -> Result<Self, IdError> {
                Self::new(s)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

string_id!(
    /// A job, by any name its client gave it, or by a version 7 UUID of ours.
    JobId, "job id", 128, VISIBLE
);
string_id!(
    /// Whose job it is. Nothing of one tenant is ever shown to another.
    TenantId, "tenant id", 64, VISIBLE
);
string_id!(
    /// A worker process's name; part of the subject it is reached by.
    WorkerId, "worker id", 128, SUBJECT
);
string_id!(
    /// A group of workers that topics are mapped to.
    PoolName, "pool name", 64, SUBJECT
);
string_id!(
    /// Which ledger: made once with the database, and it goes where the data goes. Epochs
    /// count within one ledger only.
    LedgerId, "ledger id", 64, VISIBLE
);
string_id!(
    /// Random per worker process. The same worker id with a new incarnation means
    /// that the old process is gone and with it all it was running.
    Incarnation, "incarnation", 64, VISIBLE
);

impl JobId {
    /// An id of our own: a version 7 UUID made by the caller (making one needs a clock).
    pub fn from_uuid(id: Uuid) -> Self {
        Self(Arc::from(id.as_hyphenated().to_string().as_str()))
    }
}

/// What the incarnations of workers of the agent protocol begin with. Those workers have
/// none of their own, so the scheduler makes one up.
const AGENT_PROTOCOL: &str = "cap-";
const SHARED: &str = "cap-shared";
const TOPIC_LISTENER: &str = "cap-topic";

impl Incarnation {
    /// Of a worker of the agent protocol: the time it was first seen.
    pub fn agent_protocol(first_seen: Timestamp) -> Self {
        Self(Arc::from(
            format!("{AGENT_PROTOCOL}{}", first_seen.as_micros()).as_str(),
        ))
    }

    /// Of all processes that share a worker id.
    pub fn shared() -> Self {
        Self(Arc::from(SHARED))
    }

    /// Of whoever listens on a topic's subject without having registered.
    pub fn topic_listener() -> Self {
        Self(Arc::from(TOPIC_LISTENER))
    }

    /// Whether its worker uses only the agent protocol: it is not built on our SDK, so
    /// it knows no dispatch ids, epochs or receipts, and takes no payload in the packet.
    pub fn is_agent_protocol(&self) -> bool {
        self.as_str().starts_with(AGENT_PROTOCOL)
    }

    /// How a dispatch reaches its worker.
    pub fn addressing(&self) -> Addressing {
        match self.as_str() {
            SHARED => Addressing::Shared,
            TOPIC_LISTENER => Addressing::Unregistered,
            _ => Addressing::Direct,
        }
    }
}

/// What kind of work a job is, and the NATS subject shared workers listen on:
/// `job.` followed by dot-separated tokens.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Topic(Arc<str>);

/// Why a string is not a topic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicError {
    #[error(transparent)]
    Id(#[from] IdError),
    #[error("topic {0:?} must start with \"job.\", as in job.image.resize")]
    Prefix(String),
    #[error("topic {0:?} has an empty part between its dots")]
    EmptyToken(String),
}

impl Topic {
    pub const MAX_LEN: usize = 200;

    pub fn new(s: impl AsRef<str>) -> Result<Self, TopicError> {
        let s = s.as_ref();
        check_id("topic", s, Self::MAX_LEN, &SUBJECT)?;
        let Some(rest) = s.strip_prefix("job.") else {
            return Err(TopicError::Prefix(s.to_owned()));
        };
        if rest.split('.').any(str::is_empty) {
            return Err(TopicError::EmptyToken(s.to_owned()));
        }
        Ok(Self(Arc::from(s)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl TryFrom<String> for Topic {
    type Error = TopicError;
    fn try_from(s: String) -> Result<Self, TopicError> {
        Self::new(s)
    }
}

impl From<Topic> for String {
    fn from(t: Topic) -> String {
        t.0.as_ref().to_owned()
    }
}

impl std::str::FromStr for Topic {
    type Err = TopicError;
    fn from_str(s: &str) -> Result<Self, TopicError> {
        Self::new(s)
    }
}

/// One time a job was put on the wire. A worker runs a dispatch id at most once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DispatchId(pub Uuid);

impl fmt::Display for DispatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

impl fmt::Debug for DispatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

impl std::str::FromStr for DispatchId {
    type Err = uuid::Error;
    fn from_str(s: &str) -> Result<Self, uuid::Error> {
        Uuid::parse_str(s).map(Self)
    }
}

/// The number of a run of a job. Runs count from 1; 0 means that none was begun.
///
/// Two things carry one, and they count differently while a run is under way:
///
/// - A job's row in the ledger, an assignment and every message name **the run itself**: in
///   SCHEDULED, DISPATCHED and RUNNING it is included.
/// - [`QueuedJob::attempt`](crate::engine::QueuedJob) counts **the runs before**: a queued job
///   has no run under way, and the next one is [`Attempt::next`].
///
/// The conversions are the methods here. The ledger assigns a run only to a row that has
/// `before_this_run`, and takes the row back to it when a run is requeued that
/// surely never began (`after_requeue`).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Attempt(pub u32);

impl Attempt {
    /// The run after this one.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Whether this is the last run of a job that may have `max`.
    pub(crate) fn is_last_of(self, max: u32) -> bool {
        self.0 >= max
    }

    /// What was counted before this run was assigned.
    pub fn before_this_run(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// What a queued job counts, from what its row in this state counts.
    pub fn without_run_under_way(self, state: JobState) -> Self {
        match state.is_in_flight() {
            true => self.before_this_run(),
            false => self,
        }
    }

    /// What is counted after this run ended so and its job is queued again: a run that
    /// surely never began does not count.
    pub(crate) fn after_requeue(self, end: RunEnd) -> Self {
        match end.may_have_begun() {
            true => self,
            false => self.before_this_run(),
        }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A term of leadership. Only ever rises; the ledger refuses writes of an older one.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A disjoint part of all jobs with a leader of its own.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Shard(pub u16);

impl Shard {
    /// Which of `shards` parts a job belongs to: FNV-1a of its id, so that every
    /// process and every later version gives the same answer. One shard, or none, is
    /// shard 0.
    pub fn for_job(job: &JobId, shards: u16) -> Self {
        if shards <= 1 {
            return Self(0);
        }
        let hash = job
            .as_str()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
                (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
            });
        // The remainder is below `shards`, so it fits.
        Self(u16::try_from(hash % u64::from(shards)).unwrap_or(0))
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_bounded_and_visible() {
        assert!(JobId::new("a".repeat(128)).is_ok());
        assert!(matches!(
            JobId::new("a".repeat(129)),
            Err(IdError::TooLong { max: 128, .. })
        ));
        assert!(matches!(JobId::new(""), Err(IdError::Empty { .. })));
        for bad in ["a b", "a\n", "ü", "\0"] {
            assert!(
                matches!(JobId::new(bad), Err(IdError::BadChar { .. })),
                "{bad:?}"
            );
        }
        assert!(WorkerId::new("a*").is_err() && WorkerId::new("a>").is_err());
    }

    #[test]
    fn topics_are_subjects_below_job() {
        for good in ["job.echo", "job.a.b-c_d", "job.x1"] {
            assert!(Topic::new(good).is_ok(), "{good}");
        }
        for bad in [
            "", "job", "job.", "job..a", "job.a.", "echo", "job.a b", "job.*", "job.>",
        ] {
            assert!(Topic::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn made_up_incarnations_are_valid_and_say_how_a_worker_is_reached() {
        let made_up = [
            (
                Incarnation::agent_protocol(Timestamp(7)),
                Addressing::Direct,
            ),
            (Incarnation::shared(), Addressing::Shared),
            (Incarnation::topic_listener(), Addressing::Unregistered),
        ];
        for (incarnation, addressing) in made_up {
            assert_eq!(
                Incarnation::new(incarnation.as_str()),
                Ok(incarnation.clone())
            );
            assert!(incarnation.is_agent_protocol(), "{incarnation}");
            assert_eq!(incarnation.addressing(), addressing);
        }
        let sdk = Incarnation::new("0198-sdk").unwrap();
        assert!(!sdk.is_agent_protocol());
        assert_eq!(sdk.addressing(), Addressing::Direct);
    }

    #[test]
    fn a_queued_job_counts_the_runs_before() {
        let third = Attempt(3);
        assert_eq!(third.before_this_run().next(), third);
        assert_eq!(Attempt(0).before_this_run(), Attempt(0));
        for state in JobState::ALL {
            let queued = third.without_run_under_way(state);
            assert_eq!(
                queued.0,
                if state.is_in_flight() { 2 } else { 3 },
                "{state}"
            );
        }
        assert_eq!(third.after_requeue(RunEnd::WorkerLost), third);
        assert_eq!(third.after_requeue(RunEnd::NotAccepted), Attempt(2));
    }

    #[test]
    fn a_job_always_falls_into_the_same_shard() {
        let id = |i: u32| JobId::new(format!("job-{i}")).unwrap();
        assert_eq!(Shard::for_job(&id(1), 0), Shard(0));
        assert_eq!(Shard::for_job(&id(1), 1), Shard(0));
        // Pinned: another answer would orphan every open job of a running system.
        assert_eq!(Shard::for_job(&JobId::new("a").unwrap(), 16), Shard(12));
        let mut seen = [0_u32; 4];
        for i in 0..4_000 {
            seen[usize::from(Shard::for_job(&id(i), 4).0)] += 1;
        }
        assert!(seen.iter().all(|n| (800..1_200).contains(n)), "{seen:?}");
    }

    #[test]
    fn an_id_from_json_is_checked_too() {
        assert!(serde_json::from_str::<TenantId>("\"acme\"").is_ok());
        let err = serde_json::from_str::<TenantId>("\"a b\"").unwrap_err();
        assert!(err.to_string().contains("tenant id contains ' '"), "{err}");
    }
}
