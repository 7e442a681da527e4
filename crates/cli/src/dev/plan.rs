//! The configurations of all services, and what one process changes in them.
//!
//! Overridden is only what would otherwise clash or could not be known beforehand: the
//! ports of kernel, output policy, scheduler and saga manager are free ones, scheduler and
//! gateway are told where the others listen, and each service gets a part of the grace, since
//! they stop one after the
//! other. The kernel is asked in plain text, as that never leaves this machine. Tasks need
//! no key where only this machine can bring them. The output policy runs where
//! `OUTPUT_POLICY_ENABLED` is true.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use airlock_gateway::auth::is_loopback;
use airlock_gateway::{Gateway, GatewayConfig};
use airlock_output_policy::{Config as OutputConfig, OutputPolicy};
use airlock_safety_kernel::{Config as KernelConfig, SafetyKernel};
use airlock_saga_manager::SagaManager;
use airlock_scheduler::Scheduler;
use airlock_service::config::{self, ConfigError, Loaded, Sources};
use airlock_service::{Service, ServiceConfig, TelemetryConfig};

type SchedulerConfig = <Scheduler as Service>::Config;

const ANY_PORT: &str = "127.0.0.1:0";
/// What `host` adds to the grace of each service.
const HOST_EXTRA_SECONDS: u64 = 1;
/// Gateway, scheduler, saga manager and kernel; the output policy is one more.
const SERVICE_COUNT: u64 = 4;
const OUTPUT_ENABLED: &str = "OUTPUT_POLICY_ENABLED";
/// Who says it there is obeyed.
const ANONYMOUS_TASKS: &str = "AIRLOCK_AUTH__ANONYMOUS_TASKS";

/// Not `Debug`: the environment in it holds keys and passwords.
pub struct Plan {
    pub gateway: GatewayConfig,
    pub kernel: KernelConfig,
    /// Only where outputs are judged.
    pub output: Option<OutputConfig>,
    pub saga_manager: <SagaManager as Service>::Config,
    /// For the scheduler, whose configuration is complete only when the kernel listens.
    sources: Sources,
    /// The gateway follows its file while it runs.
    pub gateway_sources: Sources,
    grace: u64,
}

impl Plan {
    /// All the configurations, or everything that is wrong with any of them.
    pub fn load(sources: Sources, listen: Option<&str>) -> Result<Self, Vec<ConfigError>> {
        let sources = without_peer_tls(sources);
        let own_ports = format!("http.listen={ANY_PORT}");
        let kernel_port = format!("grpc.listen={ANY_PORT}");
        let mut gateway_sources = sources.clone();
        let rest = listen.map(|address| format!("http.listen={address}"));
        gateway_sources.set.extend(rest);

        let gateway = config::load::<Gateway>(&gateway_sources);
        let saga_manager = load_config::<SagaManager>(&sources, std::slice::from_ref(&own_ports));
        let ports = [own_ports, kernel_port];
        let kernel = load_config::<SafetyKernel>(&sources, &ports);
        let output = judges_outputs(&sources)
            .then(|| load_config::<OutputPolicy>(&sources, &ports))
            .transpose();
        // The address is only a placeholder here: mistakes must show before anything starts.
        let scheduler = load_scheduler_config(
            &sources,
            SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
            None,
            1,
        );
        match (gateway, kernel, output, scheduler, saga_manager) {
            (Ok(gateway), Ok(kernel), Ok(output), Ok(_), Ok(saga_manager)) => {
                let mut plan = Self {
                    grace: gateway.config.shutdown.grace_seconds,
                    gateway: gateway.config,
                    kernel: kernel.config,
                    output: output.map(|loaded| loaded.config),
                    saga_manager: saga_manager.config,
                    sources,
                    gateway_sources,
                };
                plan.gateway.shutdown.grace_seconds = plan.grace_seconds_per_service();
                plan.kernel.shutdown.grace_seconds = plan.grace_seconds_per_service();
                plan.saga_manager.shutdown.grace_seconds = plan.grace_seconds_per_service();
                plan.kernel.grpc.tls = None;
                let grace = plan.grace_seconds_per_service();
                if let Some(output) = &mut plan.output {
                    output.shutdown.grace_seconds = grace;
                    output.grpc.tls = None;
                }
                if !plan.sources.env.contains_key(ANONYMOUS_TASKS) {
                    let listen = &plan.gateway.http.listen;
                    plan.gateway.auth.anonymous_tasks = is_loopback(listen);
                }
                Ok(plan)
            }
            (gateway, kernel, output, scheduler, saga_manager) => Err([
                gateway.err(),
                kernel.err(),
                output.err(),
                scheduler.err(),
                saga_manager.err(),
            ]
            .into_iter()
            .flatten()
            .collect()),
        }
    }

    /// The scheduler's configuration, now that it is known where the others listen.
    pub fn scheduler_config(
        &self,
        kernel: SocketAddr,
        output: Option<SocketAddr>,
    ) -> Result<SchedulerConfig, ConfigError> {
        let grace = self.grace_seconds_per_service();
        load_scheduler_config(&self.sources, kernel, output, grace)
    }

    /// The gateway's configuration, likewise.
    pub fn gateway_config(&self, kernel: SocketAddr) -> GatewayConfig {
        let mut config = self.gateway.clone();
        config.kernel.url = format!("http://{kernel}");
        config
    }

    pub fn telemetry(&self) -> &TelemetryConfig {
        self.gateway.telemetry()
    }

    /// How long all of them together may take to stop.
    pub fn total_grace(&self) -> Duration {
        Duration::from_secs(self.grace)
    }

    /// What each of them may take of it.
    pub fn grace_per_service(&self) -> Duration {
        Duration::from_secs(self.grace_seconds_per_service())
    }

    fn grace_seconds_per_service(&self) -> u64 {
        let services = SERVICE_COUNT + u64::from(self.output.is_some());
        (self.grace / services)
            .saturating_sub(HOST_EXTRA_SECONDS)
            .max(1)
    }
}

fn load_config<S: Service>(
    sources: &Sources,
    set: &[String],
) -> Result<Loaded<S::Config>, ConfigError> {
    let mut sources = sources.clone();
    sources.set.extend_from_slice(set);
    config::load::<S>(&sources)
}

fn load_scheduler_config(
    sources: &Sources,
    kernel: SocketAddr,
    output: Option<SocketAddr>,
    grace: u64,
) -> Result<SchedulerConfig, ConfigError> {
    let mut sources = sources.clone();
    if let Some(output) = output {
        let url = format!("http://{output}");
        sources.env.insert("AIRLOCK_OUTPUT__URL".to_owned(), url);
    }
    let set = [
        format!("http.listen={ANY_PORT}"),
        format!("kernel.url=http://{kernel}"),
        format!("shutdown.grace_seconds={grace}"),
    ];
    Ok(load_config::<Scheduler>(&sources, &set)?.config)
}

fn judges_outputs(sources: &Sources) -> bool {
    let value = sources.env.get(OUTPUT_ENABLED);
    value.is_some_and(|value| value.trim().eq_ignore_ascii_case("true"))
}

/// What an environment may say about TLS is meant for services of their own.
fn without_peer_tls(mut sources: Sources) -> Sources {
    for peer in ["SAFETY_KERNEL", "OUTPUT_POLICY"] {
        for name in ["TLS_CA", "TLS_REQUIRED"] {
            sources.env.remove(&format!("{peer}_{name}"));
        }
        let insecure = format!("{peer}_INSECURE");
        sources.env.insert(insecure, "true".to_owned());
    }
    sources
}

/// How to reach a listener from this machine: one listens on "all addresses", but
/// nobody can connect to them.
pub fn local_url(mut listener: SocketAddr) -> String {
    if listener.ip().is_unspecified() {
        listener.set_ip(match listener.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    format!("http://{listener}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(env: &[(&str, &str)]) -> Sources {
        let mut sources = Sources {
            directory: "/nonexistent".into(),
            ..Sources::default()
        };
        let always = [
            ("AIRLOCK_API_KEY", "dev-key"),
            ("DATABASE_URL", "postgres://localhost/airlock"),
        ];
        for (name, value) in always.iter().chain(env) {
            sources.env.insert((*name).to_owned(), (*value).to_owned());
        }
        sources
    }

    #[test]
    fn the_listener_is_the_flags_and_no_other_port_is_fixed() {
        let env = sources(&[("AIRLOCK_HTTP__LISTEN", "127.0.0.1:9999")]);
        let plan = Plan::load(env.clone(), Some("127.0.0.1:8123")).unwrap();
        assert_eq!(plan.gateway.http.listen, "127.0.0.1:8123");
        assert_eq!(plan.kernel.http.listen, ANY_PORT);
        assert_eq!(plan.kernel.grpc.listen, ANY_PORT);
        let plan = Plan::load(env, None).unwrap();
        assert_eq!(plan.gateway.http.listen, "127.0.0.1:9999");
        let plan = Plan::load(sources(&[]), None).unwrap();
        assert_eq!(plan.gateway.http.listen, "127.0.0.1:8080");
    }

    #[test]
    fn tasks_need_no_key_on_this_machine_unless_somebody_says_so() {
        let open = |env: &[(&str, &str)], listen| {
            let plan = Plan::load(sources(env), Some(listen)).unwrap();
            plan.gateway.auth.anonymous_tasks
        };
        assert!(open(&[], "127.0.0.1:8123"));
        assert!(!open(
            &[("AIRLOCK_AUTH__ANONYMOUS_TASKS", "false")],
            "127.0.0.1:8123"
        ));
        let long = [("AIRLOCK_API_KEY", "dev-0123456789abcdef")];
        assert!(!open(&long, "0.0.0.0:8123"));
    }

    #[test]
    fn the_scheduler_asks_our_kernel_in_plain_text() {
        let plan = Plan::load(
            sources(&[
                ("AIRLOCK_KERNEL__URL", "https://kernel.example:50051"),
                ("SAFETY_KERNEL_TLS_CA", "/ca.pem"),
                ("SAFETY_KERNEL_TLS_REQUIRED", "true"),
            ]),
            None,
        )
        .unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 4321));
        let scheduler = plan.scheduler_config(address, None).unwrap();
        assert!(plan.output.is_none());
        assert_eq!(scheduler.kernel.url, "http://127.0.0.1:4321");
        assert_eq!(scheduler.http().listen, ANY_PORT);
        let gateway = plan.gateway_config(address);
        assert_eq!(gateway.kernel.url, "http://127.0.0.1:4321");
        assert!(gateway.kernel.insecure && gateway.kernel.tls_ca.is_none());
    }

    #[test]
    fn the_output_policy_runs_where_it_is_switched_on() {
        let env = [
            ("OUTPUT_POLICY_ENABLED", "true"),
            ("OUTPUT_POLICY_TLS_REQUIRED", "true"),
            ("SCHED_SHUTDOWN_GRACE_SECONDS", "40"),
        ];
        let plan = Plan::load(sources(&env), None).unwrap();
        let output = plan.output.as_ref().unwrap();
        assert_eq!(output.grpc.listen, ANY_PORT);
        assert_eq!(output.http.listen, ANY_PORT);
        assert!(output.grpc.insecure && !output.grpc.tls_required);
        assert_eq!(output.shutdown.grace_seconds, 7);
    }

    #[test]
    fn all_of_them_stop_within_one_grace() {
        for (grace, share) in [("8", 1), ("30", 6), ("1", 1)] {
            let env = sources(&[("SCHED_SHUTDOWN_GRACE_SECONDS", grace)]);
            let plan = Plan::load(env, None).unwrap();
            assert_eq!(plan.gateway.shutdown.grace_seconds, share, "{grace}");
            assert_eq!(plan.grace_per_service(), Duration::from_secs(share));
            assert_eq!(plan.total_grace().as_secs().to_string(), grace);
        }
    }

    #[test]
    fn every_mistake_is_told_at_once() {
        let mut env = sources(&[("SCHED_SHUTDOWN_GRACE_SECONDS", "soon")]);
        env.env.remove("AIRLOCK_API_KEY");
        let problems = Plan::load(env, Some("nowhere")).err().unwrap();
        let services: Vec<_> = problems.iter().map(|problem| problem.service).collect();
        assert_eq!(
            services,
            ["gateway", "safety-kernel", "scheduler", "saga-manager"]
        );
    }

    #[test]
    fn all_addresses_are_reached_by_loopback() {
        let url = |text: &str| super::local_url(text.parse().unwrap());
        assert_eq!(url("0.0.0.0:80"), "http://127.0.0.1:80");
        assert_eq!(url("[::]:80"), "http://[::1]:80");
        assert_eq!(url("10.0.0.1:80"), "http://10.0.0.1:80");
    }
}
