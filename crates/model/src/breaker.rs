//! The circuit breaker as plain control flow, with the time passed in.
//!
//! Closed until [`Settings::fail_budget`] failures in a row; open for
//! [`Settings::open_for`]; then half-open with at most [`Settings::half_open_max`]
//! probes, of which any failure opens it again and [`Settings::close_after`] successes
//! close it. The caller asks [`Breaker::admit`] before a call and reports what came of
//! it.

use std::time::Duration;

use crate::time::Timestamp;

/// The constants of the safety client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    pub fail_budget: u32,
    pub open_for: Duration,
    pub half_open_max: u32,
    pub close_after: u32,
    /// A probe that says nothing for so long is given up, or one that died with its
    /// process would keep the circuit half-open for ever.
    pub probe_lease: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            fail_budget: 3,
            open_for: Duration::from_secs(30),
            half_open_max: 3,
            close_after: 2,
            probe_lease: Duration::from_secs(10),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Circuit {
    Closed {
        failures: u32,
    },
    Open {
        until: Timestamp,
    },
    HalfOpen {
        probes: u32,
        successes: u32,
        /// When the last probe went out.
        since: Timestamp,
    },
}

/// Whether a call may go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    Go,
    /// "safety kernel circuit open".
    Refused,
}

#[derive(Debug, Clone)]
pub struct Breaker {
    settings: Settings,
    circuit: Circuit,
}

impl Breaker {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            circuit: Circuit::Closed { failures: 0 },
        }
    }

    pub fn circuit(&self) -> Circuit {
        self.circuit
    }

    /// Takes over a state that others agreed on.
    pub fn set_circuit(&mut self, circuit: Circuit) {
        self.circuit = circuit;
    }

    /// Asked before each call; in half-open, an admission is a probe.
    pub fn admit(&mut self, now: Timestamp) -> Admission {
        match self.circuit {
            Circuit::Closed { .. } => Admission::Go,
            Circuit::Open { until } if now < until => Admission::Refused,
            Circuit::Open { .. } => {
                self.circuit = Circuit::HalfOpen {
                    probes: 1,
                    successes: 0,
                    since: now,
                };
                Admission::Go
            }
            Circuit::HalfOpen {
                probes,
                successes,
                since,
            } => {
                let full = probes >= self.settings.half_open_max;
                if full && now < since + self.settings.probe_lease {
                    return Admission::Refused;
                }
                self.circuit = Circuit::HalfOpen {
                    probes: if full { 1 } else { probes + 1 },
                    successes,
                    since: now,
                };
                Admission::Go
            }
        }
    }

    pub fn record_success(&mut self) {
        match self.circuit {
            Circuit::Closed { .. } => self.circuit = Circuit::Closed { failures: 0 },
            // A call that was admitted before it opened tells nothing about now.
            Circuit::Open { .. } => {}
            Circuit::HalfOpen {
                probes,
                successes,
                since,
            } => {
                self.circuit = if successes + 1 >= self.settings.close_after {
                    Circuit::Closed { failures: 0 }
                } else {
                    Circuit::HalfOpen {
                        probes,
                        successes: successes + 1,
                        since,
                    }
                };
            }
        }
    }

    pub fn record_failure(&mut self, now: Timestamp) {
        let open = Circuit::Open {
            until: now + self.settings.open_for,
        };
        match self.circuit {
            Circuit::Closed { failures } if failures + 1 >= self.settings.fail_budget => {
                self.circuit = open;
            }
            Circuit::Closed { failures } => {
                self.circuit = Circuit::Closed {
                    failures: failures + 1,
                };
            }
            Circuit::Open { .. } => {}
            Circuit::HalfOpen { .. } => self.circuit = open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: i64) -> Timestamp {
        Timestamp(s * 1_000_000)
    }

    fn opened() -> Breaker {
        let mut b = Breaker::new(Settings::default());
        for _ in 0..3 {
            assert_eq!(b.admit(at(0)), Admission::Go);
            b.record_failure(at(0));
        }
        b
    }

    #[test]
    fn three_failures_in_a_row_open_it_for_thirty_seconds() {
        let mut b = opened();
        assert_eq!(b.admit(at(0)), Admission::Refused);
        assert_eq!(b.admit(Timestamp(29_999_999)), Admission::Refused);
        assert_eq!(b.admit(at(30)), Admission::Go);
    }

    #[test]
    fn a_success_clears_the_count() {
        let mut b = Breaker::new(Settings::default());
        for _ in 0..10 {
            b.record_failure(at(0));
            b.record_failure(at(0));
            b.record_success();
        }
        assert_eq!(b.circuit(), Circuit::Closed { failures: 0 });
    }

    #[test]
    fn half_open_lets_three_probes_out_and_two_successes_close_it() {
        let mut b = opened();
        for _ in 0..3 {
            assert_eq!(b.admit(at(30)), Admission::Go);
        }
        assert_eq!(b.admit(at(30)), Admission::Refused);
        b.record_success();
        assert!(matches!(
            b.circuit(),
            Circuit::HalfOpen { successes: 1, .. }
        ));
        assert_eq!(
            b.admit(at(31)),
            Admission::Refused,
            "three probes in all, answered or not"
        );
        b.record_success();
        assert_eq!(b.circuit(), Circuit::Closed { failures: 0 });
    }

    #[test]
    fn probes_that_say_nothing_are_forgiven() {
        let mut b = opened();
        for _ in 0..3 {
            assert_eq!(b.admit(at(30)), Admission::Go);
        }
        assert_eq!(b.admit(at(39)), Admission::Refused);
        assert_eq!(b.admit(at(40)), Admission::Go);
        b.record_success();
        b.record_success();
        assert_eq!(b.circuit(), Circuit::Closed { failures: 0 });
    }

    #[test]
    fn the_defaults_are_the_documents() {
        let s = Settings::default();
        assert_eq!(
            (
                s.fail_budget,
                s.open_for.as_secs(),
                s.half_open_max,
                s.close_after
            ),
            (3, 30, 3, 2)
        );
    }

    #[test]
    fn any_failed_probe_opens_it_for_another_thirty_seconds() {
        let mut b = opened();
        b.admit(at(30));
        b.record_success();
        b.admit(at(31));
        b.record_failure(at(31));
        assert_eq!(b.circuit(), Circuit::Open { until: at(61) });
    }
}
