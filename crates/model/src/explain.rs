//! What an open job waits for, as the leader's engine has it: the request and the reply of
//! `explain`, and the sentence that a person reads.
//!
//! None of this is in the ledger: what a job waits for changes with every heartbeat, and a
//! write per job and try would cost more than the jobs themselves.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, PoolName, TenantId, WorkerId};
use crate::output::OUTPUT_HELD;
use crate::routing::WaitReason;
use crate::time::Timestamp;

/// The code of a job that the safety kernel is evaluating.
pub const CHECKING: &str = "safety_check";

/// Requests the wait status of one job from the leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainRequest {
    pub job_id: JobId,
}

/// The leader's reply. The names on the wire are older than those of the fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainReply {
    pub job_id: JobId,
    pub leader: String,
    pub epoch: u64,
    pub at: Timestamp,
    #[serde(flatten)]
    pub status: WaitStatus,
}

/// What a job waits for, or who runs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "standing", rename_all = "snake_case")]
pub enum WaitStatus {
    /// The leader's engine does not track it.
    Unknown,
    /// The safety kernel decides about it.
    Checking { since: Timestamp },
    /// Allowed, and in the ready queue.
    Waiting {
        /// The code, as a dead letter would have it.
        reason: String,
        /// The same in words, with names and numbers.
        detail: String,
        since: Timestamp,
        pools: Vec<PoolName>,
        /// Tries that counted.
        tries: u32,
        /// When the leader took the job over from another and began to count them anew.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        counted_since: Option<Timestamp>,
        max_tries: u32,
        next_try_at: Timestamp,
        /// Jobs that wait in the same lane (pool and tenant), itself included.
        lane: u64,
    },
    /// The kernel decides about it again at a time.
    Sleeping {
        reason: String,
        /// The same in words, where there is more than the reason.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        detail: String,
        since: Timestamp,
        until: Timestamp,
    },
    /// Held for a human.
    Held { since: Timestamp },
    /// Its run has succeeded, and what it put out is held until it is judged.
    OutputHeld { detail: String, since: Timestamp },
    /// With a worker.
    Assigned {
        worker: WorkerId,
        attempt: u32,
        max_attempts: u32,
        since: Timestamp,
        accepted: bool,
        started_at: Option<Timestamp>,
        #[serde(rename = "last_sign")]
        last_heartbeat: Timestamp,
    },
}

impl WaitStatus {
    /// What an open job waits for: the code and the words. `None` when that is
    /// not known here, or when it does not wait.
    pub fn waits_for(&self) -> Option<(String, String)> {
        match self {
            Self::Checking { .. } => Some((
                CHECKING.to_owned(),
                "the safety kernel is being asked".to_owned(),
            )),
            Self::Waiting { reason, detail, .. } => Some((reason.clone(), detail.clone())),
            Self::Sleeping { reason, detail, .. } => {
                let text = sleeping_text(reason, detail).to_owned();
                Some((reason.clone(), text))
            }
            Self::OutputHeld { detail, .. } => Some((OUTPUT_HELD.to_owned(), detail.clone())),
            Self::Unknown | Self::Held { .. } | Self::Assigned { .. } => None,
        }
    }

    /// One sentence for a person, at `now`.
    pub fn to_sentence(&self, now: Timestamp) -> String {
        match self {
            Self::Unknown => {
                "The scheduler does not track it yet; the replayer finds forgotten jobs.".to_owned()
            }
            Self::Checking { since } => format!(
                "It is before the safety kernel, {}.",
                elapsed_text("since", now, *since)
            ),
            Self::Waiting {
                detail,
                since,
                tries,
                counted_since,
                max_tries,
                next_try_at,
                lane,
                ..
            } => {
                let mut text =
                    format!("It waits {}: {detail}.", elapsed_text("since", now, *since));
                if *lane > 1 {
                    text.push_str(&format!(" {lane} jobs of its tenant wait there."));
                }
                text.push_str(&used_tries_text(*tries, *max_tries, *counted_since));
                text.push_str(&next_try_text(now, *next_try_at));
                text
            }
            Self::Sleeping {
                reason,
                detail,
                since,
                until,
            } => format!(
                "It waits {}: {}; next in {}.",
                elapsed_text("since", now, *since),
                sleeping_text(reason, detail),
                human_duration(until.since(now))
            ),
            Self::Held { since } => {
                format!(
                    "It is held for approval, {}.",
                    elapsed_text("since", now, *since)
                )
            }
            Self::OutputHeld { detail, since } => format!(
                "Its run has succeeded; its output is held {}: {detail}.",
                elapsed_text("since", now, *since)
            ),
            Self::Assigned {
                worker,
                attempt,
                max_attempts,
                since,
                accepted,
                started_at,
                last_heartbeat,
            } => {
                let run = format!("run {attempt} of at most {max_attempts}");
                match (started_at, accepted) {
                    (Some(at), _) => format!(
                        "Worker {worker} runs it ({run}) {}; last heartbeat {} ago.",
                        elapsed_text("since", now, *at),
                        human_duration(now.since(*last_heartbeat))
                    ),
                    (None, true) => {
                        format!("Worker {worker} has accepted it ({run}).")
                    }
                    (None, false) => format!(
                        "It was given to worker {worker} ({run}) {}, which has not accepted it yet.",
                        elapsed_text("since", now, *since)
                    ),
                }
            }
        }
    }
}

fn used_tries_text(tries: u32, max: u32, counted_since: Option<Timestamp>) -> String {
    match counted_since {
        _ if tries == 0 => String::new(),
        Some(at) => {
            format!(" {tries} of {max} tries are used up, counted anew by this leader since {at}.")
        }
        None => format!(" {tries} of {max} tries are used up."),
    }
}

fn next_try_text(now: Timestamp, at: Timestamp) -> String {
    if at <= now {
        return String::new();
    }
    let within = human_duration(at.since(now));
    format!(" It is tried as soon as something changes, and in {within} in any case.")
}

fn sleeping_text<'a>(reason: &'a str, detail: &'a str) -> &'a str {
    if !detail.is_empty() {
        return detail;
    }
    match reason {
        "throttled" => "the policy asks to slow down",
        "safety_unavailable" => "the safety kernel cannot be asked",
        "dispatch_failed" => "it could not be put on the wire",
        "backoff" => "its last run failed and the next one has its time",
        other => other,
    }
}

fn elapsed_text(label: &str, now: Timestamp, then: Timestamp) -> String {
    format!("for {} ({label} {then})", human_duration(now.since(then)))
}

/// A duration as a person says it.
fn human_duration(d: Duration) -> String {
    let s = d.as_secs();
    match s {
        0 => format!("{} ms", d.as_millis()),
        1..120 => format!("{s} s"),
        120..7200 => format!("{} min", s / 60),
        _ => format!("{} h", s / 3600),
    }
}

/// The jobs of one tenant that wait for the same pools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// The pools' names; `none` where no pool is mapped.
    pub pool: String,
    pub tenant: TenantId,
    pub reason: WaitReason,
    pub waiting: u64,
    /// Since when the first of them waits.
    pub oldest: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_survive_the_wire() {
        let reply = ExplainReply {
            job_id: JobId::new("j").unwrap(),
            leader: "here".to_owned(),
            epoch: 3,
            at: Timestamp(5),
            status: WaitStatus::Waiting {
                reason: "no_workers".to_owned(),
                detail: "no worker in pool default".to_owned(),
                since: Timestamp(1),
                pools: vec![PoolName::new("default").unwrap()],
                tries: 2,
                counted_since: None,
                max_tries: 50,
                next_try_at: Timestamp(9),
                lane: 4,
            },
        };
        let text = serde_json::to_string(&reply).unwrap();
        assert!(text.contains("\"standing\":\"waiting\""), "{text}");
        assert_eq!(serde_json::from_str::<ExplainReply>(&text).unwrap(), reply);
    }

    #[test]
    fn a_sleeping_job_says_what_it_was_told_or_what_its_reason_means() {
        let sleeping = |reason: &str, detail: &str| WaitStatus::Sleeping {
            reason: reason.to_owned(),
            detail: detail.to_owned(),
            since: Timestamp(0),
            until: Timestamp::from_millis(5_000),
        };
        let open = sleeping("safety_unavailable", "safety kernel circuit open");
        let (code, text) = open.waits_for().unwrap();
        assert_eq!(code, "safety_unavailable");
        assert_eq!(text, "safety kernel circuit open");
        let text = open.to_sentence(Timestamp(0));
        assert!(
            text.contains("safety kernel circuit open; next in 5 s"),
            "{text}"
        );
        let (_, text) = sleeping("throttled", "").waits_for().unwrap();
        assert_eq!(text, "the policy asks to slow down");
        let held = WaitStatus::Held {
            since: Timestamp(0),
        };
        assert_eq!(held.waits_for(), None);
    }

    #[test]
    fn a_sentence_names_reason_time_and_tries() {
        let now = Timestamp::from_millis(100_000);
        let text = WaitStatus::Waiting {
            reason: "no_workers".to_owned(),
            detail: "no worker in pool default serves job.a".to_owned(),
            since: Timestamp::from_millis(88_000),
            pools: Vec::new(),
            tries: 3,
            counted_since: Some(Timestamp::from_millis(90_000)),
            max_tries: 50,
            next_try_at: Timestamp::from_millis(104_000),
            lane: 7,
        }
        .to_sentence(now);
        for part in [
            "12 s",
            "no worker in pool default",
            "7 jobs",
            "3 of 50",
            "counted anew by this leader since 1970-01-01T00:01:30",
            "in 4 s",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
