//! The HTTP server for `/metrics`, `/health/live` and `/health/ready`.
//!
//! It runs only when an address was given. What must stay true: no request here can hold up
//! a job; a port that is in use is an error at the start.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use crate::worker::shared::Shared;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves until it is dropped.
pub(crate) async fn serve_metrics(shared: Arc<Shared>, listener: TcpListener) {
    let router = Router::new()
        .route("/metrics", get(get_metrics))
        .route("/health/live", get(|| async { "live\n" }))
        .route("/health/ready", get(get_readiness))
        .with_state(shared);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "metrics server failed");
    }
}

async fn get_metrics(State(shared): State<Arc<Shared>>) -> Response {
    ([(header::CONTENT_TYPE, TEXT)], shared.render_metrics()).into_response()
}

/// Ready means connected to NATS and not draining.
async fn get_readiness(State(shared): State<Arc<Shared>>) -> Response {
    if shared.draining.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response();
    }
    if !*shared.connected.borrow() {
        return (StatusCode::SERVICE_UNAVAILABLE, "NATS is disconnected\n").into_response();
    }
    "ready\n".into_response()
}
