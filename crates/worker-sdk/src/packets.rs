//! What a worker says on the bus, as CAP peers understand it.
//!
//! Plain functions from facts to messages. The sender of every packet is the worker's
//! id, or CAP peers would drop it.

use airlock_model::{Timestamp, WorkerId};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::cap::{self, ComponentRole, ErrorCode, JobStatus};
use airlock_proto::{own, packet};
use bytes::Bytes;

use crate::artifacts;
use crate::config::Settings;
use crate::constraints;
use crate::error::{JobError, JobErrorKind};
use crate::job::Job;
use crate::load::Load;
use crate::notes::{Alert, Progress};
use crate::signing::Keys;
use crate::text::bounded;

const LONGEST_ERROR: usize = 4_096;
const LONGEST_CODE: usize = 128;

/// Who speaks.
#[derive(Debug, Clone)]
pub(crate) struct Speaker {
    pub id: WorkerId,
    pub incarnation: String,
    pub keys: Keys,
}

/// How a job ended.
#[derive(Debug)]
pub(crate) enum Ending {
    Succeeded(Output),
    Failed(JobError),
    Cancelled(String),
    TimedOut(String),
    /// Handed back: it never began.
    NotStarted,
}

/// Where a result is.
#[derive(Debug)]
pub(crate) enum Output {
    Inline(Bytes),
    Pointer(Staged),
    /// Too large for a packet, and its store could not be reached. The work is done all
    /// the same and must not be done again.
    Lost(String),
}

/// A result in the store, and how to tell that it is still the same.
#[derive(Debug)]
pub(crate) struct Staged {
    pub pointer: String,
    pub sha256: Bytes,
    pub size: u64,
}

/// Which part of its life a worker announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Here,
    Draining,
    Leaving,
}

impl Speaker {
    fn seal(&self, trace_id: &str, now: Timestamp, payload: Payload) -> Bytes {
        self.keys
            .sign(packet::seal(self.id.as_str(), trace_id, now, payload))
    }

    /// `heard` is the ledger that was heard of last, and its highest epoch.
    pub fn hello(
        &self,
        settings: &Settings,
        phase: Phase,
        heard: Option<(String, u64)>,
        now: Timestamp,
    ) -> Bytes {
        let (ledger_id, highest_epoch) = heard.unwrap_or_default();
        let hello = own::WorkerHello {
            incarnation: self.incarnation.clone(),
            pool: settings.pool.to_string(),
            max_parallel_jobs: count(settings.max_parallel),
            capabilities: settings.capabilities.clone(),
            labels: settings.labels.clone(),
            region: settings.region.clone(),
            inline_payloads: true,
            draining: phase != Phase::Here,
            goodbye: phase == Phase::Leaving,
            highest_epoch,
            ledger_id,
        };
        let handshake = cap::Handshake {
            component_id: self.id.to_string(),
            role: ComponentRole::Worker.into(),
            supported_versions: vec![packet::PROTOCOL_VERSION],
            capabilities: settings.topics.iter().map(|t| (t.clone(), true)).collect(),
            sdk_version: concat!("airlock-rust/", env!("CARGO_PKG_VERSION")).to_owned(),
            ready_topics: settings.topics.clone(),
            agent_name: settings.name.clone(),
            airlock: Some(hello),
        };
        self.seal(&self.incarnation, now, Payload::Handshake(handshake))
    }

    pub fn heartbeat(
        &self,
        settings: &Settings,
        active: Vec<String>,
        load: Load,
        draining: bool,
        now: Timestamp,
    ) -> Bytes {
        let heartbeat = cap::Heartbeat {
            worker_id: self.id.to_string(),
            region: settings.region.clone(),
            r#type: "sdk".to_owned(),
            cpu_load: load.cpu,
            memory_load: load.memory,
            gpu_utilization: load.gpu,
            active_jobs: count(active.len()),
            capabilities: settings.capabilities.clone(),
            pool: settings.pool.to_string(),
            max_parallel_jobs: count(settings.max_parallel),
            labels: settings.labels.clone(),
            agent_name: settings.name.clone(),
            airlock: Some(own::WorkerStatus {
                incarnation: self.incarnation.clone(),
                active_dispatch_ids: active,
                draining,
                ready_topics: settings.topics.clone(),
                inline_payloads: true,
            }),
            ..cap::Heartbeat::default()
        };
        self.seal(&self.incarnation, now, Payload::Heartbeat(heartbeat))
    }

    pub fn inventory(
        &self,
        running: Vec<String>,
        finished: Vec<String>,
        heard: Option<(String, u64)>,
        now: Timestamp,
    ) -> Bytes {
        let (ledger_id, highest_epoch) = heard.unwrap_or_default();
        let inventory = own::WorkerInventory {
            worker_id: self.id.to_string(),
            incarnation: self.incarnation.clone(),
            running_dispatch_ids: running,
            finished_dispatch_ids: finished,
            highest_epoch,
            ledger_id,
        };
        self.seal(&self.incarnation, now, Payload::WorkerInventory(inventory))
    }

    /// Something to look at, as CAP peers tell it.
    pub fn alert(&self, alert: Alert, now: Timestamp) -> Bytes {
        let details = [
            ("code", alert.code.to_owned()),
            ("job_id", alert.job_id),
            ("topic", alert.topic),
        ];
        let system = cap::SystemAlert {
            message: alert.words,
            severity: cap::AlertSeverity::Warning.into(),
            error_code_enum: numbered(alert.code).into(),
            source_component: self.id.to_string(),
            details: details.map(|(name, value)| (name.to_owned(), value)).into(),
            trace_id: alert.trace_id.clone(),
            ..cap::SystemAlert::default()
        };
        self.seal(&alert.trace_id, now, Payload::Alert(system))
    }

    pub fn progress(&self, note: Progress, now: Timestamp) -> Bytes {
        let progress = cap::JobProgress {
            job_id: note.job_id,
            percent: note.percent,
            message: note.message,
            result_ptr: note.result_ptr,
            status: JobStatus::Running.into(),
            dispatch: note.dispatch,
            airlock: Some(own::ProgressDetail {
                incarnation: self.incarnation.clone(),
                started_at_us: note.started_us,
            }),
            ..cap::JobProgress::default()
        };
        self.seal(&note.trace_id, now, Payload::JobProgress(progress))
    }

    /// The word that a job has begun.
    pub fn running(&self, job: &Job, now: Timestamp) -> Bytes {
        self.progress(job.word(), now)
    }

    pub fn result(&self, job: &Job, ending: Ending, now: Timestamp) -> Bytes {
        let started = job.started();
        let mut detail = own::ResultDetail {
            incarnation: self.incarnation.clone(),
            started_at_us: started.map_or(0, |s| s.us),
            finished_at_us: now.0,
            constraints: constraints::of_job(job),
            ..own::ResultDetail::default()
        };
        let mut result = cap::JobResult {
            job_id: job.request.job_id.clone(),
            worker_id: self.id.to_string(),
            execution_ms: started.map_or(0, |s| {
                i64::try_from(s.at.elapsed().as_millis()).unwrap_or(i64::MAX)
            }),
            dispatch: job.request.dispatch.clone(),
            identity: job.request.identity.clone(),
            ..cap::JobResult::default()
        };
        for artifact in &job.extras().artifacts {
            result.artifact_ptrs.push(artifact.pointer.clone());
            result.artifact_refs.push(artifacts::reference(artifact));
        }
        let mut fail = |status: JobStatus, code: &str, message: &str| {
            result.status = status.into();
            result.error_code = bounded(code, LONGEST_CODE);
            result.error_message = bounded(message, LONGEST_ERROR);
            result.error_code_enum = numbered(code).into();
        };
        match ending {
            Ending::Failed(error) => fail(failed(error.kind()), error.code(), error.message()),
            Ending::Cancelled(reason) => fail(JobStatus::Cancelled, "cancelled", &reason),
            Ending::TimedOut(words) => fail(JobStatus::Timeout, TIMEOUT, &words),
            Ending::NotStarted => {
                detail.not_started = true;
                let words = "the worker is leaving and had not begun";
                fail(JobStatus::FailedRetryable, "not_started", words);
            }
            Ending::Succeeded(Output::Lost(words)) => {
                fail(JobStatus::Succeeded, "result_missing", &words);
            }
            Ending::Succeeded(Output::Inline(content)) => {
                result.status = JobStatus::Succeeded.into();
                detail.payload = Some(content);
            }
            Ending::Succeeded(Output::Pointer(staged)) => {
                result.status = JobStatus::Succeeded.into();
                result.result_ptr = staged.pointer;
                detail.payload_sha256 = staged.sha256;
                detail.payload_size = staged.size;
            }
        }
        result.airlock = Some(detail);
        self.seal(&job.trace_id, now, Payload::JobResult(result))
    }
}

const TIMEOUT: &str = "timeout";

fn failed(kind: JobErrorKind) -> JobStatus {
    match kind {
        JobErrorKind::Failed => JobStatus::Failed,
        JobErrorKind::Retryable => JobStatus::FailedRetryable,
        JobErrorKind::Fatal => JobStatus::FailedFatal,
    }
}

/// CAP's number for those of our own codes that have one.
fn numbered(code: &str) -> ErrorCode {
    match code {
        "invalid_input" => ErrorCode::JobInvalidInput,
        TIMEOUT => ErrorCode::JobTimeout,
        "constraint_violated" => ErrorCode::SafetyPolicyViolation,
        "worker_shutdown" | "not_started" => ErrorCode::JobWorkerUnavailable,
        _ => ErrorCode::Unspecified,
    }
}

fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}
