//! The routes, and the edge every request passes.

mod approvals;
mod bundles;
pub(crate) mod cursor;
mod decisions;
pub(crate) mod decode;
mod dlq;
mod explain;
mod jobs;
mod policy;
pub(crate) mod problem;
pub(crate) mod query;
mod rejections;
mod submit;
mod tasks;

use std::any::Any;
use std::sync::Arc;

use airlock_ledger::OpenJobs;
use airlock_service::Context;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tower_http::catch_panic::CatchPanicLayer;

use crate::auth::Keys;
use crate::config::{LimitsConfig, PolicyConfig};
use crate::connections::Links;
use crate::http::problem::Problem;
use crate::limits::admission::Admission;
use crate::metrics::GatewayMetrics;
use crate::policy::bundle_check::PublicKey;
use crate::policy::kernel::Kernel;
use crate::submit::commit::Submitter;
use crate::submit::wake_up::Waker;
use crate::tasks::TasksConfig;
use crate::trace::{self, Tracing};
use crate::waiting::Waiting;

pub use rejections::Refusals;

/// What the handlers share.
pub struct App {
    pub keys: Keys,
    pub limits: LimitsConfig,
    pub shards: u16,
    pub links: Links,
    pub submitter: Submitter,
    pub waker: Waker,
    pub waiting: Waiting,
    pub tracing: Tracing,
    pub metrics: GatewayMetrics,
    pub admission: Admission,
    pub open_jobs: Arc<OpenJobs>,
    /// Callers that were turned away, for the log.
    pub refusals: Refusals,
    pub kernel: Kernel,
    pub policy: PolicyConfig,
    /// Whose signatures on bundles count.
    pub bundle_keys: Vec<PublicKey>,
    pub tasks: TasksConfig,
    /// Tasks are taken without a key, from this machine.
    pub anonymous_tasks: bool,
    pub ctx: Context,
}

/// An answer, or what went wrong.
type Answer = Result<Response, Problem>;

pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/api/v1/jobs", post(submit::one).get(jobs::list))
        .route("/api/v1/jobs/batch", post(submit::batch))
        .route("/api/v1/jobs/{id}", get(jobs::get))
        .route("/api/v1/jobs/{id}/cancel", post(jobs::cancel))
        .route("/api/v1/jobs/{id}/explain", get(explain::get))
        .route("/api/v1/dlq", get(dlq::list))
        .route("/api/v1/dlq/retry", post(dlq::retry_many))
        .route("/api/v1/dlq/delete", post(dlq::delete_many))
        .route("/api/v1/dlq/{id}", get(dlq::get).delete(dlq::delete))
        .route("/api/v1/dlq/{id}/retry", post(dlq::retry))
        .route("/tasks", post(tasks::create))
        .route("/tasks/{id}", get(tasks::get))
        .route("/api/v1/approvals", get(approvals::list))
        .route("/api/v1/approvals/{id}", get(approvals::get))
        .route("/api/v1/approvals/{id}/approve", post(approvals::approve))
        .route("/api/v1/approvals/{id}/reject", post(approvals::reject))
        .route("/api/v1/policy/evaluate", post(policy::evaluate))
        .route("/api/v1/policy/simulate", post(policy::simulate))
        .route("/api/v1/policy/explain", post(policy::explain))
        .route("/api/v1/policy/snapshots", get(policy::snapshots))
        .route("/api/v1/policy/rules", get(policy::rules))
        .route("/api/v1/policy/status", get(bundles::status))
        .route("/api/v1/policy/decisions", get(decisions::list))
        .route(
            "/api/v1/policy/bundles",
            post(bundles::publish).get(bundles::list),
        )
        .route(
            "/api/v1/policy/bundles/{name}/rollback",
            post(bundles::rollback),
        )
        .method_not_allowed_fallback(wrong_method)
        .fallback(no_route)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(Arc::clone(&app), edge))
        .with_state(app)
}

/// Bounds the time, and renders problems with the request's trace id.
async fn edge(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let trace_id = trace::incoming(request.headers())
        .and_then(airlock_proto::trace::trace_id)
        .map(str::to_owned);
    let waits = request.uri().query().is_some_and(|q| q.contains("wait="));
    let bound = if waits {
        app.limits.request_timeout + app.limits.max_wait
    } else {
        app.limits.request_timeout
    };
    let remote = rejections::remote(request.extensions());
    let uri = request.uri().clone();
    let mut response = match tokio::time::timeout(bound, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::unavailable("the request took too long").into_response(),
    };
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        let trace_id = trace_id.unwrap_or_else(trace::fresh_id);
        app.refusals.note(&problem, remote, uri.path());
        if response.status().is_server_error() {
            tracing::warn!(
                trace_id,
                status = response.status().as_u16(),
                "answered an error"
            );
        }
        // Some answers bring headers of their own, such as the methods allowed.
        let headers = std::mem::take(response.headers_mut());
        response = problem.render(&trace_id);
        if let Some(allow) = headers.get(axum::http::header::ALLOW) {
            response
                .headers_mut()
                .insert(axum::http::header::ALLOW, allow.clone());
        }
    }
    app.metrics.answered(response.status().as_u16());
    response
}

fn panicked(_: Box<dyn Any + Send + 'static>) -> Response {
    // The panic itself was logged where it happened.
    Problem::internal().into_response()
}

async fn no_route(request: Request) -> Problem {
    Problem::no_such_route(request.uri().path())
}

async fn wrong_method(request: Request) -> Problem {
    Problem::wrong_method(request.method().as_str(), request.uri().path())
}
