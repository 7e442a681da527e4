use airlock_service::{Context, HostError, HttpConfig, ShutdownConfig, host_service, ops};
use axum::routing::get;

use crate::http;
use crate::probe::{Mode, Probe, ProbeConfig};

#[tokio::test]
async fn the_endpoints_tell_how_the_service_is() {
    let ctx = Context::for_host("probe");
    let address = ops::serve(
        &HttpConfig::at("127.0.0.1:0"),
        ops::standalone_router(&ctx),
        &ctx,
    )
    .await
    .expect("binds");

    let (status, body) = http::get(address, "/health/live").await;
    assert_eq!(status, 200, "{body}");
    let (status, body) = http::get(address, "/health/ready").await;
    assert_eq!((status, body.contains("starting")), (503, true), "{body}");

    ctx.health.declare_ready();
    ctx.health.degraded("guard", "local mode");
    ctx.health.set_fact("role", "standby");
    let (status, body) = http::get(address, "/health/ready").await;
    assert_eq!(status, 200, "{body}");
    let report: serde_json::Value = serde_json::from_str(&body).expect("is JSON");
    assert_eq!(report["components"]["guard"]["status"], "degraded");
    assert_eq!(report["components"]["guard"]["message"], "local mode");
    assert_eq!(report["facts"]["role"], "standby");

    ctx.health.down("ledger", "connection refused");
    let (status, body) = http::get(address, "/health/ready").await;
    assert_eq!(
        (status, body.contains("ledger is down")),
        (503, true),
        "{body}"
    );

    ctx.metrics.counter("probe_things", "Things").inc_by(3);
    let (status, body) = http::get(address, "/metrics").await;
    assert_eq!(status, 200);
    assert!(
        body.contains("probe_things_total 3") && body.ends_with("# EOF\n"),
        "{body}"
    );
}

#[tokio::test]
async fn routes_can_be_mounted_and_replaced_while_serving() {
    let ctx = Context::for_host("probe");
    let address = ops::serve(
        &HttpConfig::at("127.0.0.1:0"),
        ops::standalone_router(&ctx),
        &ctx,
    )
    .await
    .expect("binds");
    assert_eq!(http::get(address, "/health/leader").await.0, 404);
    ctx.mount("/health/leader", get(async || "one"));
    ctx.mount("/elsewhere", get(async || "there"));
    assert_eq!(
        http::get(address, "/health/leader").await,
        (200, "one".to_owned())
    );
    assert_eq!(
        http::get(address, "/elsewhere").await,
        (200, "there".to_owned())
    );
    ctx.mount("/health/leader", get(async || "two"));
    assert_eq!(
        http::get(address, "/health/leader").await,
        (200, "two".to_owned())
    );
}

#[tokio::test]
async fn the_routes_merge_with_a_router_that_has_a_fallback() {
    let ctx = Context::for_host("probe");
    let own = axum::Router::new()
        .route("/jobs", get(async || "jobs"))
        .fallback(async || "mine");
    let router = own.merge(ops::router(&ctx));
    let address = ops::serve(&HttpConfig::at("127.0.0.1:0"), router, &ctx)
        .await
        .expect("binds");
    ctx.mount("/health/leader", get(async || "leader"));
    assert_eq!(http::get(address, "/jobs").await.1, "jobs");
    assert_eq!(http::get(address, "/health/live").await.0, 200);
    assert_eq!(http::get(address, "/health/leader").await.1, "leader");
    assert_eq!(http::get(address, "/nothing").await.1, "mine");
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("binds");
    let address = taken.local_addr().expect("has an address").to_string();
    let ctx = Context::for_host("probe");
    let error = ops::serve(
        &HttpConfig::at(&address),
        ops::standalone_router(&ctx),
        &ctx,
    )
    .await
    .expect_err("is in use");
    assert!(error.to_string().contains(&address), "{error}");
}

#[tokio::test]
async fn a_panicking_handler_costs_one_request() {
    let ctx = Context::for_host("probe");
    ctx.mount(
        "/boom",
        get(async || -> &'static str { panic!("on purpose") }),
    );
    let address = ops::serve(
        &HttpConfig::at("127.0.0.1:0"),
        ops::standalone_router(&ctx),
        &ctx,
    )
    .await
    .expect("binds");
    assert_eq!(http::get(address, "/boom").await.0, 500);
    assert_eq!(http::get(address, "/health/live").await.0, 200);
}

#[tokio::test]
async fn a_hosted_service_serves_and_stops() {
    let ctx = Context::for_host("probe");
    let hosted = tokio::spawn(host_service::<Probe>(ProbeConfig::default(), ctx.clone()));
    let address = ctx.http_address().await.expect("serves");
    assert_eq!(http::get(address, "/health/live").await.0, 200);
    ctx.shutdown.cancel();
    hosted.await.expect("joins").expect("stops cleanly");
    assert!(ctx.tasks.running_tasks().is_empty());
}

#[tokio::test]
async fn a_hosted_service_that_hangs_is_ended_and_named() {
    let ctx = Context::for_host("probe");
    let config = ProbeConfig {
        mode: Mode::Stuck,
        http: HttpConfig::default(),
        shutdown: ShutdownConfig { grace_seconds: 1 },
        ..ProbeConfig::default()
    };
    ctx.shutdown.cancel();
    let error = host_service::<Probe>(config, ctx).await.expect_err("hangs");
    assert!(
        matches!(&error, HostError::Overdue { tasks, .. } if *tasks == ["stubborn"]),
        "{error}"
    );
}
