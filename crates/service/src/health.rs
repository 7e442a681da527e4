//! Whether the service is well, in named components.
//!
//! Ready means that the service has declared itself started, is not stopping, and
//! no component is down. A degraded component does not take a service out of
//! rotation: it works, and says what is wrong. Invariant: a change of a
//! component's kind is logged exactly once, so a component may be set on every
//! tick of a loop.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

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

/// How a component came to its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    New,
    /// It was of another kind before.
    Other,
}

#[derive(Default)]
struct State {
    started: bool,
    components: BTreeMap<String, (Status, Instant)>,
    facts: BTreeMap<String, serde_json::Value>,
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    pub fn set(&self, component: &str, status: Status) {
        let service = &*self.service;
        let Some(before) = self.replace(component, &status) else {
            return;
        };
        match status {
            // A component that starts out well is no news.
            Status::Ok if before == Change::New => {}
            Status::Ok => tracing::info!(service, component, "component is well again"),
            Status::Degraded(message) => {
                tracing::warn!(service, component, message, "component is degraded");
            }
            Status::Down(message) => {
                tracing::error!(service, component, message, "component is down");
            }
        }
    }

    /// Stores `status`, and tells whether that is worth a log line.
    fn replace(&self, component: &str, status: &Status) -> Option<Change> {
        let mut state = self.lock();
        if let Some((current, since)) = state.components.get_mut(component) {
            let same_kind = std::mem::discriminant(current) == std::mem::discriminant(status);
            *current = status.clone();
            if same_kind {
                return None;
            }
            *since = Instant::now();
            return Some(Change::Other);
        }
        if state.components.len() >= MAX_ENTRIES {
            drop(state);
            tracing::error!(
                component,
                "too many health components; this one is not shown"
            );
            return None;
        }
        let entry = (status.clone(), Instant::now());
        state.components.insert(component.to_owned(), entry);
        Some(Change::New)
    }

    /// Forgets a component that no longer exists.
    pub fn remove(&self, component: &str) {
        self.lock().components.remove(component);
    }

    /// Something worth seeing in the report: a policy's version, a role.
    pub fn fact(&self, name: &str, value: impl Into<serde_json::Value>) {
        let mut state = self.lock();
        if state.facts.len() < MAX_ENTRIES || state.facts.contains_key(name) {
            state.facts.insert(name.to_owned(), value.into());
        }
    }

    /// How `component` is, if it was ever set.
    pub fn component(&self, component: &str) -> Option<Status> {
        self.lock()
            .components
            .get(component)
            .map(|(status, _)| status.clone())
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
            .filter_map(|(name, (status, _))| match status {
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
                .map(|(name, (status, since))| {
                    let report = ComponentReport {
                        status: status.clone(),
                        for_seconds: since.elapsed().as_secs(),
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

    #[test]
    fn the_number_of_components_is_bounded() {
        let health = Health::new("probe".into(), CancellationToken::new());
        for number in 0..MAX_ENTRIES + 10 {
            health.ok(&format!("c{number}"));
            health.fact(&format!("f{number}"), number);
        }
        let report = health.report();
        assert_eq!(report.components.len(), MAX_ENTRIES);
        assert_eq!(report.facts.len(), MAX_ENTRIES);
    }
}
