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
//! under an idempotency key, which is made up when the caller gave none.

mod approvals;
mod client;
mod dlq;
mod error;
mod policy;
mod types;

pub use approvals::{Approval, ApprovalListRequest, ApprovalPage, AuditEntry, Vote};
pub use client::Client;
pub use dlq::{
    BulkOutcome, DeadLetter, DeadLetterDetail, DeadLetterFilter, DeadLetterPage, DeleteOutcome,
    Explanation, SecondChance,
};
pub use error::{ClientError, FieldProblem, Problem};
pub use policy::{
    AskedKernel, Bundle, BundlePage, DecisionPage, Evaluation, KernelStanding, LoadedBy,
    PastDecision, PolicyQuestion, PolicyStatus, PublishRequest, Rules, SnapshotPage,
};
pub use types::{
    Artifact, Budget, CancelResponse, Compensation, ConstraintReport, Decision, HistoryEntry, Job,
    JobPage, ListRequest, Partial, Progress, SubmitRequest, SubmitResponse,
};
