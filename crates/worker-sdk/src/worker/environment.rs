//! Settings from the environment, which override those of the code.
//!
//! The names are those that services have for the same things, so that one environment
//! serves both. A name that is set but empty counts as unset. What must stay true: a
//! value that makes no sense is an error that names the variable, never a default.

use std::time::Duration;

use airlock_bus::{Secret, SecretUrl};

use crate::worker::config::Draft;
use crate::worker::signing::KeySource;

/// Applies the environment to a draft.
pub(crate) fn apply_environment(
    draft: &mut Draft,
    environment: impl Fn(&str) -> Option<String>,
    problems: &mut Vec<String>,
) {
    let given = |name: &str| environment(name).filter(|value| !value.is_empty());
    apply_identity_vars(draft, &given, problems);
    apply_nats_vars(draft, &given);
    apply_redis_vars(draft, &given);
    if let Some(listen) = given("AIRLOCK_WORKER__METRICS_LISTEN") {
        draft.metrics_listen = Some(listen);
    }
    if let Some(path) = given("AIRLOCK_WORKER__PRIVATE_KEY_FILE") {
        draft.private_key = Some(KeySource::File(path.into()));
    }
    if let Some(path) = given("AIRLOCK_WORKER__SCHEDULER_KEY_FILE") {
        draft.scheduler_key = Some(KeySource::File(path.into()));
    }
    if let Some(seconds) = given("SCHED_SHUTDOWN_GRACE_SECONDS") {
        match seconds.parse() {
            Ok(n @ 1..=3_600) => draft.shutdown_grace = Duration::from_secs(n),
            Ok(_) | Err(_) => problems.push(format!(
                "SCHED_SHUTDOWN_GRACE_SECONDS is {seconds:?}, but must be a number from 1 to 3600"
            )),
        }
    }
}

fn apply_identity_vars(
    draft: &mut Draft,
    given: &impl Fn(&str) -> Option<String>,
    problems: &mut Vec<String>,
) {
    if let Some(id) = given("WORKER_ID") {
        draft.id = Some(id);
    }
    if let Some(folder) = given("AIRLOCK_WORKER__STATE_DIR") {
        draft.state_dir = Some(folder.into());
    }
    if let Some(pool) = given("TASK_QUEUE") {
        draft.pool = pool;
    }
    if let Some(region) = given("AIRLOCK_WORKER__REGION") {
        draft.region = region;
    }
    if let Some(number) = given("AIRLOCK_WORKER__MAX_PARALLEL") {
        match number.parse() {
            Ok(n) => draft.max_parallel = n,
            Err(_) => problems.push(format!(
                "AIRLOCK_WORKER__MAX_PARALLEL is {number:?}, but must be a number"
            )),
        }
    }
    // These are added to what the code says: both know something about the machine.
    if let Some(list) = given("AIRLOCK_WORKER__CAPABILITIES") {
        let names = list
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        draft.capabilities.extend(names.map(str::to_owned));
    }
    for pair in given("AIRLOCK_WORKER__LABELS")
        .iter()
        .flat_map(|list| list.split(','))
    {
        match pair.trim().split_once('=') {
            Some((name, value)) if !name.is_empty() => {
                draft.labels.insert(name.to_owned(), value.to_owned());
            }
            Some(_) | None => problems.push(format!(
                "AIRLOCK_WORKER__LABELS has {pair:?}, but must be name=value, separated by commas"
            )),
        }
    }
}

fn apply_redis_vars(draft: &mut Draft, given: &impl Fn(&str) -> Option<String>) {
    let redis = &mut draft.redis;
    if let Some(url) = given("REDIS_URL").or_else(|| given("AIRLOCK_REDIS__URL")) {
        redis.url = SecretUrl::new(url);
    }
    if let Some(prefix) = given("AIRLOCK_REDIS__PREFIX") {
        redis.prefix = prefix;
    }
    let path = |name: &str| given(name).map(std::path::PathBuf::from);
    redis.tls_ca = path("AIRLOCK_REDIS__TLS_CA").or(redis.tls_ca.take());
    redis.tls_cert = path("AIRLOCK_REDIS__TLS_CERT").or(redis.tls_cert.take());
    redis.tls_key = path("AIRLOCK_REDIS__TLS_KEY").or(redis.tls_key.take());
}

fn apply_nats_vars(draft: &mut Draft, given: &impl Fn(&str) -> Option<String>) {
    let bus = &mut draft.bus;
    if let Some(url) = given("NATS_URL").or_else(|| given("AIRLOCK_NATS__URL")) {
        bus.url = SecretUrl::new(url);
    }
    if let Some(path) = given("AIRLOCK_NATS__CREDENTIALS_FILE") {
        bus.credentials_file = Some(path.into());
    }
    if let Some(user) = given("AIRLOCK_NATS__USER") {
        bus.user = Some(user);
    }
    if let Some(password) = given("AIRLOCK_NATS__PASSWORD") {
        bus.password = Some(Secret::new(password));
    }
    if let Some(token) = given("AIRLOCK_NATS__TOKEN") {
        bus.token = Some(Secret::new(token));
    }
    let path = |name: &str| given(name).map(std::path::PathBuf::from);
    bus.tls_ca = path("AIRLOCK_NATS__TLS_CA").or(bus.tls_ca.take());
    bus.tls_cert = path("AIRLOCK_NATS__TLS_CERT").or(bus.tls_cert.take());
    bus.tls_key = path("AIRLOCK_NATS__TLS_KEY").or(bus.tls_key.take());
    if let Some(prefix) = given("AIRLOCK_NATS__STREAM_PREFIX") {
        bus.stream_prefix = prefix;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::config::Settings;

    fn resolve(environment: &[(&str, &str)]) -> Result<Settings, crate::WorkerError> {
        let lookup = |name: &str| {
            let found = environment.iter().find(|(n, _)| *n == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let draft = Draft::new("demo".to_owned());
        Settings::resolve(draft, vec!["job.echo".to_owned()], lookup)
    }

    #[test]
    fn the_environment_wins() {
        let settings = resolve(&[
            ("WORKER_ID", "other"),
            ("TASK_QUEUE", "gpu"),
            ("NATS_URL", "nats://u:hush@n:1"),
            ("AIRLOCK_NATS__TLS_CA", "/ca.pem"),
            ("AIRLOCK_NATS__TOKEN", "hush"),
            ("AIRLOCK_NATS__TLS_CERT", "/me.pem"),
            ("AIRLOCK_NATS__TLS_KEY", "/me.key"),
            ("REDIS_URL", "rediss://u:hush@r:1"),
            ("AIRLOCK_REDIS__TLS_CA", "/redis-ca.pem"),
            ("SCHED_SHUTDOWN_GRACE_SECONDS", "3"),
            ("AIRLOCK_WORKER__MAX_PARALLEL", "99"),
            ("AIRLOCK_WORKER__REGION", "eu"),
            ("AIRLOCK_WORKER__CAPABILITIES", "gpu, net"),
            ("AIRLOCK_WORKER__LABELS", "disk=ssd,zone=a=b"),
            ("AIRLOCK_WORKER__METRICS_LISTEN", "127.0.0.1:0"),
        ])
        .expect("sound");
        assert_eq!(
            (settings.id.as_str(), settings.pool.as_str()),
            ("other", "gpu")
        );
        assert_eq!(settings.bus.url.expose(), "nats://u:hush@n:1");
        let path = |path: &Option<std::path::PathBuf>| path.clone().unwrap_or_default();
        assert_eq!(path(&settings.bus.tls_ca), *"/ca.pem");
        assert_eq!(path(&settings.bus.tls_cert), *"/me.pem");
        assert_eq!(path(&settings.bus.tls_key), *"/me.key");
        assert_eq!(path(&settings.redis.tls_ca), *"/redis-ca.pem");
        assert_eq!(settings.shutdown_grace, Duration::from_secs(3));
        assert_eq!(
            (settings.max_parallel, settings.region.as_str()),
            (99, "eu")
        );
        assert_eq!(settings.capabilities, ["gpu", "net"]);
        assert_eq!(settings.labels["zone"], "a=b");
        assert_eq!(settings.metrics_listen.as_deref(), Some("127.0.0.1:0"));
        assert!(!format!("{settings:?}").contains("hush"));
    }

    #[test]
    fn nonsense_names_its_variable() {
        let error = resolve(&[
            ("SCHED_SHUTDOWN_GRACE_SECONDS", "soon"),
            ("AIRLOCK_WORKER__MAX_PARALLEL", "many"),
            ("AIRLOCK_WORKER__LABELS", "disk"),
            ("AIRLOCK_NATS__USER", "me"),
            ("AIRLOCK_WORKER__SCHEDULER_KEY_FILE", "/nonexistent/key.pem"),
        ])
        .expect_err("unsound");
        let text = error.to_string();
        for part in [
            "SCHED_SHUTDOWN_GRACE_SECONDS",
            "AIRLOCK_WORKER__MAX_PARALLEL",
            "AIRLOCK_WORKER__LABELS",
            "user and password",
            "/nonexistent/key.pem",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let unset = resolve(&[("WORKER_ID", "")]).expect("empty is unset");
        assert!(unset.id.as_str().starts_with("demo-"), "{}", unset.id);
        assert_eq!(unset.labels["name"], "demo");
    }
}
