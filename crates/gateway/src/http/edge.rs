//! The edge that every request passes: it bounds the time and renders errors.

use std::any::Any;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;
use super::{App, rejections};
use crate::trace;

/// Bounds the time, and renders problems with the request's trace id.
pub(super) async fn apply_timeout_and_render(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Response {
    let trace_id = trace::incoming_traceparent(request.headers())
        .and_then(airlock_proto::trace::trace_id)
        .map(str::to_owned);
    let waits = request.uri().query().is_some_and(|q| q.contains("wait="));
    let bound = if waits {
        app.limits.request_timeout + app.limits.max_wait
    } else {
        app.limits.request_timeout
    };
    let remote = rejections::remote_addr(request.extensions());
    let uri = request.uri().clone();
    let mut response = match tokio::time::timeout(bound, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::unavailable("the request took too long").into_response(),
    };
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        let trace_id = trace_id.unwrap_or_else(trace::new_trace_id);
        app.rejections.log_rejection(&problem, remote, uri.path());
        if response.status().is_server_error() {
            tracing::warn!(
                trace_id,
                status = response.status().as_u16(),
                path = uri.path(),
                "request failed"
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
    app.metrics.count_response(response.status().as_u16());
    response
}

pub(super) fn panic_response(_: Box<dyn Any + Send + 'static>) -> Response {
    // The panic itself was logged where it happened.
    Problem::internal().into_response()
}
