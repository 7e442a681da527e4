//! `/metrics`, `/health/live` and `/health/ready`, for whoever runs the worker.
//!
//! Served only when an address was given. What must stay true: nobody who asks here can
//! hold up a job; a port that is taken is an error at the start.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use crate::core::Core;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Answers until it is dropped.
pub(crate) async fn serve(core: Arc<Core>, listener: TcpListener) {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/health/live", get(|| async { "live\n" }))
        .route("/health/ready", get(ready))
        .with_state(core);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "serving metrics");
    }
}

async fn metrics(State(core): State<Arc<Core>>) -> Response {
    ([(header::CONTENT_TYPE, TEXT)], core.render_metrics()).into_response()
}

/// Ready is: connected, and taking work.
async fn ready(State(core): State<Arc<Core>>) -> Response {
    if core.draining.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response();
    }
    if !*core.connected.borrow() {
        return (StatusCode::SERVICE_UNAVAILABLE, "NATS is away\n").into_response();
    }
    "ready\n".into_response()
}
