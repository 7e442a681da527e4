//! A circuit breaker that all replicas share.
//!
//! The state lives in Redis: failures in a row under the documented key, and beside it
//! since when the circuit is open and who is probing. So one replica's third failure
//! opens the circuit for all of them at once, and all of them together send at most the
//! allowed number of probes. With Redis away each replica goes by its own
//! [`Breaker`], which has the same rules and records everything this replica saw.
//!
//! What must stay true: every admission is reported on, once. A replica that died with
//! a probe in hand is forgiven after [`Settings::probe_lease`].

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use airlock_model::Timestamp;
use airlock_model::breaker::{Admission, Breaker, Circuit, Settings};
use airlock_settings::lock;
use fred::types::Value;

use crate::link::Guard;
use crate::messages::millis_value;

/// Who granted a permit; its report goes to the same place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GrantedBy {
    /// All replicas agree on it.
    Shared {
        /// Failures were counted, or this is a probe: a success must be reported.
        report_success: bool,
    },
    Local,
}

/// Permission to make one call. Return it with the outcome of the call.
#[derive(Debug)]
#[must_use = "an admission that is not reported on leaves a probe open"]
pub struct Permit {
    by: GrantedBy,
}

/// See the module's page.
pub struct SharedBreaker {
    guard: Guard,
    failures: String,
    circuit: String,
    settings: Settings,
    local: Mutex<Local>,
}

struct Local {
    breaker: Breaker,
    /// The circuit opened while Redis was away: it is written to Redis when it is back.
    unshared: bool,
}

impl Guard {
    /// A breaker under one of the documented keys, from [`Keys`](crate::Keys).
    pub fn breaker(&self, failures: String, settings: Settings) -> SharedBreaker {
        SharedBreaker {
            guard: self.clone(),
            circuit: crate::keys::circuit_key(&failures),
            failures,
            settings,
            local: Mutex::new(Local {
                breaker: Breaker::new(settings),
                unshared: false,
            }),
        }
    }
}

impl SharedBreaker {
    /// A permit, needed before each call. `None`: the circuit is open.
    pub async fn admit(&self, now: Timestamp) -> Option<Permit> {
        let script = &self.guard.inner.scripts.breaker_admit;
        let answer: Option<Vec<i64>> = self
            .guard
            .run_script(
                script,
                self.script_keys(),
                self.script_args(self.unshared_open_ms(now)),
            )
            .await;
        let mut local = self.lock();
        let Some(answer) = answer else {
            return match local.breaker.admit(now) {
                Admission::Go => Some(Permit {
                    by: GrantedBy::Local,
                }),
                Admission::Refused => None,
            };
        };
        local.unshared = false;
        let (go, shared) = parse_script_answer(&answer, now);
        // Our own follows, so that it knows where to go on when Redis is lost.
        local.breaker.set_circuit(shared);
        go.then_some(Permit {
            by: GrantedBy::Shared {
                report_success: shared != Circuit::Closed { failures: 0 },
            },
        })
    }

    /// What all replicas agree on, without a permit. Our own breaker follows, so
    /// that a replica that begins knows what the others found out. `None` without Redis.
    pub async fn sync_from_shared(&self, now: Timestamp) -> Option<Circuit> {
        let (inner, keys) = (&self.guard.inner, self.script_keys());
        let script = &inner.scripts.breaker_read;
        let call = script.evalsha_with_reload(&inner.client, keys, self.script_args(0));
        let answer: Vec<i64> = self
            .guard
            .call_redis(inner.config.op_timeout, call)
            .await
            .ok()?;
        let (_, shared) = parse_script_answer(&answer, now);
        let mut local = self.lock();
        // A circuit that opened without Redis has yet to be shared.
        if !local.unshared {
            local.breaker.set_circuit(shared);
        }
        Some(shared)
    }

    pub async fn record_success(&self, permit: Permit) {
        let Permit { by } = permit;
        self.lock().breaker.record_success();
        match by {
            GrantedBy::Shared {
                report_success: true,
            } => {
                let script = &self.guard.inner.scripts.breaker_succeeded;
                let _: Option<i64> = self
                    .guard
                    .run_script(script, self.script_keys(), self.script_args(0))
                    .await;
            }
            GrantedBy::Shared {
                report_success: false,
            }
            | GrantedBy::Local => {}
        }
    }

    pub async fn record_failure(&self, permit: Permit, now: Timestamp) {
        let Permit { by: _ } = permit;
        let script = &self.guard.inner.scripts.breaker_failed;
        // Also what was admitted locally: Redis may be back, and the others want to know.
        let shared: Option<i64> = self
            .guard
            .run_script(script, self.script_keys(), self.script_args(0))
            .await;
        let mut local = self.lock();
        local.breaker.record_failure(now);
        if shared.is_none() && matches!(local.breaker.circuit(), Circuit::Open { .. }) {
            local.unshared = true;
        }
    }

    /// As far as this replica knows: for display, and to decide whether Redis is worth a
    /// call.
    pub fn circuit(&self) -> Circuit {
        self.lock().breaker.circuit()
    }

    /// Milliseconds that a circuit opened without Redis still has to stay open.
    fn unshared_open_ms(&self, now: Timestamp) -> i64 {
        let local = self.lock();
        match local.breaker.circuit() {
            Circuit::Open { until } if local.unshared => {
                i64::try_from(until.since(now).as_millis()).unwrap_or(0)
            }
            Circuit::Open { .. } | Circuit::Closed { .. } | Circuit::HalfOpen { .. } => 0,
        }
    }

    fn script_keys(&self) -> Vec<String> {
        vec![self.failures.clone(), self.circuit.clone()]
    }

    fn script_args(&self, share_ms: i64) -> Vec<Value> {
        let s = &self.settings;
        vec![
            Value::from(i64::from(s.fail_budget)),
            millis_value(s.open_for),
            Value::from(i64::from(s.half_open_max)),
            Value::from(i64::from(s.close_after)),
            millis_value(s.probe_lease),
            Value::from(share_ms),
            millis_value(crate::keys::BREAKER_TTL),
        ]
    }

    fn lock(&self) -> MutexGuard<'_, Local> {
        lock(&self.local)
    }
}

/// `{go, state, a, b}`: state 0 closed with `a` failures, 1 open for another `a` ms,
/// 2 half-open with `a` probes out and `b` successes.
fn parse_script_answer(answer: &[i64], now: Timestamp) -> (bool, Circuit) {
    let at = |i: usize| answer.get(i).copied().unwrap_or(0);
    let small = |i: usize| u32::try_from(at(i)).unwrap_or(u32::MAX);
    let circuit = match at(1) {
        1 => Circuit::Open {
            until: now + Duration::from_millis(u64::try_from(at(2)).unwrap_or(0)),
        },
        2 => Circuit::HalfOpen {
            probes: small(2),
            successes: small(3),
            since: now,
        },
        _ => Circuit::Closed { failures: small(2) },
    };
    (at(0) == 1, circuit)
}
