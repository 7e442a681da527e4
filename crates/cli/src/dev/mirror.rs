//! The others' health, shown as components of the gateway's.

use std::time::Duration;

use airlock_service::{Context, HealthReport, Status};

const MIRROR_INTERVAL: Duration = Duration::from_millis(250);

/// Shows each of `others` in `gateway` as it is now.
pub fn mirror_health_once(others: &[Context], gateway: &Context) {
    for other in others {
        gateway
            .health
            .set(other.name(), report_to_status(&other.health.report()));
    }
}

/// [`mirror_health_once`] again and again until the gateway stops.
pub async fn mirror_health_until_shutdown(others: &[Context], gateway: &Context) {
    loop {
        tokio::select! {
            () = gateway.shutdown.cancelled() => return,
            () = tokio::time::sleep(MIRROR_INTERVAL) => {}
        }
        mirror_health_once(others, gateway);
        for other in others {
            // Where the others tell more: their metrics, who leads.
            let Some(Some(address)) = futures::FutureExt::now_or_never(other.http_address()) else {
                continue;
            };
            let name = format!("{}_http", other.name());
            gateway.health.set_fact(&name, format!("http://{address}"));
        }
    }
}

fn report_to_status(report: &HealthReport) -> Status {
    if !report.ready {
        let reason = report
            .reason
            .clone()
            .unwrap_or_else(|| "not ready".to_owned());
        return Status::Down(reason);
    }
    let degraded: Vec<String> = report
        .components
        .iter()
        .filter_map(|(name, component)| match &component.status {
            Status::Degraded(message) => Some(format!("{name}: {message}")),
            Status::Ok | Status::Down(_) => None,
        })
        .collect();
    if degraded.is_empty() {
        Status::Ok
    } else {
        Status::Degraded(degraded.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gateway_is_ready_only_with_all_the_others() {
        let gateway = Context::for_host("gateway");
        let others = ["scheduler", "safety-kernel"].map(Context::for_host);
        gateway.health.declare_ready();
        mirror_health_once(&others, &gateway);
        assert!(!gateway.health.is_ready());

        others[0].health.declare_ready();
        mirror_health_once(&others, &gateway);
        let reason = gateway.health.report().reason;
        assert_eq!(reason.as_deref(), Some("safety-kernel is down: starting"));

        others[1].health.declare_ready();
        others[1]
            .health
            .degraded("policy", "the old one stays in force");
        mirror_health_once(&others, &gateway);
        assert!(gateway.health.is_ready());
        assert_eq!(
            gateway.health.component_status("safety-kernel"),
            Some(Status::Degraded(
                "policy: the old one stays in force".to_owned()
            ))
        );

        others[0].health.down("ledger", "gone");
        mirror_health_once(&others, &gateway);
        assert!(!gateway.health.is_ready());
    }

    #[tokio::test]
    async fn it_ends_with_the_gateway() {
        let gateway = Context::for_host("gateway");
        gateway.shutdown.cancel();
        mirror_health_until_shutdown(&[Context::for_host("scheduler")], &gateway).await;
    }
}
