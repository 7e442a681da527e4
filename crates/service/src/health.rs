//! Whether the service is well, in named components.
//!
//! Ready means that the service has declared itself started, is not stopping, and
//! no component is down. A degraded component does not take a service out of
//! rotation: it works, and says what is wrong. Invariant: a change of a
//! component's kind is logged exactly once, so a component may be set on every
//! tick of a loop.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use airlock_settings::lock;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

/// Components and facts beyond this are refused with a log line: the names must
/// come from code, not from data.
const MAX_ENTRIES: usize = 256;

/// How a component is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "status", content = "message", rename_all = "snake_case")]
pub enum Status {
    Ok,
    /// It works, with a limitation worth knowing.
    Degraded(String),
    /// The service cannot do its work.
    Down(String),
}

/// How long a component may connect for the first time before that is logged.
const START_GRACE: Duration = Duration::from_secs(10);

/// A change that is worth a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoggedChange {
    /// It is like that from now on.
    Now,
    /// It is there for the first time, after [`Health::set_connecting`].
    Connected,
}

struct Component {
    status: Status,
    since: Instant,
    /// It has never been connected, and nobody was warned yet.
    connecting: bool,
}

impl Component {
    fn new(status: Status, connecting: bool) -> Self {
        Self {
            status,
            since: Instant::now(),
            connecting,
        }
    }
}

#[derive(Default)]
struct State {
    started: bool,
    components: BTreeMap<String, Component>,
    facts: BTreeMap<String, serde_json::Value>,
}

impl State {
    fn has_room_for(&self, component: &str) -> bool {
        self.components.len() < MAX_ENTRIES || self.components.contains_key(component)
    }
}

/// The health of one service. Clones share it.
#[derive(Clone)]
pub struct Health {
    service: Arc<str>,
    since: Instant,
    shutdown: CancellationToken,
    state: Arc<Mutex<State>>,
}

/// One component in a report.
#[derive(Debug, Clone, Serialize)]
pub struct ComponentReport {
    #[serde(flatten)]
    pub status: Status,
    /// How long it has been so.
    pub for_seconds: u64,
}

/// What `/health/ready` answers.
#[derive(Debug, Clone, Serialize)]
pub struct HealthReport {
    pub service: String,
    pub version: &'static str,
    pub ready: bool,
    /// Why not, in plain words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub uptime_seconds: u64,
    pub components: BTreeMap<String, ComponentReport>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub facts: BTreeMap<String, serde_json::Value>,
}

impl Health {
    pub(crate) fn new(service: Arc<str>, shutdown: CancellationToken) -> Self {
        Self {
            service,
            since: Instant::now(),
            shutdown,
            state: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The service has started and can work. Until then it is not ready.
    pub fn declare_ready(&self) {
        self.lock().started = true;
    }

    pub fn ok(&self, component: &str) {
        self.set(component, Status::Ok);
    }

    pub fn degraded(&self, component: &str, message: impl Into<String>) {
        self.set(component, Status::Degraded(message.into()));
    }

    pub fn down(&self, component: &str, message: impl Into<String>) {
        self.set(component, Status::Down(message.into()));
    }

    /// It is `status` because it was never connected yet, which is how every service
    /// starts. If it stays so, [`set`](Self::set) says so after a grace.
    pub fn set_connecting(&self, component: &str, status: Status) {
        let mut state = self.lock();
        if state.has_room_for(component) {
            let connecting = Component::new(status, true);
            state.components.insert(component.to_owned(), connecting);
        }
    }

    pub fn set(&self, component: &str, status: Status) {
        let service = &*self.service;
        let Some(change) = self.replace_status(component, &status) else {
            return;
        };
        match (status, change) {
            (Status::Ok, LoggedChange::Connected) => {
                tracing::info!(service, component, "component connected");
            }
            (Status::Ok, LoggedChange::Now) => {
                tracing::info!(service, component, "component recovered");
            }
            (Status::Degraded(reason), _) => {
                tracing::warn!(service, component, reason, "component degraded");
            }
            (Status::Down(reason), _) => {
                tracing::error!(service, component, reason, "component down");
            }
        }
    }

    /// Stores `status`. Returns the change if it is worth a log line.
    fn replace_status(&self, component: &str, status: &Status) -> Option<LoggedChange> {
        let mut state = self.lock();
        if let Some(current) = state.components.get_mut(component) {
            let same_kind =
                std::mem::discriminant(&current.status) == std::mem::discriminant(status);
            let connected = current.connecting && *status == Status::Ok;
            let overdue = current.connecting && current.since.elapsed() >= START_GRACE;
            current.status = status.clone();
            if !same_kind {
                current.since = Instant::now();
            }
            current.connecting &= !connected && !overdue;
            return if connected {
                Some(LoggedChange::Connected)
            } else {
                ((!same_kind && !current.connecting) || overdue).then_some(LoggedChange::Now)
            };
        }
        if !state.has_room_for(component) {
            drop(state);
            tracing::error!(component, "too many health components, component not shown");
            return None;
        }
        let entry = Component::new(status.clone(), false);
        state.components.insert(component.to_owned(), entry);
        // A component that starts out well is not logged.
        (*status != Status::Ok).then_some(LoggedChange::Now)
    }

    /// Forgets a component that no longer exists.
    pub fn remove(&self, component: &str) {
        self.lock().components.remove(component);
    }

    /// Something worth seeing in the report: a policy's version, a role.
    pub fn set_fact(&self, name: &str, value: impl Into<serde_json::Value>) {
        let mut state = self.lock();
        if state.facts.len() < MAX_ENTRIES || state.facts.contains_key(name) {
            state.facts.insert(name.to_owned(), value.into());
        }
    }

    /// How `component` is, if it was ever set.
    pub fn component_status(&self, component: &str) -> Option<Status> {
        self.lock()
            .components
            .get(component)
            .map(|component| component.status.clone())
    }

    pub fn is_ready(&self) -> bool {
        self.report().ready
    }

    /// Everything, for `/health/ready`.
    pub fn report(&self) -> HealthReport {
        let state = self.lock();
        let down: Vec<String> = state
            .components
            .iter()
            .filter_map(|(name, component)| match &component.status {
                Status::Down(message) => Some(format!("{name} is down: {message}")),
                Status::Ok | Status::Degraded(_) => None,
            })
            .collect();
        let reason = if self.shutdown.is_cancelled() {
            Some("stopping".to_owned())
        } else if !down.is_empty() {
            Some(down.join("; "))
        } else if !state.started {
            Some("starting".to_owned())
        } else {
            None
        };
        HealthReport {
            service: self.service.to_string(),
            version: crate::VERSION,
            ready: reason.is_none(),
            reason,
            uptime_seconds: self.since.elapsed().as_secs(),
            components: state
                .components
                .iter()
                .map(|(name, component)| {
                    let report = ComponentReport {
                        status: component.status.clone(),
                        for_seconds: component.since.elapsed().as_secs(),
                    };
                    (name.clone(), report)
                })
                .collect(),
            facts: state.facts.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_needs_a_start_no_component_down_and_no_shutdown() {
        let shutdown = CancellationToken::new();
        let health = Health::new("probe".into(), shutdown.clone());
        assert_eq!(health.report().reason.as_deref(), Some("starting"));
        health.declare_ready();
        assert!(health.is_ready());
        health.degraded("guard", "redis is away, local mode");
        assert!(health.is_ready());
        health.down("ledger", "connection refused");
        let report = health.report();
        assert_eq!(
            report.reason.as_deref(),
            Some("ledger is down: connection refused")
        );
        health.ok("ledger");
        assert!(health.is_ready());
        shutdown.cancel();
        assert_eq!(health.report().reason.as_deref(), Some("stopping"));
    }

    /// What was logged while `work` ran, as JSON.
    fn logged(work: impl FnOnce()) -> String {
        use std::io;
        use tracing_subscriber::fmt::MakeWriter;

        #[derive(Clone, Default)]
        struct Lines(Arc<Mutex<Vec<u8>>>);
        impl io::Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        impl<'a> MakeWriter<'a> for Lines {
            type Writer = Self;
            fn make_writer(&'a self) -> Self {
                self.clone()
            }
        }
        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_writer(lines.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, work);
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_line_has_each_key_once_and_the_event_is_its_message() {
        let health = Health::new("probe".into(), CancellationToken::new());
        let text = logged(|| {
            health.degraded("guard", "redis is away");
            health.down("ledger", "refused");
            health.ok("ledger");
        });
        for (line, event) in text.lines().zip(["degraded", "down", "recovered"]) {
            assert_eq!(line.matches("\"message\":").count(), 1, "{line}");
            let json: serde_json::Value = serde_json::from_str(line).unwrap();
            let message = json["message"].as_str().unwrap();
            assert!(message.starts_with("component"), "{line}");
            assert!(message.contains(event), "{line}");
        }
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains(r#""reason":"refused""#), "{text}");
    }

    #[test]
    fn a_normal_start_is_no_error_and_one_that_stays_so_is() {
        let health = Health::new("probe".into(), CancellationToken::new());
        let text = logged(|| {
            health.set_connecting("ledger", Status::Down("not connected yet".to_owned()));
            health.down("ledger", "refused");
            assert!(!health.is_ready());
            health.ok("ledger");
        });
        assert!(
            !text.contains("ERROR") && text.contains("component connected"),
            "{text}"
        );
        let text = logged(|| health.down("ledger", "refused"));
        assert!(text.contains("ERROR"), "{text}");

        health.set_connecting("bus", Status::Degraded("not connected yet".to_owned()));
        let long_ago = Instant::now().checked_sub(START_GRACE).unwrap();
        health.lock().components.get_mut("bus").unwrap().since = long_ago;
        let text = logged(|| {
            health.degraded("bus", "refused");
            health.degraded("bus", "refused");
        });
        assert_eq!(text.matches("WARN").count(), 1, "{text}");
    }

    #[test]
    fn the_number_of_components_is_bounded() {
        let health = Health::new("probe".into(), CancellationToken::new());
        for number in 0..MAX_ENTRIES + 10 {
            health.ok(&format!("c{number}"));
            health.set_fact(&format!("f{number}"), number);
        }
        let report = health.report();
        assert_eq!(report.components.len(), MAX_ENTRIES);
        assert_eq!(report.facts.len(), MAX_ENTRIES);
    }
}
