//! A typed client of the gateway's REST interface.
//!
//! ```no_run
//! # async fn example() -> Result<(), airlock_client::ClientError> {
//! use std::time::Duration;
//! use airlock_client::{Client, SubmitRequest};
//!
//! let client = Client::from_env()?;
//! let request = SubmitRequest::new("job.echo").payload(&["hello"])?;
//! let job = client.submit_wait(&request, Duration::from_secs(30)).await?;
//! println!("{} is {}", job.job_id, job.state);
//! # Ok(())
//! # }
//! ```
//!
//! What must stay true: nothing is done twice because this client tried twice. Reads
//! and cancellations may be repeated by their nature; a submission is repeated only
//! under an idempotency key, which is generated when the caller gave none.

mod approvals;
mod client;
mod dlq;
mod error;
mod leader;
mod output;
mod policy;
mod sagas;

pub use airlock_api::{
    ActiveBundle, Approval, ApprovalDetail, ApprovalListRequest, ApprovalPage, Artifact,
    AuditEntry, BatchItem, BulkOutcome, Bundle, BundleChange, BundlePage, CancelResponse, Change,
    ConstraintReport, DeadLetter, DeadLetterDetail, DeadLetterFilter, DeadLetterPage, Decision,
    DecisionPage, DeleteOutcome, Evaluation, EvaluationRequest, Explanation, FieldProblem,
    HistoryEntry, Job, JobPage, KernelProbe, KernelStatus, LastApproved, LeaderChange,
    LeaderStatus, ListRequest, LoadedBy, OutputReview, OutputVerdict, Page, Partial, PastDecision,
    PayloadError, PolicyStatus, Problem, Progress, PublishRequest, QuarantineDetail,
    QuarantineEntry, QuarantineListRequest, QuarantinePage, Rescan, RescanRequest, RetryResponse,
    Rules, Snapshot, SnapshotPage, Standby, StepDownResponse, SubmitRequest, SubmitResponse, Vote,
};
pub use airlock_api::{
    PlannedCompensation, ReceiptDocument, ReceiptEntry, Saga, SagaCompensation, SagaCounts,
    SagaListRequest, SagaPage, SagaPlan, SagaReceipt, SagaRollbackRequest,
};
pub use airlock_model::job::{Budget, Compensation, Cost};
pub use airlock_model::output::{OutputFinding, OutputStatus};
pub use client::Client;
pub use error::ClientError;
