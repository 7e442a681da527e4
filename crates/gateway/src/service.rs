//! The gateway as a service: its parts put together.

use std::sync::Arc;

use airlock_service::{Context, Service, ops};

use crate::config::GatewayConfig;
use crate::connections::Links;
use crate::dlq::gauge::DeadLetterGauge;
use crate::http::{App, routes};
use crate::leader_health;
use crate::policy::kernel_status;

pub struct Gateway;

impl Service for Gateway {
    const NAME: &'static str = "gateway";
    const ENV: &'static [(&'static str, &'static str)] = &[
        ("NATS_URL", "nats.url"),
        ("DATABASE_URL", "database.url"),
        ("AIRLOCK_API_KEY", "auth.development_key"),
        ("AIRLOCK_APPROVER_KEY", "auth.approver_key"),
        ("SAFETY_KERNEL_TLS_CA", "kernel.tls_ca"),
        ("SAFETY_KERNEL_TLS_REQUIRED", "kernel.tls_required"),
        ("SAFETY_KERNEL_INSECURE", "kernel.insecure"),
        ("OUTPUT_POLICY_ENABLED", "output.enabled"),
        ("OUTPUT_SCANNERS_PATH", "output.scanners_path"),
    ];
    const SERVES_HTTP: bool = true;
    type Config = GatewayConfig;

    async fn run(config: GatewayConfig, ctx: Context) -> anyhow::Result<()> {
        let links = Links::default();
        links.keep_connected(config.database.clone(), config.nats.clone(), &ctx);
        DeadLetterGauge::new(&ctx.metrics).start_counting(&links, &ctx);
        let (http, shards) = (config.http.clone(), config.shards);
        // The server's task alone holds the app and with it the submitter: when the
        // last request is answered, the committers see the end of their queue.
        let app = App::new(config, links.clone(), &ctx).await?;
        app.waiting.start_listening(&links, &ctx);
        leader_health::watch_leader_health(links.clone(), shards, &ctx);
        kernel_status::watch_kernel_status(app.kernel.clone(), links, &ctx);
        let router = ops::router(&ctx).merge(routes::build_router(Arc::new(app)));
        ops::serve(&http, router, &ctx).await?;
        // Not ready for all that until the ledger is: its component is down.
        ctx.health.declare_ready();
        ctx.shutdown.cancelled().await;
        Ok(())
    }
}
