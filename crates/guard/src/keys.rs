//! Every Redis key: its name, its life time, its purpose. No other module, in this crate
//! or another, writes a key by hand.
//!
//! What must stay true: the configurable prefix replaces only `cordum:`. The other keys
//! are met by workers and tools that were written for them, so they stay as they are.

use std::time::Duration;

use airlock_bus::MessageKey;
use airlock_model::ids::JobId;

/// Processed messages are remembered this long: as long as AckWait.
pub const PROCESSED_TTL: Duration = Duration::from_secs(600);
/// A message shows as being worked on for this long.
pub const INFLIGHT_TTL: Duration = Duration::from_secs(120);
/// A job's lock, renewed every third of it.
pub const JOB_LOCK_TTL: Duration = Duration::from_secs(60);
/// A workflow run's lock, renewed every third of it.
pub const RUN_LOCK_TTL: Duration = Duration::from_secs(30);
/// A saga's lock while it is rolled back.
pub const SAGA_LOCK_TTL: Duration = Duration::from_secs(120);
/// The snapshot writer's lock, released right after the write.
pub const SNAPSHOT_LOCK_TTL: Duration = Duration::from_secs(10);
/// The delay poller's lock.
pub const DELAY_POLLER_TTL: Duration = Duration::from_secs(10);
/// Failures further apart than this are not in a row.
pub const BREAKER_TTL: Duration = Duration::from_secs(600);

/// The workers as the scheduler last knew them. No expiry: old is better than nothing,
/// and the reader treats its workers as just seen.
pub const WORKERS_SNAPSHOT: &str = "sys:workers:snapshot";

/// How long a periodic lock lives: twice the time between two ticks.
pub fn periodic_ttl(poll: Duration) -> Duration {
    poll * 2
}

/// Builds the keys that carry the prefix.
#[derive(Debug, Clone)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// With the documents' prefix this is `cordum`.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self {
            prefix: prefix.into(),
        }
    }

    /// Says that a message was processed; its value is the message's time in the stream.
    /// [`PROCESSED_TTL`].
    pub fn processed(&self, key: &MessageKey) -> String {
        self.message_key("processed", key)
    }

    /// Says that a message is being worked on; for inspection, never a gate.
    /// [`INFLIGHT_TTL`].
    pub fn inflight(&self, key: &MessageKey) -> String {
        self.message_key("inflight", key)
    }

    fn message_key(&self, what: &str, key: &MessageKey) -> String {
        let MessageKey {
            stream,
            consumer,
            seq,
            ..
        } = key;
        format!("{}:bus:{what}:{stream}:{consumer}:{seq}", self.prefix)
    }

    /// One writer per job at a time; value `<epoch>:<token>`. [`JOB_LOCK_TTL`].
    pub fn job_lock(&self, job: &JobId) -> String {
        format!("{}:scheduler:job:{job}", self.prefix)
    }

    /// The ledger whose leader uses this Redis under this prefix; the life time of a claim
    /// ([`CLAIM_TTL`](crate::CLAIM_TTL)).
    pub fn ledger_claim(&self) -> String {
        format!("{}:ledger", self.prefix)
    }

    /// One reconciler; [`periodic_ttl`].
    pub fn reconciler_lock(&self) -> String {
        format!("{}:reconciler:default", self.prefix)
    }

    /// One replayer of pending jobs; [`periodic_ttl`].
    pub fn replayer_lock(&self) -> String {
        format!("{}:replayer:pending", self.prefix)
    }

    /// One reconciler of workflows; [`periodic_ttl`].
    pub fn workflow_reconciler_lock(&self) -> String {
        format!("{}:workflow-engine:reconciler:default", self.prefix)
    }

    /// One writer per workflow run; [`RUN_LOCK_TTL`].
    pub fn run_lock(&self, run: &str) -> String {
        format!("{}:wf:run:lock:{run}", self.prefix)
    }

    /// One writer of the workers' snapshot; [`SNAPSHOT_LOCK_TTL`].
    pub fn snapshot_writer_lock(&self) -> String {
        format!("{}:scheduler:snapshot:writer", self.prefix)
    }

    /// One poller of workflow delays; [`DELAY_POLLER_TTL`].
    pub fn delay_poller_lock(&self) -> String {
        format!("{}:wf:delay:poller", self.prefix)
    }

    /// Sorted set of `workflow:run` by the second at which it goes on. No expiry.
    pub fn delay_timers(&self) -> String {
        format!("{}:wf:delay:timers", self.prefix)
    }

    /// Failures of the safety kernel that all replicas count together; [`BREAKER_TTL`].
    pub fn safety_failures(&self) -> String {
        format!("{}:cb:safety:failures", self.prefix)
    }

    /// The same of the output policy; [`BREAKER_TTL`].
    pub fn output_failures(&self) -> String {
        format!("{}:cb:safety:output:failures", self.prefix)
    }

    /// Sorted set of the jobs a velocity rule let through in its window, by time. The
    /// rule's window.
    pub fn velocity(&self, counter: &str) -> String {
        format!("{}:velocity:{counter}", self.prefix)
    }
}

/// Beside a failure counter: since when the circuit is open, and who probes. A day, so
/// that what nobody asks for any more does not stay.
pub fn circuit_key(failures: &str) -> String {
    format!("{failures}:circuit")
}

/// One rollback per saga at a time; [`SAGA_LOCK_TTL`].
pub fn saga_lock_key(workflow: &str) -> String {
    format!("saga:{workflow}:lock")
}

/// The saga's compensations, newest last: a working copy of the ledger's. No expiry.
pub fn saga_stack_key(workflow: &str) -> String {
    format!("saga:{workflow}:stack")
}

/// A job's input, where workers of the agent protocol look for it. The writer gives its
/// life time.
pub fn context_key(job: &JobId) -> String {
    format!("ctx:{job}")
}

/// Where a worker leaves a job's output; expired once the ledger has it.
pub fn result_key(job: &JobId) -> String {
    format!("res:{job}")
}

/// Where one run of a job leaves its output, beside that of any other run of it; expired
/// once the ledger has it.
pub fn run_result_key(job: &JobId, dispatch: &str) -> String {
    format!("res:{job}:{dispatch}")
}

/// What a running job has produced so far, its `n`th update; the worker gives it its life
/// time. Only pointed at by progress, never a result.
pub fn partial_result_key(job: &JobId, n: u32) -> String {
    format!("res:{job}:partial:{n}")
}

/// Whether a key is where the worker of this very run leaves what it makes. A job's id may
/// hold colons, so that not all that begins like its key is its own.
pub fn is_key_of_run(job: &JobId, dispatch: &str, key: &str) -> bool {
    if let Some(rest) = key.strip_prefix(result_key(job).as_str()) {
        let named = |kind: &str| rest.strip_prefix(kind).is_some_and(|name| !name.is_empty());
        return rest.is_empty()
            || named(":partial:")
            || named(":redacted:")
            || (!dispatch.is_empty() && rest.strip_prefix(':') == Some(dispatch));
    }
    is_artifact_key_of(job.as_str(), key) || is_artifact_key_of(dispatch, key)
}

fn is_artifact_key_of(owner: &str, key: &str) -> bool {
    let name = key.strip_prefix(ARTIFACT);
    let rest = name.and_then(|name| name.strip_prefix(owner));
    !owner.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '-']))
}

/// Whether a key is one for artifacts, which are not ours to expire.
pub fn is_artifact_key(key: &str) -> bool {
    key.starts_with(ARTIFACT)
}

const ARTIFACT: &str = "art:";

/// An artifact of a worker's; never ours to expire.
pub fn artifact_key(id: &str) -> String {
    format!("{ARTIFACT}{id}")
}

const POINTER: &str = "redis://";

/// What a packet carries instead of a payload. All after the scheme *is* the key.
pub fn to_pointer(key: &str) -> String {
    format!("{POINTER}{key}")
}

/// Whether a key is one for jobs' inputs. What a pointer of a stranger names must be: any
/// other key is nobody's business but its owner's.
pub fn is_context_key(key: &str) -> bool {
    key.len() > 4 && key.starts_with("ctx:")
}

/// The key a pointer names.
pub fn parse_pointer(pointer: &str) -> Option<&str> {
    pointer.strip_prefix(POINTER).filter(|key| !key.is_empty())
}

#[cfg(test)]
mod tests {
    use airlock_model::Timestamp;

    use super::*;

    fn all(prefix: &str) -> Vec<String> {
        let keys = Keys::new(prefix);
        let job = JobId::new("j1").expect("a job id");
        let message = MessageKey {
            stream: "CORDUM_SYS".into(),
            consumer: "sched".into(),
            seq: 42,
            published_at: Timestamp(1),
        };
        vec![
            keys.processed(&message),
            keys.inflight(&message),
            keys.job_lock(&job),
            keys.ledger_claim(),
            keys.reconciler_lock(),
            keys.replayer_lock(),
            keys.workflow_reconciler_lock(),
            keys.run_lock("r1"),
            keys.snapshot_writer_lock(),
            keys.delay_poller_lock(),
            keys.delay_timers(),
            keys.safety_failures(),
            keys.output_failures(),
            circuit_key(&keys.safety_failures()),
            keys.velocity("0a1b"),
            saga_lock_key("w1"),
            saga_stack_key("w1"),
            WORKERS_SNAPSHOT.to_owned(),
            context_key(&job),
            result_key(&job),
            artifact_key("a1"),
            partial_result_key(&job, 3),
            run_result_key(&job, "d1"),
        ]
    }

    #[test]
    fn a_run_has_its_own_keys_and_no_others() {
        const RUN: &str = "0d5e6a2c-1111-4222-8333-444455556666";
        for id in ["j1", "j1:x", "a:partial"] {
            let job = JobId::new(id).expect("a job id");
            for own in [
                result_key(&job),
                run_result_key(&job, RUN),
                partial_result_key(&job, 3),
                format!("res:{id}:redacted:0123456789abcdef"),
                artifact_key(id),
                artifact_key(&format!("{id}:log")),
                artifact_key(RUN),
                artifact_key(&format!("{RUN}-1")),
            ] {
                assert!(is_key_of_run(&job, RUN, &own), "{own} of {id}");
            }
            for other in [
                "res:j12",
                "res:j",
                "res:other",
                "res:",
                "ctx:j1",
                "art:",
                "art:one",
                "art:j",
                "sys:workers:snapshot",
                "",
            ] {
                assert!(!is_key_of_run(&job, RUN, other), "{other} of {id}");
            }
            for end in [":x:y", ":partial", ":partial:", ":redacted:", ":", "x"] {
                let key = format!("res:{id}{end}");
                assert!(!is_key_of_run(&job, RUN, &key), "{key} of {id}");
            }
            let another = run_result_key(&job, "0d5e6a2c-1111-4222-8333-444455550000");
            assert!(!is_key_of_run(&job, RUN, &another), "another run's");
            assert!(!is_key_of_run(&job, "", &format!("res:{id}:")));
            assert!(!is_key_of_run(&job, "", "art:-1"));
        }
        assert!(is_artifact_key("art:x") && !is_artifact_key("res:x"));
    }

    #[test]
    fn every_key_is_the_documents() {
        let documented = [
            "cordum:bus:processed:CORDUM_SYS:sched:42",
            "cordum:bus:inflight:CORDUM_SYS:sched:42",
            "cordum:scheduler:job:j1",
            "cordum:ledger",
            "cordum:reconciler:default",
            "cordum:replayer:pending",
            "cordum:workflow-engine:reconciler:default",
            "cordum:wf:run:lock:r1",
            "cordum:scheduler:snapshot:writer",
            "cordum:wf:delay:poller",
            "cordum:wf:delay:timers",
            "cordum:cb:safety:failures",
            "cordum:cb:safety:output:failures",
            "cordum:cb:safety:failures:circuit",
            "cordum:velocity:0a1b",
            "saga:w1:lock",
            "saga:w1:stack",
            "sys:workers:snapshot",
            "ctx:j1",
            "res:j1",
            "art:a1",
            "res:j1:partial:3",
            "res:j1:d1",
        ];
        assert_eq!(all("cordum"), documented);
        let other: Vec<_> = documented
            .iter()
            .map(|key| key.replace("cordum:", "airlock:"))
            .collect();
        assert_eq!(all("airlock"), other);
    }

    #[test]
    fn pointers_round_trip() {
        for key in ["ctx:j1", "res:j1:redacted:0123456789abcdef", "a://b"] {
            assert_eq!(parse_pointer(&to_pointer(key)), Some(key));
        }
        assert!(is_context_key("ctx:j1"));
        for other in [
            "ctx:",
            "res:",
            "cordum:job:lock:j1",
            "sys:workers:snapshot",
            "",
        ] {
            assert!(!is_context_key(other), "{other}");
        }
        for bad in ["", "redis://", "s3://x", "ctx:j1"] {
            assert_eq!(parse_pointer(bad), None, "{bad}");
        }
    }
}
