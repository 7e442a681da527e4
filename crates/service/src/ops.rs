//! The operations endpoints: `/health/live`, `/health/ready`, `/metrics`.
//!
//! [`serve`] binds before it returns, so that a port in use is an error at the
//! start and not a line in a log nobody reads.

use std::io;
use std::net::SocketAddr;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tokio::net::TcpListener;
use tower::ServiceExt;
use tower_http::catch_panic::CatchPanicLayer;

use crate::metrics::CONTENT_TYPE;
use crate::{Context, HttpConfig, OnFailure, server};

/// Why the HTTP server could not start. Neither is worth a retry by itself: an
/// address in use stays in use until someone acts.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address} (http.listen)")]
    Bind { address: String, source: io::Error },
}

/// The operations routes, to be merged with others. It has no fallback, so that
/// the other router may have one.
pub fn router(ctx: &Context) -> Router {
    Router::new()
        .route("/health/live", get(get_liveness))
        .route("/health/ready", get(get_readiness))
        .route("/metrics", get(get_metrics))
        .route("/health/{*rest}", axum::routing::any(route_to_mounted))
        .with_state(ctx.clone())
}

/// The operations routes for a server of their own: everything mounted on `ctx`
/// is reachable.
pub fn standalone_router(ctx: &Context) -> Router {
    router(ctx).fallback_service(axum::routing::any(route_to_mounted).with_state(ctx.clone()))
}

/// Listens and serves `router` as a task of `ctx` until shutdown, then lets requests in
/// progress finish. Gives the address, of interest when port 0 was asked for.
pub async fn serve(
    config: &HttpConfig,
    router: Router,
    ctx: &Context,
) -> Result<SocketAddr, ServeError> {
    let bind_error = |source| ServeError::Bind {
        address: config.listen.clone(),
        source,
    };
    let listener = TcpListener::bind(&config.listen)
        .await
        .map_err(bind_error)?;
    let address = listener.local_addr().map_err(bind_error)?;
    let router = router.layer(CatchPanicLayer::new());
    let (config, shutdown) = (config.clone(), ctx.shutdown.clone());
    ctx.tasks.spawn("http", OnFailure::StopService, async move {
        server::serve_connections(listener, router, config, shutdown).await;
    });
    tracing::info!(service = ctx.name(), version = crate::VERSION, %address, "listening for HTTP");
    ctx.set_http_address(address);
    Ok(address)
}

/// The process runs and its runtime answers; nothing more is claimed here, or a
/// broken dependency would get the process killed.
async fn get_liveness(State(ctx): State<Context>) -> Response {
    Json(serde_json::json!({
        "status": "live",
        "service": ctx.name(),
        "version": crate::VERSION,
    }))
    .into_response()
}

async fn get_readiness(State(ctx): State<Context>) -> Response {
    let report = ctx.health.report();
    let status = if report.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(report)).into_response()
}

async fn get_metrics(State(ctx): State<Context>) -> Response {
    match ctx.metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "encoding metrics failed");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Looks the route up anew for each request, since routes may be mounted while
/// the server runs. These are rare requests, so building the table is fine.
async fn route_to_mounted(State(ctx): State<Context>, request: Request) -> Response {
    match ctx.mounted_routes().oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}
