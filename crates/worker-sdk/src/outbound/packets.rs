//! Building the packets that a worker publishes, in the format of CAP peers.
//!
//! Pure functions. The sender of every packet is the worker's id, or CAP peers would drop
//! it.

use airlock_model::{Incarnation, Timestamp, WorkerId};
use airlock_proto::cap::bus_packet::Payload;
use airlock_proto::cap::{self, ComponentRole, ErrorCode, JobStatus};
use airlock_proto::{own, packet};
use bytes::Bytes;

use crate::constraints;
use crate::error::JobErrorKind;
use crate::outbound::load::Load;
use crate::outbound::progress::{Alert, Progress};
use crate::run::artifacts;
use crate::run::job::Job;
use crate::run::outcome::{JobOutcome, Output};
use crate::text::truncate_to_bytes;
use crate::worker::config::Settings;
use crate::worker::signing::Keys;

const LONGEST_ERROR: usize = 4_096;
const LONGEST_CODE: usize = 128;

/// Builds and signs the packets of one worker process.
#[derive(Debug, Clone)]
pub(crate) struct PacketBuilder {
    pub id: WorkerId,
    pub incarnation: String,
    /// The process that had the id before on this machine, which has ended.
    pub replaces: Option<Incarnation>,
    pub keys: Keys,
}

/// The phase of a worker's life that a handshake announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    Draining,
    Stopping,
}

impl PacketBuilder {
    fn encode_packet(&self, trace_id: &str, now: Timestamp, payload: Payload) -> Bytes {
        self.keys
            .sign(packet::encode(self.id.as_str(), trace_id, now, payload))
    }

    /// `latest` is the ledger that was last seen, and its highest epoch.
    pub fn handshake(
        &self,
        settings: &Settings,
        phase: Phase,
        latest: Option<(String, u64)>,
        now: Timestamp,
    ) -> Bytes {
        let (ledger_id, highest_epoch) = latest.unwrap_or_default();
        let hello = own::WorkerHello {
            incarnation: self.incarnation.clone(),
            pool: settings.pool.to_string(),
            max_parallel_jobs: to_i32(settings.max_parallel),
            capabilities: settings.capabilities.clone(),
            labels: settings.labels.clone(),
            region: settings.region.clone(),
            inline_payloads: true,
            draining: phase != Phase::Running,
            goodbye: phase == Phase::Stopping,
            highest_epoch,
            ledger_id,
            replaces: self
                .replaces
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
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
        self.encode_packet(&self.incarnation, now, Payload::Handshake(handshake))
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
            active_jobs: to_i32(active.len()),
            capabilities: settings.capabilities.clone(),
            pool: settings.pool.to_string(),
            max_parallel_jobs: to_i32(settings.max_parallel),
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
        self.encode_packet(&self.incarnation, now, Payload::Heartbeat(heartbeat))
    }

    pub fn inventory(
        &self,
        running: Vec<String>,
        finished: Vec<String>,
        latest: Option<(String, u64)>,
        now: Timestamp,
    ) -> Bytes {
        let (ledger_id, highest_epoch) = latest.unwrap_or_default();
        let inventory = own::WorkerInventory {
            worker_id: self.id.to_string(),
            incarnation: self.incarnation.clone(),
            running_dispatch_ids: running,
            finished_dispatch_ids: finished,
            highest_epoch,
            ledger_id,
        };
        self.encode_packet(&self.incarnation, now, Payload::WorkerInventory(inventory))
    }

    /// An alert, as CAP peers publish it.
    pub fn alert(&self, alert: Alert, now: Timestamp) -> Bytes {
        let details = [
            ("code", alert.code.to_owned()),
            ("job_id", alert.job_id),
            ("topic", alert.topic),
        ];
        let system = cap::SystemAlert {
            message: alert.message,
            severity: cap::AlertSeverity::Warning.into(),
            error_code_enum: cap_error_code(alert.code).into(),
            source_component: self.id.to_string(),
            details: details.map(|(name, value)| (name.to_owned(), value)).into(),
            trace_id: alert.trace_id.clone(),
            ..cap::SystemAlert::default()
        };
        self.encode_packet(&alert.trace_id, now, Payload::Alert(system))
    }

    pub fn progress(&self, update: Progress, now: Timestamp) -> Bytes {
        let progress = cap::JobProgress {
            job_id: update.job_id,
            percent: update.percent,
            message: update.message,
            result_ptr: update.result_ptr,
            status: JobStatus::Running.into(),
            dispatch: update.dispatch,
            airlock: Some(own::ProgressDetail {
                incarnation: self.incarnation.clone(),
                started_at_us: update.started_us,
            }),
            ..cap::JobProgress::default()
        };
        self.encode_packet(&update.trace_id, now, Payload::JobProgress(progress))
    }

    pub fn result(&self, job: &Job, outcome: JobOutcome, now: Timestamp) -> Bytes {
        let started = job.started();
        let mut detail = own::ResultDetail {
            incarnation: self.incarnation.clone(),
            started_at_us: started.map_or(0, |s| s.us),
            finished_at_us: now.0,
            constraints: constraints::build_constraint_reports(job),
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
            result
                .artifact_refs
                .push(artifacts::to_resource_ref(artifact));
        }
        let mut fail = |status: JobStatus, code: &str, message: &str| {
            result.status = status.into();
            result.error_code = truncate_to_bytes(code, LONGEST_CODE);
            result.error_message = truncate_to_bytes(message, LONGEST_ERROR);
            result.error_code_enum = cap_error_code(code).into();
        };
        match outcome {
            JobOutcome::Failed(error) => {
                fail(failure_status(error.kind()), error.code(), error.message())
            }
            JobOutcome::Cancelled(reason) => fail(JobStatus::Cancelled, "cancelled", &reason),
            JobOutcome::TimedOut(message) => fail(JobStatus::Timeout, TIMEOUT, &message),
            JobOutcome::NotStarted => {
                detail.not_started = true;
                let message = "the worker is stopping and had not begun the job";
                fail(JobStatus::FailedRetryable, "not_started", message);
            }
            JobOutcome::Succeeded(Output::Lost(message)) => {
                fail(JobStatus::Succeeded, "result_missing", &message);
            }
            JobOutcome::Succeeded(Output::Inline(content)) => {
                result.status = JobStatus::Succeeded.into();
                detail.payload = Some(content);
            }
            JobOutcome::Succeeded(Output::Pointer(staged)) => {
                result.status = JobStatus::Succeeded.into();
                result.result_ptr = staged.pointer;
                detail.payload_sha256 = staged.sha256;
                detail.payload_size = staged.size;
            }
        }
        result.airlock = Some(detail);
        self.encode_packet(&job.trace_id, now, Payload::JobResult(result))
    }
}

const TIMEOUT: &str = "timeout";

fn failure_status(kind: JobErrorKind) -> JobStatus {
    match kind {
        JobErrorKind::Failed => JobStatus::Failed,
        JobErrorKind::Retryable => JobStatus::FailedRetryable,
        JobErrorKind::Fatal => JobStatus::FailedFatal,
    }
}

/// CAP's number for those of our own codes that have one.
fn cap_error_code(code: &str) -> ErrorCode {
    match code {
        "invalid_input" => ErrorCode::JobInvalidInput,
        TIMEOUT => ErrorCode::JobTimeout,
        "constraint_violated" => ErrorCode::SafetyPolicyViolation,
        "worker_shutdown" | "not_started" => ErrorCode::JobWorkerUnavailable,
        _ => ErrorCode::Unspecified,
    }
}

fn to_i32(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}
