//! The REST interface as types: what clients send and what the gateway answers.
//!
//! What must stay true: this is the only place where the JSON of the interface is written
//! down. The gateway serializes these types and clients deserialize them, so that the two
//! cannot drift apart. The crate is pure: no I/O, no clock, no server.
//!
//! Payloads and results are raw JSON, never parsed on the way. Types that carry some have a
//! parameter for it: clients own it (`Box<RawValue>`, the default), the gateway borrows it
//! from the ledger's bytes.
//!
//! What a client may send is written down as the client sends it. How strictly the gateway
//! reads it (unknown fields, all mistakes at once) is the gateway's own affair.

mod approvals;
mod dlq;
mod jobs;
mod leader;
mod output;
mod policy;
mod problem;
mod sagas;
mod tasks;

use serde::{Deserialize, Serialize};

pub use approvals::{
    Approval, ApprovalDetail, ApprovalListRequest, ApprovalPage, AuditEntry, Change, LastApproved,
    Vote, VoteRequest,
};
pub use dlq::{
    BulkOutcome, BulkRequest, DeadLetter, DeadLetterDetail, DeadLetterFilter, DeadLetterPage,
    DeleteOutcome, RetryResponse,
};
pub use jobs::{
    Artifact, BatchItem, BatchResponse, CancelRequest, CancelResponse, ConstraintReport, Decision,
    Explanation, HistoryEntry, Job, JobPage, ListRequest, Partial, PayloadError, Progress,
    SubmitRequest, SubmitResponse,
};
pub use leader::{LeaderChange, LeaderStatus, Standby, StepDownResponse};
pub use output::{
    OutputReview, OutputVerdict, QuarantineDetail, QuarantineEntry, QuarantineListRequest,
    QuarantinePage, RejectRequest, ReleaseRequest, Rescan, RescanRequest,
};
pub use policy::{
    ActiveBundle, Bundle, BundleChange, BundlePage, DecisionPage, Evaluation, EvaluationRequest,
    KernelProbe, KernelStatus, LoadedBy, PastDecision, PolicyStatus, PublishRequest,
    RollbackRequest, Rules, Snapshot, SnapshotPage,
};
pub use problem::{FieldProblem, Problem};
pub use sagas::{
    PlannedCompensation, ReceiptDocument, ReceiptEntry, Saga, SagaActionRequest, SagaCompensation,
    SagaCounts, SagaListRequest, SagaPage, SagaPlan, SagaReceipt, SagaRollbackRequest,
};
pub use tasks::{TaskResponse, TaskStatus};

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Where the next page begins. `null` when there is none: some clients read pages until
    /// it is.
    #[serde(default)]
    pub next_cursor: Option<String>,
}
