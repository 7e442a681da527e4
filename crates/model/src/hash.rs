//! The job hash: what an approval, an idempotency key and a decision are bound to.
//!
//! It covers everything that was asked for, the payload by its SHA-256, and leaves out
//! ids, traces and the labels that only Airlock sets, so that the same request always
//! has the same hash and a changed one never does.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::ids::TenantId;
use crate::job::{JobSpec, is_reserved_label};

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct JobHash(pub [u8; 32]);

impl fmt::Display for JobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for b in self.0 {
            write!(f, "{b:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for JobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobHash({self})")
    }
}

#[derive(Serialize)]
struct Canonical<'a> {
    tenant: &'a str,
    spec: &'a JobSpec,
    labels: BTreeMap<&'a str, &'a str>,
    payload_sha256: Option<[u8; 32]>,
}

/// The hash of a request. Maps are sorted and struct fields keep their order, so equal
/// requests encode equally.
pub fn job_hash(tenant: &TenantId, spec: &JobSpec, payload: Option<&[u8]>) -> JobHash {
    let labels: BTreeMap<&str, &str> = spec
        .labels
        .iter()
        .filter(|(k, _)| !is_reserved_label(k))
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    // The labels are hashed apart, filtered, so that a label Airlock adds later (an
    // approval, say) does not change the hash.
    let mut bare = spec.clone();
    bare.labels.clear();
    let canonical = Canonical {
        tenant: tenant.as_str(),
        spec: &bare,
        labels,
        payload_sha256: payload.map(|p| Sha256::digest(p).into()),
    };
    let mut hasher = Sha256::new();
    hasher.update(b"airlock.job.v1\0");
    // Strings, numbers and sorted maps cannot fail to encode.
    if let Ok(bytes) = serde_json::to_vec(&canonical) {
        hasher.update(&bytes);
    }
    JobHash(hasher.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Topic;

    /// Of [`base`] with the payload `x`. Approvals and idempotency keys are bound to it,
    /// so it never changes.
    const HASH: &str = "a032f36222ff1602f441b21399844c53741e3d68b7e3a828dd62ae59591e02cf";

    fn base() -> (TenantId, JobSpec) {
        let mut spec = JobSpec::new(Topic::new("job.echo").unwrap());
        spec.labels.insert("a".into(), "1".into());
        (TenantId::new("t").unwrap(), spec)
    }

    #[test]
    fn covers_topic_labels_payload_and_tenant() {
        let (t, s) = base();
        let h = job_hash(&t, &s, Some(b"x"));
        assert_eq!(h, job_hash(&t, &s.clone(), Some(b"x")));
        assert_ne!(h, job_hash(&t, &s, Some(b"y")));
        assert_ne!(h, job_hash(&t, &s, None));
        assert_ne!(h, job_hash(&TenantId::new("u").unwrap(), &s, Some(b"x")));
        let mut other = s.clone();
        other.labels.insert("b".into(), "2".into());
        assert_ne!(h, job_hash(&t, &other, Some(b"x")));
        let mut other = s;
        other.topic = Topic::new("job.echo2").unwrap();
        assert_ne!(h, job_hash(&t, &other, Some(b"x")));
    }

    #[test]
    fn covers_a_cost_where_there_is_one_and_keeps_the_old_hash_where_there_is_none() {
        let (t, s) = base();
        let plain = job_hash(&t, &s, Some(b"x"));
        assert_eq!(plain.to_string(), HASH);
        let with = |amount: f64| {
            let mut spec = s.clone();
            spec.estimated_cost = Some(crate::job::Cost::new(amount).unwrap());
            job_hash(&t, &spec, Some(b"x"))
        };
        assert_ne!(with(0.0), plain);
        assert_ne!(with(1.0), with(2.0));
        assert_eq!(with(1.0), with(1.0));
    }

    #[test]
    fn leaves_reserved_labels_out() {
        let (t, s) = base();
        let mut approved = s.clone();
        approved
            .labels
            .insert("approval_granted".into(), "true".into());
        assert_eq!(job_hash(&t, &approved, None), job_hash(&t, &s, None));
    }
}
