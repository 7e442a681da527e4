//! What a job is expected to cost.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A finite number that is not negative, so that it compares and hashes like any other
/// part of a job.
#[derive(Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Cost(f64);

/// A number that is no cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a cost is a finite number that is not negative")]
pub struct CostError;

impl Cost {
    pub fn new(amount: f64) -> Result<Self, CostError> {
        if amount.is_finite() && amount >= 0.0 {
            // There is one zero.
            Ok(Self(amount + 0.0))
        } else {
            Err(CostError)
        }
    }

    pub fn get(self) -> f64 {
        self.0
    }
}

impl Eq for Cost {}

impl TryFrom<f64> for Cost {
    type Error = CostError;
    fn try_from(amount: f64) -> Result<Self, CostError> {
        Self::new(amount)
    }
}

impl From<Cost> for f64 {
    fn from(cost: Cost) -> f64 {
        cost.0
    }
}

impl std::str::FromStr for Cost {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let amount: f64 = s.parse().map_err(|_| format!("{s:?} is no number"))?;
        Self::new(amount).map_err(|e| e.to_string())
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cost({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_finite_and_not_negative() {
        for amount in [f64::NAN, f64::INFINITY, -1.0, f64::NEG_INFINITY] {
            assert_eq!(Cost::new(amount), Err(CostError), "{amount}");
        }
        let zero = Cost::new(-0.0).unwrap();
        assert_eq!(zero.get().to_bits(), 0);
        assert_eq!("12.5".parse::<Cost>().unwrap().get(), 12.5);
        assert!("much".parse::<Cost>().is_err());
        assert!(serde_json::from_str::<Cost>("-3").is_err());
        let cost: Cost = serde_json::from_str("5000").unwrap();
        assert_eq!(cost.get(), 5000.0);
    }
}
