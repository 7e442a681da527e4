//! What this replica shows of the kernel and of Redis, whether it leads or not: the circuit
//! that all of them share, and in health what an operator must know before the jobs tell.

use std::time::{Duration, Instant};

use airlock_guard::{Guard, Mode};
use airlock_kernel_client::KernelClient;
use airlock_model::Timestamp;
use airlock_model::breaker::Circuit;
use airlock_proto::own;
use airlock_service::{Context, Health, Status};

use super::{KernelConfig, circuit_gauge_value};
use crate::metrics::Metrics;

/// How often every replica looks at the circuit they share.
const POLL: Duration = Duration::from_millis(500);

/// How often each asks the kernel whether it is there.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// Until the service stops. Without Redis only a leader has a circuit, and shows it itself.
pub async fn watch_kernel_health(
    config: KernelConfig,
    guard: Guard,
    metrics: Metrics,
    ctx: Context,
) -> anyhow::Result<()> {
    let breaker = guard.breaker(guard.keys().safety_failures(), config.to_breaker_settings());
    let client = KernelClient::new(&config.to_connection_config()).await?;
    let mut asked: Option<Instant> = None;
    loop {
        // Times do not matter to what is shown.
        let circuit = breaker.sync_from_shared(Timestamp(0)).await;
        if let Some(circuit) = circuit {
            metrics.safety_circuit.set(circuit_gauge_value(circuit));
        }
        if asked.is_none_or(|at| at.elapsed() >= ASK_EVERY) {
            let answer = client.confirm().await.map_err(|e| e.to_string());
            asked = Some(Instant::now());
            show_kernel_health(&ctx.health, circuit, &answer);
            ctx.health.set("redis", redis_status(&guard));
        }
        tokio::select! {
            () = ctx.shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(POLL) => {}
        }
    }
}

fn redis_status(guard: &Guard) -> Status {
    match &*guard.mode().borrow() {
        Mode::Shared => Status::Ok,
        Mode::Local { reason, .. } => Status::Degraded(format!(
            "local mode, duplicates and the circuit are known to this replica alone: {reason}"
        )),
    }
}

fn show_kernel_health(
    health: &Health,
    circuit: Option<Circuit>,
    answer: &Result<own::ConfirmResponse, String>,
) {
    let open = matches!(circuit, Some(Circuit::Open { .. }));
    let kernel = match answer {
        Err(why) => Status::Degraded(format!("it cannot be asked: {why}")),
        Ok(_) if open => {
            Status::Degraded("it answers, but its circuit is open for a while".to_owned())
        }
        Ok(_) => Status::Ok,
    };
    health.set("safety-kernel", kernel);
    // Without an answer nothing is known about its policy.
    let Ok(answer) = answer else { return };
    let policy = if answer.snapshot.is_empty() {
        Status::Degraded("no policy is loaded; every job is denied".to_owned())
    } else if answer.refused.is_empty() {
        Status::Ok
    } else {
        Status::Degraded(format!(
            "the policy before stays in force: {}",
            answer.refused
        ))
    };
    health.set("policy", policy);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_shown_as_degraded_and_stays_ready() {
        let ctx = Context::for_host("test");
        ctx.health.declare_ready();
        let good = own::ConfirmResponse {
            snapshot: "sha256:1".to_owned(),
            ..Default::default()
        };
        let refused = own::ConfirmResponse {
            refused: "line 2".to_owned(),
            ..good.clone()
        };
        let open = Some(Circuit::Open {
            until: Timestamp(0),
        });
        let half = Some(Circuit::HalfOpen {
            probes: 1,
            successes: 0,
            since: Timestamp(0),
        });
        let told = |circuit, answer| {
            show_kernel_health(&ctx.health, circuit, &answer);
            assert!(ctx.health.is_ready());
            let text = |name: &str| format!("{:?}", ctx.health.component_status(name));
            (text("safety-kernel"), text("policy"))
        };
        let (kernel, policy) = told(None, Ok(good.clone()));
        assert!(kernel.contains("Ok") && policy.contains("Ok"));
        assert!(told(half, Ok(good.clone())).0.contains("Ok"));
        assert!(told(open, Ok(good)).0.contains("circuit"));
        assert!(
            told(None, Err("refused".to_owned()))
                .0
                .contains("cannot be asked")
        );
        let (kernel, policy) = told(None, Ok(refused));
        assert!(kernel.contains("Ok") && policy.contains("line 2"));
        assert!(told(None, Ok(Default::default())).1.contains("no policy"));
    }
}
