//! Errors as clients see them: RFC 9457, `application/problem+json`.
//!
//! What must stay true: a problem says what is wrong with *the request*, with the field
//! named, and never what an inner error said; that goes to the log. The trace id is put
//! in at the edge ([`Problem::render`]), so that a client can be helped by it.

use airlock_api::FieldProblem;
use airlock_model::{JobState, SagaState};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

/// A problem. Boxed, because it is the error of nearly every function here and should
/// not make their good results large.
#[derive(Debug, Clone)]
pub struct Problem(Box<Content>);

/// What is sent, and what is only for the headers and the log.
#[derive(Debug, Clone)]
struct Content {
    body: airlock_api::Problem,
    retry_after: Option<u16>,
    /// The name of the key that was refused, for the log.
    key_name: Option<String>,
}

impl Problem {
    fn new(status: StatusCode, slug: &str, title: &'static str, detail: impl Into<String>) -> Self {
        Self(Box::new(Content {
            body: airlock_api::Problem {
                kind: format!("urn:airlock:problem:{slug}"),
                title: title.into(),
                status: status.as_u16(),
                detail: detail.into(),
                ..airlock_api::Problem::default()
            },
            retry_after: None,
            key_name: None,
        }))
    }

    /// A field of the request, a query parameter or a header is wrong.
    pub fn invalid_field(field: impl Into<String>, message: impl Into<String>) -> Self {
        let title = "The request is not valid";
        Self::new(StatusCode::BAD_REQUEST, "invalid-request", title, "")
            .with_field_error(field, message)
    }

    /// The body is not JSON at all.
    pub fn malformed(detail: impl Into<String>) -> Self {
        let title = "The body is not JSON";
        Self::new(StatusCode::BAD_REQUEST, "malformed-json", title, detail)
    }

    pub fn too_large(field: &str, message: impl Into<String>) -> Self {
        let title = "The request is too large";
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", title, "")
            .with_field_error(field, message)
    }

    /// The body did not come on.
    pub fn body_timeout(bound: std::time::Duration) -> Self {
        let detail = format!("nothing of the body came for {} ms", bound.as_millis());
        let title = "The request took too long to arrive";
        Self::new(StatusCode::REQUEST_TIMEOUT, "body-timeout", title, detail)
    }

    /// The ledger refuses this very job.
    pub fn unstorable_job(detail: impl Into<String>) -> Self {
        let title = "The job cannot be stored";
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "unstorable",
            title,
            detail,
        )
    }

    /// A policy that cannot be loaded, with the places of its mistakes.
    pub fn unloadable_policy(
        field: &str,
        refused: impl Into<String>,
        mistakes: Vec<FieldProblem>,
    ) -> Self {
        let title = "The policy cannot be loaded";
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        let mut problem =
            Self::new(status, "policy-refused", title, "").with_field_error(field, refused);
        if !mistakes.is_empty() {
            problem.0.body.errors = mistakes;
        }
        problem
    }

    pub fn unauthorized(detail: impl Into<String>) -> Self {
        let title = "Not authenticated";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", title, detail)
    }

    /// Only whoever has the key learns of it; its name is for the log ([`Problem::with_key_name`]).
    pub fn key_expired() -> Self {
        let title = "The API key has expired";
        let detail = "the API key has expired; ask for a new one";
        Self::new(StatusCode::UNAUTHORIZED, "key-expired", title, detail)
    }

    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", "Not allowed", detail)
    }

    /// A key of one tenant with the header of another.
    pub fn other_tenant() -> Self {
        Self::forbidden("this API key belongs to another tenant").with_field("X-Tenant-ID")
    }

    /// Unknown and another tenant's look the same.
    pub fn no_such_job(id: &str) -> Self {
        let detail = format!("there is no job {id:?}");
        Self::new(StatusCode::NOT_FOUND, "no-such-job", "No such job", detail)
    }

    /// Unknown and another tenant's look the same.
    pub fn no_such_dead_letter(id: &str) -> Self {
        let detail = format!("there is no dead letter {id:?}");
        let title = "No such dead letter";
        Self::new(StatusCode::NOT_FOUND, "no-such-dead-letter", title, detail)
    }

    /// Never held, or another tenant's.
    pub fn no_such_approval(id: &str) -> Self {
        let detail = format!("nobody was asked to approve a job {id:?}");
        let title = "No such approval";
        Self::new(StatusCode::NOT_FOUND, "no-such-approval", title, detail)
    }

    /// Never quarantined, or another tenant's.
    pub fn no_such_quarantined_output(id: &str) -> Self {
        let detail = format!("there is no quarantined output of a job {id:?}");
        let title = "No such quarantined output";
        Self::new(
            StatusCode::NOT_FOUND,
            "no-such-quarantined-output",
            title,
            detail,
        )
    }

    /// Unknown and another tenant's look the same.
    pub fn no_such_rescan(id: &str) -> Self {
        let detail = format!("there is no rescan {id:?}");
        let title = "No such rescan";
        Self::new(StatusCode::NOT_FOUND, "no-such-rescan", title, detail)
    }

    /// The original was removed.
    pub fn evidence_gone() -> Self {
        let detail = "the original output is no longer kept; its retention has ended";
        let title = "The evidence is gone";
        Self::new(StatusCode::GONE, "evidence-gone", title, detail)
    }

    /// Findings that redaction cannot replace, by their places.
    pub fn not_redactable(findings: Vec<(String, String)>) -> Self {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        let title = "The text cannot be redacted";
        let detail = "some findings cannot be replaced, so that nothing is answered";
        let mut problem = Self::new(status, "not-redactable", title, detail);
        problem.0.body.errors = findings
            .into_iter()
            .map(|(field, message)| FieldProblem { field, message })
            .collect();
        problem
    }

    pub fn no_such_bundle(name: &str) -> Self {
        let detail = format!("there is no such version of a bundle {name:?}");
        let title = "No such bundle";
        Self::new(StatusCode::NOT_FOUND, "no-such-bundle", title, detail)
    }

    /// Unknown and another tenant's look the same.
    pub fn no_such_saga(workflow_id: &str) -> Self {
        let detail = format!("there is no saga of a workflow {workflow_id:?}");
        let title = "No such saga";
        Self::new(StatusCode::NOT_FOUND, "no-such-saga", title, detail)
    }

    pub fn no_such_route(path: &str) -> Self {
        let detail = format!("there is nothing at {path}");
        Self::new(StatusCode::NOT_FOUND, "no-such-route", "Not found", detail)
    }

    pub fn wrong_method(method: &str, path: &str) -> Self {
        let detail = format!("{path} does not answer to {method}");
        let title = "Method not allowed";
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "wrong-method",
            title,
            detail,
        )
    }

    pub fn wrong_content_type() -> Self {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        let title = "Wrong content type";
        Self::new(status, "wrong-content-type", title, "")
            .with_field_error("Content-Type", "must be application/json")
    }

    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", "Conflict", detail)
    }

    /// Too much is under way; nothing was done.
    pub fn overloaded(detail: impl Into<String>) -> Self {
        let title = "Too busy";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", title, detail).with_retry_after(1)
    }

    /// Jobs have to end before others are accepted.
    pub fn too_many_open_jobs(detail: impl Into<String>, open: u64, limit: u64) -> Self {
        let status = StatusCode::TOO_MANY_REQUESTS;
        let title = "Too many open jobs";
        let mut problem =
            Self::new(status, "too-many-open-jobs", title, detail).with_retry_after(5);
        problem.0.body.open_jobs = Some(open);
        problem.0.body.limit = Some(limit);
        problem
    }

    /// Something this needs does not answer.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        let title = "Not available";
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable",
            title,
            detail,
        )
        .with_retry_after(2)
    }

    pub fn internal() -> Self {
        let detail = "something went wrong here; the log has more under the trace id";
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "Internal error",
            detail,
        )
    }

    fn with_field_error(mut self, field: impl Into<String>, message: impl Into<String>) -> Self {
        let (field, message) = (field.into(), message.into());
        self.0.body.detail = format!("{field}: {message}");
        self.0.body.field = Some(field.clone());
        self.0.body.errors = vec![FieldProblem { field, message }];
        self
    }

    /// The field that the problem is about.
    pub fn field_name(&self) -> Option<&str> {
        self.0.body.field.as_deref()
    }

    /// Names what in the request it is about, where the detail does not.
    pub fn with_field(mut self, field: &str) -> Self {
        self.0.body.field = Some(field.to_owned());
        self
    }

    /// This one, with what else is wrong listed behind it.
    pub fn with_errors_of(mut self, other: Self) -> Self {
        self.0.body.errors.extend(other.0.body.errors);
        self
    }

    /// The same problem, of one item in a list of jobs.
    pub fn with_field_prefix(mut self, prefix: &str) -> Self {
        if let Some(field) = self.0.body.field.take() {
            let full = format!("{prefix}.{field}");
            for error in &mut self.0.body.errors {
                error.field = format!("{prefix}.{}", error.field);
            }
            self.0.body.detail = format!("{prefix}.{}", self.0.body.detail);
            self.0.body.field = Some(full);
        }
        self
    }

    pub fn with_job_id(mut self, id: impl ToString) -> Self {
        self.0.body.job_id = Some(id.to_string());
        self
    }

    pub fn with_job_state(mut self, state: JobState) -> Self {
        self.0.body.state = Some(state);
        self
    }

    /// Which saga it is about, and its state where there is one.
    pub fn with_saga(mut self, workflow_id: &str, state: Option<SagaState>) -> Self {
        self.0.body.workflow_id = Some(workflow_id.to_owned());
        self.0.body.saga_state = state;
        self
    }

    /// Which key was refused.
    pub fn with_key_name(mut self, key_name: &str) -> Self {
        self.0.key_name = Some(key_name.to_owned());
        self
    }

    pub fn key_name(&self) -> Option<&str> {
        self.0.key_name.as_deref()
    }

    fn with_retry_after(mut self, seconds: u16) -> Self {
        self.0.retry_after = Some(seconds);
        self
    }

    pub fn detail(&self) -> &str {
        &self.0.body.detail
    }

    pub fn with_trace_id(mut self, trace_id: &str) -> Self {
        self.0.body.trace_id = Some(trace_id.to_owned());
        self
    }

    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.0.body.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// What is sent, for an outcome within a larger response.
    pub fn into_body(self) -> airlock_api::Problem {
        self.0.body
    }

    /// The answer itself.
    pub fn render(mut self, trace_id: &str) -> Response {
        self.0
            .body
            .trace_id
            .get_or_insert_with(|| trace_id.to_owned());
        let status = self.status();
        let body = serde_json::to_vec(&self.0.body).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if let Some(seconds) = self.0.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// What is wrong with the fields of a request, gathered so that all of it is said at once.
#[derive(Debug, Default)]
pub struct Problems(Option<Problem>);

impl Problems {
    /// The value of a field, unless it is wrong.
    pub fn take<T, E: ToString>(&mut self, field: &str, value: Result<T, E>) -> Option<T> {
        match value {
            Ok(value) => Some(value),
            Err(message) => {
                self.add(Problem::invalid_field(field, message.to_string()));
                None
            }
        }
    }

    pub fn add(&mut self, problem: Problem) {
        self.0 = Some(match self.0.take() {
            Some(first) => first.with_errors_of(problem),
            None => problem,
        });
    }

    /// Refuses the request if anything was wrong.
    pub fn check(self) -> Result<(), Problem> {
        self.0.map_or(Ok(()), Err)
    }
}

/// An empty response that carries the problem; the edge renders it.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_named_three_times_for_three_kinds_of_readers() {
        let problem =
            Problem::invalid_field("labels.x", "is reserved").with_field_prefix("jobs[3]");
        let json = serde_json::to_value(problem.into_body()).unwrap();
        assert_eq!(json["field"], "jobs[3].labels.x");
        assert_eq!(json["errors"][0]["field"], "jobs[3].labels.x");
        assert_eq!(json["detail"], "jobs[3].labels.x: is reserved");
        assert_eq!(json["status"], 400);
    }
}
