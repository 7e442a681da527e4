//! `airlock dev`: every service in one process.
//!
//! The services are the same libraries that the separate binaries run, with the same
//! configuration layers; what is overridden (see [`plan`]) is only what one process
//! needs. They still meet on the bus, over gRPC and in the ledger: no shortcut that
//! production does not have, or development would test something else.
//!
//! What must stay true: `/health/ready` of the gateway is 200 only while all of them
//! are ready, because that is the one address a developer's script can know.

mod mirror;
mod plan;
mod service_host;

use std::net::SocketAddr;
use std::time::Duration;

use airlock_gateway::Gateway;
use airlock_output_policy::OutputPolicy;
use airlock_safety_kernel::Prepared;
use airlock_saga_manager::SagaManager;
use airlock_scheduler::Scheduler;
use airlock_service::config::Sources;
use airlock_service::{Context, OnFailure, Service, host_service, ops, telemetry};
use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use self::plan::Plan;
use self::service_host::ServiceHost;
use crate::args;
use crate::exit::Exit;
use crate::terminal::Terminal;

/// How long blocking threads may hold up the end of the process.
const RUNTIME_SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(250);
/// How long the gateway waits for the others before it opens its doors anyway and
/// tells through its health what is missing.
const GATEWAY_START_DELAY: Duration = Duration::from_secs(2);
/// After this long without being ready, the reason is said.
const NOT_READY_WARNING_AFTER: Duration = Duration::from_secs(10);
const READY_POLL_INTERVAL: Duration = Duration::from_millis(50);

pub fn run(args: &args::Dev, terminal: Terminal) -> Exit {
    let plan = match Plan::load(Sources::from_process(), args.listen.as_deref()) {
        Ok(plan) => plan,
        Err(problems) => {
            for problem in problems {
                terminal.error(&problem.to_string());
            }
            terminal.hint("./dev up sets everything up by itself");
            return Exit::Usage;
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            terminal.error(&format!("starting the runtime: {error}"));
            return Exit::Failed;
        }
    };
    let result = runtime.block_on(run_until_stopped(plan, terminal));
    runtime.shutdown_timeout(RUNTIME_SHUTDOWN_TIMEOUT);
    match result {
        Ok(()) => Exit::Done,
        Err(error) => {
            let mut text = error.to_string();
            for cause in error.chain().skip(1) {
                text.push_str(&format!("\n  because: {cause}"));
            }
            terminal.error(&text);
            Exit::Failed
        }
    }
}

async fn run_until_stopped(plan: Plan, terminal: Terminal) -> anyhow::Result<()> {
    let telemetry = telemetry::init("dev", plan.telemetry())?;
    let stop = CancellationToken::new();
    // Heard from before anything starts until after everything has stopped.
    let signals = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    tokio::spawn(stop_on_signal(signals, stop.clone(), terminal));

    let mut host = ServiceHost::new(plan.total_grace());
    let started = tokio::select! {
        started = start_services(&plan, &mut host) => started.map(Some),
        () = stop.cancelled() => Ok(None),
    };
    let failure = match started {
        Ok(Some(gateway)) => tokio::select! {
            failure = host.wait_first_exit() => Some(failure),
            () = stop.cancelled() => None,
            never = announce_when_ready(&gateway, terminal) => match never {},
        },
        Ok(None) => None,
        Err(error) => Some(error),
    };
    let stopped = host.stop_all().await;
    telemetry.flush().await;
    // What made us stop is the cause; what went wrong while stopping a consequence.
    failure.map_or(stopped, Err)
}

/// Kernel, output policy, scheduler, saga manager, gateway: each finds those it needs. Gives the
/// gateway's context.
async fn start_services(plan: &Plan, host: &mut ServiceHost) -> anyhow::Result<Context> {
    let kernel = Context::for_host(airlock_safety_kernel::SafetyKernel::NAME);
    let prepared = Prepared::new(&plan.kernel, kernel.clone()).await?;
    let asked_at = prepared.address();
    ops::serve(&plan.kernel.http, ops::standalone_router(&kernel), &kernel).await?;
    let (ctx, grace) = (kernel.clone(), plan.grace_per_service());
    host.spawn_service(kernel.clone(), async move {
        let served = prepared.serve().await;
        ctx.shutdown.cancel();
        let drained = ctx.tasks.drain(grace).await;
        served.context("safety-kernel failed")?;
        drained.map_err(|tasks| {
            let tasks = tasks.join(", ");
            anyhow::anyhow!("safety-kernel did not stop in time; still running: {tasks}")
        })
    });

    let output = start_output_policy(plan, host).await?;
    let judged_at = output.as_ref().map(|(_, address)| *address);

    let scheduler = Context::for_host(Scheduler::NAME);
    let config = plan.scheduler_config(asked_at, judged_at)?;
    host.spawn_service(
        scheduler.clone(),
        run_service::<Scheduler>(config, scheduler.clone()),
    );

    let saga_manager = Context::for_host(SagaManager::NAME);
    host.spawn_service(
        saga_manager.clone(),
        run_service::<SagaManager>(plan.saga_manager.clone(), saga_manager.clone()),
    );

    let gateway = Context::for_host(Gateway::NAME).with_sources(plan.gateway_sources.clone());
    let mut others = vec![kernel, scheduler, saga_manager];
    others.extend(output.map(|(ctx, _)| ctx));
    let ready = async {
        while !others.iter().all(|other| other.health.is_ready()) {
            tokio::time::sleep(READY_POLL_INTERVAL).await;
        }
    };
    tokio::select! {
        () = ready => {}
        () = tokio::time::sleep(GATEWAY_START_DELAY) => {}
        failure = host.wait_first_exit() => return Err(failure),
    }
    // Before the gateway can declare itself ready, so that it is never ready alone.
    mirror::mirror_health_once(&others, &gateway);
    let mirrored = gateway.clone();
    gateway
        .tasks
        .spawn("mirror", OnFailure::StopService, async move {
            mirror::mirror_health_until_shutdown(&others, &mirrored).await;
        });
    host.spawn_service(
        gateway.clone(),
        run_service::<Gateway>(plan.gateway_config(asked_at), gateway.clone()),
    );
    Ok(gateway)
}

/// Where outputs are judged: the service's context and where it listens.
async fn start_output_policy(
    plan: &Plan,
    host: &mut ServiceHost,
) -> anyhow::Result<Option<(Context, SocketAddr)>> {
    let Some(config) = &plan.output else {
        return Ok(None);
    };
    let output = Context::for_host(OutputPolicy::NAME);
    let prepared = airlock_output_policy::Prepared::new(config, output.clone()).await?;
    let address = prepared.address();
    ops::serve(&config.http, ops::standalone_router(&output), &output).await?;
    let (ctx, grace) = (output.clone(), plan.grace_per_service());
    host.spawn_service(output.clone(), async move {
        let served = prepared.serve().await;
        ctx.shutdown.cancel();
        let drained = ctx.tasks.drain(grace).await;
        served.context("output-policy failed")?;
        drained.map_err(|tasks| {
            let tasks = tasks.join(", ");
            anyhow::anyhow!("output-policy did not stop in time; still running: {tasks}")
        })
    });
    Ok(Some((output, address)))
}

async fn run_service<S: Service>(config: S::Config, ctx: Context) -> anyhow::Result<()> {
    Ok(host_service::<S>(config, ctx).await?)
}

/// Says once where the API is, as soon as it works; and why not, when it takes long.
/// Never ends, since it stands beside things that do.
async fn announce_when_ready(gateway: &Context, terminal: Terminal) -> std::convert::Infallible {
    let ready = async {
        let address = gateway.http_address().await;
        while !gateway.health.is_ready() {
            tokio::time::sleep(READY_POLL_INTERVAL).await;
        }
        address
    };
    tokio::pin!(ready);
    let address = tokio::select! {
        address = &mut ready => address,
        () = tokio::time::sleep(NOT_READY_WARNING_AFTER) => {
            let reason = gateway.health.report().reason.unwrap_or_default();
            tracing::warn!(reason, "not ready yet");
            ready.await
        }
    };
    if let Some(address) = address {
        terminal.print(&format!("airlock is ready at {}", plan::local_url(address)));
    }
    std::future::pending().await
}

/// The first signal stops in order, the second exits without looking back.
async fn stop_on_signal(
    (mut terminate, mut interrupt): (Signal, Signal),
    stop: CancellationToken,
    terminal: Terminal,
) {
    let mut next = async || {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    };
    let name = next().await;
    tracing::info!(signal = name, "stopping; a second signal exits at once");
    stop.cancel();
    let name = next().await;
    terminal.error(&format!("second signal ({name}), exiting at once"));
    std::process::exit(i32::from(Exit::Failed.code()));
}
