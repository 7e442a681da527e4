//! The gateway as a service: its parts put together.

use std::sync::Arc;

use airlock_service::{Context, Service, ops};

use crate::auth::{self, Keys};
use crate::config::GatewayConfig;
use crate::connections::Links;
use crate::dlq::gauge::LettersGauge;
use crate::http::{self, App, Refusals};
use crate::limits::admission::Admission;
use crate::limits::open_jobs;
use crate::metrics::GatewayMetrics;
use crate::policy::kernel::Kernel;
use crate::policy::kernel_status;
use crate::submit::commit;
use crate::submit::wake_up::Waker;
use crate::trace::Tracing;
use crate::waiting::Waiting;

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
    ];
    const SERVES_HTTP: bool = true;
    type Config = GatewayConfig;

    async fn run(config: GatewayConfig, ctx: Context) -> anyhow::Result<()> {
        let keys = Keys::new(&config.auth)?;
        let metrics = GatewayMetrics::new(&ctx.metrics);
        let links = Links::default();
        links.keep(config.database, config.nats, &ctx);
        let waker = Waker::new(config.submit.publishers, &links, &metrics, &ctx);
        let submitter = commit::start(&config.submit, &links, waker.clone(), &metrics, &ctx);
        let waiting = Waiting::new(&config.limits, metrics.waiters.clone());
        waiting.start(&links, &ctx);
        LettersGauge::new(&ctx.metrics).start(&links, &ctx);
        let open_jobs = open_jobs::start(&config.limits, &links, &ctx);
        let exported = config
            .telemetry
            .otlp_endpoint
            .is_some_and(|e| !e.is_empty());
        let kernel = Kernel::new(&config.kernel).await?;
        kernel_status::watch(kernel.clone(), links.clone(), &ctx);
        // The server's task alone holds the app and with it the submitter: when the
        // last request is answered, the committers see the end of their queue.
        let app = App {
            keys,
            admission: Admission::new(&config.limits),
            open_jobs,
            refusals: Refusals::default(),
            limits: config.limits,
            shards: config.shards,
            links,
            submitter,
            waker,
            waiting,
            tracing: Tracing { exported },
            metrics,
            kernel,
            bundle_keys: config.policy.keys().map_err(anyhow::Error::msg)?,
            policy: config.policy,
            anonymous_tasks: config.auth.anonymous_tasks && auth::is_loopback(&config.http.listen),
            tasks: config.tasks,
            ctx: ctx.clone(),
        };
        let router = ops::router(&ctx).merge(http::router(Arc::new(app)));
        ops::serve(&config.http, router, &ctx).await?;
        // Not ready for all that until the ledger is: its component is down.
        ctx.health.declare_ready();
        ctx.shutdown.cancelled().await;
        Ok(())
    }
}
